// A chart of lines or shares over steps, with phases, event marks, and a range shared by all charts.

const RAIL = 15; // pixels above the lines, where event marks sit
const HEIGHT = { lines: 210, stack: 240, small: 150 };

/** A chart of a panel. Its element exists at once, its canvas once it becomes visible. All charts of a page share `view`. */
class Chart {
  constructor(view, panel) {
    this.view = view;
    this.panel = panel;
    this.kind = panel.kind;
    const recorded = (name) => Object.hasOwn(view.account.series, name);
    const lines = (panel.lines ?? []).filter(recorded);
    // Lines over stacked areas come last, so that they are drawn on top.
    this.names = [...panel.series.filter(recorded), ...lines];
    this.areaCount = this.names.length - lines.length;
    this.series = this.names.map((name) => view.account.series[name]);
    this.axis = this.series[0]?.axis || "step";
    this.state = view.stateOf(panel.id, { log: Boolean(panel.log), hidden: [] });
    this.plot = null;
    this.height = HEIGHT[panel.small ? "small" : this.kind];
    this.element = this.#element();
  }

  label(name) {
    return this.panel.labels?.[name] ?? name;
  }

  isArea(place) {
    return this.kind === "stack" && place < this.areaCount;
  }

  style(place, theme) {
    if (this.kind === "stack" && !this.isArea(place)) return overStyle(place - this.areaCount, this.ink ?? inks(this.view.root));
    return lineStyle(this.panel.colors?.[this.names[place]] ?? place, theme);
  }

  shown(name) {
    return !this.state.hidden.includes(name);
  }

  #element() {
    const { panel } = this;
    this.readout = make("span", { class: "readout" });
    this.entries = this.names.map((name, place) => this.#entry(name, place));
    this.box = make("div", {
      class: "box", tabindex: "0", role: "img",
      "aria-label": `${panel.title || panel.id}: chart of ${this.names.length} series. Arrow keys move along it, plus and minus zoom, 0 shows all.`,
      on: { keydown: (event) => this.#key(event), focusout: () => this.#leave() },
    });
    this.box.style.height = `${this.height}px`;
    const legend = make("div", { class: "legend", role: "group", "aria-label": "Series: press to show or hide" }, this.entries);
    this.tools = make("div", { class: "tools" }, this.readout, this.#tools());
    this.#choosePlaces(this.view.theme);
    this.read(null);
    return make("figure", { class: "chart" }, legend, this.box, this.#spoken());
  }

  #tools() {
    const scale = button(this.state.log ? "log" : "linear", () => {
      this.state.log = !this.state.log;
      scale.textContent = this.state.log ? "log" : "linear";
      this.redraw();
    }, { class: "tool", "aria-label": "Scale of the values: linear or logarithmic" });
    this.whole = button("whole range", () => this.view.zoom(this.axis, null), { class: "tool", hidden: true });
    const copy = copyButton(this.panel.title || this.panel.id, () => tsv(this.rows()));
    return [this.whole, this.kind === "lines" ? scale : null, copy];
  }

  #entry(name, place) {
    const series = this.series[place];
    const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
    const value = make("span", { class: "value" });
    const title = [name, series.unit && `in ${series.unit}`, series.meaning].filter(Boolean).join(" · ");
    const entry = button("", () => this.#toggle(name, entry), { class: "entry", title, "aria-pressed": String(this.shown(name)) });
    entry.append(swatch, make("span", { class: "name", text: this.label(name) }), value);
    entry.addEventListener("pointerenter", () => this.#emphasise(place));
    entry.addEventListener("pointerleave", () => this.#emphasise(null));
    return entry;
  }

  /** Describe the chart for screen readers. */
  #spoken() {
    const list = make("ul", { class: "unseen" });
    this.names.forEach((name, place) => list.append(make("li", { text: inWords(this.label(name), this.series[place]) })));
    return list;
  }

  /** Return the table that is copied: one row per step at which any series has a value. */
  rows() {
    const table = joined(this.series);
    return [[this.axis, ...this.names], ...table[0].map((x, row) => [x, ...table.slice(1).map((column) => column[row])])];
  }

  #toggle(name, entry) {
    const { state } = this;
    state.hidden = this.shown(name) ? [...state.hidden, name] : state.hidden.filter((other) => other !== name);
    if (state.hidden.length === this.names.length) state.hidden = [];
    this.entries.forEach((other, place) => other.setAttribute("aria-pressed", String(this.shown(this.names[place]))));
    entry.focus();
    this.redraw();
  }

  #emphasise(place) {
    const drawn = place === null ? -1 : this.places?.indexOf(place) ?? -1;
    this.plot?.setSeries(drawn < 0 ? null : drawn + 1, { focus: true });
  }

  draw() {
    this.drawFor(this.view.theme, this.box.clientWidth);
  }

  /** Draw with the colors of a theme, `width` pixels wide. */
  drawFor(theme, width) {
    if (this.plot || !this.box.isConnected || !width) return;
    this.theme = theme;
    this.width = width;
    this.ink = inks(this.view.root);
    this.#choosePlaces(theme);
    const data = this.kind === "stack" ? this.#stacked() : this.#lined();
    this.plot = new uPlot(plotOptions(this, data), data, this.box);
    this.read(null);
  }

  /** Create the legend, before anything is drawn, so that the layout does not change. */
  #choosePlaces(theme) {
    this.places = this.names.map((_, place) => place).filter((place) => this.shown(this.names[place]));
    this.entries.forEach((entry, place) => {
      const style = this.style(place, theme);
      const swatch = entry.firstChild.style;
      if (this.isArea(place)) swatch.cssText = `height:9px;background:${style.stroke}`;
      else swatch.cssText = `border-top:2px ${style.dash.length ? (style.dash[0] < 4 ? "dotted" : "dashed") : "solid"} ${style.stroke}`;
    });
  }

  #lined() {
    const chosen = this.places.map((place) => this.series[place]);
    return joined(this.state.log ? chosen.map(positive) : chosen);
  }

  #stacked() {
    const areas = this.places.filter((place) => this.isArea(place)).map((place) => this.series[place]);
    const over = this.places.filter((place) => !this.isArea(place)).map((place) => this.series[place]);
    if (!areas.length) return joined(over);
    this.stack = this.panel.amounts ? amounts(areas) : shares(areas);
    return [...this.stack.tops, ...over.map((one) => along(one, this.stack.tops[0]))];
  }

  redraw() {
    this.drop();
    this.draw();
  }

  drop() {
    this.plot?.destroy();
    this.plot = null;
  }

  resize(width = this.box.clientWidth) {
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
  }

  range(range) {
    this.whole.hidden = !range;
    const [min, max] = range ?? this.view.wholeRange(this.axis);
    const scale = this.plot?.scales.x;
    if (scale && (scale.min !== min || scale.max !== max)) this.plot.setScale("x", { min, max });
  }

  /** Show the values at the cursor in the legend, or the last values without a cursor. */
  read(rows) {
    const x = rows ? this.plot.data[0][this.plot.cursor.idx] : null;
    const near = rows && this.axis === "step" ? this.view.marksNear(this.plot) : "";
    this.readout.textContent = rows ? `${this.axis} ${number(x)}` : "last";
    this.box.title = near;
    this.names.forEach((name, place) => {
      const column = this.places.indexOf(place);
      const series = this.series[place];
      let value = series.last;
      if (rows) value = column < 0 || rows[column + 1] == null ? null : this.#valueAt(column, rows[column + 1]);
      this.entries[place].lastChild.textContent = this.isArea(place) && !this.panel.amounts ? percent(value) : withUnit(value, series.unit);
    });
  }

  #valueAt(column, row) {
    return this.isArea(this.places[column]) ? this.stack.parts[column][row] : this.plot.data[column + 1][row];
  }

  #key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -25, PageDown: 25 };
    if (event.altKey || event.ctrlKey || event.metaKey || !this.plot) return;
    if (Object.hasOwn(steps, event.key)) this.#move(steps[event.key]);
    else if (event.key === "+" || event.key === "-") this.#zoomBy(event.key === "+" ? 0.5 : 2);
    else if (event.key === "0") this.view.zoom(this.axis, null);
    else return;
    event.preventDefault();
  }

  #move(by) {
    const xs = this.plot.data[0];
    const now = this.plot.cursor.idx ?? xs.length - 1;
    const next = Math.min(Math.max(now + by, 0), xs.length - 1);
    this.plot.setCursor({ left: this.plot.valToPos(xs[next], "x"), top: 10 }, true);
  }

  #zoomBy(factor) {
    const { min, max } = this.plot.scales.x;
    const idx = this.plot.cursor.idx;
    const middle = idx == null ? (min + max) / 2 : this.plot.data[0][idx];
    const [first, last] = this.view.wholeRange(this.axis);
    const half = ((max - min) / 2) * factor;
    if (half * 2 >= last - first) this.view.zoom(this.axis, null);
    else this.view.zoom(this.axis, [Math.max(first, middle - half), Math.min(last, middle + half)]);
  }

  #leave() {
    this.plot?.setCursor({ left: -10, top: -10 }, true);
  }
}

function withUnit(value, unit) {
  const shown = number(value);
  return value === null || value === undefined || !unit || unit === "1" ? shown : `${shown} ${plain(unit)}`;
}

/** Describe a series: its first, last, smallest and largest value. */
function inWords(label, series) {
  const first = series.y.findIndex((value) => value !== null);
  if (first < 0) return `${label}: no finite value in ${number(series.rows)} rows`;
  const at = (pair) => `${withUnit(pair[0], series.unit)} at ${series.axis || "step"} ${number(pair[1])}`;
  const bad = series.bad_count || series.bad?.length || 0;
  const parts = [`first ${at([series.y[first], series.x[first]])}`, `last ${withUnit(series.last, series.unit)}`];
  if (series.min) parts.push(`least ${at(series.min)}`);
  if (series.max) parts.push(`greatest ${at(series.max)}`);
  if (bad) parts.push(`${number(bad)} values not finite`);
  return `${label}: ${parts.join(", ")}`;
}
