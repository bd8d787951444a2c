// Shards of the consumers that the broker knows.

import { get, post } from "./api.js";
import { every, h, refill, table } from "./dom.js";
import { bytes } from "./format.js";

const ASK_S = 10;
const PROGRESS_MAX = 50;

export function shardsPage(root, query, report) {
  const place = h("div", { class: "view" });
  const done = h("p", { role: "status" });
  root.append(h("h1", {}, "Shards"), done, place);
  const abort = new AbortController();
  const show = async () => {
    try {
      const consumers = await get("shards", {}, abort.signal);
      for (const consumer of consumers) await addLags(consumer, abort.signal);
      const unassign = (consumer, shard) => askUnassign(consumer, shard, done, show, report);
      refill(place, JSON.stringify(consumers), consumers.length ? consumers.map((one) => consumerView(one, unassign)) : noneText());
      report(null);
    } catch (error) {
      report(error);
    }
  };
  const end = every(ASK_S, show);
  return () => { end(); abort.abort(); };
}

function noneText() {
  return h("p", {}, "This broker knows no consumers. Start it with ", h("code", {}, "--broker.console-consumer http://host:port"),
    " to show the shards of one; repeat the flag for more.");
}

// Bytes that the first shards have still to read of their sources.
async function addLags({ consumer, shards }, signal) {
  const running = shards.filter((one) => one.status === "PRIMARY" && one.sources.length).slice(0, PROGRESS_MAX);
  if (!running.length) return;
  const progress = await post("progress", { consumer, shards: running.map((one) => one.id) }, signal);
  const journals = [...new Set(running.flatMap((one) => one.sources))].slice(0, 100);
  const heads = new Map((await post("states", { journals }, signal)).map((state) => [state.name, state.head]));
  for (const shard of running) {
    const read = progress[shard.id];
    const lags = shard.sources.map((name) => heads.get(name) - (read?.[name] ?? 0));
    shard.lag = read && lags.every(Number.isFinite) ? Math.max(0, ...lags) : undefined;
  }
}

function consumerView({ consumer, error, shards }, unassign) {
  return [
    h("h2", {}, consumer),
    error ? h("p", { class: "bad" }, error) : table(`Shards of ${consumer}`, [
      ["Shard", (one) => one.id],
      ["Status", (one) => h("span", { class: kindOf(one.status) }, one.status)],
      ["Lag", (one) => bytes(one.lag), "number"],
      ["Primary", (one) => one.replicas[one.primary]?.process ?? "none"],
      ["Standbys", (one) => `${one.replicas.filter((each, at) => at !== one.primary).map((each) => `${each.process} ${each.status}`).join(", ") || "none"} (wanted: ${one.standbys})`],
      ["Last error", (one) => h("span", { class: "bad" }, one.replicas.flatMap((each) => each.errors).join("; ")), "text"],
      ["Action", (one) => h("button", { type: "button", "data-key": `${consumer} ${one.id}`, "aria-label": `Unassign ${one.id}`, onclick: () => unassign(consumer, one.id) }, "Unassign")],
    ], shards),
  ];
}

function kindOf(status) {
  if (status === "FAILED") return "bad";
  return status === "PRIMARY" ? "good" : "warn";
}

function askUnassign(consumer, shard, done, show, report) {
  const dialog = h("dialog", { "aria-label": "Unassign", onclose: () => dialog.remove() },
    h("form", { method: "dialog", onsubmit: async (event) => {
      if (event.submitter.value !== "yes") return;
      try {
        const { unassigned } = await post("unassign", { consumer, shard });
        done.textContent = unassigned.length ? `${unassigned.join(", ")} is assigned again` : `${shard} had no assignment`;
        await show();
      } catch (error) {
        report(error);
      }
    } },
    h("p", {}, `Unassign ${shard}? Its primary stops, and a standby or another process goes on. A shard that failed is tried again.`),
    h("div", { class: "bar" }, h("button", { value: "yes" }, "Unassign"), h("button", { value: "no" }, "Cancel"))));
  document.body.append(dialog);
  dialog.showModal();
}
