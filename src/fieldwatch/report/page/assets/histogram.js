// A histogram: one bar per bin, and a description of the bin at the cursor.

const HISTOGRAM_HEIGHT = 210;
const WHOLE_STEPS = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`))).flat();

/** A histogram of a panel, with the interface of a chart; its axis has values instead of steps. */
class Histogram {
  constructor(view, panel) {
    this.view = view;
    this.panel = panel;
    this.axis = "value";
    this.plot = null;
    this.total = panel.counts.reduce((sum, count) => sum + count, 0);
    this.readout = make("span", { class: "readout", text: "newest" });
    this.box = make("div", { class: "box", role: "img", "aria-label": `${panel.title}: histogram. ${this.#fullest()}` });
    this.box.style.height = `${HISTOGRAM_HEIGHT}px`;
    const copy = copyButton(panel.title, () => tsv(this.rows()));
    this.tools = make("div", { class: "tools" }, this.readout, copy);
    this.legend = make("div", { class: "legend", text: this.#fullest() });
    this.element = make("figure", { class: "chart" }, this.legend, this.box);
  }

  rows() {
    const { edges, counts } = this.panel;
    return [["from", "to", "count"], ...counts.map((count, bin) => [edges[bin], edges[bin + 1], count])];
  }

  draw() {
    this.drawFor(this.view.theme, this.box.clientWidth);
  }

  /** Draw with the colors of a theme, `width` pixels wide. */
  drawFor(theme, width) {
    if (this.plot || !this.box.isConnected || !width) return;
    this.plot = new uPlot(this.#options(inks(this.view.root), theme, width), this.#data(), this.box);
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
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: HISTOGRAM_HEIGHT });
  }

  /** Return left edges and counts; the last edge, which ends the axis, has no count. */
  #data() {
    const { edges, counts } = this.panel;
    return [edges, [...counts, null]];
  }

  #options(ink, theme, width) {
    const { edges } = this.panel;
    const { stroke } = lineStyle(0, theme);
    const bars = uPlot.paths.bars({ size: [1, Infinity], align: 1, gap: 1 });
    return {
      width,
      height: HISTOGRAM_HEIGHT,
      padding: [8, 10, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, range: [edges[0], edges[edges.length - 1]] },
        y: { range: (_, __, greatest) => [0, greatest * 1.05] },
      },
      axes: [axisOptions(ink, { space: 70, size: 26 }), axisOptions(ink, { space: 34, size: 58, incrs: WHOLE_STEPS })],
      series: [{}, { stroke, fill: stroke, width: 0, paths: bars, points: { show: false } }],
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      hooks: { setCursor: [(plot) => this.#read(plot)] },
    };
  }

  #read(plot) {
    const { left } = plot.cursor;
    const { edges, counts } = this.panel;
    const value = left >= 0 ? plot.posToVal(left, "x") : null;
    const bin = value === null ? -1 : counts.findIndex((_, at) => value >= edges[at] && value <= edges[at + 1]);
    this.readout.textContent = bin < 0 ? "newest" : this.#told(bin);
  }

  #told(bin) {
    const { edges, counts, unit } = this.panel;
    const share = percent(counts[bin] / this.total);
    return `${number(edges[bin])} to ${withUnit(edges[bin + 1], unit)}: ${number(counts[bin])} (${share})`;
  }

  #fullest() {
    const { edges, counts, unit } = this.panel;
    const bin = counts.indexOf(Math.max(...counts));
    return `From ${number(edges[0])} to ${withUnit(edges[edges.length - 1], unit)}. Fullest bin: ${this.#told(bin)}.`;
  }
}
