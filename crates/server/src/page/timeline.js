// One figure over the last minute, as a small line with its value beside it.

import { make, say } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
/** How far back the line goes. */
const WINDOW_MS = 60_000;
/** Coordinates of the drawing; the style stretches it. */
const WIDTH = 240;
const HEIGHT = 40;
/** A silence longer than this is a gap in the line. */
const GAP_MS = 5000;

function svg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

export class Timeline {
  /** `words` makes text of a value; `top` is the largest value there can be, if there is one. */
  constructor(name, words, top = null) {
    Object.assign(this, { name, words, top, points: [] });
    this.value = make("span", "value", "–");
    this.scale = make("span", "quiet", "");
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line" });
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.drawing.append(this.area, this.line);
    const now = make("div", "head", this.value, this.scale);
    this.root = make("div", "timeline", make("span", "name", name), now, this.drawing);
  }

  /** `ms` never goes back; `value` is null where there is nothing to measure: the line has a gap there. */
  add(ms, value) {
    this.points.push({ ms, value });
    while (this.points[0].ms < ms - WINDOW_MS) this.points.shift();
  }

  draw() {
    const { ms: now, value } = this.points.at(-1) ?? { ms: 0, value: null };
    const values = this.points.map((point) => point.value).filter((v) => v !== null);
    const most = Math.max(0, ...values);
    const top = this.top ?? (most > 0 ? most * 1.1 : 1);
    const current = this.words(value);
    say(this.value, current);
    say(this.scale, this.top === null && values.length > 0 ? `max ${this.words(most)}` : "");
    const label = `${this.name}: ${current} now, at most ${this.words(values.length > 0 ? most : null)} in the last minute`;
    if (this.drawing.getAttribute("aria-label") !== label) this.drawing.setAttribute("aria-label", label);
    const x = (ms) => (WIDTH * (1 - (now - ms) / WINDOW_MS)).toFixed(1);
    const y = (v) => (HEIGHT - 1 - (HEIGHT - 2) * Math.min(1, v / top)).toFixed(1);
    const runs = this.#runs();
    const strokes = runs.map((run) => `M${run.map(({ ms, value: v }) => `${x(ms)} ${y(v)}`).join("L")}`);
    this.line.setAttribute("d", strokes.join(""));
    const closed = runs.map((run, i) => `${strokes[i]}V${HEIGHT}H${x(run[0].ms)}Z`);
    this.area.setAttribute("d", closed.join(""));
  }

  /** Points in a row without a gap; one alone is no line. */
  #runs() {
    const runs = [[]];
    let before = -Infinity;
    for (const point of this.points) {
      const isGap = point.value === null || point.ms - before > GAP_MS;
      if (isGap && runs.at(-1).length > 0) runs.push([]);
      if (point.value !== null) runs.at(-1).push(point);
      before = point.ms;
    }
    return runs.filter((run) => run.length > 1);
  }
}
