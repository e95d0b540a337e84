// How one question and its answer look, from the first progress to the last figure.

import { make, say } from "./dom.js";
import { count, counted, disk, figure, percent, time } from "./format.js";
import { Rendered } from "./markdown.js";

/** What is shown of a question. */
export function questionNode(text) {
  return make("li", "turn question", make("p", "who unseen", "You"), make("div", "said", text));
}

/** What is shown of an answer while it comes, and after. */
export class AnswerNode {
  constructor() {
    this.thoughts = make("div", "said");
    this.thoughtsHead = make("summary", "", "Thinking…");
    this.thinking = make("details", "thinking", this.thoughtsHead, this.thoughts);
    this.thinking.hidden = true;
    this.text = make("div", "said");
    this.bar = make("progress");
    this.bar.setAttribute("aria-label", "Prompt read");
    this.waitingWords = make("span", "", "Waiting for the server");
    this.waiting = make("div", "waiting", this.bar, this.waitingWords);
    this.figures = make("p", "figures");
    this.figures.hidden = true;
    this.root = make("li", "turn answer", make("p", "who unseen", "Forerun"), this.waiting, this.thinking, this.text, this.figures);
    this.rendered = new Rendered(this.text);
    this.renderedThoughts = new Rendered(this.thoughts);
    this.source = { text: "", thought: "" };
    this.thinkingSince = null;
    this.frame = 0;
  }

  /** The prompt is being read. */
  progress({ read, total, reused, estimate_ms: estimateMs }) {
    const wanted = total - reused;
    const done = Math.max(0, read - reused);
    this.bar.max = Math.max(1, wanted);
    this.bar.value = done;
    const left = typeof estimateMs !== "number" || wanted === 0 ? "" : `, about ${time(estimateMs * (1 - done / wanted))} left`;
    const held = reused > 0 ? ` (${count(reused)} more known already)` : "";
    say(this.waitingWords, `Reading the prompt: ${count(done)} of ${counted(wanted, "token")}${held}${left}`);
  }

  /** Nobody can take the request now; it is tried again. */
  retrying(words, seconds) {
    this.bar.removeAttribute("value");
    say(this.waitingWords, `${words} Trying again in ${seconds} s.`);
  }

  thought(text, now) {
    this.thinkingSince ??= now;
    this.source.thought += text;
    this.thinking.hidden = false;
    this.#answering();
  }

  said(text, now) {
    this.#thoughtEnds(now);
    this.source.text += text;
    this.#answering();
  }

  #thoughtEnds(now) {
    if (this.thinkingSince === null) return;
    say(this.thoughtsHead, `Thought for ${time(now - this.thinkingSince)}`);
    this.thinkingSince = null;
  }

  #answering() {
    this.waiting.hidden = true;
    this.root.classList.add("coming");
    this.frame ||= requestAnimationFrame(() => this.#paint());
  }

  #paint() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.rendered.show(this.source.text);
    this.renderedThoughts.show(this.source.thought);
    this.painted?.();
  }

  /** The answer is over, well or not; `figures` are said below it, none broken over two lines. */
  end(figures, now) {
    this.waiting.hidden = true;
    this.root.classList.remove("coming");
    this.#thoughtEnds(now);
    this.#paint();
    this.figures.hidden = figures.length === 0;
    this.figures.replaceChildren(...figures.flatMap((words, i) => [i > 0 ? " · " : "", make("span", "figure", words)]));
  }

  /** The answer failed, in the server's words. */
  failed(words, again) {
    const button = make("button", "", "Try again");
    button.type = "button";
    button.addEventListener("click", again);
    this.failure = make("div", "failure", make("p", "", words), button);
    this.failure.setAttribute("role", "alert");
    this.root.append(this.failure);
    this.painted?.();
  }
}

/** The figures of an answer, from the server's own counts; nothing is guessed. */
export function figuresOf({ timings, usage, finish, upstream }) {
  const said = upstream ? [`answered by ${upstream}, not by this machine`] : [];
  if (timings) {
    const busyMs = timings.stall_ms + timings.compute_ms;
    const readBytes = timings.bytes_demand + timings.bytes_guess;
    const fresh = timings.prompt_tokens - timings.prompt_reused_tokens;
    said.push(`${figure(timings.tokens_per_second)} tokens/s`, counted(timings.decode_tokens, "token"));
    said.push(`prompt ${count(fresh)} new + ${count(timings.prompt_reused_tokens)} known in ${time(timings.prompt_ms)}`);
    said.push(`${percent(timings.hit_rate)} of experts in memory`, `${disk(readBytes)} read`);
    if (busyMs > 0) said.push(`${percent(timings.stall_ms / busyMs)} waiting`);
  } else if (usage) {
    said.push(counted(usage.completion_tokens, "token"), `prompt ${count(usage.prompt_tokens)}`);
  }
  if (finish === "length") said.push("ended at the limit of tokens");
  return said;
}
