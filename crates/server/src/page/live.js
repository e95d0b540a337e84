// The connection to the server's live view: kept while the page is seen, begun again when it breaks.

import { ask } from "./api.js";
import { events } from "./sse.js";

const PAUSE_MS_MIN = 1000;
const PAUSE_MS_MAX = 15000;

/** Calls `shape(shape)`, `tick(tick)` and `state(name, words)`: connecting, live, lost or absent. */
export function watch({ shape, tick, state }) {
  let abort = null;
  let pauseMs = PAUSE_MS_MIN;

  async function connect(signal) {
    state("connecting", "");
    const response = await ask("forerun/live", { headers: { Accept: "text/event-stream" }, signal });
    for await (const { event, data } of events(response.body)) {
      if (event === "shape") {
        shape(JSON.parse(data));
        state("live", "");
        pauseMs = PAUSE_MS_MIN;
      } else if (event === "tick") {
        tick(JSON.parse(data));
      }
    }
    throw new Error("the server closed the live view");
  }

  async function run() {
    abort = new AbortController();
    const { signal } = abort;
    while (!signal.aborted) {
      try {
        await connect(signal);
      } catch (error) {
        if (signal.aborted) return;
        // It won't come to be there, and nobody wants to be asked for the key again and again.
        const isFinal = error.status === 404 || error.status === 401;
        state(isFinal ? "absent" : "lost", error.message);
        if (isFinal) return;
        await new Promise((resolve) => setTimeout(resolve, pauseMs));
        pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX);
      }
    }
  }

  const follow = () => {
    abort?.abort();
    abort = null;
    if (document.visibilityState === "visible") run();
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}
