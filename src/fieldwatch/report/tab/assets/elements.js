// Elements of the page. Strings that come from a run are only ever given to textContent or to an attribute.

/** What cannot be seen, made visible: control characters as their pictures, marks that turn the direction by number. */
export function plain(text) {
  return String(text ?? "")
    .replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** An element with text, class, listeners (`on`) and attributes; what is null or false is left out. */
export function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = plain(value);
    else if (name === "on") for (const [event, listen] of Object.entries(value)) element.addEventListener(event, listen);
    else element.setAttribute(name, value === true ? "" : plain(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
