// Small words that the steps share.

import assert from "node:assert/strict";

/** Types a question and sends it by key. */
export async function ask(page, text) {
  await page.fill("#question", text);
  await page.press("#question", "Enter");
}

/** Waits until the last answer is over: its figures are shown. */
export async function answered(page, n = 1) {
  await page.waitForFunction((n) => {
    const answers = document.querySelectorAll(".answer");
    return answers.length === n && !answers[n - 1].querySelector(".figures").hidden;
  }, n);
}

/** Opens the settings and fills some of them, by their ids. */
export async function set(page, values) {
  if ((await page.getAttribute("#settings", "open")) === null) await page.click("#settings > summary");
  for (const [id, value] of Object.entries(values)) {
    if (id === "thinking") await page.selectOption(`#${id}`, value);
    else await page.fill(`#${id}`, String(value));
  }
}

/** The bodies of the chat requests from now on. */
export function requests(page) {
  const bodies = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/v1/chat/completions")) bodies.push(request.postDataJSON());
  });
  return bodies;
}

/** The text of the first element that fits. */
export const text = (page, selector) => page.textContent(selector);

export { assert };
