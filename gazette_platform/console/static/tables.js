// Tables of the lake, as `gazctl lake list` has them.

import { get } from "./api.js";
import { every, h, list, refill, table } from "./dom.js";
import { bytes, count } from "./format.js";

const ASK_S = 60;

export function tablesPage(root, query, report) {
  const place = h("div", { class: "view" }, h("p", { class: "soft" }, "Asking the lake takes some seconds"));
  root.append(h("h1", {}, "Tables"), place);
  const abort = new AbortController();
  const end = every(ASK_S, async () => {
    try {
      const found = await get("tables", {}, abort.signal);
      refill(place, JSON.stringify(found), found.is_known ? tablesView(found) : unknownText());
      report(null);
    } catch (error) {
      report(error);
    }
  });
  return () => { end(); abort.abort(); };
}

function unknownText() {
  return h("p", {}, "This broker does not know a lake. Start it with ", h("code", {}, "GAZETTE_ENDPOINTS=DIR/endpoints.json"),
    ", which `gazette up` writes, or with ", h("code", {}, "GAZETTE_TABLES"), " and the other variables of the lake.");
}

function tablesView({ tables, links }) {
  const dagster = (name) => `${links.dagster}/assets/${name.split(".").map(encodeURIComponent).join("/")}`;
  return [
    h("p", {}, Object.entries(links).map(([name, url]) => [h("a", { href: url, target: "_blank", rel: "noreferrer" }, name === "trino" ? "Trino" : "Dagster"), " "])),
    table("Tables", [
      ["Table", (one) => (links.dagster && one.table ? h("a", { href: dagster(one.table), target: "_blank", rel: "noreferrer" }, one.table) : one.table ?? one.file)],
      ["Kind", (one) => one.format],
      ["State", (one) => (one.blocked ? h("span", { class: "bad" }, "rollups wait") : one.state ?? (one.is_made === false ? "not made yet" : ""))],
      ["Rows", (one) => count(one.rows), "number"],
      ["Lag", (one) => bytes(one.lag_bytes), "number"],
      ["Complete before", (one) => one.complete_at ?? one.made_at ?? ""],
      ["Unfit records", (one) => h("span", { class: one.unfit_records ? "warn" : null }, count(one.unfit_records)), "number"],
      ["Quarantined", (one) => h("span", { class: one.quarantined ? "warn" : null }, count(one.quarantined)), "number"],
      ["Slices to make", (one) => count(one.slices_to_make), "number"],
      ["Problems", (one) => h("div", { class: "bad" }, list(one.problems ?? one.errors ?? [])), "text"],
    ], tables),
  ];
}
