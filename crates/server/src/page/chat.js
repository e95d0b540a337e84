// The conversation: kept in this page only. One answer at a time; stopping one gives the request up.

import { ApiError } from "./api.js";
import { complete, requestFor } from "./completion.js";
import { byId, say } from "./dom.js";
import { counted } from "./format.js";
import { settings } from "./settings.js";
import { AnswerNode, figuresOf, questionNode } from "./turn.js";

/** So often is a server asked again that has no room. */
const RETRIES_MAX = 5;
const RETRY_S_MAX = 120;
/** Nearer to the end than this, the view follows the text. */
const NEAR_PX = 60;

/** Turns that were answered, in the API's shape. */
let messages = [];
/** The answer that is coming: its AbortController. */
let coming = null;

/** Installs the form and its keys. */
export function installChat() {
  const question = byId("question");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = question.value.trim();
    if (text === "" || coming) return;
    question.value = "";
    begin(text);
  });
  question.addEventListener("keydown", (event) => {
    // Enter also ends the choice of a character in some scripts.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("composer").requestSubmit();
  });
  byId("chat").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && coming) stop();
  });
  byId("stop").addEventListener("click", stop);
  byId("fresh").addEventListener("click", () => {
    coming?.abort();
    coming = null;
    busy(false);
    messages = [];
    byId("log").replaceChildren();
    byId("empty").hidden = false;
    say(byId("state"), "New conversation");
    question.focus();
  });
}

function stop() {
  coming?.abort();
}

function begin(text) {
  byId("empty").hidden = true;
  byId("log").append(questionNode(text));
  answer(text);
}

async function answer(text) {
  const node = new AnswerNode();
  const scroll = follower();
  node.painted = () => scroll(false);
  byId("log").append(node.root);
  scroll(true);
  const abort = new AbortController();
  coming = abort;
  busy(true);
  const history = messages;
  try {
    const ending = await stream(requestFor([...history, { role: "user", content: text }], settings()), node, abort.signal);
    node.end(figuresOf(ending), performance.now());
    keep(history, text, node);
    const tokens = ending.timings ? `: ${counted(ending.timings.decode_tokens, "token")}` : "";
    say(byId("state"), `The answer is complete${tokens}`);
  } catch (error) {
    failed(error, history, text, node);
  } finally {
    if (coming === abort) coming = null;
    busy(coming !== null);
    scroll(false);
  }
}

/** Shows the answer as it comes; its ending is returned. */
async function stream(request, node, signal) {
  let ending = {};
  for await (const event of patiently(request, node, signal)) {
    const now = performance.now();
    if (event.progress) {
      node.progress(event.progress);
      say(byId("state"), "Reading the prompt");
    } else if (event.thought) {
      node.thought(event.thought, now);
      say(byId("state"), "Thinking");
    } else if (event.text) {
      node.said(event.text, now);
      say(byId("state"), "Answering");
    } else {
      ending = event;
    }
  }
  return ending;
}

/** An answered question is part of the conversation, unless a new one was begun meanwhile. */
function keep(history, text, node) {
  if (node.source.text === "" || messages !== history) return;
  messages = [...history, { role: "user", content: text }, { role: "assistant", content: node.source.text }];
}

/** As `complete`, but comes again when the server says when. */
async function* patiently(request, node, signal) {
  for (let tries = 0; ; tries += 1) {
    try {
      yield* complete(request, signal);
      return;
    } catch (error) {
      const may = error instanceof ApiError && error.status === 429 && tries < RETRIES_MAX;
      if (!may || (error.retryAfterS ?? Infinity) > RETRY_S_MAX) throw error;
      say(byId("state"), `The server has no room; trying again in ${error.retryAfterS} seconds`);
      await countDown(error, node, signal);
    }
  }
}

async function countDown({ message, retryAfterS }, node, signal) {
  for (let left = retryAfterS; left > 0; left -= 1) {
    node.retrying(`${message[0].toUpperCase()}${message.slice(1)}.`, left);
    await pause(1000, signal);
  }
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    const stopped = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    signal.addEventListener("abort", stopped, { once: true });
    if (signal.aborted) stopped();
  });
}

function failed(error, history, text, node) {
  if (error.name === "AbortError") {
    const isEmpty = node.source.text === "";
    node.end(isEmpty ? ["Stopped before it said anything", "the question is not kept"] : ["Stopped"], performance.now());
    keep(history, text, node);
    say(byId("state"), "Stopped");
    return;
  }
  // Half an answer is no turn to build upon.
  node.end([], performance.now());
  say(byId("state"), "");
  node.failed(error.message, () => {
    if (coming) return;
    node.root.remove();
    answer(text);
  });
}

/** Sending is possible when nothing comes, stopping when something does. */
function busy(is) {
  const hadFocus = document.activeElement;
  byId("stop").hidden = !is;
  byId("send").hidden = is;
  // A button that goes away would take the keyboard's place with it.
  if (hadFocus === byId("stop") || hadFocus === byId("send")) byId("question").focus();
}

/** Keeps the end in sight while the reader is there. */
function follower() {
  const view = byId("scroll");
  let follows = true;
  view.onscroll = () => {
    follows = view.scrollHeight - view.scrollTop - view.clientHeight < NEAR_PX;
  };
  return (force) => {
    if (force || follows) view.scrollTop = view.scrollHeight;
  };
}
