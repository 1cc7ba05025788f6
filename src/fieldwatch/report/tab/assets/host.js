// What TensorBoard tells the page inside it: that its data was loaded again, which runs it has, what its address says.
// Its messages are JSON over one port: {type, id, payload, error, isReply}; every one that is no reply wants a reply.

const listeners = new Map();
let port = null;

/** Open the port; without a TensorBoard around the page nothing ever comes. */
export function connect() {
  const channel = new MessageChannel();
  port = channel.port1;
  port.onmessage = (event) => received(JSON.parse(event.data));
  window.parent.postMessage("experimental.bootstrap", "*", [channel.port2]);
}

/** Call `listen` when TensorBoard's data was loaded again: by its button or by its own clock. */
export function onReload(listen) {
  listeners.set("experimental.DataReloaded", listen);
}

/**
 * What stands behind `p.fieldwatch.` in TensorBoard's address (#fieldwatch&p.fieldwatch.run=bear), as {name: text}.
 * TensorBoard would answer this too, but does not know its address before somebody has changed the tab.
 */
export function address() {
  const parts = window.parent.location.hash.slice(1).split("&").filter((part) => part.startsWith("p.fieldwatch."));
  return Object.fromEntries(parts.map((part) => part.slice("p.fieldwatch.".length).split("=", 2)));
}

function received(message) {
  if (message.isReply) return;
  listeners.get(message.type)?.();
  port.postMessage(JSON.stringify({ type: message.type, id: message.id, payload: null, error: null, isReply: true }));
}
