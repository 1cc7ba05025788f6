// State of the page that survives a redraw: ranges, the chosen step, folded panels, sorting, hidden series.

class View {
  constructor(root) {
    this.root = root;
    this.key = `fieldwatch ${(View.made += 1)}`;
    this.states = new Map();
    this.ranges = new Map();
    this.hiddenMarks = new Set();
    this.chosen = null;
    this.stepChosen = () => {};
    this.charts = [];
    this.wanted = null;
  }

  static made = 0;

  /** Return the state of a panel: a plain object, initialized with `defaults`. */
  stateOf(id, defaults = {}) {
    if (!this.states.has(id)) this.states.set(id, {});
    const state = this.states.get(id);
    for (const [name, value] of Object.entries(defaults)) state[name] ??= value;
    return state;
  }

  get theme() {
    if (this.wanted) return this.wanted;
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }

  /** Set the theme: "light", "dark", or null for that of the system. */
  paint(wanted) {
    this.wanted = wanted;
    this.root.dataset.theme = this.theme;
    for (const chart of this.charts) if (chart.plot) chart.redraw();
  }

  begin(account) {
    for (const chart of this.charts) chart.drop();
    this.charts = [];
    this.account = account;
    this.whole = new Map();
    this.root.dataset.theme = this.theme;
  }

  /** Return the first and the last step of an axis, over the run and all its series. */
  wholeRange(axis) {
    if (!this.whole.has(axis)) this.whole.set(axis, this.#wholeRange(axis));
    return this.whole.get(axis);
  }

  #wholeRange(axis) {
    const { run, series } = this.account;
    const ends = Object.values(series).filter((one) => (one.axis || "step") === axis && one.x.length);
    const xs = ends.flatMap((one) => [one.x[0], one.x[one.x.length - 1]]);
    if (axis === "step") xs.push(run.first_step, run.last_step);
    const known = xs.filter((x) => typeof x === "number");
    const [first, last] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
    return first === last ? [first - 0.5, last + 0.5] : [first, last];
  }

  rangeOf(axis) {
    return this.ranges.get(axis) ?? this.wholeRange(axis);
  }

  /** Show a range of steps in all charts of an axis; null shows all steps. */
  zoom(axis, range) {
    if (range) this.ranges.set(axis, range);
    else this.ranges.delete(axis);
    this.following = true;
    for (const chart of this.charts) if (chart.axis === axis) chart.range(range);
    queueMicrotask(() => (this.following = false));
  }

  /** Zoom all charts to the range of one that was zoomed by dragging. */
  follow(chart, range) {
    const [first, last] = this.rangeOf(chart.axis);
    if (!this.following && (first !== range[0] || last !== range[1])) this.zoom(chart.axis, range);
  }

  /** Mark a step in all charts; null removes the mark. */
  choose(step) {
    this.chosen = step;
    const [first, last] = this.rangeOf("step");
    if (step !== null && (step < first || step > last)) this.zoom("step", null);
    for (const chart of this.charts) chart.plot?.redraw(false);
    this.stepChosen();
  }

  /** Return the visible marks, problems last, so that they are drawn on top. */
  marks() {
    const bad = (mark) => Number(markStyle(mark.kind).color === "bad");
    return this.account.marks.filter((mark) => !this.hiddenMarks.has(mark.kind)).sort((a, b) => bad(a) - bad(b));
  }

  /** Return the texts of the marks at the cursor of a plot. */
  marksNear(plot) {
    const near = this.marks().filter((mark) => Math.abs(plot.valToPos(mark.step, "x") - plot.cursor.left) < 5);
    return near.slice(0, 8).map((mark) => markText(mark)).join("\n");
  }
}

function markTitle(mark) {
  return plain(mark.title ?? mark.kind);
}

function markText(mark) {
  const many = mark.count > 1 ? ` (${number(mark.count)} together)` : "";
  return `${markTitle(mark)} at step ${number(mark.step)}${many}${mark.text ? `: ${plain(mark.text)}` : ""}`;
}
