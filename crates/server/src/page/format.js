// Figures as people read them. What isn't known is a dash.

const NONE = "–";
const known = (n) => typeof n === "number" && Number.isFinite(n);

/** Three digits or so: 0.42, 7.31, 48.2, 1,234. */
export function figure(n) {
  if (!known(n)) return NONE;
  const digits = Math.abs(n) >= 100 ? 0 : Math.abs(n) >= 10 ? 1 : 2;
  return n.toLocaleString("en", { maximumFractionDigits: digits });
}

/** A count: 9,120. */
export const count = (n) => (known(n) ? Math.round(n).toLocaleString("en") : NONE);

/** `1 token`, `2 tokens`. */
export const counted = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

/** A share: 87 %, and 0.4 % where whole ones would hide it. */
export function percent(share) {
  if (!known(share)) return NONE;
  const n = share * 100;
  const digits = (n > 0 && n < 1) || (n > 99 && n < 100) ? 1 : 0;
  return `${n.toFixed(digits)} %`;
}

function scaled(n, step, units) {
  if (!known(n)) return NONE;
  let power = 0;
  while (Math.abs(n) >= step && power < units.length - 1) {
    n /= step;
    power += 1;
  }
  return `${power === 0 ? count(n) : figure(n)} ${units[power]}`;
}

/** Memory, in the units that `--memory` takes. */
export const memory = (n) => scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);

/** What a disk gives, in the units that disks are sold by. */
export const disk = (n) => scaled(n, 1000, ["B", "kB", "MB", "GB", "TB"]);

/** A time: 80 ms, 3.2 s, 2 min 5 s. */
export function time(ms) {
  if (!known(ms)) return NONE;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
}
