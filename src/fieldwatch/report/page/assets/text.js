// Text and elements; text_format.js has numbers and times. Strings of an account are assigned only to textContent and attributes.

const SVG = "http://www.w3.org/2000/svg";

/** Make invisible characters visible: control characters as symbols, marks that change the direction as numbers. */
function plain(text) {
  return String(text ?? "")
    .replace(/\r\n?/g, "\n")
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Create an element with text, class, listeners (`on`) and attributes; values of null, undefined and false are left out. */
function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = plain(value);
    else if (name === "on") for (const [event, listen] of Object.entries(value)) element.addEventListener(event, listen);
    else element.setAttribute(name, value === true ? "" : plain(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

function button(text, press, options = {}) {
  return make("button", { type: "button", text, on: { click: press }, ...options });
}

/** Return rows as tab-separated text; tabs and line breaks within cells become spaces. */
function tsv(rows) {
  const cell = (value) => String(value ?? "").replace(/[\t\r\n]+/g, " ");
  return rows.map((row) => row.map(cell).join("\t")).join("\n") + "\n";
}

/** Copy text to the clipboard; on pages from a file, which have no access to it, by way of a text field. */
async function toClipboard(text) {
  if (navigator.clipboard && globalThis.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch (refused) {
      if (refused.name !== "NotAllowedError") throw refused;
    }
  }
  const field = make("textarea", { class: "unseen", "aria-hidden": "true" });
  const focused = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus?.();
  return done;
}

/** Create a button that copies the result of `text()`, and reports whether it did. */
function copyButton(what, text) {
  const pressed = async () => {
    const done = await toClipboard(text());
    copy.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  };
  const copy = button("Copy", pressed, { class: "tool copy", "aria-label": `Copy ${what}`, "aria-live": "polite" });
  return copy;
}
