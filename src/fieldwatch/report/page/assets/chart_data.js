// Conversion of series, each with its own steps, to the columns of one chart.

/** Return a column of steps and one per series: undefined without a row, null for values that are not finite. */
function joined(series) {
  if (!series.length) return [[]];
  const tables = series.map((one) => [one.x, one.y]);
  return tables.length === 1 ? tables[0] : uPlot.join(tables);
}

/** Return a series for a logarithmic scale, without values of 0 or less. */
function positive(series) {
  return { ...series, y: series.y.map((value) => (value > 0 ? value : null)) };
}

/**
 * Shares for stacked areas: `parts` as they are recorded, `tops` with steps first and then each share on those before it,
 * so that the last is 1. Between its own steps a share goes straight; before, after and in long gaps its term was off: 0.
 */
function shares(series) {
  const steps = joined(series)[0];
  const parts = series.map((one) => along(one, steps));
  const sums = steps.map((_, row) => parts.reduce((sum, part) => sum + Math.abs(part[row]), 0));
  const tops = [steps];
  parts.forEach((part, place) => {
    const below = place ? tops[place] : null;
    tops.push(part.map((value, row) => (sums[row] ? (below ? below[row] : 0) + Math.abs(value) / sums[row] : null)));
  });
  return { parts, tops };
}

/** Return amounts for stacked areas: like `shares`, but not normalized, so that the top is the sum. */
function amounts(series) {
  const steps = joined(series)[0];
  const parts = series.map((one) => along(one, steps));
  const tops = [steps];
  parts.forEach((part, place) => tops.push(place ? part.map((value, row) => tops[place][row] + value) : part));
  return { parts, tops };
}

function along(series, steps) {
  const { x, y } = series;
  const off = 20 * typicalGap(x);
  let next = 0;
  return steps.map((step) => {
    while (next < x.length && x[next] < step) next += 1;
    if (x[next] === step) return y[next] ?? 0;
    if (next === 0 || next === x.length || x[next] - x[next - 1] > off) return 0;
    const part = (step - x[next - 1]) / (x[next] - x[next - 1]);
    return (y[next - 1] ?? 0) * (1 - part) + (y[next] ?? 0) * part;
  });
}

function typicalGap(x) {
  const gaps = x.slice(1).map((step, row) => step - x[row]).sort((a, b) => a - b);
  return gaps[Math.floor(gaps.length / 2)] || 1;
}

/** Return the limits of a linear scale: including 0 if that costs little space, and never empty. */
function roomy(least, greatest) {
  if (least === null || greatest === null || !Number.isFinite(least + greatest)) return [0, 1];
  if (least === greatest) {
    const half = Math.abs(least) / 10 || 0.5;
    return [least - half, greatest + half];
  }
  const pad = (greatest - least) / 20;
  if (least >= 0 && least < greatest / 2) return [0, greatest + pad];
  return [least - pad, greatest + pad];
}

/** Return the limits of a logarithmic scale, slightly beyond the values. A few values near 0 do not flatten the others: beyond eight powers of ten, the scale begins at the lowest twentieth of a line. */
function roomyLog(least, greatest, columns) {
  if (!(least > 0) || !Number.isFinite(greatest)) return [0.1, 1];
  const eight = greatest / 1e8;
  const floor = least >= eight ? least : Math.min(eight, ...columns.map(lowEnd));
  const pad = floor === greatest ? 2 : Math.pow(greatest / floor, 0.04);
  return [floor / pad, greatest * pad];
}

/** Return the value below which a twentieth of a line's positive values lie; infinity if there are none. */
function lowEnd(column) {
  const values = column.filter((value) => value > 0).sort((one, other) => one - other);
  return values.length ? values[Math.floor(values.length / 20)] : Infinity;
}

/** Return the ticks of a logarithmic axis: powers of ten; on short axes also multiples by 2 and 5, or by every digit, if they are at least `gap` (a share of the axis) apart. */
function roundValues(least, greatest, gap = 0) {
  const [from, to] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(greatest))];
  const every = Math.max(1, Math.round((to - from) / 6));
  const leading = greatest / least > 100 ? [1] : greatest / least > 8 ? [1, 2, 5] : [1, 2, 3, 4, 5, 6, 7, 8, 9];
  const values = [];
  for (let power = from; power <= to; power += every) values.push(...leading.map((one) => Number(`${one}e${power}`)));
  const apart = gap * Math.log10(greatest / least);
  const kept = [];
  // The roundest first: they stay.
  for (const digit of [1, 5, 2, 3, 7, 4, 6, 8, 9]) {
    for (const value of values) {
      const fits = kept.every((other) => Math.abs(Math.log10(value / other)) >= apart);
      if (value.toExponential().startsWith(`${digit}e`) && value >= least && value <= greatest && fits) kept.push(value);
    }
  }
  return kept.sort((a, b) => a - b);
}
