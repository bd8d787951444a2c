// One journal: its state, its spec, its fragments, and its messages as they come.

import { ApiError, get, post, tail } from "./api.js";
import { details, every, h, plot, refill, table } from "./dom.js";
import { bytes, count, instant, parseTime, prettyJson, rate } from "./format.js";
import { journalLink } from "./journals.js";

const STATE_S = 5;
const HOUR_S = 3600;
const KEPT_JOURNALS = 50;
const MESSAGES_MAX = 500;
const TEXT_MAX = 20_000; // characters of a message that are shown
const FRAGMENTS = 100;
const BACK_BYTES = 4096; // where a tail begins before the write head
const RETRY_S_MAX = 15;

// Samples of journals that were looked at in this tab, by name: [second, write head, unpersisted bytes].
const history = new Map();

function samplesOf(name) {
  const samples = history.get(name) ?? [];
  history.delete(name);
  history.set(name, samples);
  if (history.size > KEPT_JOURNALS) history.delete(history.keys().next().value);
  return samples;
}

export function journalPage(root, { name = "", offset }, report) {
  const summary = h("div", {});
  const plots = h("div", { class: "plots" });
  const views = new Map([
    ["Messages", () => messagesView(name, offset, report)],
    ["Fragments", () => fragmentsView(name, report)],
    ["Spec", () => specView(name, report)],
  ]);
  const place = h("div", { class: "view", role: "tabpanel" });
  let endView = () => {};
  const tabs = [...views.keys()].map((title) =>
    h("button", { type: "button", role: "tab", "aria-selected": "false", tabindex: -1, onclick: () => open(title) }, title));
  const open = (title) => {
    endView();
    for (const tab of tabs) {
      const isThis = tab.textContent === title;
      tab.setAttribute("aria-selected", String(isThis));
      tab.tabIndex = isThis ? 0 : -1;
    }
    place.setAttribute("aria-label", title);
    const { element, stop } = views.get(title)();
    place.replaceChildren(element);
    endView = stop;
  };
  const turn = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const at = tabs.indexOf(document.activeElement);
    if (!step || at < 0) return;
    const tab = tabs[(at + step + tabs.length) % tabs.length];
    tab.focus();
    open(tab.textContent);
  };
  root.append(h("h1", {}, name), summary, plots, h("div", { class: "bar", role: "tablist", "aria-label": "Views", onkeydown: turn }, tabs), place);
  open("Messages");
  const samples = samplesOf(name);
  const ask = async () => {
    try {
      const [state] = await post("states", { journals: [name] });
      const now = Date.now() / 1000;
      if (state.head !== undefined) samples.push([now, state.head, state.unpersisted]);
      while (samples.length && samples[0][0] < now - HOUR_S) samples.shift();
      const rates = samples.slice(1).map(([at, head], n) => [at, Math.max(0, head - samples[n][1]) / (at - samples[n][0])]);
      refill(summary, JSON.stringify(state), state.error ? h("p", { class: "bad" }, state.error) : stateText(state));
      plots.replaceChildren(
        plot("Appended", rates, rate),
        plot("Unpersisted", samples.map(([at, , unpersisted]) => [at, unpersisted]), bytes));
      report(null);
    } catch (error) {
      report(error);
    }
  };
  const end = every(STATE_S, ask);
  return () => { end(); endView(); };
}

function stateText({ begin, head, unpersisted }) {
  return h("p", {}, `Write head ${count(head)}, first byte ${count(begin)}: ${bytes(head - begin)}, `,
    h("span", { class: "soft" }, `${bytes(unpersisted)} of it not in a store yet`));
}

// ---------------------------------------------------------------------------------------- messages
function messagesView(name, from, report) {
  let running = null;
  let isFollowing = true;
  let isCut = false; // the next message lacks its beginning
  const list = h("div", { class: "tail", role: "log", "aria-label": "Messages", "aria-live": "off", tabindex: 0 });
  const status = h("span", { class: "soft", role: "status" });
  const toggle = h("button", { type: "button", onclick: () => (running ? stop("Paused") : start(next)) }, "Pause");
  const isPretty = h("input", { type: "checkbox", checked: true });
  const place = h("input", { type: "search", name: "place", "aria-label": "Offset or time", placeholder: "offset, 15m, 2h or a time" });
  let next = from === undefined ? -1 : Number(from);

  const stop = (why) => {
    running?.abort();
    running = null;
    toggle.textContent = "Go on";
    status.textContent = why;
  };
  // Returns: why the broker ended the stream, if it did.
  const add = (events) => {
    let why = "";
    for (const { id, event, data } of events) {
      if (event === "close") why = `${data.charAt(0).toUpperCase()}${data.slice(1)}`;
      if (event !== "message" || !id) continue;
      if (!isCut) list.append(message(name, next, data, isPretty.checked));
      isCut = false;
      next = Number(id);
    }
    while (list.childElementCount > MESSAGES_MAX) list.firstChild.remove();
    if (isFollowing) list.scrollTop = list.scrollHeight;
    return why;
  };
  const start = async (offset) => {
    running?.abort();
    const mine = (running = new AbortController());
    toggle.textContent = "Pause";
    status.textContent = "Connecting";
    next = offset;
    for (let tries = 0; ; tries += 1) {
      const from = next;
      let why;
      try {
        if (next < 0) [next, isCut] = await nearEnd(name);
        why = await follow(mine);
      } catch (error) {
        if (running !== mine) return;
        if (!(error instanceof ApiError) || (error.status >= 400 && error.status < 500)) {
          stop("Stopped");
          report(error);
          return;
        }
        why = error.message.replace(/\.$/, "");
      }
      if (running !== mine) return;
      if (next !== from) tries = 0;
      // A broker that leaves does not come back at once, but a proxy may lead to another one.
      const seconds = Math.min(2 ** tries, RETRY_S_MAX);
      status.textContent = `${why}. Connecting again in ${seconds} s`;
      await new Promise((go) => { setTimeout(go, 1000 * seconds); });
      if (running !== mine) return;
    }
  };
  // Shows messages until the stream ends. Returns: why it ended.
  const follow = async (mine) => {
    let why = "The broker ended the stream";
    for await (const { begin, events } of tail(name, next, mine.signal)) {
      if (running !== mine) return why;
      if (next < 0) next = begin;
      why = add(events) || why;
      status.textContent = events.length ? `At offset ${count(next)}` : "Waiting for messages";
      await frame(); // what comes faster than it can be drawn waits in the connection
    }
    return why;
  };
  const jump = async (event) => {
    event.preventDefault();
    try {
      list.replaceChildren();
      start(await offsetOf(name, place.value));
    } catch (error) {
      report(error);
    }
  };
  list.addEventListener("scroll", () => { isFollowing = list.scrollTop + list.clientHeight > list.scrollHeight - 40; });
  const form = h("form", { onsubmit: jump },
    place, h("button", {}, "Jump"), toggle, h("label", {}, isPretty, "Indent JSON"), status);
  start(next);
  return { element: h("div", { class: "view" }, form, list), stop: () => stop("") };
}

const frame = () => new Promise((go) => { requestAnimationFrame(go); setTimeout(go, 200); });

// An offset some messages before the write head, and whether it may be within one.
async function nearEnd(name) {
  const [state] = await post("states", { journals: [name] });
  if (state.head === undefined) return [-1, false];
  if (state.head - state.begin <= BACK_BYTES) return [state.begin, false];
  return [state.head - BACK_BYTES, true];
}

async function offsetOf(name, text) {
  if (text.trim() === "") return -1;
  if (/^\d[\d,]*$/.test(text.trim())) return Number(text.replaceAll(",", ""));
  const since = parseTime(text);
  if (!(since >= 0)) throw new ApiError(400, `${text} is neither an offset nor a time`);
  const { fragments } = await get("fragments", { name, since, limit: 1 });
  return fragments.length ? fragments[0].begin : -1;
}

function message(name, offset, text, isPretty) {
  const shown = text.length > TEXT_MAX ? text.slice(0, TEXT_MAX) : text;
  const parts = isPretty && shown === text ? prettyJson(text) : null;
  const body = parts ? parts.map(([kind, part]) => (kind ? h("span", { class: kind }, part) : part)) : shown;
  const rest = shown === text ? null : h("span", { class: "soft" }, ` … ${count(text.length - shown.length)} characters more`);
  return h("article", {}, h("a", { href: journalLink(name, offset) }, count(offset)), h("pre", {}, body, rest));
}

// --------------------------------------------------------------------------------- fragments, spec
function fragmentsView(name, report) {
  const place = h("div", { class: "view" }, h("p", { class: "soft" }, "Loading"));
  const load = async (token) => {
    try {
      const page = await get("fragments", { name, token, limit: FRAGMENTS });
      place.replaceChildren(
        fragmentsTable(name, page.fragments),
        h("div", { class: "bar" },
          h("button", { type: "button", disabled: token === 0, onclick: () => load(0) }, "First"),
          h("button", { type: "button", disabled: !page.next, onclick: () => load(page.next) }, "Next")));
    } catch (error) {
      report(error);
    }
  };
  load(0);
  return { element: place, stop: () => {} };
}

function fragmentsTable(name, fragments) {
  if (!fragments.length) return h("p", { class: "soft" }, "There are no fragments.");
  return table("Fragments", [
    ["Begin", (one) => h("a", { href: journalLink(name, one.begin) }, count(one.begin)), "number"],
    ["Bytes", (one) => bytes(one.end - one.begin), "number"],
    ["Stored", (one) => (one.store ? instant(one.stored_at) : h("span", { class: "warn" }, "in spools only"))],
    ["Codec", (one) => one.codec],
    ["Store", (one) => one.store + one.path, "text"],
  ], fragments);
}

function specView(name, report) {
  const place = h("div", { class: "view" }, h("p", { class: "soft" }, "Loading"));
  get("journal", { name }).then((journal) => {
    place.replaceChildren(
      details([
        ["Brokers", journal.brokers.map((one, at) => (at === journal.primary ? `${one} (primary)` : one)).join(", ") || "none"],
        ["Revision", count(journal.revision)],
      ]),
      h("pre", {}, journal.yaml));
  }, report);
  return { element: place, stop: () => {} };
}
