// Where the memory goes: one bar of all lines against the budget, and each line with its size.

import { byId, make, say } from "./dom.js";
import { memory } from "./format.js";

/** Colours that the bar has; further lines share the last one. */
const COLOURS = 8;

/** Shows the plan; of no budget, the lines' sum is the whole. */
export function showMemory({ budget, lines }) {
  const used = lines.filter((line) => line.bytes > 0).toSorted((a, b) => b.bytes - a.bytes);
  const sum = used.reduce((total, line) => total + line.bytes, 0);
  const whole = Math.max(budget ?? 0, sum, 1);
  const parts = used.map((line, i) => {
    const part = make("div", `part colour-${Math.min(i, COLOURS - 1)}`);
    part.style.width = `${(100 * line.bytes) / whole}%`;
    part.title = `${line.name}: ${memory(line.bytes)}`;
    return part;
  });
  byId("memory-bar").replaceChildren(...parts, make("div", "peak"));
  byId("memory-rows").replaceChildren(...used.map((line, i) => row(line, i, whole)));
  byId("memory-bar").dataset.whole = whole;
  byId("memory-said").dataset.plan = budget === null ? `${memory(sum)} planned, no budget` : `${memory(sum)} planned of ${memory(budget)}`;
  showPeak(null);
}

function row(line, i, whole) {
  const fill = make("div", `part colour-${Math.min(i, COLOURS - 1)}`);
  fill.style.width = `${(100 * line.bytes) / whole}%`;
  const name = make("th", "", line.name);
  name.scope = "row";
  const bar = make("td", "bar", make("div", "track", fill));
  return make("tr", "", name, bar, make("td", "size", memory(line.bytes)));
}

/** The process's high-water mark, as a mark on the bar. */
export function showPeak(peak) {
  const bar = byId("memory-bar");
  const said = byId("memory-said");
  const mark = bar.querySelector(".peak");
  mark.hidden = peak === null;
  say(said, peak === null ? said.dataset.plan : `${said.dataset.plan}, peak ${memory(peak)}`);
  if (peak !== null) mark.style.left = `${Math.min(100, (100 * peak) / Number(bar.dataset.whole))}%`;
}
