// The brokers of the cluster: zones, limits, journals and vitals; and what the asked one has done in the last hour.

import { ApiError, get, lines } from "./api.js";
import { details, every, h, plot, refill, table } from "./dom.js";
import { bytes, count, duration, rate } from "./format.js";

const ASK_S = 10;

const percent = (share) => (share === undefined ? "" : `${(100 * share).toFixed(1)} %`);

export function brokersPage(root, query, report) {
  const place = h("div", { class: "view" });
  root.append(h("h1", {}, "Brokers"), place);
  const abort = new AbortController();
  let served;
  const before = new Map(); // vitals by broker, as of the last time
  const end = every(ASK_S, async () => {
    try {
      const { brokers, own } = await get("brokers", {}, abort.signal);
      served = await journalsOf(abort.signal, served);
      for (const broker of brokers) {
        Object.assign(broker, served.brokers.get(broker.name), { rates: ratesOf(before.get(broker.name), broker.vitals) });
        if (broker.vitals) before.set(broker.name, { ...broker.vitals, rates: broker.rates });
      }
      const { missing } = served;
      refill(place, JSON.stringify([brokers, own, missing]), brokersTable(brokers), missingText(missing), ownView(own));
      report(null);
    } catch (error) {
      report(error);
    }
  });
  return () => { end(); abort.abort(); };
}

// Journals and primaries by broker, and journals that have fewer replicas than they should.
// `last` is what it returned last time: without a change of etcd the broker does not list them again.
async function journalsOf(signal, last) {
  const brokers = new Map();
  const missing = [];
  let revision;
  for await (const part of lines("journals", { known: last?.revision }, signal)) {
    if (part.error) throw new ApiError(0, part.error);
    if (part.unchanged) return last;
    if (!Array.isArray(part)) {
      revision = part.revision;
      continue;
    }
    for (const row of part) {
      row.brokers.forEach((name, at) => {
        const broker = brokers.get(name) ?? { journals: 0, primaries: 0 };
        broker.journals += 1;
        broker.primaries += at === row.primary ? 1 : 0;
        brokers.set(name, broker);
      });
      if (!row.suspended && row.brokers.length < row.rf) missing.push(row.name);
    }
  }
  return { brokers, missing, revision };
}

// What a broker did each second between two answers; they come from a cache for some seconds.
function ratesOf(before, now) {
  const seconds = before && now ? now.at - before.at : 0;
  if (seconds < 0 || !before || !now) return undefined;
  if (seconds === 0) return before.rates;
  const each = (name) => Math.max(0, now[name] - before[name]) / seconds;
  return { appended: each("appended_bytes"), cpu: each("cpu_s") };
}

function brokersTable(brokers) {
  return table("Brokers", [
    ["Broker", (one) => [one.name, one.is_own ? h("span", { class: "soft" }, " (serves this page)") : ""]],
    ["Address", (one) => one.endpoint],
    ["Journals", (one) => count(one.journals ?? 0), "number"],
    ["Primary of", (one) => count(one.primaries ?? 0), "number"],
    ["Load", (one) => (one.limit ? `${Math.round((100 * (one.journals ?? 0)) / one.limit)} % of ${count(one.limit)}` : ""), "number"],
    ["Appended", (one) => rate(one.rates?.appended), "number"],
    ["Unpersisted", (one) => bytes(one.vitals?.unpersisted_bytes), "number"],
    ["CPU", (one) => percent(one.rates?.cpu), "number"],
    ["Memory", (one) => bytes(one.vitals?.memory_bytes), "number"],
    ["Lease", (one) => (one.vitals ? `${duration(one.vitals.lease_left_s)} left` : ""), "number"],
    ...(brokers.some((one) => one.error) ? [["Problem", (one) => h("span", { class: "bad" }, one.error ?? ""), "text"]] : []),
  ], brokers);
}

function missingText(names) {
  if (!names.length) return h("p", { class: "good" }, "Each journal has all of its replicas.");
  const some = names.slice(0, 5).join(", ");
  return h("p", { class: "warn" }, `${count(names.length)} ${names.length === 1 ? "journal lacks" : "journals lack"} replicas: ${some}${names.length > 5 ? ", …" : ""}`);
}

function ownView({ vitals, samples, every_s: everyS }) {
  const rates = (at) => samples.slice(1).map((one, n) => [one[0], Math.max(0, one[at] - samples[n][at]) / (one[0] - samples[n][0])]);
  return [
    h("h2", {}, "The broker that serves this page"),
    details([
      ["Lease", `renewed, ${duration(vitals.lease_left_s)} left`],
      ["Replicas", `${count(vitals.replicas)} journals, primary of ${count(vitals.primaries)}`],
      ["Unpersisted", `${bytes(vitals.unpersisted_bytes)} in closed fragments`],
      ["Memory", bytes(vitals.memory_bytes)],
    ]),
    h("div", { class: "plots" },
      plot("Appended", rates(1), rate),
      plot("Appends", rates(2), (value) => `${value.toFixed(1)}/s`),
      plot("Unpersisted", samples.map((one) => [one[0], one[3]]), bytes),
      plot("CPU", rates(4), percent),
      plot("Loop delay", samples.map((one) => [one[0], one[5]]), (value) => `${Math.round(1000 * value)} ms`)),
    h("p", { class: "soft" }, `A sample every ${everyS} s, for an hour. Loop delay: for how long other work of the broker kept the sampler waiting.`),
  ];
}
