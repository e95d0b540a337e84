// Puts the parts of the page together.

import { installChat } from "./chat.js";
import { byId, say } from "./dom.js";
import { watch } from "./live.js";
import { installMachine } from "./machine.js";
import { installSettings } from "./settings.js";
import { installTabs } from "./tabs.js";

installSettings();
installChat();
const machine = installMachine();
installTabs((name) => {
  if (name === "machine") machine.draw();
});

watch({
  shape(shape) {
    say(byId("model"), shape.model);
    document.title = `${shape.model} · Forerun`;
    machine.shape(shape);
  },
  tick: machine.tick,
  state(state, words) {
    const said = { connecting: "connecting", live: "connected", lost: "not connected, trying again", absent: "" };
    say(byId("link"), said[state]);
    byId("link").dataset.state = state;
    machine.state(state, words);
  },
});

// Names the model even where the live view needs a key that wasn't given.
fetch("health", { cache: "no-store" })
  .then((response) => response.json())
  .then((health) => health.model && byId("model").textContent === "a model" && say(byId("model"), health.model))
  .catch(() => {});
