// The machine view: takes what the live connection brings, and draws it while it is in sight.

import { showMemory, showPeak } from "./budget.js";
import { census, inMemory, modelWords, READING, STATES, USED } from "./census.js";
import { byId, make, say } from "./dom.js";
import { count, disk, figure, percent } from "./format.js";
import { HeatMap } from "./heatmap.js";
import { Timeline } from "./timeline.js";
import { showDecisions, showWork } from "./work.js";

const LINES = [
  { of: "tokens_per_second", line: new Timeline("Tokens/s", figure) },
  { of: "prompt_tokens_per_second", line: new Timeline("Prompt tokens/s", figure) },
  { of: "hit_rate", line: new Timeline("Found in memory", percent, 1) },
  { of: "bytes_per_second", line: new Timeline("Read/s", disk) },
  { of: "stall_share", line: new Timeline("Waiting for disk", percent, 1) },
];
/** The table is for reading, by eye or ear: it changes no oftener. */
const TABLE_MS = 1000;

/** Installs the view; returns what the live connection calls. */
export function installMachine() {
  byId("lines").append(...LINES.map(({ line }) => line.root));
  const counts = STATES.map(() => make("span", "count"));
  byId("legend").append(...STATES.map((name, state) => make("li", "", make("span", `swatch state-${state}`), `${name} `, counts[state])));
  const map = new HeatMap(byId("map"), byId("canvas"), byId("cell"), byId("cell-told"));
  const view = byId("machine");
  let last = null;
  let tableMs = -Infinity;

  const draw = () => {
    if (last === null || view.hidden) return;
    for (const { line } of LINES) line.draw();
    map.show(last.experts);
    const censuses = last.experts.map(census);
    const { sum, words } = modelWords(censuses);
    sum.forEach((n, state) => say(counts[state], count(n)));
    say(byId("experts-said"), words);
    showPeak(last.peak);
    showWork(last.active, last.queued);
    const now = performance.now();
    if (byId("layers").open && now - tableMs >= TABLE_MS) {
      tableMs = now;
      fillTable(censuses);
    }
  };
  let atStart = [];
  /** What is decided anew as the server runs takes the place of what it decided at its start. */
  const decide = (anew) => {
    const rest = [...anew];
    const now = atStart.map((decision) => {
      const at = rest.findIndex(({ what }) => what === decision.what);
      return at < 0 ? decision : rest.splice(at, 1)[0];
    });
    showDecisions([...now, ...rest]);
  };
  byId("layers").addEventListener("toggle", () => {
    tableMs = -Infinity;
    draw();
  });

  return {
    draw,
    shape({ layers, experts, top_k: topK, memory, decisions }) {
      last = null;
      byId("machine-body").hidden = false;
      map.shape(layers, experts);
      byId("map").setAttribute("aria-label", `What each of ${experts} experts does in each of ${layers} layers. A token uses ${topK} in a layer. Arrow keys move from cell to cell.`);
      showMemory(memory);
      atStart = decisions;
      decide([]);
    },
    tick(tick) {
      last = tick;
      const now = performance.now();
      for (const { of, line } of LINES) line.add(now, tick[of] ?? null);
      if (tick.decisions) decide(tick.decisions);
      draw();
    },
    state(state, words) {
      const said = {
        connecting: "Waiting for the server's live view.",
        lost: `Not connected; what is shown is old. ${words}`,
        absent: `There is no live view: ${words}`,
      };
      byId("machine-notice").hidden = state === "live";
      say(byId("machine-notice"), said[state] ?? "");
    },
  };
}

function fillTable(censuses) {
  const body = byId("layer-rows");
  while (body.rows.length > censuses.length) body.deleteRow(-1);
  censuses.forEach((counts, layer) => {
    const row = body.rows[layer] ?? body.insertRow();
    if (row.cells.length === 0) {
      const head = make("th", "", String(layer));
      head.scope = "row";
      row.append(head, make("td"), make("td"), make("td"));
    }
    const all = counts.reduce((sum, n) => sum + n, 0);
    say(row.cells[1], `${inMemory(counts)} of ${all}`);
    say(row.cells[2], String(counts[READING]));
    say(row.cells[3], String(counts[USED]));
  });
}
