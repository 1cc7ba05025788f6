// Connection to TensorBoard, whose page contains this one in an iframe. Messages are JSON over one port:
// {type, id, payload, error, isReply}. TensorBoard expects a reply to every message that is not one itself.

const listeners = new Map();
let port = null;

/** Open the port; outside of TensorBoard, no message ever arrives. */
export function connect() {
  const channel = new MessageChannel();
  port = channel.port1;
  port.onmessage = (event) => receive(JSON.parse(event.data));
  window.parent.postMessage("experimental.bootstrap", "*", [channel.port2]);
}

/** Call `listen` whenever TensorBoard has reloaded its data, by its button or its timer. */
export function onReload(listen) {
  listeners.set("experimental.DataReloaded", listen);
}

/**
 * Return the parameters `p.fieldwatch.<name>` of TensorBoard's address (#fieldwatch&p.fieldwatch.run=bear) as {name: text}.
 * They are not requested from TensorBoard, which does not know its own address before a tab has been chosen.
 */
export function address() {
  const parts = window.parent.location.hash.slice(1).split("&").filter((part) => part.startsWith("p.fieldwatch."));
  return Object.fromEntries(parts.map((part) => part.slice("p.fieldwatch.".length).split("=", 2)));
}

function receive(message) {
  if (message.isReply) return;
  listeners.get(message.type)?.();
  port.postMessage(JSON.stringify({ type: message.type, id: message.id, payload: null, error: null, isReply: true }));
}
