// What the user wishes of answers; an empty field leaves it to the server.

import { byId, say } from "./dom.js";

const number = (id) => {
  const input = byId(id);
  return input.value.trim() === "" || Number.isNaN(input.valueAsNumber) ? null : input.valueAsNumber;
};

/** The settings as they stand. */
export function settings() {
  const thinking = byId("thinking").value;
  return {
    system: byId("system").value.trim(),
    temperature: number("temperature"),
    maxTokens: number("max-tokens"),
    seed: number("seed"),
    thinking: thinking === "" ? null : thinking === "on",
  };
}

/** Shows beside the closed form what differs from the server's own. */
export function installSettings() {
  const show = () => {
    const { system, temperature, maxTokens, seed, thinking } = settings();
    const said = [
      system && "own system prompt",
      temperature !== null && `temperature ${temperature}`,
      maxTokens !== null && `at most ${maxTokens} tokens`,
      seed !== null && `seed ${seed}`,
      thinking !== null && `thinking ${thinking ? "on" : "off"}`,
    ];
    say(byId("settings-said"), said.filter(Boolean).join(", "));
  };
  byId("settings").addEventListener("input", show);
  show(); // A browser may fill forms again after a reload.
}
