// Two views: tabs where there is room for one, side by side where there is room for both.

import { byId } from "./dom.js";

const WIDE = "(min-width: 75rem)";
const NAMES = ["chat", "machine"];

/** Installs the tabs; `shown(name)` is told what has come into sight. */
export function installTabs(shown) {
  const wide = matchMedia(WIDE);
  const tabs = NAMES.map((name) => byId(`tab-${name}`));
  const views = NAMES.map(byId);
  let selected = 0;

  const show = () => {
    byId("tabs").hidden = wide.matches;
    views.forEach((view, i) => {
      // Beside each other they are no panels of tabs, but regions of their own.
      view.setAttribute("role", wide.matches ? "region" : "tabpanel");
      const wasHidden = view.hidden;
      view.hidden = !wide.matches && i !== selected;
      if (!view.hidden && wasHidden) shown(NAMES[i]);
      tabs[i].setAttribute("aria-selected", String(i === selected));
      tabs[i].tabIndex = i === selected ? 0 : -1;
    });
  };
  const select = (i, focus) => {
    selected = (i + NAMES.length) % NAMES.length;
    show();
    if (focus) tabs[selected].focus();
  };

  tabs.forEach((tab, i) => tab.addEventListener("click", () => select(i, false)));
  byId("tabs").addEventListener("keydown", (event) => {
    const to = { ArrowLeft: selected - 1, ArrowRight: selected + 1, Home: 0, End: NAMES.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    select(to, true);
  });
  wide.addEventListener("change", show);
  show();
}
