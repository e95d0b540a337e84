// The part of Markdown that models write, as nodes. Text stays text: there is no HTML, and no link that could be followed.

import { make } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/;
/** Lists within lists, and quotes within quotes, are followed so deep. */
const DEPTH_MAX = 6;

/** Blocks of `text`: `{kind, raw, …}`, where `raw` is all that a block's look depends on. */
export function blocks(text, depth = 0) {
  const lines = text.split("\n");
  const found = [];
  for (let at = 0; at < lines.length; ) {
    const { block, next } = blockAt(lines, at, depth);
    if (block) found.push({ ...block, raw: `${block.kind}\n${lines.slice(at, next).join("\n")}` });
    at = next;
  }
  return found;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  if (line.trim() === "") return { next: at + 1 };
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return { block: { kind: "heading", level: heading[1].length, text: heading[2] }, next: at + 1 };
  if (RULE.test(line)) return { block: { kind: "rule" }, next: at + 1 };
  if (ITEM.test(line)) return list(lines, at);
  if (QUOTE.test(line) && depth < DEPTH_MAX) return gather(lines, at, (l) => QUOTE.test(l), (got) => ({
    kind: "quote",
    inner: blocks(got.map((l) => QUOTE.exec(l)[1]).join("\n"), depth + 1),
  }));
  if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "")) {
    return gather(lines, at, (l) => l.includes("|"), (got) => ({ kind: "table", rows: got.map(cells) }));
  }
  return gather(lines, at, (l, i) => i === at || !begins(l), (got) => ({ kind: "paragraph", text: got.join("\n") }));
}

/** Whether a line ends the paragraph before it. */
const begins = (line) =>
  line.trim() === "" || [FENCE, HEADING, RULE, ITEM, QUOTE].some((pattern) => pattern.test(line));

function gather(lines, at, belongs, block) {
  let next = at;
  while (next < lines.length && belongs(lines[next], next)) next += 1;
  return { block: block(lines.slice(at, next)), next };
}

/** A fence without an end is open until more text comes. */
function code(lines, at, [, fence, language]) {
  const ends = (line) => line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], "") === "";
  let end = at + 1;
  while (end < lines.length && !ends(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  return { block: { kind: "code", language: language.trim(), text }, next: Math.min(end + 1, lines.length) };
}

const isOrdered = (item) => /\d/.test(item[2]);

/** Items, deeper items, and lines that go on within one. */
function list(lines, at) {
  const items = [];
  let next = at;
  while (next < lines.length) {
    const item = ITEM.exec(lines[next]);
    // Numbers after points, or points after numbers, are another list.
    if (item && items.length > 0 && item[1].length <= items[0].indent && isOrdered(item) !== items[0].isOrdered) break;
    const goesOn = /^\s+\S/.test(lines[next]);
    if (item && !RULE.test(lines[next])) {
      items.push({ indent: item[1].length, isOrdered: isOrdered(item), start: Number.parseInt(item[2], 10), text: item[3] });
    } else if (goesOn && !FENCE.test(lines[next])) {
      items.at(-1).text += `\n${lines[next].trim()}`;
    } else if (lines[next].trim() !== "" || !ITEM.test(lines[next + 1] ?? "")) {
      break;
    }
    next += 1;
  }
  return { block: { kind: "list", items }, next };
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

/** The node of a block. */
export function render(block) {
  switch (block.kind) {
    case "code": {
      const pre = make("pre", "", make("code", "", block.text));
      pre.tabIndex = 0; // It may be wider than the page; then it must scroll by keys.
      pre.setAttribute("role", "region");
      pre.setAttribute("aria-label", block.language ? `Code, ${block.language}` : "Code");
      return pre;
    }
    case "heading":
      // Those of the page go down to h2 here.
      return make(`h${Math.min(block.level + 2, 6)}`, "", ...inline(block.text));
    case "rule":
      return make("hr");
    case "quote":
      return make("blockquote", "", ...block.inner.map(render));
    case "list":
      return nest(block.items, 0);
    case "table":
      return table(block.rows);
    default:
      return make("p", "", ...inline(block.text));
  }
}

function nest(items, depth) {
  const [first] = items;
  const element = make(first.isOrdered ? "ol" : "ul");
  if (first.isOrdered && first.start !== 1) element.start = first.start;
  for (let i = 0; i < items.length; ) {
    let end = i + 1;
    while (end < items.length && items[end].indent > first.indent + 1) end += 1;
    const item = make("li", "", ...inline(items[i].text));
    const deeper = items.slice(i + 1, end);
    if (deeper.length > 0 && depth < DEPTH_MAX) item.append(nest(deeper, depth + 1));
    else item.append(...deeper.map((lost) => make("p", "", ...inline(lost.text))));
    element.append(item);
    i = end;
  }
  return element;
}

function table([head, , ...body]) {
  const row = (tag) => (texts) => make("tr", "", ...texts.map((text) => make(tag, "", ...inline(text))));
  const headRow = row("th")(head);
  for (const cell of headRow.children) cell.scope = "col";
  const rows = body.map(row("td"));
  const across = make("div", "across", make("table", "", make("thead", "", headRow), make("tbody", "", ...rows)));
  across.tabIndex = 0;
  across.setAttribute("role", "region");
  across.setAttribute("aria-label", "Table");
  return across;
}

/** Code, bold, italic; the rest is text. Bounded, so that a text full of marks takes no time. */
const MARKS = /(`{1,3})(?!`)([^\n]{1,400}?)\1(?!`)|\*\*(?=\S)([^\n]{1,800}?\S?)\*\*|(?<![\w*])[*_](?=[^\s*_])([^*_\n]{1,400})[*_](?![\w*])/g;

function inline(text) {
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(MARKS)) {
    const [all, , code, bold, italic] = match;
    if (match.index > from) nodes.push(text.slice(from, match.index));
    if (code !== undefined) nodes.push(make("code", "", code.length > 2 ? code.trim() : code));
    else if (bold !== undefined) nodes.push(make("strong", "", ...inline(bold)));
    else nodes.push(make("em", "", italic));
    from = match.index + all.length;
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

/** Shows a growing text: blocks that have not changed keep their nodes. */
export class Rendered {
  constructor(element) {
    this.element = element;
    this.raws = [];
  }

  show(text) {
    const now = blocks(text);
    let same = 0;
    while (same < now.length && this.raws[same] === now[same].raw) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    this.element.append(...now.slice(same).map(render));
    this.raws = now.map((block) => block.raw);
  }
}
