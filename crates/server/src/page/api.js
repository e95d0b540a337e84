// Requests to the server, with the key if one is needed, and its refusals as errors in its own words.

import { askForKey, currentKey } from "./key.js";

/** A refusal: `message` is the server's, `retryAfterS` says when to come again, if it does. */
export class ApiError extends Error {
  constructor(message, { status = 0, retryAfterS = null } = {}) {
    super(message);
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

/** A response that is fine. `path` is relative, so that the page works below another address too. */
export async function ask(path, options = {}) {
  for (;;) {
    const key = currentKey();
    const headers = { ...options.headers };
    if (key) headers.Authorization = `Bearer ${key}`;
    const response = await reach(path, { ...options, headers, cache: "no-store" });
    if (response.ok) return response;
    const error = await refusal(response);
    if (response.status !== 401 || !(await askForKey(key, error.message))) throw error;
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server doesn't answer. Is it still running?");
  }
}

async function refusal(response) {
  let message = `The server answered ${response.status} ${response.statusText}`.trim();
  try {
    message = (await response.json()).error?.message ?? message;
  } catch {
    // Not ours: something between may have answered.
  }
  const seconds = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  return new ApiError(message, { status: response.status, retryAfterS: Number.isNaN(seconds) ? null : seconds });
}
