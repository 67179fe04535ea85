// Numbers and times as people read them. A missing value is a dash.

const WHOLE = new Intl.NumberFormat("en");
export const DASH = "–";

/** Return a count with separators: 12,345. */
export function count(value) {
  return Number.isFinite(value) ? WHOLE.format(Math.round(value)) : DASH;
}

/** Return a number with about three significant digits. */
export function number(value, digits = 3) {
  if (!Number.isFinite(value)) return DASH;
  const size = Math.abs(value);
  if (size >= 10000) return count(value);
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  return String(Number(value.toFixed(size >= 100 ? 1 : digits)));
}

/** Return a number with a fixed number of decimals, so that columns stand below each other. */
export function fixed(value, digits = 3) {
  return Number.isFinite(value) ? value.toFixed(digits) : DASH;
}

/** Return a number with its sign; the sign of minus is as wide as plus. */
export function signed(value, digits = 2) {
  if (!Number.isFinite(value)) return DASH;
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
}

/** Return a share as per cent. */
export function percent(share, digits = 1) {
  return Number.isFinite(share) ? `${(share * 100).toFixed(digits)} %` : DASH;
}

/** Return a span of time: 45 s, 3 min 20 s, 2 h 5 min. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return DASH;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} days`;
}

/** Return the time of a step: with a decimal where it is short. */
export function pace(seconds) {
  return Number.isFinite(seconds) && seconds < 10 ? `${seconds.toFixed(1)} s` : duration(seconds);
}

/** Return how long something short took: 3 ms, 0.42 s, 12.0 s. */
export function took(seconds) {
  if (!Number.isFinite(seconds)) return DASH;
  if (seconds < 0.1) return `${number(seconds * 1000, 1)} ms`;
  return seconds < 60 ? `${seconds.toFixed(seconds < 1 ? 2 : 1)} s` : duration(seconds);
}

/** Return a time of the server in this reader's zone: 14 Mar, 09:26. */
export function moment(iso) {
  const date = new Date(iso);
  if (!iso || Number.isNaN(date.getTime())) return DASH;
  return date.toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
}

/** Return how long ago a time is. */
export function ago(iso) {
  const date = new Date(iso);
  if (!iso || Number.isNaN(date.getTime())) return DASH;
  const seconds = (Date.now() - date.getTime()) / 1000;
  return seconds < 5 ? "now" : `${duration(seconds)} ago`;
}

/** Return bytes in a fitting unit. */
export function bytes(value) {
  if (!Number.isFinite(value)) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  for (; size >= 1024 && unit < units.length - 1; unit += 1) size /= 1024;
  return `${unit ? size.toFixed(1) : size} ${units[unit]}`;
}

/** Return a noun with its number: 1 leaf, 2 leaves. */
export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** Return the first digits of an id. */
export function short(id) {
  return String(id ?? "").slice(0, 8);
}
