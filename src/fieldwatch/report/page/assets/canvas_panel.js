// Base of panels that draw on their own canvas: the interface of charts, colors, and the tooltip.

/** A canvas that the view draws, redraws and prints like its charts, but without a shared axis. */
class CanvasPanel {
  constructor(view, height) {
    this.view = view;
    this.axis = null;
    this.plot = null;
    this.height = height;
    this.canvas = make("canvas", { tabindex: "0", role: "img" });
    this.canvas.style.height = `${height}px`;
    this.box = make("div", { class: "canvas" }, this.canvas);
    view.charts.push(this);
  }

  draw() {
    if (!this.box.isConnected || !this.canvas.clientWidth) return;
    this.plot = { redraw: () => this.paint() };
    this.paint();
  }

  drawFor() {
    this.draw();
  }

  redraw() {
    this.draw();
  }

  resize() {
    this.draw();
  }

  drop() {}

  range() {}

  color(name) {
    return getComputedStyle(this.view.root).getPropertyValue(`--${name}`).trim();
  }

  /** Resize the canvas to its size on the page, and return its context in CSS pixels. */
  context() {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = FONT;
    return { context, width, height };
  }

  /** Show a tooltip at a point; after a key press, screen readers announce it. */
  tip(x, y, title, lines, stack, aloud) {
    const tip = (this.view.tip ??= make("div", { class: "tip", "aria-live": "off" }));
    tip.replaceChildren(make("b", { text: title }), ...lines.map((text) => make("div", { text })), ...stack.slice(0, 10).map((text) => make("div", { class: "call", text })));
    if (aloud) this.canvas.setAttribute("aria-label", [title, ...lines].join(", "));
    this.view.root.append(tip);
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 6))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
  }

  hideTip() {
    this.view.tip?.remove();
  }
}

/** Return the color of a layer: one per site, grays for other sites and for allocations from before the history. */
function layerColor(panel, device, layer, layers) {
  if (layer >= layers) return panel.color("layer-other");
  return device.sites[layer]?.before ? panel.color("layer-before") : panel.color(`layer-${layer}`);
}

/** Create a labeled drop-down list. */
function chooser(label, words, changed) {
  const select = make("select", { on: { change: changed } }, words.map((word) => make("option", { value: word, text: word })));
  return { select, element: make("label", {}, `${label} `, select) };
}
