// Elements: the only way texts get into the page is as text.

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** A new element: `className` may be empty, children are nodes or texts. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** Sets a text only if it differs, so that nothing is laid out, or announced, again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
