// Text, numbers and elements. Strings of an account are only ever given to textContent or to an attribute.

const SVG = "http://www.w3.org/2000/svg";

/** What cannot be seen, made visible: control characters as their pictures, marks that turn the writing direction by number. */
function plain(text) {
  return String(text ?? "")
    .replace(/\r\n?/g, "\n")
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** An element. `options`: text, class, on (listeners by event), and attributes; null and false ones are left out. */
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

/** A number as people read it: at most `digits` significant digits, thousands apart, powers of ten where it is far from one. */
function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return plain(value);
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return value.toLocaleString("en-US").replace("-", "−");
  const near = Number(value.toPrecision(digits));
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return near.toExponential().replace("e+", "e").replace(/-/g, "−");
  return value.toLocaleString("en-US", { maximumSignificantDigits: digits }).replace("-", "−");
}

/** Seconds as 1:02:03 or 4.5 s. */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${number(seconds, 3)} s`;
  const whole = Math.round(seconds);
  const two = (n) => String(n).padStart(2, "0");
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return hours ? `${hours}:${two(minutes)}:${two(rest)} h` : `${minutes}:${two(rest)} min`;
}

/** A time of the record, in the reader's own zone; what is no time stays as it is. */
function moment(text) {
  const time = new Date(text);
  if (!text || Number.isNaN(time.getTime())) return plain(text) || "–";
  const two = (n) => String(n).padStart(2, "0");
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  return `${day} ${two(time.getHours())}:${two(time.getMinutes())}`;
}

/** Rows for a spreadsheet: tabs between cells, nothing in a cell that would end it. */
function tsv(rows) {
  const cell = (value) => String(value ?? "").replace(/[\t\r\n]+/g, " ");
  return rows.map((row) => row.map(cell).join("\t")).join("\n") + "\n";
}

/** Put text on the clipboard; where the browser keeps it shut (a page from a file), by a selected text field. */
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

/** A button that copies what `text()` gives, and says whether it could. */
function copyButton(what, text) {
  const pressed = async () => {
    const done = await toClipboard(text());
    copy.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  };
  const copy = button("Copy", pressed, { class: "tool copy", "aria-label": `Copy ${what}`, "aria-live": "polite" });
  return copy;
}
