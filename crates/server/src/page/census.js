// What the experts of each layer do, counted, and said in words: the same that the heat map shows.

import { count, counted, percent } from "./format.js";

/** States of an expert, as the server's digits name them. */
export const DISK = 0;
export const MEMORY = 1;
export const READING = 2;
export const USED = 3;

/** Names of the states, in their order. */
export const STATES = ["on disk", "in memory", "being read", "used by the last step"];

const ZERO = "0".charCodeAt(0);

/** The state of one expert. */
export const stateOf = (row, expert) => row.charCodeAt(expert) - ZERO;

/** How many experts of a layer are in each state. */
export function census(row) {
  const counts = [0, 0, 0, 0];
  for (let expert = 0; expert < row.length; expert += 1) counts[stateOf(row, expert)] += 1;
  return counts;
}

/** Experts whose weights are in memory: a used one still is. */
export const inMemory = (counts) => counts[MEMORY] + counts[USED];

/** `layer 12: 3 being read, 61 of 256 in memory`. */
export function layerWords(layer, counts) {
  const all = counts.reduce((sum, n) => sum + n, 0);
  const reading = counts[READING] > 0 ? `${counts[READING]} being read, ` : "";
  return `layer ${layer}: ${reading}${inMemory(counts)} of ${all} in memory`;
}

/** The whole model in one line. */
export function modelWords(censuses) {
  const sum = censuses.reduce((total, counts) => total.map((n, state) => n + counts[state]), [0, 0, 0, 0]);
  const all = sum.reduce((total, n) => total + n, 0);
  return {
    sum,
    words: `${count(inMemory(sum))} of ${counted(all, "expert")} in memory (${percent(inMemory(sum) / all)})`,
  };
}
