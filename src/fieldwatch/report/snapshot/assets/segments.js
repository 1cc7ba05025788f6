// The map of segments: one bar each, drawn only where it is in view.
const ROW = 24, BAR = 15, LABEL = 128;
const STATES = ["in use", "given back, awaited by a stream", "free"];

class SegmentsView {
  constructor(data) {
    this.data = data;
    this.canvas = byId("segments");
    this.scroll = byId("segments-scroll");
    this.picked = null;
    this.scroll.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.picked = null; hideTip(); this.draw(); });
    this.canvas.addEventListener("blur", hideTip);
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    byId("colour").addEventListener("change", () => { this.legend(); this.draw(); });
  }

  show(device) {
    this.device = device;
    this.rows = device.segments;
    this.picked = null;
    this.canvas.setAttribute("aria-label", `${this.rows.length} segments with their blocks`);
    const hidden = this.rows.reduce((sum, row) => sum + row.hidden, 0), notes = [];
    if (device.segments_left) notes.push(`${device.segments_left} smaller segments are left out.`);
    if (hidden) notes.push(`${hidden} small blocks are left out.`);
    if (!this.rows.length) notes.push("The snapshot holds no segment.");
    byId("segments-note").textContent = notes.join(" ");
    this.legend();
    byId("segments-space").style.height = `${Math.max(1, this.rows.length) * ROW + 4}px`;
    this.draw();
  }

  // What the colours of the states mean; the colours of sites stand under the timeline.
  legend() {
    byId("states").hidden = byId("colour").value !== "state";
    byId("states").replaceChildren(...["layer-0", "waiting", "free"].map((name, state) => {
      const item = element("span"), swatch = element("span", "", { class: "swatch" });
      swatch.style.background = colour(name);
      item.append(swatch, STATES[state]);
      return item;
    }));
  }

  draw() {
    const shown = Math.min(420, Math.max(1, this.rows.length) * ROW + 4);
    this.canvas.style.height = `${shown}px`;
    const { context, width, height } = prepared(this.canvas, shown);
    context.clearRect(0, 0, width, height);
    this.bar = { left: LABEL, width: Math.max(10, width - LABEL - 4) };
    const first = Math.floor(this.scroll.scrollTop / ROW), last = Math.min(this.rows.length, first + Math.ceil(height / ROW) + 1);
    for (let row = first; row < last; row++) this.drawRow(context, row, row * ROW - this.scroll.scrollTop + 4);
  }

  drawRow(context, at, top) {
    const segment = this.rows[at], { left, width } = this.bar, byState = byId("colour").value === "state";
    const states = [colour("layer-0"), colour("waiting"), colour("free")];
    context.fillStyle = colour("soft");
    context.textAlign = "right";
    const name = segment.pool ? `pool ${segment.pool}` : segment.kind;
    context.fillText(`${name.slice(0, 10)}  ${nbytes(segment.total)}`, left - 8, top + 12, LABEL - 10);
    context.fillStyle = colour("free");
    context.fillRect(left, top, width, BAR);
    for (const [offset, size, , state, , layer] of segment.blocks) {
      const from = Math.max(0, Math.min(1, offset / segment.total)), to = Math.max(0, Math.min(1, (offset + size) / segment.total));
      const wide = (to - from) * width;
      context.fillStyle = byState || state === 2 ? states[state] : layerColour(this.device, layer, this.data.layers);
      context.fillRect(left + from * width, top, Math.max(wide > 4 ? wide - 1 : wide, state === 2 ? 0 : 0.6), BAR);
    }
    context.strokeStyle = colour("line");
    context.strokeRect(left - 0.5, top - 0.5, width + 1, BAR + 1);
    if (this.picked && this.picked.row === at && segment.blocks.length) {
      const [offset, size] = segment.blocks[this.picked.block];
      context.strokeStyle = colour("ink"); context.lineWidth = 2;
      context.strokeRect(left + offset / segment.total * width, top, Math.max(2, size / segment.total * width), BAR);
      context.lineWidth = 1;
    }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect(), row = Math.floor((event.clientY - box.top + this.scroll.scrollTop) / ROW);
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
    else if (block < 0) hideTip();
    else this.tell(event.clientX, event.clientY, false);
  }

  tellSegment(segment, x, y) {
    const kind = `${segment.kind}${segment.expandable ? ", expandable" : ""}, stream ${segment.stream}`;
    showTip(x, y, `Segment ${segment.address}`, [nbytes(segment.total), kind, segment.pool ? `private pool ${segment.pool}` : "common pool", `${segment.blocks.length + segment.hidden} blocks`], [], false);
  }

  tell(x, y, aloud) {
    const segment = this.rows[this.picked.row], [offset, size, requested, state, stack] = segment.blocks[this.picked.block];
    const asked = state === 2 ? [] : [`requested ${requested < 0 ? "unknown" : nbytes(requested)}`];
    const lines = [`${nbytes(size)}, ${STATES[state]}`, ...asked, `at +${nbytes(offset)} of segment ${segment.address} (${nbytes(segment.total)})`];
    const calls = this.data.stacks[stack].map((i) => this.data.frames[i]);
    showTip(x, y, `Block ${this.picked.block + 1} of ${segment.blocks.length}`, lines, calls, aloud);
  }

  key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }, move = moves[event.key];
    if (event.key === "Escape") hideTip();
    if (!move || !this.rows.length) return;
    event.preventDefault();
    const old = this.picked || { row: 0, block: move[1] ? -move[1] : 0 };
    const row = Math.max(0, Math.min(this.rows.length - 1, old.row + (this.picked ? move[0] : 0))), count = this.rows[row].blocks.length;
    const block = Math.max(0, Math.min(count - 1, move[0] ? 0 : old.block + move[1]));
    this.picked = { row, block };
    if (row * ROW < this.scroll.scrollTop) this.scroll.scrollTop = row * ROW;
    if ((row + 1) * ROW > this.scroll.scrollTop + this.scroll.clientHeight) this.scroll.scrollTop = (row + 1) * ROW - this.scroll.clientHeight + 8;
    this.draw();
    if (!count) return;
    const box = this.canvas.getBoundingClientRect(), [offset] = this.rows[row].blocks[block];
    this.tell(box.left + this.bar.left + offset / this.rows[row].total * this.bar.width, box.top + row * ROW - this.scroll.scrollTop + BAR, true);
  }
}
