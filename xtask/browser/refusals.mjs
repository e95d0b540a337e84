// Steps in which the test answers for the server: what is rare there, and what no server should say.

import { ask, assert, text } from "./asserts.mjs";

const CHAT = "**/v1/chat/completions";
const error = (message) => JSON.stringify({ error: { message, type: "test", param: null, code: null } });
const json = { contentType: "application/json" };

/** The stream of an answer that says `parts`. */
function stream(parts, last = "data: [DONE]\n\n") {
  const chunks = parts.map((content) => `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content }, finish_reason: null }] })}\n\n`);
  return { status: 200, contentType: "text/event-stream", body: `: keep-alive\n\n${chunks.join("")}${last}` };
}
/** Waits for the end of an answer that has no figures. */
const complete = (page) => page.waitForFunction(() => document.getElementById("state").textContent.startsWith("The answer is complete"));

const HOSTILE = `# Head <img src=x onerror=alert(1)>

Some **bold** and \`code <b>\` and *italic*, [a link](javascript:alert(1)).

- one
  - deeper
- two

3. three

\`\`\`html
<script>window.broken = true</script>
\`\`\`

| a | b |
|---|---|
| 1 | 2 |

\u2028<iframe src="//example.org"></iframe> **open \`and`;

export const refusalSteps = [
  {
    name: "what the model writes is text: Markdown becomes elements, HTML does not",
    async run({ page, open }) {
      await page.route(CHAT, (route) => route.fulfill(stream(HOSTILE.match(/[\s\S]{1,3}/g))));
      await open();
      await ask(page, "Anything");
      await complete(page);
      const said = page.locator(".answer > .said");
      const names = await said.evaluate((root) => [...new Set([...root.querySelectorAll("*")].map((e) => e.localName))].sort());
      const allowed = ["code", "div", "em", "h3", "li", "ol", "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"];
      assert.deepEqual(names, allowed);
      assert.equal(await said.locator("pre code").textContent(), "<script>window.broken = true</script>");
      assert.equal(await said.locator("ul ul li").textContent(), "deeper");
      assert.equal(await said.locator("ol").getAttribute("start"), "3");
      assert.match(await said.textContent(), /<iframe src="\/\/example\.org"><\/iframe> \*\*open `and$/);
      assert.equal(await page.evaluate(() => window.broken), undefined);
    },
  },
  {
    name: "a text of nothing but marks neither breaks nor blocks the page",
    async run({ page, open }) {
      const marks = [">", "*", "`", "- ", "|", "#", "_", "1. ", "~~~\n", "**a ", "\n>"].map((mark) => mark.repeat(3000));
      await page.route(CHAT, (route) => route.fulfill(stream(marks.flatMap((text) => [text, "\n\n"]))));
      await open();
      await ask(page, "Anything");
      await complete(page);
      assert.ok((await text(page, ".answer > .said")).includes("|".repeat(3000)));
    },
  },
  {
    name: "thoughts are folded away, and apart from the answer",
    async run({ page, open }) {
      const thought = (reasoning_content) => `data: ${JSON.stringify({ choices: [{ index: 0, delta: { reasoning_content } }] })}\n\n`;
      const { body, ...rest } = stream(["An answer."]);
      await page.route(CHAT, (route) => route.fulfill({ ...rest, body: thought("Let me ") + thought("see.") + body }));
      await open();
      await ask(page, "Anything");
      await complete(page);
      assert.equal(await page.isVisible(".thinking .said"), false);
      await page.click(".thinking > summary");
      assert.equal(await text(page, ".thinking .said"), "Let me see.");
      assert.equal(await text(page, ".answer > .said"), "An answer.");
    },
  },
  {
    name: "a key is asked for once, sent, and kept over a reload",
    expected: [/status of 401/],
    async run({ page, open }) {
      const keys = [];
      await page.route(CHAT, (route) => {
        const key = route.request().headers().authorization;
        keys.push(key);
        if (key !== "Bearer right") return route.fulfill({ status: 401, ...json, body: error("an API key is needed") });
        return route.fulfill(stream(["Yes."]));
      });
      await open();
      await ask(page, "Anything");
      await page.waitForSelector("#key-dialog[open]");
      assert.equal(await text(page, "#key-said"), "an API key is needed");
      await page.keyboard.type("wrong");
      await page.keyboard.press("Enter");
      await page.waitForFunction(() => document.getElementById("key-dialog").open && document.getElementById("key").value === "");
      await page.keyboard.type("right");
      await page.keyboard.press("Enter");
      await complete(page);
      await open();
      await ask(page, "Anything");
      await complete(page);
      assert.deepEqual(keys, [undefined, "Bearer wrong", "Bearer right", "Bearer right"]);
    },
  },
  {
    name: "who gives no key is told so, and keeps the question's place",
    expected: [/status of 401/],
    async run({ page, open }) {
      await page.route(CHAT, (route) => route.fulfill({ status: 401, ...json, body: error("an API key is needed") }));
      await open();
      await ask(page, "Anything");
      await page.waitForSelector("#key-dialog[open]");
      await page.keyboard.press("Escape");
      await page.waitForSelector("[role=alert]");
      assert.equal(await text(page, "[role=alert] p"), "an API key is needed");
    },
  },
  {
    name: "a full server is asked again when it says, and the wait can be stopped",
    expected: [/status of 429/],
    async run({ page, open }) {
      let n = 0;
      const full = { status: 429, ...json, headers: { "Retry-After": "1" }, body: error("64 requests wait already") };
      await page.route(CHAT, (route) => (n++ < 1 ? route.fulfill(full) : route.fulfill(stream(["At last."]))));
      await open();
      await ask(page, "Anything");
      await page.waitForFunction(() => document.querySelector(".waiting").textContent.includes("64 requests wait already. Trying again in 1 s"));
      await complete(page);
      assert.equal(n, 2);
      n = -1000;
      await ask(page, "Something else");
      await page.waitForFunction(() => document.querySelectorAll(".waiting")[1].textContent.includes("Trying again"));
      await page.click("#stop");
      await page.waitForFunction(() => document.getElementById("state").textContent === "Stopped");
      const before = n;
      await page.waitForTimeout(1500);
      assert.equal(n, before, "a stopped question is not asked again");
    },
  },
  {
    name: "an answer that breaks says why, and half of it is no part of the conversation",
    async run({ page, open }) {
      const bodies = [];
      const broken = stream(["Half an "], `data: ${error("reading expert 3/17 failed: Input/output error")}\n\n`);
      const cut = stream(["Half an "], "");
      const answers = [broken, cut, stream(["Whole."])];
      await page.route(CHAT, (route) => {
        bodies.push(route.request().postDataJSON());
        return route.fulfill(answers[bodies.length - 1]);
      });
      await open();
      await ask(page, "Anything");
      await page.waitForSelector("[role=alert]");
      assert.equal(await text(page, "[role=alert] p"), "reading expert 3/17 failed: Input/output error");
      await page.click("[role=alert] button");
      await page.waitForFunction(() => document.querySelector("[role=alert] p")?.textContent === "The connection ended before the answer did.");
      await page.click("[role=alert] button");
      await complete(page);
      assert.deepEqual(bodies[2].messages, [{ role: "user", content: "Anything" }]);
    },
  },
  {
    name: "a live view that breaks is begun again; one that isn't there is said to be absent",
    expected: [/status of 404/, /ERR_FAILED/, /net::/],
    async run({ page, url }) {
      let isBroken = true;
      await page.route("**/forerun/live", (route) => (isBroken ? route.abort() : route.continue()));
      await page.goto(url);
      await page.waitForSelector("#link[data-state=lost]");
      assert.match(await text(page, "#machine-notice"), /^Not connected/);
      isBroken = false;
      await page.waitForSelector("#link[data-state=live]");
      await page.unroute("**/forerun/live");
      await page.route("**/forerun/live", (route) => route.fulfill({ status: 404, ...json, body: error("there is no such thing") }));
      await page.reload();
      await page.waitForSelector("#link[data-state=absent]", { state: "attached" });
      assert.equal(await text(page, "#machine-notice"), "There is no live view: there is no such thing");
      assert.equal(await page.isVisible("#question"), true);
    },
  },
];
