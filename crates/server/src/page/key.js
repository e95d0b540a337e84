// The key that the server may ask for: kept for this tab, asked for once however many requests lack it.

import { byId, say } from "./dom.js";

const NAME = "forerun.key";
let key = stored();
let asking = null;

function stored() {
  try {
    return sessionStorage.getItem(NAME);
  } catch {
    return null; // A browser may forbid it; then the key lives as long as the page.
  }
}

/** The key, or null. */
export const currentKey = () => key;

/** Asks for another key than `tried`, in the server's words; false if the user won't give one. */
export function askForKey(tried, words) {
  if (key !== tried) return Promise.resolve(true); // Another request has asked meanwhile.
  asking ??= show(words).finally(() => {
    asking = null;
  });
  return asking;
}

function show(words) {
  const dialog = byId("key-dialog");
  const input = byId("key");
  say(byId("key-said"), words);
  input.value = "";
  return new Promise((resolve) => {
    let isGiven = false;
    byId("key-cancel").onclick = () => dialog.close();
    byId("key-form").onsubmit = () => {
      key = input.value.trim();
      try {
        sessionStorage.setItem(NAME, key);
      } catch {
        // As above.
      }
      isGiven = true;
    };
    dialog.addEventListener("close", () => resolve(isGiven), { once: true });
    dialog.showModal();
  });
}
