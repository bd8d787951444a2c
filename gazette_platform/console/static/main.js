// The frame of all pages: which one is shown, the token, and problems.

import { ApiError, token } from "./api.js";
import { brokersPage } from "./brokers.js";
import { h } from "./dom.js";
import { journalPage } from "./journal.js";
import { journalsPage } from "./journals.js";
import { shardsPage } from "./shards.js";
import { tablesPage } from "./tables.js";

const PAGES = {
  journals: ["Journals", journalsPage],
  journal: ["", journalPage],
  brokers: ["Brokers", brokersPage],
  shards: ["Shards", shardsPage],
  tables: ["Tables", tablesPage],
};

const main = document.querySelector("main");
const problem = document.querySelector("#problem");
let stop = () => {};

// Shows why something failed, and asks for a token where that is why. Without an error: all is well again.
export function report(error) {
  if (error?.name === "AbortError") return;
  problem.hidden = !error;
  problem.replaceChildren(error ? error.message : "");
  if (!error) return;
  if (!(error instanceof ApiError)) throw error;
  if (error.status === 401) {
    problem.append(" ", h("button", { type: "button", onclick: askToken }, "Give a token"));
  }
}

function show() {
  stop();
  report(null);
  const [name, text = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const query = Object.fromEntries(new URLSearchParams(text));
  const [title, page] = PAGES[name] ?? PAGES.journals;
  for (const link of document.querySelectorAll("nav a")) {
    const isThis = link.hash === `#/${PAGES[name] && name !== "journal" ? name : "journals"}`;
    if (isThis) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${title || query.name || ""} · Gazette console`;
  main.replaceChildren();
  stop = page(main, query, report) ?? (() => {});
  main.focus();
}

function askToken() {
  const input = h("input", { type: "password", name: "token", autocomplete: "off", value: token.get() });
  const dialog = h(
    "dialog", { "aria-label": "Token", onclose: () => dialog.remove() },
    h("form", { method: "dialog", onsubmit: () => { token.set(input.value.trim()); show(); } },
      h("p", {}, "A cluster with keys serves only calls with a token. This tab keeps it until it is closed."),
      h("label", {}, "Bearer token ", input),
      h("div", { class: "bar" },
        h("button", {}, "Use it"),
        h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"))),
  );
  document.body.append(dialog);
  dialog.showModal();
}

document.querySelector("nav").append(
  ...Object.entries(PAGES).filter(([, [title]]) => title).map(([name, [title]]) => h("a", { href: `#/${name}` }, title)),
);
document.querySelector("#token").addEventListener("click", askToken);
window.addEventListener("hashchange", show);
show();
