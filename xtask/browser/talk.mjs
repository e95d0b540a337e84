// Steps of a conversation with the real server.

import { join } from "node:path";

import { answered, ask, assert, requests, set, text } from "./asserts.mjs";

/** Notes how long the answer was at each change, to see that it grew. */
const noteLengths = () => {
  window.lengths = new Set();
  const note = () => {
    const said = document.querySelector(".answer")?.textContent ?? "";
    window.lengths.add(said.length);
  };
  new MutationObserver(note).observe(document.getElementById("log"), { childList: true, subtree: true, characterData: true });
};

export const talkSteps = [
  {
    name: "the page brings its policy, and is asked for once",
    async run({ page, open }) {
      const first = await open();
      assert.equal(first.status(), 200);
      assert.match(first.headers()["content-security-policy"], /default-src 'self'.*frame-ancestors 'none'/);
      assert.equal(first.headers()["x-content-type-options"], "nosniff");
      assert.notEqual(await text(page, "#model"), "a model");
      assert.equal(await page.evaluate(() => document.activeElement.tagName), "BODY");
    },
  },
  {
    name: "a question is answered as a stream, with the server's figures, and the next one brings the first along",
    async run({ page, open, docs }) {
      await open();
      const sent = requests(page);
      await set(page, { "max-tokens": 60, temperature: 0, seed: 7, thinking: "off" });
      await page.click("#settings > summary");
      await page.evaluate(noteLengths);
      await ask(page, "What does \"river\" mean?");
      await answered(page);
      const lengths = await page.evaluate(() => window.lengths.size);
      assert.ok(lengths >= 4, `the answer grew ${lengths} times only`);
      const figures = await text(page, ".answer .figures");
      for (const part of [/tokens\/s/, /prompt .* new \+ .* known in/, /% of experts in memory/, /read/]) {
        assert.match(figures, part);
      }
      assert.match(await text(page, "#state"), /^The answer is complete: \d+ tokens?$/);

      await ask(page, "What does \"brook\" mean?");
      await answered(page, 2);
      const [first, second] = sent;
      assert.equal(first.max_tokens, 60);
      assert.equal(first.temperature, 0);
      assert.equal(first.seed, 7);
      assert.deepEqual(first.chat_template_kwargs, { enable_thinking: false });
      assert.deepEqual(first.messages.map((m) => m.role), ["user"]);
      assert.deepEqual(second.messages.map((m) => m.role), ["user", "assistant", "user"]);
      assert.equal(await text(page, "#settings-said"), "temperature 0, at most 60 tokens, seed 7, thinking off");
      await page.setViewportSize({ width: 900, height: 640 });
      await page.screenshot({ path: join(docs, "page-chat.png") });
    },
  },
  {
    name: "an answer is stopped, on the server too, and what was said is kept",
    async run({ page, open }) {
      await open();
      await set(page, { "max-tokens": 2000, temperature: 1, seed: 3, thinking: "off" });
      await ask(page, "Write a long story about a river, with many chapters.");
      await page.waitForSelector(".answer.coming");
      await page.waitForFunction(() => document.querySelectorAll("#work li").length === 1);
      assert.equal(await page.isVisible("#send"), false);
      await page.press("#question", "Escape");
      await page.waitForFunction(() => document.getElementById("state").textContent === "Stopped");
      assert.match(await text(page, ".answer .figures"), /^Stopped/);
      assert.equal(await page.isVisible("#stop"), false);
      await page.waitForFunction(() => document.querySelectorAll("#work li").length === 0);
    },
  },
  {
    name: "a reload begins a new conversation, and the page works again",
    async run({ page, open }) {
      await open();
      await set(page, { "max-tokens": 8, thinking: "off" });
      await ask(page, "What does \"sea\" mean?");
      await answered(page);
      await open();
      assert.equal(await page.locator(".turn").count(), 0);
      await set(page, { "max-tokens": 8, thinking: "off" });
      await ask(page, "What does \"lake\" mean?");
      await answered(page);
      await page.click("#fresh");
      assert.equal(await page.locator(".turn").count(), 0);
      assert.equal(await page.evaluate(() => document.activeElement.id), "question");
    },
  },
  {
    name: "what the server refuses is shown in its words, and can be tried again",
    expected: [/status of 400/],
    async run({ page, open }) {
      await open();
      await set(page, { temperature: 100000, "max-tokens": 8, thinking: "off" });
      await ask(page, "What does \"hill\" mean?");
      await page.waitForSelector("[role=alert]");
      assert.match(await text(page, "[role=alert] p"), /temperature/);
      await set(page, { temperature: 0 });
      await page.click("[role=alert] button");
      await answered(page);
      assert.equal(await page.locator("[role=alert]").count(), 0);
    },
  },
];
