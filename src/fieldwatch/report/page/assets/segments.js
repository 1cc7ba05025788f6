// Segments of a memory snapshot: one bar each with its blocks; only visible bars are drawn.

const ROW_HEIGHT = 24;
const BAR_HEIGHT = 15;
const LABEL_WIDTH = 128;
const MAP_HEIGHT = 420;
const STATES = ["in use", "freed, awaited by a stream", "free"];
const STATE_COLORS = ["layer-0", "layer-waiting", "layer-free"];

class SegmentsPanel extends CanvasPanel {
  constructor(view, panel) {
    const { snapshot } = view.account;
    const rows = snapshot.devices[panel.device].segments;
    super(view, Math.min(MAP_HEIGHT, Math.max(1, rows.length) * ROW_HEIGHT + 4));
    this.data = snapshot;
    this.device = snapshot.devices[panel.device];
    this.rows = rows;
    this.picked = null;
    this.canvas.setAttribute("aria-label", `${rows.length} segments with their blocks`);
    this.by = chooser("Color by", ["state", "site"], () => this.recolor());
    this.states = make("span", { class: "states" }, STATES.map((state, place) => {
      const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.cssText = `height:9px;background:var(--${STATE_COLORS[place]})`;
      return make("span", { class: "entry" }, swatch, make("span", { text: state }));
    }));
    const space = make("div", { class: "space" }, this.canvas);
    space.style.height = `${Math.max(1, rows.length) * ROW_HEIGHT + 4}px`;
    this.box = make("div", { class: "canvas scrolled" }, space);
    this.scroll = this.box;
    this.listen();
    this.element = [make("p", { class: "controls" }, this.by.element, this.states), this.box];
  }

  listen() {
    this.scroll.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => {
      this.picked = null;
      this.hideTip();
      this.draw();
    });
    this.canvas.addEventListener("blur", () => this.hideTip());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** Draw the legend of the states; that of the sites is below the allocations. */
  recolor() {
    this.states.hidden = this.by.select.value !== "state";
    this.draw();
  }

  paint() {
    const { context, width, height } = this.context();
    context.clearRect(0, 0, width, height);
    this.bar = { left: LABEL_WIDTH, width: Math.max(10, width - LABEL_WIDTH - 4) };
    const first = Math.floor(this.scroll.scrollTop / ROW_HEIGHT), last = Math.min(this.rows.length, first + Math.ceil(height / ROW_HEIGHT) + 1);
    for (let row = first; row < last; row++) this.drawRow(context, row, row * ROW_HEIGHT - this.scroll.scrollTop + 4);
  }

  drawRow(context, at, top) {
    const segment = this.rows[at], { left, width } = this.bar, byState = this.by.select.value === "state";
    const states = STATE_COLORS.map((name) => this.color(name));
    context.fillStyle = this.color("quiet");
    context.textAlign = "right";
    const name = segment.pool ? `pool ${segment.pool}` : segment.kind;
    context.fillText(`${name.slice(0, 10)}  ${nbytes(segment.total)}`, left - 8, top + 12, LABEL_WIDTH - 10);
    context.fillStyle = this.color("layer-free");
    context.fillRect(left, top, width, BAR_HEIGHT);
    for (const [offset, size, , state, , layer] of segment.blocks) {
      const from = Math.max(0, Math.min(1, offset / segment.total)), to = Math.max(0, Math.min(1, (offset + size) / segment.total));
      const wide = (to - from) * width;
      context.fillStyle = byState || state === 2 ? states[state] : layerColor(this, this.device, layer, this.data.layers);
      context.fillRect(left + from * width, top, Math.max(wide > 4 ? wide - 1 : wide, state === 2 ? 0 : 0.6), BAR_HEIGHT);
    }
    context.strokeStyle = this.color("rule");
    context.strokeRect(left - 0.5, top - 0.5, width + 1, BAR_HEIGHT + 1);
    if (this.picked && this.picked.row === at && segment.blocks.length) {
      const [offset, size] = segment.blocks[this.picked.block];
      context.strokeStyle = this.color("ink"); context.lineWidth = 2;
      context.strokeRect(left + offset / segment.total * width, top, Math.max(2, size / segment.total * width), BAR_HEIGHT);
      context.lineWidth = 1;
    }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect(), row = Math.floor((event.clientY - box.top + this.scroll.scrollTop) / ROW_HEIGHT);
    const segment = this.rows[row], share = (event.clientX - box.left - this.bar.left) / this.bar.width;
    const slack = segment ? 2 / this.bar.width * segment.total : 0;
    let block = -1, near = Infinity;
    if (segment && share >= -0.01 && share <= 1.01) segment.blocks.forEach(([offset, size], i) => {
      const at = share * segment.total, away = at < offset ? offset - at : Math.max(0, at - offset - size);
      if (away <= slack && away < near) { near = away; block = i; }
    });
    this.picked = block < 0 ? null : { row, block };
    this.draw();
    if (segment && share < 0) this.tellSegment(segment, event.clientX, event.clientY);
    else if (block < 0) this.hideTip();
    else this.tell(event.clientX, event.clientY, false);
  }

  tellSegment(segment, x, y) {
    const kind = `${segment.kind}${segment.expandable ? ", expandable" : ""}, stream ${segment.stream}`;
    this.tip(x, y, `Segment ${segment.address}`, [nbytes(segment.total), kind, segment.pool ? `private pool ${segment.pool}` : "common pool", `${segment.blocks.length + segment.hidden} blocks`], [], false);
  }

  tell(x, y, aloud) {
    const segment = this.rows[this.picked.row], [offset, size, requested, state, stack] = segment.blocks[this.picked.block];
    const asked = state === 2 ? [] : [`requested ${requested < 0 ? "unknown" : nbytes(requested)}`];
    const lines = [`${nbytes(size)}, ${STATES[state]}`, ...asked, `at +${nbytes(offset)} of segment ${segment.address} (${nbytes(segment.total)})`];
    const calls = this.data.stacks[stack].map((i) => this.data.frames[i]);
    this.tip(x, y, `Block ${this.picked.block + 1} of ${segment.blocks.length}`, lines, calls, aloud);
  }

  key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }, move = moves[event.key];
    if (event.key === "Escape") this.hideTip();
    if (!move || !this.rows.length) return;
    event.preventDefault();
    const old = this.picked || { row: 0, block: move[1] ? -move[1] : 0 };
    const row = Math.max(0, Math.min(this.rows.length - 1, old.row + (this.picked ? move[0] : 0))), count = this.rows[row].blocks.length;
    const block = Math.max(0, Math.min(count - 1, move[0] ? 0 : old.block + move[1]));
    this.picked = { row, block };
    if (row * ROW_HEIGHT < this.scroll.scrollTop) this.scroll.scrollTop = row * ROW_HEIGHT;
    if ((row + 1) * ROW_HEIGHT > this.scroll.scrollTop + this.scroll.clientHeight) this.scroll.scrollTop = (row + 1) * ROW_HEIGHT - this.scroll.clientHeight + 8;
    this.draw();
    if (!count) return;
    const box = this.canvas.getBoundingClientRect(), [offset] = this.rows[row].blocks[block];
    this.tell(box.left + this.bar.left + offset / this.rows[row].total * this.bar.width, box.top + row * ROW_HEIGHT - this.scroll.scrollTop + BAR_HEIGHT, true);
  }
}

function drawSegments(view, panel) {
  return new SegmentsPanel(view, panel).element;
}
