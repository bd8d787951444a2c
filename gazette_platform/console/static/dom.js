// Elements. Text only ever becomes text: nothing here makes markup of a string.

import { duration } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...texts(children));
  return element;
}

function texts(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

// A table of columns [title, cell, class].
export function table(caption, columns, rows) {
  const head = columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title));
  const body = rows.map((row) => h("tr", {}, columns.map(([, cell, kind]) => h("td", { class: kind }, cell(row)))));
  const found = h("table", { "aria-label": caption }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
  // A narrow screen scrolls the table and not the page; the keyboard must be able to do so, too.
  return h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: 0, "data-key": `table ${caption}` }, found);
}

export function details(pairs) {
  return h("dl", {}, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

// Puts new content into a container unless it is what the container shows; keeps the focus by `data-key`.
export function refill(container, key, ...children) {
  if (container.dataset.shown === key) return;
  const focused = container.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  container.dataset.shown = key;
  container.replaceChildren(...texts(children));
  if (focused) [...container.querySelectorAll("[data-key]")].find((e) => e.dataset.key === focused)?.focus();
}

// Several texts of one cell.
export function list(texts, most = 3) {
  if (texts.length < 2) return texts;
  const items = texts.slice(0, most).map((text) => h("li", {}, text));
  return h("ul", {}, items, texts.length > most ? h("li", {}, `and ${texts.length - most} more`) : null);
}

const SPAN_S_MIN = 300;

// A plot of samples [second, value] over the time that they cover, an hour at most.
export function plot(title, samples, format) {
  const known = samples.filter(([, value]) => Number.isFinite(value));
  const last = known.length ? format(known[known.length - 1][1]) : "no value yet";
  const most = Math.max(...known.map(([, value]) => value), 0);
  const caption = h("figcaption", {}, `${title}: ${last}`, known.length ? `, at most ${format(most)}` : "");
  const end = known.length ? known[known.length - 1][0] : 0;
  const span = Math.max(SPAN_S_MIN, known.length ? end - known[0][0] : 0);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${span} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${title} over the last ${duration(span)}, now ${last}`);
  const path = document.createElementNS(SVG, "path");
  const points = known.map(([at, value]) => `${span - (end - at)},${97 - (94 * value) / (most || 1)}`);
  if (points.length > 1) path.setAttribute("d", `M${points.join("L")}`);
  svg.append(path);
  return h("figure", {}, caption, svg);
}

// Calls work now and every so many seconds while the page is looked at. Returns: ends it.
export function every(seconds, work) {
  let timer = 0;
  let ended = false;
  const turn = async () => {
    if (!document.hidden) await work();
    if (!ended) timer = setTimeout(turn, seconds * 1000);
  };
  const back = () => {
    if (!document.hidden && !ended) {
      clearTimeout(timer);
      turn();
    }
  };
  document.addEventListener("visibilitychange", back);
  turn();
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", back);
  };
}
