// The map of experts: a row for each layer, a column for each expert, painted pixel by pixel on a canvas, so that tens of
// thousands of cells take a millisecond.

import { census, layerWords, stateOf, STATES } from "./census.js";
import { say } from "./dom.js";

/** Heights and widths of cells, in CSS pixels. */
const ROW_PX = { min: 4, max: 18, all: 400 };
const COLUMN_PX_MAX = 32;
/** Cells of at least so many device pixels have a gap beside them. */
const GAP_FROM = 4;

/** Four bytes of a pixel as the canvas keeps them, from a computed `rgb(r, g, b)`. */
function pixel(css) {
  const [r, g, b] = css.match(/[\d.]+/g).map(Number);
  return new Uint32Array(new Uint8ClampedArray([r, g, b, 255]).buffer)[0];
}

export class HeatMap {
  /**
   * `box` takes the keyboard and the pointer, `canvas` in it is painted. `cell` shows the cell in question as it changes;
   * `told` is for ears, and changes when another cell is chosen by key.
   */
  constructor(box, canvas, cell, told) {
    Object.assign(this, { box, canvas, cell, told, layers: 0, experts: 0, rows: [], at: null });
    this.context = canvas.getContext("2d", { alpha: false });
    new ResizeObserver(() => this.#fit()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#fit());
    box.addEventListener("pointermove", (event) => this.#point(event));
    box.addEventListener("pointerleave", () => document.activeElement !== box && this.#select(null));
    box.addEventListener("focus", () => this.#choose(this.at ?? { layer: 0, expert: 0 }));
    box.addEventListener("blur", () => this.#select(null));
    box.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Another model. */
  shape(layers, experts) {
    Object.assign(this, { layers, experts, rows: [], at: null });
    this.#fit();
  }

  /** Another moment; `rows` has a string of digits for each layer. */
  show(rows) {
    this.rows = rows;
    this.#paint();
    if (this.at) say(this.cell, this.#words());
  }

  /** Whole cells, as large as there is room for; where there is none, the cells share pixels. */
  #fit() {
    const width = this.box.clientWidth;
    if (width === 0 || this.experts === 0) return;
    const ratio = devicePixelRatio;
    const columnPx = Math.min(COLUMN_PX_MAX, width / this.experts);
    const rowPx = Math.min(ROW_PX.max, Math.max(ROW_PX.min, Math.floor(ROW_PX.all / this.layers)));
    this.column = columnPx * ratio;
    this.row = Math.round(rowPx * ratio);
    this.canvas.width = Math.round(this.column * this.experts);
    this.canvas.height = this.row * this.layers;
    this.canvas.style.width = `${this.canvas.width / ratio}px`;
    this.canvas.style.height = `${this.canvas.height / ratio}px`;
    this.image = this.context.createImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.expertAt = Uint16Array.from({ length: this.canvas.width }, (_, x) => Math.min(this.experts - 1, Math.floor(x / this.column)));
    this.#colours();
    this.#paint();
  }

  #colours() {
    const style = getComputedStyle(this.box);
    const probe = document.createElement("span");
    this.box.append(probe);
    const resolve = (name) => {
      probe.style.color = style.getPropertyValue(name);
      return pixel(getComputedStyle(probe).color);
    };
    this.colours = Uint32Array.from(STATES, (_, state) => resolve(`--state-${state}`));
    this.gap = resolve("--ground");
    this.mark = style.getPropertyValue("--ink");
    this.halo = style.getPropertyValue("--ground");
    probe.remove();
  }

  #paint() {
    if (!this.pixels || this.rows.length === 0) return;
    const { width } = this.canvas;
    const columnGap = this.column >= GAP_FROM;
    const rowGap = this.row >= GAP_FROM ? 1 : 0;
    this.rows.forEach((states, layer) => {
      const from = layer * this.row * width;
      const line = this.pixels.subarray(from, from + width);
      for (let x = 0; x < width; x += 1) {
        const expert = this.expertAt[x];
        const isGap = columnGap && this.expertAt[x + 1] !== expert;
        line[x] = isGap ? this.gap : this.colours[stateOf(states, expert)];
      }
      for (let y = 1; y < this.row - rowGap; y += 1) this.pixels.copyWithin(from + y * width, from, from + width);
      if (rowGap) this.pixels.fill(this.gap, from + (this.row - 1) * width, from + this.row * width);
    });
    this.context.putImageData(this.image, 0, 0);
    if (this.at) this.#outline();
  }

  /** A frame in two colours, so that it is seen on every state; at the edge it lies within the map. */
  #outline() {
    const { layer, expert } = this.at;
    const { width, height } = this.canvas;
    const size = [Math.max(8, Math.ceil(this.column) + 6), this.row + 6];
    const clamp = (n, most) => Math.max(2, Math.min(n, most));
    const x = clamp(Math.round((expert + 0.5) * this.column - size[0] / 2), width - size[0] - 2);
    const y = clamp(layer * this.row - 3, height - size[1] - 2);
    for (const [colour, line] of [[this.halo, 5], [this.mark, 2]]) {
      this.context.strokeStyle = colour;
      this.context.lineWidth = line;
      this.context.strokeRect(x, y, ...size);
    }
  }

  #words() {
    const { layer, expert } = this.at;
    const row = this.rows[layer];
    const known = row === undefined ? "not known yet" : `${STATES[stateOf(row, expert)]} (${layerWords(layer, census(row))})`;
    return `Layer ${layer}, expert ${expert}: ${known}`;
  }

  #select(at) {
    this.at = at;
    say(this.cell, at ? this.#words() : "");
    this.#paint();
  }

  #choose(at) {
    this.#select(at);
    say(this.told, this.#words());
  }

  #point(event) {
    const place = this.canvas.getBoundingClientRect();
    const scale = this.canvas.width / place.width;
    const layer = Math.floor(((event.clientY - place.top) * scale) / this.row);
    const expert = Math.floor(((event.clientX - place.left) * scale) / this.column);
    const isInside = layer >= 0 && layer < this.layers && expert >= 0 && expert < this.experts;
    this.#select(isInside ? { layer, expert } : null);
  }

  #key(event) {
    const { layer, expert } = this.at ?? { layer: 0, expert: 0 };
    const far = event.ctrlKey ? 16 : 1;
    const to = {
      ArrowLeft: { layer, expert: expert - far },
      ArrowRight: { layer, expert: expert + far },
      ArrowUp: { layer: layer - 1, expert },
      ArrowDown: { layer: layer + 1, expert },
      Home: { layer, expert: 0 },
      End: { layer, expert: this.experts - 1 },
      PageUp: { layer: 0, expert },
      PageDown: { layer: this.layers - 1, expert },
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const within = (n, size) => Math.min(size - 1, Math.max(0, n));
    this.#choose({ layer: within(to.layer, this.layers), expert: within(to.expert, this.experts) });
  }
}
