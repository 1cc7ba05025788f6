// Numbers, sizes, durations, fractions and dates as people read them: the functions of fieldwatch/base/text_format.py.
// tests/base/test_text_format.py runs one table of cases through both files, so change them together.

const SIZE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

const isUnknown = (value) => value === null || value === undefined || Number.isNaN(value);
const signOf = (value, signed) => (value < 0 ? "-" : signed && value ? "+" : "");
const withoutZeros = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

/** Fixed decimals with a comma between thousands; toFixed rounds ties up. */
function fixed(size, decimals) {
  const [whole, part] = size.toFixed(decimals).split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return part ? `${grouped}.${part}` : grouped;
}

/** 1.235e+06: a positive number with its power of ten. */
function withPower(size, digits = 4) {
  const [mantissa, exponent] = size.toExponential(digits - 1).split("e");
  return `${withoutZeros(mantissa)}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

/** 0.1235, 60,000 or 1.235e-07: at most `digits` significant digits; texts stay as they are. */
function number(value, digits = 4, signed = false) {
  if (isUnknown(value)) return "-";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value), sign = signOf(value, signed);
  if (size === Infinity) return `${sign}inf`;
  if (Number.isInteger(size) && size < 1e9) return sign + fixed(size, 0);
  if (size >= 1e6 || size < 1e-4) return sign + withPower(size, digits);
  const places = digits - 1 - Number(size.toExponential().split("e")[1]);
  return sign + withoutZeros(fixed(size, Math.max(places, 0)));
}

/** A number of bytes in binary units: 512 B, 1.5 KiB; `unit` fixes the unit. */
function nbytes(count, decimals = 1, unit = null, signed = false) {
  if (isUnknown(count) || !Number.isFinite(count)) return "-";
  let size = Math.abs(count), power = 0;
  if (unit !== null) {
    power = SIZE_UNITS.indexOf(unit);
    size /= 1024 ** power;
  } else {
    // Move on to the next unit also where rounding would show "1,024.0 KiB".
    while (size >= 1024 - 0.5 * 10 ** -decimals && power < SIZE_UNITS.length - 1) { size /= 1024; power++; }
  }
  return `${signOf(count, signed)}${fixed(size, power ? decimals : 0)} ${SIZE_UNITS[power]}`;
}

/** Memory that is given in MiB. */
function mebibytes(value, decimals = 1, unit = null, signed = false) {
  return nbytes(isUnknown(value) ? null : value * 2 ** 20, decimals, unit, signed);
}

/** A fraction of 1 in percent: 12.3%. */
function percent(fraction, decimals = 1, signed = false) {
  if (isUnknown(fraction) || !Number.isFinite(fraction)) return "-";
  return `${signOf(fraction, signed)}${fixed(Math.abs(100 * fraction), decimals)}%`;
}

/** A duration in at most two units: 12 us, 4.5 s, 2 min 3 s, 1 h 20 min, 2 d 3 h. */
function duration(seconds) {
  if (isUnknown(seconds)) return "-";
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds === Infinity) return "inf";
  if (seconds < 59.95) { // here and below, limits are where three digits round up to the next unit
    for (const [limit, factor, unit] of [[0.9995e-3, 1e6, "us"], [0.9995, 1e3, "ms"]]) {
      if (seconds > 0 && seconds < limit) return `${number(seconds * factor, 3)} ${unit}`;
    }
    return `${number(seconds, 3)} s`;
  }
  const twoUnits = (count, base, large, small) => {
    const text = `${fixed(Math.floor(count / base), 0)} ${large}`;
    return count % base ? `${text} ${count % base} ${small}` : text;
  };
  const whole = Math.floor(seconds + 0.5), minutes = Math.floor(seconds / 60 + 0.5);
  if (whole < 3600) return twoUnits(whole, 60, "min", "s");
  if (minutes < 24 * 60) return twoUnits(minutes, 60, "h", "min");
  return twoUnits(Math.floor(seconds / 3600 + 0.5), 24, "d", "h");
}

/** Seconds since 1970, or an ISO 8601 text, as 2026-01-31 12:00:00 UTC; a text that is not a time stays as it is. */
function moment(time) {
  const utc = (date) => `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
  if (typeof time === "string") {
    const match = time.match(/^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[+-]\d\d:\d\d)?$/);
    const date = match && new Date(`${match[1]}T${match[2]}${match[3] ?? "Z"}`);
    return date && !Number.isNaN(date.getTime()) ? utc(date) : time || "-";
  }
  return isUnknown(time) || time <= 0 || time >= 253402300800 ? "-" : utc(new Date(Math.floor(time) * 1000));
}
