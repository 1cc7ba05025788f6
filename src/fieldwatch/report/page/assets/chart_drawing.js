// Options for uPlot, and what is drawn around its lines: phases, event marks, the chosen step.

const FONT = "11px system-ui, sans-serif";
/** Height of a label of the value axis and of the space around it, in pixels. */
const LABEL = 26;

function plotOptions(chart, data) {
  const { view, kind, ink } = chart;
  const log = kind === "lines" && chart.state.log && data.slice(1).some((column) => column.some((value) => value > 0));
  const [min, max] = view.rangeOf(chart.axis);
  return {
    width: chart.width,
    height: chart.height,
    padding: [RAIL + 4, 10, 0, 0],
    legend: { show: false },
    focus: { alpha: 0.25 },
    scales: {
      x: { time: false, auto: false, min, max },
      y: kind === "stack" ? { range: (_, __, high) => (chart.panel.amounts ? [0, (high || 1) * 1.05] : [0, 1]) } : { distr: log ? 3 : 1, range: (plot, low, high) => (log ? roomyLog(low, high, plot.data.slice(1)) : roomy(low, high)) },
    },
    axes: [axisOptions(ink, { space: 70, size: 26 }), valueAxis(ink, kind === "stack" && !chart.panel.amounts, log)],
    ...(kind === "stack" ? areas(chart, data) : { series: [{}, ...chart.places.map((place) => line(chart, place, data))] }),
    cursor: cursorOptions(chart),
    hooks: {
      drawClear: [(plot) => drawPhases(plot, chart)],
      drawAxes: [(plot) => drawTrouble(plot, chart)],
      draw: [(plot) => drawMarks(plot, chart)],
      setCursor: [(plot) => chart.read(plot.cursor.left >= 0 && plot.cursor.idx != null ? plot.cursor.idxs : null)],
      setScale: [(plot, key) => key === "x" && view.follow(chart, [plot.scales.x.min, plot.scales.x.max])],
    },
  };
}

function axisOptions(ink, options) {
  return {
    stroke: ink.quiet, font: FONT, gap: 4, ...options,
    grid: { stroke: ink.rule, width: 1 }, ticks: { show: false },
    values: (_, splits) => splits.map((value) => (value === null ? "" : number(value))),
  };
}

function valueAxis(ink, inPercent, log) {
  const axis = axisOptions(ink, { space: log ? 22 : 34, size: 58 });
  if (inPercent) axis.values = (_, splits) => splits.map((value) => percent(value, 0));
  // Written out, such values are wider than the axis.
  if (log) axis.values = (_, splits) => splits.map((value) => (value >= 1e6 ? withPower(value) : number(value)));
  if (log) Object.assign(axis, { splits: (plot, __, least, greatest) => roundValues(least, greatest, LABEL / plot.height), filter: (_, splits) => splits });
  return axis;
}

function cursorOptions(chart) {
  const moves = (type) => type === "mousemove" || type === "mouseleave";
  return {
    y: false,
    drag: { x: true, y: false, dist: 5 },
    points: { size: 5, show: chart.kind === "lines" },
    sync: { key: `${chart.view.key} ${chart.axis}`, scales: ["x", null], setSeries: false, filters: { pub: moves, sub: moves } },
    bind: { dblclick: () => () => chart.view.zoom(chart.axis, null) },
  };
}

function line(chart, place, data) {
  const column = data[chart.places.indexOf(place) + 1];
  const values = column.reduce((count, value) => count + (value != null), 0);
  const points = values <= 60 ? { show: true, size: values <= 2 ? 6 : 4 } : { show: false };
  return { ...chart.style(place, chart.theme), width: values > chart.width ? 1 : 1.5, points };
}

/** Return stacked areas, each filled down to the one below it, and the lines over them. */
function areas(chart, data) {
  const stacked = chart.places.filter((place) => chart.isArea(place));
  const colors = stacked.map((place) => chart.style(place, chart.theme).stroke);
  const over = chart.places.filter((place) => !chart.isArea(place)).map((place) => line(chart, place, data));
  const series = colors.map((color, place) => ({ stroke: color, width: 0, fill: place ? undefined : color, points: { show: false } }));
  const bands = colors.slice(1).map((fill, place) => ({ series: [place + 2, place + 1], fill }));
  return { series: [{}, ...series, ...over], bands };
}

function drawPhases(plot, chart) {
  if (chart.axis !== "step") return;
  const { ctx, bbox } = plot;
  const left = (step) => Math.min(Math.max(plot.valToPos(step, "x", true), bbox.left), bbox.left + bbox.width);
  ctx.save();
  chart.view.account.phases.forEach((phase, place) => {
    const from = left(phase.first);
    const width = left(phase.last ?? chart.view.wholeRange("step")[1]) - from;
    if (place % 2 === 0 && width > 0) {
      ctx.fillStyle = chart.ink.band;
      ctx.fillRect(from, bbox.top, width, bbox.height);
    }
  });
  ctx.restore();
}

/** Draw a vertical line at each problem, behind the series, so that a one-step spike remains visible. */
function drawTrouble(plot, chart) {
  if (chart.axis !== "step") return;
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.globalAlpha = 0.5;
  ctx.fillStyle = chart.ink.bad;
  for (const mark of chart.view.marks()) {
    const x = plot.valToPos(mark.step, "x", true);
    if (markStyle(mark.kind).color !== "bad" || !(x >= bbox.left && x <= bbox.left + bbox.width)) continue;
    ctx.fillRect(Math.round(x), bbox.top, Math.max(1, Math.round(uPlot.pxRatio)), bbox.height);
  }
  ctx.restore();
}

/** Draw the names of the phases at the top of the chart, where they fit. */
function drawPhaseNames(plot, chart) {
  if (chart.axis !== "step") return;
  const { ctx, bbox } = plot;
  const edge = bbox.left + bbox.width;
  ctx.font = `${10 * uPlot.pxRatio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  for (const phase of chart.view.account.phases) {
    const from = Math.max(plot.valToPos(phase.first, "x", true), bbox.left);
    const to = Math.min(plot.valToPos(phase.last ?? chart.view.wholeRange("step")[1], "x", true), edge);
    const pad = 4 * uPlot.pxRatio;
    const name = shortened(ctx, plain(phase.name), to - from - 2 * pad);
    // On a background: curves often start here, and stacked areas fill the whole chart.
    ctx.globalAlpha = 0.85;
    ctx.fillStyle = chart.ink.paper;
    if (name) ctx.fillRect(from + pad / 2, bbox.top + pad / 2, ctx.measureText(name).width + pad, 10 * uPlot.pxRatio + pad);
    ctx.globalAlpha = 1;
    ctx.fillStyle = chart.ink.quiet;
    ctx.fillText(name, from + pad, bbox.top + pad);
  }
}

/** Truncate a text to a width; return nothing if fewer than four letters would remain. */
function shortened(ctx, text, width) {
  if (ctx.measureText(text).width <= width) return text;
  let length = Math.min(text.length, 60);
  while (length > 3 && ctx.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return length > 3 ? `${text.slice(0, length)}…` : "";
}

function drawMarks(plot, chart) {
  const { ctx } = plot;
  ctx.save();
  drawPhaseNames(plot, chart);
  if (chart.axis === "step") {
    const marks = chart.view.marks();
    const counts = new Map();
    for (const { kind } of marks) counts.set(kind, (counts.get(kind) ?? 0) + 1);
    for (const mark of marks) drawMark(plot, chart, mark, counts.get(mark.kind) > chart.width / 25);
    if (chart.view.chosen !== null) drawChosen(plot, chart, chart.view.chosen);
  }
  drawBad(plot, chart);
  ctx.restore();
}

/** Draw a mark above the chart; as a thin line if there are many of its kind. */
function drawMark(plot, chart, mark, crowded) {
  const { ctx, bbox } = plot;
  const x = plot.valToPos(mark.step, "x", true);
  const style = markStyle(mark.kind);
  if (!(x >= bbox.left && x <= bbox.left + bbox.width)) return;
  const scale = 0.8 * uPlot.pxRatio;
  ctx.fillStyle = chart.ink[style.color];
  if (crowded) {
    ctx.fillRect(Math.round(x), bbox.top - 10 * uPlot.pxRatio, Math.max(1, Math.round(uPlot.pxRatio)), 6 * uPlot.pxRatio);
    return;
  }
  ctx.save();
  ctx.translate(x - 5 * scale, bbox.top - 12 * uPlot.pxRatio);
  if (style.color === "bad") ctx.clearRect(-8 * scale, -1, 22 * scale, 11 * scale);
  ctx.scale(scale, scale);
  ctx.fill(new Path2D(style.path), "evenodd");
  ctx.restore();
}

function drawChosen(plot, chart, step) {
  const { ctx, bbox } = plot;
  const x = plot.valToPos(step, "x", true);
  if (!(x >= bbox.left && x <= bbox.left + bbox.width)) return;
  ctx.fillStyle = chart.ink.ink;
  ctx.fillRect(Math.round(x) - uPlot.pxRatio / 2, bbox.top - 14 * uPlot.pxRatio, 1.5 * uPlot.pxRatio, bbox.height + 14 * uPlot.pxRatio);
  ctx.font = `600 ${11 * uPlot.pxRatio}px system-ui, sans-serif`;
  const text = number(step);
  const right = x + ctx.measureText(text).width + 8 * uPlot.pxRatio > bbox.left + bbox.width;
  ctx.textAlign = right ? "right" : "left";
  ctx.textBaseline = "bottom";
  ctx.fillText(text, x + (right ? -4 : 4) * uPlot.pxRatio, bbox.top - 2 * uPlot.pxRatio);
}

/** Draw a cross at the bottom of the chart for every value that is not finite. */
function drawBad(plot, chart) {
  const { ctx, bbox } = plot;
  const shape = new Path2D(MARKS.refusal.path);
  const scale = 0.6 * uPlot.pxRatio;
  for (const place of chart.places) {
    for (const step of chart.series[place].bad ?? []) {
      const x = plot.valToPos(step, "x", true);
      if (!(x >= bbox.left && x <= bbox.left + bbox.width)) continue;
      ctx.save();
      ctx.fillStyle = chart.ink.bad;
      ctx.translate(x - 5 * scale, bbox.top + bbox.height - 9 * uPlot.pxRatio);
      ctx.scale(scale, scale);
      ctx.fill(shape);
      ctx.restore();
    }
  }
}
