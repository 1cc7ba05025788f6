// Allocations of a memory snapshot over its history: one stacked layer per site. Each column of pixels shows its peak.

const MARGIN = { left: 66, right: 10, top: 18, bottom: 26 };
const ALLOCATIONS_HEIGHT = 320;

/** Round up to 1, 2 or 5 times a power of ten. */
function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
}

class AllocationsPanel extends CanvasPanel {
  constructor(view, panel) {
    super(view, ALLOCATIONS_HEIGHT);
    this.data = view.account.snapshot;
    this.device = this.data.devices[panel.device];
    this.history = this.device.timeline;
    this.alone = -1;
    this.canvas.setAttribute("aria-label", `Requested memory over ${number(this.history.events)} events, peak ${nbytes(this.device.peak.bytes)}`);
    // Layers that are in use at the end are at the bottom, so that short-lived ones are on top.
    const now = (layer) => (layer < this.data.layers && this.device.sites[layer] ? this.device.sites[layer].now : -1);
    this.order = Array.from({ length: this.data.layers + 1 }, (_, layer) => layer).sort((a, b) => now(b) - now(a));
    this.along = chooser("Along", this.history.time ? ["events", "time"] : ["events"], () => this.whole());
    this.reserved = make("input", { type: "checkbox", on: { change: () => this.draw() } });
    this.reserved.checked = true;
    this.unpack();
    this.from = 0;
    this.to = Math.max(1, this.places[this.places.length - 1]);
    this.cursor = -1;
    this.listen();
    this.entries = this.legend();
    this.element = [
      make("p", { class: "controls" }, this.along.element, make("label", {}, this.reserved, " reserved memory"), button("Show all", () => this.whole(), { class: "tool" })),
      this.box,
      make("div", { class: "legend", role: "group", "aria-label": "Sites: press one to see it alone" }, this.entries),
    ];
  }

  /** Convert differences to positions, and allocations to changes at events. */
  unpack() {
    const { at, time, size, start, end, layer, stack } = this.history;
    const sum = (values) => { let total = 0; return Float64Array.from(values, (value) => (total += value)); };
    this.at = sum(at);
    this.time = time ? sum(time) : null;
    this.base = new Float64Array(this.data.layers + 1);
    this.changes = Array.from(this.at, () => []);
    this.first = Array.from(this.at, () => -1);
    for (let i = 0; i < size.length; i++) {
      if (start[i] < 0) this.base[layer[i]] += size[i];
      else { this.changes[start[i]].push(layer[i], size[i]); this.first[start[i]] = stack[i]; }
      if (end[i] < this.at.length) this.changes[end[i]].push(layer[i], -size[i]);
    }
  }

  get places() {
    return this.along.select.value === "time" && this.time ? this.time : this.at;
  }

  whole() {
    this.from = 0;
    this.to = Math.max(1, this.places[this.places.length - 1]);
    this.cursor = -1;
    this.draw();
  }

  zoom(from, to) {
    const end = Math.max(1, this.places[this.places.length - 1]), least = Math.min(end, this.places === this.at ? 8 : 20);
    if (to - from < least) { const middle = (from + to) / 2; from = middle - least / 2; to = middle + least / 2; }
    this.from = Math.max(0, from);
    this.to = Math.min(end, Math.max(to, this.from + least));
    this.draw();
  }

  restAt(slot, layer) {
    const rest = this.history.rest;
    if (!rest) return 0;
    const row = rest.rows[layer];
    return row[Math.round(this.at[slot] / Math.max(1, this.history.events - 1) * (row.length - 1))];
  }

  /** Return the layers at the peak of each column of pixels, and the event of that peak. */
  columns(count) {
    const layers = this.data.layers + 1, places = this.places, now = this.base.slice(), full = new Float64Array(layers);
    const values = new Float64Array(count * layers), events = new Int32Array(count).fill(-1), best = new Float64Array(count).fill(-1);
    let column = 0;
    const keep = (at, slot) => {
      let total = 0;
      for (let k = 0; k < layers; k++) { full[k] = now[k] + this.restAt(slot, k); total += full[k]; }
      if (total > best[at]) { best[at] = total; values.set(full, at * layers); events[at] = slot; }
    };
    for (let slot = 0; slot < places.length; slot++) {
      const wanted = (places[slot] - this.from) / (this.to - this.from) * (count - 1);
      if (wanted > count - 1 + 1e-9) break;
      for (; column < Math.min(Math.floor(wanted), count - 1); column++) { keep(column, Math.max(0, slot - 1)); keep(column + 1, Math.max(0, slot - 1)); }
      const changes = this.changes[slot];
      for (let i = 0; i < changes.length; i += 2) now[changes[i]] += changes[i + 1];
      if (wanted >= 0) keep(column, slot);
    }
    for (; column < count - 1; column++) { keep(column, places.length - 1); keep(column + 1, places.length - 1); }
    return { values, events, best, layers, count };
  }

  paint() {
    const { context, width, height } = this.context();
    context.clearRect(0, 0, width, height);
    const plot = { left: MARGIN.left, top: MARGIN.top, width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
    this.plot = plot;
    const shown = this.shown = this.columns(Math.max(2, Math.floor(plot.width)));
    const reserved = this.reserved.checked && this.alone < 0 && this.places === this.at ? this.history.reserved : null;
    let most = 1;
    for (let x = 0; x < shown.count; x++) most = Math.max(most, this.alone < 0 ? shown.best[x] : shown.values[x * shown.layers + this.alone]);
    if (reserved) most = Math.max(most, ...reserved.bytes);
    this.most = most * 1.06;
    this.drawAxes(context, plot);
    this.drawLayers(context, plot, shown);
    if (reserved) this.drawReserved(context, plot, reserved);
    this.drawMarks(context, plot);
  }

  y(bytes) { return this.plot.top + this.plot.height * (1 - bytes / this.most); }
  x(place) { return this.plot.left + (place - this.from) / (this.to - this.from) * this.plot.width; }

  drawAxes(context, plot) {
    const unit = 1024 ** Math.min(6, Math.max(0, Math.floor(Math.log(this.most) / Math.log(1024))));
    const step = roundStep(this.most / unit / 5) * unit;
    context.strokeStyle = this.color("rule");
    context.fillStyle = this.color("quiet");
    context.textAlign = "right";
    for (let value = 0; value <= this.most; value += step) {
      const y = Math.round(this.y(value)) + 0.5;
      context.beginPath(); context.moveTo(plot.left, y); context.lineTo(plot.left + plot.width, y); context.stroke();
      context.fillText(nbytes(value), plot.left - 8, y + 4);
    }
    const apart = roundStep((this.to - this.from) / Math.max(2, Math.min(8, Math.floor(plot.width / 110))));
    const least = this.places === this.at ? Math.max(1, apart) : apart;
    for (let place = Math.ceil(this.from / least) * least; place <= this.to; place += least) {
      const text = this.places === this.at ? number(Math.round(place)) : duration(place / 1e6), x = this.x(place);
      context.textAlign = x - plot.left < 20 ? "left" : plot.left + plot.width - x < 30 ? "right" : "center";
      context.fillText(text, x, plot.top + plot.height + 18);
    }
  }

  drawLayers(context, plot, shown) {
    const lower = new Float64Array(shown.count);
    for (const layer of this.order) {
      if (this.alone >= 0 && this.alone !== layer) continue;
      context.fillStyle = layerColor(this, this.device, layer, this.data.layers);
      context.beginPath();
      for (let x = 0; x < shown.count; x++) {
        const y = this.y(lower[x] + shown.values[x * shown.layers + layer]);
        context.lineTo(plot.left + x, y); context.lineTo(plot.left + x + 1, y);
      }
      for (let x = shown.count - 1; x >= 0; x--) {
        const y = this.y(lower[x]);
        context.lineTo(plot.left + x + 1, y); context.lineTo(plot.left + x, y);
        lower[x] += shown.values[x * shown.layers + layer];
      }
      context.fill();
    }
  }

  drawReserved(context, plot, reserved) {
    context.save();
    context.beginPath(); context.rect(plot.left, plot.top, plot.width, plot.height); context.clip();
    context.strokeStyle = this.color("ink");
    context.setLineDash([5, 4]);
    context.beginPath();
    reserved.at.forEach((at, i) => {
      const next = i + 1 < reserved.at.length ? reserved.at[i + 1] : this.history.events;
      context.lineTo(this.x(at), this.y(reserved.bytes[i])); context.lineTo(this.x(next), this.y(reserved.bytes[i]));
    });
    context.stroke();
    context.restore();
  }

  /** Draw the peak, failed requests, the cursor and the range that is being dragged. */
  drawMarks(context, plot) {
    context.textAlign = "left";
    const peak = this.device.peak, slot = this.slotOf(Math.max(0, peak.event)), at = this.x(this.places[slot]);
    if (this.alone < 0 && at >= plot.left && at <= plot.left + plot.width) {
      const text = `peak ${nbytes(peak.bytes)}`, length = context.measureText(text).width, y = this.y(peak.bytes);
      context.fillStyle = this.color("ink");
      context.beginPath(); context.moveTo(at, y); context.lineTo(at - 5, y - 8); context.lineTo(at + 5, y - 8); context.fill();
      const left = at + 8 + length <= plot.left + plot.width ? at + 8 : Math.max(plot.left, at - 8 - length);
      context.fillText(text, left, Math.max(12, y - 3));
    }
    context.strokeStyle = this.color("bad");
    for (const failed of this.history.failed) {
      const x = this.x(this.places[this.slotOf(failed.event)]);
      if (x < plot.left || x > plot.left + plot.width) continue;
      context.beginPath(); context.moveTo(x, plot.top); context.lineTo(x, plot.top + plot.height); context.stroke();
      const right = plot.left + plot.width - x > 90;
      context.textAlign = right ? "left" : "right";
      context.fillStyle = this.color("bad"); context.fillText("out of memory", right ? x + 4 : x - 4, plot.top - 6);
    }
    if (this.cursor >= 0) {
      context.strokeStyle = this.color("ink");
      context.beginPath(); context.moveTo(plot.left + this.cursor + 0.5, plot.top); context.lineTo(plot.left + this.cursor + 0.5, plot.top + plot.height); context.stroke();
    }
    if (this.drag !== undefined) {
      context.globalAlpha = 0.18; context.fillStyle = this.color("accent");
      context.fillRect(plot.left + Math.min(this.drag, this.cursor), plot.top, Math.abs(this.drag - this.cursor), plot.height);
      context.globalAlpha = 1;
    }
  }

  slotOf(event) {
    let low = 0, high = this.at.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (this.at[middle] <= event) low = middle; else high = middle - 1; }
    return low;
  }

  /** Describe a column: the layer under the pointer, or the largest one if the keyboard is used. */
  tell(column, clientX, clientY, bytes, aloud) {
    const { values, events, layers } = this.shown, own = Array.from(values.subarray(column * layers, (column + 1) * layers));
    const total = own.reduce((sum, value) => sum + value, 0);
    let layer = this.alone >= 0 ? this.alone : own.indexOf(Math.max(...own)), below = 0;
    if (bytes !== null && this.alone < 0) for (const k of this.order) { if (bytes >= below && bytes < below + own[k]) layer = k; below += own[k]; }
    const slot = Math.max(0, events[column]), site = this.device.sites[layer], named = layer < this.data.layers && site;
    const when = this.time ? `, ${duration(this.time[slot] / 1e6)} after the first` : "";
    const lines = [`${nbytes(own[layer])} of ${nbytes(total)} requested`, `event ${number(this.at[slot])}${when}`];
    const exact = this.to - this.from < 400 && this.first[slot] > 0 ? this.data.stacks[this.first[slot]].map((i) => this.data.frames[i]) : null;
    if (exact) lines.push("allocated at this event by:");
    this.tip(clientX, clientY, named ? site.name : "other sites", lines, exact || (named ? site.stack : []), aloud);
  }

  legend() {
    const names = this.device.sites.slice(0, this.data.layers).map((site) => site.name);
    if (this.device.sites.length > this.data.layers) names.push("other sites");
    return names.map((name, layer) => {
      const press = () => {
        this.alone = this.alone === layer ? -1 : layer;
        this.entries.forEach((entry, place) => entry.setAttribute("aria-pressed", String(this.alone < 0 || place === this.alone)));
        this.draw();
      };
      const entry = button("", press, { class: "entry", "aria-pressed": "true" });
      const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
      const shade = layer >= this.data.layers ? "other" : this.device.sites[layer].before ? "before" : layer;
      swatch.style.cssText = `height:9px;background:var(--layer-${shade})`;
      entry.append(swatch, make("span", { class: "name", text: name }));
      return entry;
    });
  }

  listen() {
    const column = (event) => Math.max(0, Math.min(this.shown.count - 1, Math.round(event.clientX - this.canvas.getBoundingClientRect().left - MARGIN.left)));
    const place = (at) => this.from + (this.to - this.from) * at / (this.shown.count - 1);
    this.canvas.addEventListener("pointermove", (event) => {
      this.cursor = column(event);
      this.draw();
      const above = event.clientY - this.canvas.getBoundingClientRect().top - this.plot.top;
      this.tell(this.cursor, event.clientX, event.clientY, this.most * (1 - above / this.plot.height), false);
    });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.drag = this.cursor = column(event);
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointerup", () => {
      const from = this.drag, to = this.cursor;
      this.drag = undefined;
      if (from !== undefined && Math.abs(to - from) > 4) this.zoom(place(Math.min(from, to)), place(Math.max(from, to)));
      else this.draw();
    });
    this.canvas.addEventListener("pointercancel", () => { this.drag = undefined; });
    this.canvas.addEventListener("pointerleave", () => { this.cursor = -1; this.hideTip(); this.draw(); });
    this.canvas.addEventListener("blur", () => this.hideTip());
    this.canvas.addEventListener("dblclick", () => this.whole());
    this.canvas.addEventListener("keydown", (event) => this.key(event, place));
  }

  key(event, place) {
    const step = event.shiftKey ? 25 : 1, last = this.shown.count - 1, width = this.to - this.from;
    if (this.cursor < 0) this.cursor = Math.round(last / 2);
    const middle = place(this.cursor);
    if (event.key === "ArrowLeft") this.cursor = Math.max(0, this.cursor - step);
    else if (event.key === "ArrowRight") this.cursor = Math.min(last, this.cursor + step);
    else if (event.key === "Home") this.cursor = 0;
    else if (event.key === "End") this.cursor = last;
    else if (event.key === "+" || event.key === "=") this.zoom(middle - width / 4, middle + width / 4);
    else if (event.key === "-") this.zoom(middle - width, middle + width);
    else if (event.key === "Escape") { this.whole(); this.hideTip(); return; }
    else return;
    event.preventDefault();
    this.draw();
    const box = this.canvas.getBoundingClientRect();
    this.tell(this.cursor, box.left + MARGIN.left + this.cursor, box.top + 40, null, true);
  }
}

function drawAllocations(view, panel) {
  return new AllocationsPanel(view, panel).element;
}
