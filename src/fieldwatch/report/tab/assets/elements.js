// Elements of the page. Text from a run is only assigned to textContent or to attributes, so it can never become markup.

/** Make invisible characters visible: control characters as symbols, marks that change the direction as numbers. */
export function plain(text) {
  return String(text ?? "")
    .replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Create an element with text, class, listeners (`on`) and attributes; values of null, undefined and false are left out. */
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
