// Steps that look at the page as those do who don't see it, see it badly, or have no pointer.

import { ask, assert, set } from "./asserts.mjs";

/** Roles that must have a name. */
const NAMED = new Set([
  "button", "checkbox", "combobox", "textbox", "spinbutton", "link", "tab", "tabpanel", "tablist", "dialog", "region", "image", "img",
  "progressbar", "application", "DisclosureTriangle", "heading", "table",
]);

/** What the browser itself tells assistive programs. */
async function namesMissing(page) {
  const session = await page.context().newCDPSession(page);
  const { nodes } = await session.send("Accessibility.getFullAXTree");
  const missing = nodes.filter(({ ignored, role, name, properties }) => {
    const isFocusable = properties?.some((p) => p.name === "focusable" && p.value.value === true);
    const needsName = NAMED.has(role?.value) || (isFocusable && role?.value !== "RootWebArea");
    // Tables of the layout's own take their name from the heading before them.
    return !ignored && needsName && role.value !== "table" && !name?.value?.trim();
  });
  return missing.map((node) => `${node.role.value} without a name`);
}

/** Runs in the page: rules about the document. */
function rulesBroken() {
  const broken = [];
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) broken.push(`id ${id} twice`);
  for (const name of ["aria-labelledby", "aria-controls", "aria-describedby", "for"]) {
    for (const element of document.querySelectorAll(`[${name}]`)) {
      for (const id of element.getAttribute(name).split(" ")) {
        if (!ids.includes(id)) broken.push(`${name} names ${id}, which isn't there`);
      }
    }
  }
  if (!document.documentElement.lang) broken.push("no language");
  if (document.querySelectorAll("h1").length !== 1) broken.push("not one h1");
  if (document.querySelectorAll("main").length !== 1) broken.push("not one main");
  let before = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    if (heading.closest(".said, dialog:not([open])")) continue; // The model's own may begin anywhere.
    const level = Number(heading.localName[1]);
    if (before > 0 && level > before + 1) broken.push(`h${level} after h${before}: ${heading.textContent}`);
    before = level;
  }
  const isSeen = (e) => e.checkVisibility({ visibilityProperty: true }) && e.getBoundingClientRect().width > 1;
  for (const element of document.querySelectorAll("button, input, select, summary")) {
    const { width, height } = element.getBoundingClientRect();
    // The least size of a target in WCAG 2.2.
    if (isSeen(element) && (width < 24 || height < 18)) broken.push(`${element.id || element.textContent} is ${width} x ${height}`);
  }
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) broken.push(`the page is ${scrollWidth} wide, ${clientWidth} is seen`);
  return broken;
}

/** Runs in the page: texts whose contrast with their ground is below WCAG's AA, by computed styles. */
function contrastBroken() {
  const parse = (css) => {
    const [r, g, b, a = 1] = css.match(/[\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], ground) => [r, g, b].map((c, i) => c * a + ground[i] * (1 - a));
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const groundOf = (element) => {
    const chain = [];
    for (let e = element; e; e = e.parentElement) chain.push(parse(getComputedStyle(e).backgroundColor));
    return chain.reverse().reduce((ground, colour) => over(colour, ground), [255, 255, 255]);
  };
  const check = (element, style, words) => {
    const ground = groundOf(element);
    const [a, b] = [luminance(over(parse(style.color), ground)), luminance(ground)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    return ratio < 4.5 ? [`${ratio.toFixed(2)}: ${words.slice(0, 40)}`] : [];
  };
  const broken = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const words = walker.currentNode.data.trim();
    if (words === "" || element.closest("noscript") || !element.checkVisibility()) continue;
    broken.push(...check(element, getComputedStyle(element), words));
  }
  for (const field of document.querySelectorAll("[placeholder]")) {
    if (field.checkVisibility()) broken.push(...check(field, getComputedStyle(field, "::placeholder"), field.placeholder));
  }
  return broken;
}

/** A page with a bit of everything: an answer, an error, open settings, an open table. */
async function fill(page, open) {
  await open();
  await page.waitForFunction(() => document.querySelector("#experts-said").textContent !== "" || document.getElementById("machine").hidden);
  const body = `data: ${JSON.stringify({ choices: [{ delta: { reasoning_content: "Hm.", content: "# A\n\n`b` **c**\n\n```js\nd\n```\n\n> e" } }] })}\n\ndata: ${JSON.stringify({ error: { message: "the disk failed" } })}\n\n`;
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ status: 200, contentType: "text/event-stream", body }));
  await set(page, { temperature: 0.5 });
  await ask(page, "A question");
  await page.waitForSelector("[role=alert]");
  await page.click(".thinking > summary");
}

async function lookAt(page) {
  assert.deepEqual(await namesMissing(page), []);
  assert.deepEqual(await page.evaluate(rulesBroken), []);
  assert.deepEqual(await page.evaluate(contrastBroken), []);
}

const looks = ["light", "dark"].flatMap((colorScheme) =>
  [[1440, 900], [800, 700], [320, 640]].map(([width, height]) => ({
    name: `names, references, headings, targets and contrast: ${colorScheme}, ${width} pixels wide`,
    options: { colorScheme, viewport: { width, height } },
    async run({ page, open }) {
      await fill(page, open);
      await lookAt(page);
      if (await page.isVisible("#tab-machine")) await page.click("#tab-machine");
      await page.waitForFunction(() => document.querySelector("#experts-said").textContent !== "");
      await page.click("#layers > summary");
      await lookAt(page);
    },
  })),
);

/** Where the keyboard is, as an id or what stands there. */
const focused = (page) =>
  page.evaluate(() => {
    const { activeElement: e } = document;
    return e.id || e.parentElement.id || e.localName;
  });

export const accessSteps = [
  ...looks,
  {
    name: "without a pointer every part is reached in order, and a focus is seen",
    options: { viewport: { width: 1000, height: 800 } },
    async run({ page, open }) {
      await open();
      const order = [];
      for (let i = 0; i < 9 && order.at(-1) !== "fresh"; i += 1) {
        await page.keyboard.press("Tab");
        order.push(await focused(page));
        const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
        assert.notEqual(outline, "none", `the focus on ${order.at(-1)} isn't seen`);
      }
      // The link to skip with has no id.
      assert.deepEqual(order.slice(1), ["tab-chat", "scroll", "settings", "question", "send", "fresh"]);
      await open();
      await page.keyboard.press("Tab");
      await page.keyboard.press("Enter");
      await page.keyboard.type("By keys only");
      assert.equal(await page.inputValue("#question"), "By keys only");
      await page.keyboard.press("Shift+Enter");
      assert.equal(await page.inputValue("#question"), "By keys only\n");
    },
  },
  {
    name: "tokens are not announced one by one: the live regions tell states only",
    async run({ page, open }) {
      const chunks = Array.from({ length: 50 }, (_, i) => `data: ${JSON.stringify({ choices: [{ delta: { content: `word${i} ` } }] })}\n\n`);
      await page.route("**/v1/chat/completions", (route) =>
        route.fulfill({ status: 200, contentType: "text/event-stream", body: `${chunks.join("")}data: [DONE]\n\n` }));
      await open();
      await page.evaluate(() => {
        window.announced = [];
        const live = document.querySelectorAll("[role=status], [role=alert], [role=log], [aria-live]");
        for (const region of live) {
          new MutationObserver(() => window.announced.push(region.textContent)).observe(region, { childList: true, subtree: true, characterData: true });
        }
        const log = document.getElementById("log");
        if (log.closest("[aria-live]:not([aria-live=off]), [role=log], [role=status]")) window.announced.push("the log is live");
      });
      await ask(page, "Anything");
      await page.waitForFunction(() => document.getElementById("state").textContent === "The answer is complete");
      const announced = await page.evaluate(() => window.announced);
      assert.ok(announced.length <= 3, announced.join(" | "));
    },
  },
  {
    name: "who wants no motion gets none",
    options: { reducedMotion: "reduce" },
    async run({ page, open }) {
      await open();
      const moving = await page.evaluate(() =>
        [...document.querySelectorAll("*")].filter((e) => {
          const style = getComputedStyle(e);
          return style.transitionDuration !== "0s" || style.animationName !== "none";
        }).map((e) => e.className));
      assert.deepEqual(moving, []);
    },
  },
];
