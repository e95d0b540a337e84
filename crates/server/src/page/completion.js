// One streamed answer of the chat endpoint, as a sequence of small events.

import { ApiError, ask } from "./api.js";
import { events } from "./sse.js";

/**
 * Yields `{progress}`, `{thought}`, `{text}` as they come, then one
 * `{finish, timings, usage, upstream}`; `upstream` is who answered instead of this machine, if somebody did.
 * Throws an ApiError, or the AbortError of `signal`; the server stops when the request is given up.
 */
export async function* complete(request, signal) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
    signal,
  });
  const ending = { finish: null, timings: null, usage: null, upstream: response.headers.get("X-Forerun-Upstream") };
  try {
    for await (const { data } of events(response.body)) {
      if (data === "[DONE]") {
        yield ending;
        return;
      }
      yield* parts(JSON.parse(data), ending);
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError(`The connection broke within the answer: ${error.message}`);
  }
  throw new ApiError("The connection ended before the answer did.");
}

function* parts(chunk, ending) {
  if (chunk.error) throw new ApiError(chunk.error.message);
  if (chunk.prompt_progress) yield { progress: chunk.prompt_progress };
  const choice = chunk.choices?.[0];
  if (choice?.delta?.reasoning_content) yield { thought: choice.delta.reasoning_content };
  if (choice?.delta?.content) yield { text: choice.delta.content };
  ending.finish = choice?.finish_reason ?? ending.finish;
  ending.timings = chunk.timings ?? ending.timings;
  ending.usage = chunk.usage ?? ending.usage;
}

/** The body of a request for an answer to `messages`. What isn't set is left to the server. */
export function requestFor(messages, { system, temperature, maxTokens, seed, thinking }) {
  const request = {
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
    prompt_progress: true,
  };
  if (temperature !== null) request.temperature = temperature;
  if (maxTokens !== null) request.max_tokens = maxTokens;
  if (seed !== null) request.seed = seed;
  if (thinking !== null) request.chat_template_kwargs = { enable_thinking: thinking };
  return request;
}
