// Drives the page of a running server in headless Chromium, and makes the pictures of docs.
// node run.mjs --url URL --modules FOLDER --chromium PROGRAM --docs FOLDER

import { createRequire } from "node:module";
import { join } from "node:path";
import { parseArgs } from "node:util";

import { accessSteps } from "./access.mjs";
import { refusalSteps } from "./refusals.mjs";
import { machineSteps } from "./machine.mjs";
import { talkSteps } from "./talk.mjs";

const option = { type: "string" };
const { values: args } = parseArgs({ options: { url: option, modules: option, chromium: option, docs: option } });
// The packages lie outside the checkout's sources.
const { chromium } = createRequire(join(args.modules, "package.json"))("playwright-core");

// Nothing but the page may make a request, and there is no sandbox where the test runs as root.
const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
// A machine may be busy; nothing here judges by time.
const WAIT_MS = 60_000;

/** What the page did that it should not: kept by every page that is opened. */
class Watched {
  constructor(page, origin) {
    this.wrong = [];
    this.expected = [];
    page.on("console", (message) => {
      if (message.type() !== "error" && message.type() !== "warning") return;
      const text = message.text();
      const isExpected = this.expected.some((pattern) => pattern.test(text));
      if (!isExpected) this.wrong.push(`the console says: ${text}`);
    });
    page.on("pageerror", (error) => this.wrong.push(`uncaught: ${error.message}`));
    page.on("request", (request) => {
      const url = new URL(request.url());
      if (url.protocol !== "data:" && url.origin !== origin) this.wrong.push(`a request to ${url.origin}`);
    });
  }
}

async function runStep(browser, { name, options = {}, expected = [], run }) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  context.setDefaultTimeout(WAIT_MS);
  const page = await context.newPage();
  const watched = new Watched(page, new URL(args.url).origin);
  watched.expected = expected;
  try {
    await run({ page, url: args.url, docs: args.docs, open: () => open(page) });
    if (watched.wrong.length > 0) throw new Error(watched.wrong.join("; "));
    console.log(`ok    ${name}`);
    return true;
  } catch (error) {
    console.log(`FAIL  ${name}\n      ${error.message.split("\n").slice(0, 12).map((line) => line.slice(0, 200)).join("\n      ")}`);
    return false;
  } finally {
    await context.close();
  }
}

/** The page, once its scripts have run and its live view has come. */
async function open(page) {
  const response = await page.goto(args.url);
  await page.waitForSelector("#link[data-state=live]");
  return response;
}

// With a profile of its own, which goes away with it.
const browser = await chromium.launch({ executablePath: args.chromium, args: FLAGS });
const steps = [...talkSteps, ...machineSteps, ...refusalSteps, ...accessSteps];
let failed = 0;
for (const step of steps) failed += (await runStep(browser, step)) ? 0 : 1;
await browser.close();
console.log(failed === 0 ? `all ${steps.length} steps passed` : `${failed} of ${steps.length} steps failed`);
process.exitCode = failed === 0 ? 0 : 1;
