// All journals as a tree by their names. Only rows in view exist, and only their states are asked for.

import { ApiError, lines, post } from "./api.js";
import { every, h } from "./dom.js";
import { bytes, count, rate, treeRows } from "./format.js";

const ROW = 28;
const SPARE = 6; // rows beyond the view
const STATES_S = 5;
const LIST_S = 30;
const STORES_S = 60;
const REDRAW_MS = 250; // while journals are still being listed
const ALL_OPEN_MAX = 300;
const COLUMNS = ["Journal", "Size", "Write head", "Rate", "Unpersisted", "Brokers", "State"];

export function journalsPage(root, query, report) {
  const grid = new Grid(report);
  const filter = h("input", {
    type: "search", value: query.filter ?? "", placeholder: "part of a name", "aria-label": "Filter by name",
    oninput: () => grid.filter(filter.value),
  });
  const selector = h("input", {
    type: "search", value: query.selector ?? "", placeholder: "env=prod, name:prefix=a/", "aria-label": "Selector",
  });
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); grid.select(selector.value); } },
    h("label", {}, "Name", filter), h("label", {}, "Selector", selector), h("button", {}, "Select"), grid.summary);
  root.append(h("h1", {}, "Journals"), form, grid.element);
  grid.filter(filter.value);
  grid.select(selector.value);
  const ends = [
    every(STATES_S, () => grid.askStates()),
    every(STORES_S, () => grid.askStores()),
    every(LIST_S, () => grid.list()),
  ];
  return () => { ends.forEach((end) => end()); grid.stop(); };
}

class Grid {
  #journals = [];
  #states = new Map();
  #stores = new Map();
  #toggled = new Map();
  #rows = [];
  #filter = "";
  #selector = null;
  #active = 0;
  #isComplete = true;
  #revision = 0; // of the list
  #listing = null;

  constructor(report) {
    this.report = report;
    this.summary = h("span", { class: "soft", role: "status" });
    this.body = h("div", { class: "body", role: "rowgroup" });
    const head = h("div", { class: "row head", role: "row" },
      COLUMNS.map((title, at) => h("span", { role: "columnheader", class: at > 0 && at < 5 ? "number" : null }, title)));
    this.element = h("div", {
      class: "grid", role: "treegrid", "aria-label": "Journals", "aria-colcount": COLUMNS.length,
      onscroll: () => this.draw(), onkeydown: (event) => this.#press(event), onclick: (event) => this.#click(event),
    }, h("div", { role: "rowgroup" }, head), this.body);
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.element);
  }

  stop() {
    this.#listing?.abort();
    this.resized.disconnect();
  }

  select(selector) {
    if (selector === this.#selector) return;
    this.#selector = selector;
    this.#revision = 0;
    this.list();
  }

  filter(text) {
    this.#filter = text.toLowerCase();
    this.#build();
  }

  async list() {
    if (this.#selector === null) return;
    this.#listing?.abort();
    const listing = (this.#listing = new AbortController());
    const found = [];
    const isFirst = this.#journals.length === 0;
    let drawn = 0;
    try {
      const query = { selector: this.#selector, known: this.#revision || undefined };
      for await (const part of lines("journals", query, listing.signal)) {
        if (part.error) throw new ApiError(0, part.error);
        if (part.unchanged) {
          this.report(null);
          return;
        }
        if (!Array.isArray(part)) {
          this.#isComplete = part.complete;
          this.#revision = part.revision;
          continue;
        }
        found.push(...part);
        if (isFirst && performance.now() - drawn > REDRAW_MS) {
          this.#journals = found;
          this.#build();
          if (drawn === 0) performance.mark("first-rows");
          drawn = performance.now();
          if (found.length === part.length) this.askStates();
        }
      }
      this.#journals = found;
      this.#build();
      this.report(null);
      if (isFirst) await Promise.all([this.askStates(), this.askStores()]);
    } catch (error) {
      this.report(error);
    }
  }

  // The states of journals in view.
  async askStates() {
    const names = this.#inView().filter((row) => row.journal && row.journal.head === undefined).map((row) => row.journal.name);
    if (!names.length) return;
    try {
      const now = performance.now() / 1000;
      for (const state of await post("states", { journals: names.slice(0, 100) })) {
        const before = this.#states.get(state.name);
        const isKnown = before?.head !== undefined && state.head !== undefined && now > before.at;
        const rateNow = isKnown ? Math.max(0, state.head - before.head) / (now - before.at) : undefined;
        this.#states.set(state.name, { ...state, at: now, rate: rateNow });
      }
      this.draw();
    } catch (error) {
      this.report(error);
    }
  }

  async askStores() {
    const urls = new Set(this.#inView().flatMap((row) => row.journal?.stores ?? []));
    if (!urls.size) return;
    try {
      for (const { store, error } of await post("stores", { stores: [...urls].slice(0, 16) })) this.#stores.set(store, error);
      this.draw();
    } catch (error) {
      this.report(error);
    }
  }

  #build() {
    const isFiltered = this.#filter !== "";
    const shown = isFiltered ? this.#journals.filter((one) => one.name.toLowerCase().includes(this.#filter)) : this.#journals;
    const isSmall = shown.length <= ALL_OPEN_MAX;
    this.#rows = treeRows(shown, (folder, depth) => this.#toggled.get(folder) ?? (isSmall || isFiltered || depth === 0));
    this.#active = Math.min(this.#active, Math.max(0, this.#rows.length - 1));
    const more = this.#isComplete ? "" : " or more: use a selector to see others";
    this.summary.textContent = isFiltered
      ? `${count(shown.length)} of ${count(this.#journals.length)} journals`
      : `${count(shown.length)} ${shown.length === 1 ? "journal" : "journals"}${more}`;
    this.element.setAttribute("aria-rowcount", this.#rows.length + 1);
    this.body.style.height = `${this.#rows.length * ROW}px`;
    this.draw();
  }

  #range() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / ROW) - SPARE);
    const last = Math.ceil((this.element.scrollTop + this.element.clientHeight) / ROW) + SPARE;
    return [first, Math.min(this.#rows.length, last)];
  }

  #inView() {
    return this.#rows.slice(...this.#range());
  }

  draw() {
    const [first, last] = this.#range();
    const focused = this.body.contains(document.activeElement);
    const rows = [];
    for (let index = first; index < last; index += 1) rows.push(this.#row(this.#rows[index], index));
    this.body.replaceChildren(...rows);
    if (focused) this.body.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  }

  #row(row, index) {
    const properties = {
      class: "row", role: "row", "aria-rowindex": index + 2, "aria-level": row.depth + 1,
      tabindex: index === this.#active ? 0 : -1, "data-index": index,
      "aria-expanded": row.folder ? String(row.open) : null,
    };
    const cells = row.folder ? this.#folder(row) : this.#journal(row);
    const element = h("div", properties, cells);
    element.style.top = `${index * ROW}px`;
    element.firstChild.style.paddingLeft = `${row.depth * 1.1}em`;
    return element;
  }

  #folder(row) {
    return [
      h("span", { role: "gridcell", title: row.folder }, h("span", { class: "twist", "aria-hidden": "true" }, row.open ? "▾" : "▸"), row.label,
        h("span", { class: "soft" }, ` ${count(row.count)}`)),
    ];
  }

  #journal({ journal, label }) {
    const state = this.#states.get(journal.name) ?? {};
    const head = journal.head ?? state.head;
    const cell = (text, kind, title = text) => h("span", { role: "gridcell", class: kind, title }, text);
    const primary = journal.brokers[journal.primary];
    const others = journal.brokers.filter((name) => name !== primary);
    const brokers = [...(primary ? [`${primary} (primary)`] : []), ...others].join(", ");
    const [text, kind] = this.#stateOf(journal, state);
    return [
      h("span", { role: "gridcell", title: journal.name }, h("span", { class: "twist" }),
        h("a", { href: journalLink(journal.name), tabindex: -1 }, label)),
      cell(state.head === undefined ? "" : bytes(state.head - state.begin), "number"),
      cell(count(head), "number"),
      cell(rate(state.rate), "number"),
      cell(bytes(state.unpersisted), "number"),
      cell(brokers || "none", brokers ? null : "bad"),
      cell(text, kind),
    ];
  }

  #stateOf(journal, state) {
    const broken = journal.stores.find((store) => this.#stores.get(store));
    if (journal.suspended === "FULL") return ["suspended", "soft"];
    if (state.error) return [state.error, "bad"];
    if (broken) return [`${broken}: ${this.#stores.get(broken)}`, "bad"];
    if (journal.suspended) return ["suspended to one replica", "soft"];
    if (journal.brokers.length < journal.rf) return [`${journal.brokers.length} of ${journal.rf} replicas`, "warn"];
    if (!journal.stores.length) return ["no store", "warn"];
    return state.head === undefined ? ["", null] : ["ok", "good"];
  }

  #toggle(row, open = !row.open) {
    this.#toggled.set(row.folder, open);
    this.#build();
    this.askStates();
  }

  #click(event) {
    const element = event.target.closest("[data-index]");
    if (!element || event.target.closest("a")) return;
    this.#active = Number(element.dataset.index);
    const row = this.#rows[this.#active];
    if (row.folder) this.#toggle(row);
    this.#focus();
  }

  #press(event) {
    const row = this.#rows[this.#active];
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.#rows.length, End: this.#rows.length };
    if (!row) return;
    if (event.key in steps) {
      this.#active = Math.max(0, Math.min(this.#rows.length - 1, this.#active + steps[event.key]));
    } else if (event.key === "Enter" && row.journal) {
      location.hash = journalLink(row.journal.name);
    } else if (row.folder && (event.key === "Enter" || event.key === (row.open ? "ArrowLeft" : "ArrowRight"))) {
      this.#toggle(row);
    } else if (event.key === "ArrowLeft") {
      while (this.#active > 0 && this.#rows[this.#active].depth >= row.depth) this.#active -= 1;
    } else {
      return;
    }
    event.preventDefault();
    this.#focus();
  }

  #focus() {
    const top = this.#active * ROW;
    const room = this.element.clientHeight - 2 * ROW;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top > this.element.scrollTop + room) this.element.scrollTop = top - room;
    this.draw();
    this.body.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  }
}

export function journalLink(name, offset = "") {
  const query = new URLSearchParams({ name, ...(offset === "" ? {} : { offset }) });
  return `#/journal?${query}`;
}
