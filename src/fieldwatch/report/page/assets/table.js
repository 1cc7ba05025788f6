// Tables: sorted by their headings, long ones shortened on the screen, copied as tab-separated text.

const SHOWN_ROWS = 15;
/** Number of characters from which a cell keeps a width that is easy to read; the table scrolls instead. */
const LONG_TEXT = 40;

function drawTable(view, panel) {
  const state = view.stateOf(panel.id, { sort: null, whole: false });
  const body = make("tbody");
  const more = button("", () => {
    state.whole = !state.whole;
    fill();
  }, { class: "tool" });
  const heads = panel.columns.map((column) => tableHead(column, state, () => fill()));
  const fill = () => {
    heads.forEach((head, place) => showOrder(head, panel.columns[place], state));
    body.replaceChildren(...sorted(panel, state).map((row, place) => tableRow(view, panel, row, !state.whole && place >= SHOWN_ROWS)));
    more.hidden = panel.rows.length <= SHOWN_ROWS;
    more.textContent = state.whole ? `Show ${SHOWN_ROWS} rows` : `Show all ${number(panel.rows.length)} rows`;
  };
  fill();
  const caption = make("caption", { class: panel.caption ? "quiet" : "unseen", text: panel.caption || panel.title });
  const table = make("table", {}, caption, make("thead", {}, make("tr", {}, heads)), body);
  const copy = copyButton(panel.title || panel.id, () => tsv(tableCells(panel, state)));
  const wide = make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `${panel.title || panel.id}: table` }, table);
  return [wide, make("div", { class: "foot" }, more, copy)];
}

function tableHead(column, state, changed) {
  const unit = column.unit ? make("span", { class: "unit", text: column.unit }) : null;
  const press = () => {
    const again = state.sort?.key === column.key;
    state.sort = again && state.sort.down !== Boolean(column.number) ? null : { key: column.key, down: again ? !state.sort.down : Boolean(column.number) };
    changed();
  };
  const sort = button(column.title, press, { class: "sort" });
  return make("th", { scope: "col", class: column.number ? "number" : null }, sort, unit);
}

function showOrder(head, column, state) {
  const order = state.sort?.key === column.key ? (state.sort.down ? "descending" : "ascending") : "none";
  head.setAttribute("aria-sort", order);
}

function sorted(panel, state) {
  if (!state.sort) return panel.rows;
  const { key, down } = state.sort;
  const empty = (value) => value === null || value === undefined || value === "";
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  return [...panel.rows].sort((one, other) => {
    const [a, b] = [one[key], other[key]].map((value) => value?.text ?? value);
    if (empty(a) || empty(b)) return Number(empty(a)) - Number(empty(b));
    return down ? compare(b, a) : compare(a, b);
  });
}

function tableRow(view, panel, row, rest) {
  const cells = panel.columns.map((column) => tableCell(view, column, row[column.key]));
  const kinds = [rest && "rest", row.changed && "changed", row.severity && severityClass(row.severity)].filter(Boolean);
  return make("tr", { class: kinds.join(" ") || null }, cells);
}

function tableCell(view, column, value) {
  if (column.key === "step" && Number.isInteger(value)) {
    return make("td", { class: "number" }, stepButton(view, value));
  }
  if (column.bytes && typeof value === "number") return make("td", { class: "number", title: `${value} bytes`, text: nbytes(value) });
  if (typeof value === "number") return make("td", { class: column.number ? "number" : null, title: String(value), text: number(value, 5) });
  if (Array.isArray(value?.stack)) return make("td", {}, drawStack(value));
  if (isLink(value)) return make("td", {}, make("a", { href: value.href, text: value.text }));
  if (typeof value === "boolean") return make("td", { text: value ? "yes" : "" });
  const text = value === null || value === undefined ? "-" : textOf(value);
  return make("td", { class: column.number ? "number" : text.length > LONG_TEXT ? "long" : null, text });
}

/** Draw a name that unfolds its call stack. */
function drawStack(value) {
  if (value.stack.length < 2) return make("span", { text: value.text });
  return make("details", {}, make("summary", { text: value.text }), make("ol", { class: "stack" }, value.stack.map((text) => make("li", { text }))));
}

/** Draw a link to this page or to a file next to it; a cell must not lead anywhere else, or run a script. */
function isLink(value) {
  return typeof value?.href === "string" && !/^\s*(?:[a-z][a-z0-9+.-]*:|[\\/]{2})/i.test(value.href);
}

function textOf(value) {
  if (isLink(value) || Array.isArray(value?.stack)) return value.text;
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value);
}

function tableCells(panel, state) {
  const title = (column) => (column.unit ? `${column.title} (${column.unit})` : column.title);
  return [panel.columns.map(title), ...sorted(panel, state).map((row) => panel.columns.map((column) => textOf(row[column.key] ?? "")))];
}

/** Draw a step as a button that marks it in all charts. */
function stepButton(view, step) {
  return button(number(step), () => goTo(view, step), { class: "step", "aria-label": `Step ${step}: mark it in all charts` });
}
