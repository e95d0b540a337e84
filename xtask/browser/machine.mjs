// Steps of the machine view.

import { join } from "node:path";

import { ask, assert, set, text } from "./asserts.mjs";

/** Distinct colours on the map. */
const coloursOf = (page) =>
  page.evaluate(() => {
    const canvas = document.getElementById("canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
  });

const legendSum = (page) =>
  page.evaluate(() => [...document.querySelectorAll("#legend .count")].reduce((sum, n) => sum + Number(n.textContent.replaceAll(",", "")), 0));

export const machineSteps = [
  {
    name: "the map is drawn, counts every expert, and moves while an answer is made",
    async run({ page, open, docs }) {
      await page.setViewportSize({ width: 1000, height: 900 });
      await open();
      await set(page, { "max-tokens": 2000, temperature: 1, seed: 3, thinking: "off" });
      await ask(page, "Write a long story about a river, with many chapters.");
      await page.click("#tab-machine");
      await page.waitForFunction(() => document.querySelectorAll("#work li").length === 1);
      await page.waitForFunction(() => document.querySelectorAll("#legend .count")[3].textContent !== "0");
      await page.waitForFunction(() => document.querySelector(".timeline .line").getAttribute("d") !== "");
      await page.waitForTimeout(4000); // So that the lines of the picture have some length.
      assert.ok((await coloursOf(page)) >= 3, "states, and the gaps between cells");
      const label = await page.getAttribute("#map", "aria-label");
      const [, experts, layers] = /each of (\d+) experts does in each of (\d+) layers/.exec(label);
      assert.equal(await legendSum(page), experts * layers);
      assert.match(await text(page, "#work li"), /answering|reading/);
      await page.screenshot({ path: join(docs, "page-machine.png") });
      await page.click("#tab-chat");
      await page.press("#question", "Escape");
    },
  },
  {
    name: "the map is read by keys, by the pointer, and as a table",
    async run({ page, open }) {
      await open();
      await page.waitForFunction(() => document.querySelector("#experts-said").textContent !== "");
      await page.focus("#map");
      assert.match(await text(page, "#cell-told"), /^Layer 0, expert 0: .+ \(layer 0: .*\d+ of \d+ in memory\)$/);
      await page.keyboard.press("ArrowDown");
      await page.keyboard.press("ArrowRight");
      assert.match(await text(page, "#cell-told"), /^Layer 1, expert 1: /);
      await page.keyboard.press("End");
      await page.keyboard.press("ArrowRight");
      const last = await text(page, "#cell-told");
      await page.keyboard.press("Home");
      await page.keyboard.press("ArrowLeft");
      assert.notEqual(last, await text(page, "#cell-told"));
      assert.match(await text(page, "#cell-told"), /^Layer 1, expert 0: /);
      await page.locator("#map").blur();
      assert.equal(await text(page, "#cell"), "");
      await page.hover("#canvas", { position: { x: 3, y: 3 } });
      assert.match(await text(page, "#cell"), /^Layer 0, expert \d+: /);
      await page.click("#layers > summary");
      const rows = await page.locator("#layer-rows tr").allTextContents();
      assert.match(rows[0], /^0\d+ of \d+/);
    },
  },
  {
    name: "memory and decisions are told with their figures and reasons",
    async run({ page, open }) {
      await open();
      await page.waitForFunction(() => document.querySelectorAll("#memory-rows tr").length > 2);
      assert.match(await text(page, "#memory-said"), /planned/);
      assert.ok((await page.locator("#decisions dt").count()) > 0);
      const widths = await page.$$eval("#memory-bar .part", (parts) => parts.map((part) => part.getBoundingClientRect().width));
      const whole = await page.$eval("#memory-bar", (bar) => bar.getBoundingClientRect().width);
      const sum = widths.reduce((total, width) => total + width, 0);
      assert.ok(sum > 0 && sum <= whole + 1, `${sum} of ${whole} pixels`);
    },
  },
  {
    name: "the largest map that there is, 64 x 512, is drawn in good time (the figure is told, not judged)",
    expected: [/Multiple readback operations/], // The test's own.
    async run({ page, open }) {
      await open();
      const ms = await page.evaluate(async () => {
        const { HeatMap } = await import(new URL("page/heatmap.js", document.baseURI).href);
        const box = document.getElementById("map");
        const canvas = document.getElementById("canvas");
        const map = new HeatMap(box, canvas, document.createElement("p"), document.createElement("p"));
        map.shape(64, 512);
        const moments = [0, 1, 2, 3].map((n) => Array.from({ length: 64 }, (_, l) => Array.from({ length: 512 }, (_, e) => (e * 7 + l + n) % 4).join("")));
        const from = performance.now();
        for (let i = 0; i < 40; i += 1) map.show(moments[i % 4]);
        canvas.getContext("2d").getImageData(0, 0, 1, 1); // Waits for what was only asked for.
        return (performance.now() - from) / 40;
      });
      console.log(`      ${ms.toFixed(2)} ms a frame`);
      assert.ok((await coloursOf(page)) >= 4);
    },
  },
  {
    name: "tabs are walked by keys where there is room for one view, and both are shown where there is room for two",
    async run({ page, open }) {
      await page.setViewportSize({ width: 800, height: 700 });
      await open();
      assert.equal(await page.isVisible("#machine"), false);
      await page.focus("#tab-chat");
      await page.keyboard.press("ArrowRight");
      assert.equal(await page.evaluate(() => document.activeElement.id), "tab-machine");
      assert.equal(await page.getAttribute("#tab-machine", "aria-selected"), "true");
      assert.equal(await page.getAttribute("#tab-chat", "tabindex"), "-1");
      assert.equal(await page.isVisible("#machine"), true);
      assert.equal(await page.isVisible("#chat"), false);
      await page.waitForFunction(() => document.getElementById("canvas").width > 0 && document.querySelector("#experts-said").textContent !== "");
      await page.keyboard.press("ArrowRight");
      assert.equal(await page.isVisible("#chat"), true);
      await page.setViewportSize({ width: 1440, height: 900 });
      await page.waitForFunction(() => document.getElementById("tabs").hidden);
      assert.ok((await page.isVisible("#machine")) && (await page.isVisible("#chat")));
      assert.equal(await page.getAttribute("#machine", "role"), "region");
    },
  },
];
