// What the server is busy with, and what it decided by itself.

import { byId, make, say } from "./dom.js";
import { count, counted } from "./format.js";

/** Rows by the id of their answer, so that a bar grows instead of being made again. */
const rows = new Map();

/** Answers that are being made, and how many requests wait. */
export function showWork(active, queued) {
  const words = active.length === 0 && queued === 0 ? "nothing to do" : `${count(active.length)} at work, ${count(queued)} waiting`;
  say(byId("work-said"), words);
  const ids = new Set(active.map((answer) => answer.id));
  for (const [id, row] of rows) {
    if (ids.has(id)) continue;
    row.root.remove();
    rows.delete(id);
  }
  for (const answer of active) {
    if (!rows.has(answer.id)) add(answer.id);
    update(rows.get(answer.id), answer);
  }
}

function add(id) {
  const row = { words: make("span"), bar: make("progress") };
  row.bar.setAttribute("aria-label", "Prompt read");
  row.root = make("li", "", row.words, row.bar);
  byId("work").append(row.root);
  rows.set(id, row);
}

function update(row, { phase, read, of, made }) {
  const isReading = phase === "reading";
  row.bar.max = Math.max(1, of);
  row.bar.value = read;
  row.bar.hidden = !isReading;
  const reading = `reading its prompt: ${count(read)} of ${counted(of, "token")}`;
  say(row.words, isReading ? reading : `answering: ${counted(made, "token")}, after a prompt of ${count(of)}`);
}

/** Decisions with their reasons. */
export function showDecisions(decisions) {
  const entries = decisions.map(({ what, choice, reason }) => {
    const why = make("dd", "", make("strong", "", choice), reason ? make("span", "quiet", ` ${reason}`) : "");
    return make("div", "", make("dt", "", what), why);
  });
  byId("decisions").replaceChildren(...entries);
}
