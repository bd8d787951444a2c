// Pure: texts of numbers, times and JSON, and streams of events cut into messages.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count) {
  if (count === undefined || count === null) return "";
  let unit = 0;
  while (Math.abs(count) >= 1024 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit ? count.toFixed(1) : Math.round(count)} ${UNITS[unit]}`;
}

export function rate(bytesPerSecond) {
  return bytesPerSecond === undefined ? "" : `${bytes(bytesPerSecond)}/s`;
}

export function count(number) {
  return number === undefined || number === null ? "" : number.toLocaleString("en");
}

export function duration(seconds) {
  if (seconds === undefined || seconds === null) return "";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function instant(unixSeconds) {
  return unixSeconds ? new Date(unixSeconds * 1000).toISOString().replace(".000Z", "Z") : "";
}

// Parts of a text of JSON, indented: [kind, text] of "key", "string", "literal" or "". Numbers stay as they are
// written, since JavaScript would round large ones. null: it is not JSON.
export function prettyJson(text) {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const parts = [];
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
  tokens.forEach((token, index) => {
    const next = tokens[index + 1];
    if (token === "{" || token === "[") {
      depth += 1;
      parts.push(["", next === "}" || next === "]" ? token : token + line()]);
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const isEmpty = ["{", "["].includes(tokens[index - 1]);
      parts.push(["", isEmpty ? token : line() + token]);
    } else if (token === ",") {
      parts.push(["", token + line()]);
    } else if (token === ":") {
      parts.push(["", ": "]);
    } else {
      const kind = token[0] !== '"' ? "literal" : next === ":" ? "key" : "string";
      parts.push([kind, token]);
    }
  });
  return parts;
}

// Cuts a stream of server-sent events into {id, event, data}. Give it pieces of text of any size.
export class EventParser {
  #rest = "";

  feed(text) {
    const blocks = (this.#rest + text).split("\n\n");
    this.#rest = blocks.pop();
    return blocks.map(parseEvent).filter((event) => event.data !== null);
  }
}

function parseEvent(block) {
  const event = { id: "", event: "message", data: null };
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    if (at < 1) continue;
    const value = line.slice(at + 1).replace(/^ /, "");
    const name = line.slice(0, at);
    if (name === "data") event.data = event.data === null ? value : `${event.data}\n${value}`;
    else if (name in event) event[name] = value;
  }
  return event;
}

// Unix seconds of a point in time as people write it: 15m, 2h, 3d (ago), or an ISO 8601 time. NaN: neither.
export function parseTime(text, nowMs = Date.now()) {
  const ago = /^(\d+(?:\.\d+)?)\s*([smhd])$/.exec(text.trim());
  const units = { s: 1, m: 60, h: 3600, d: 86400 };
  if (ago) return Math.floor(nowMs / 1000 - Number(ago[1]) * units[ago[2]]);
  return Math.floor(Date.parse(text.trim()) / 1000);
}

// Rows of a tree of journals by the folders of their names, from a list in the order of names.
// isOpen(folder, depth) says whether the rows of a folder are wanted. A folder with one folder in it is shown with it.
export function treeRows(journals, isOpen) {
  const root = { folders: new Map(), journals: [], count: 0 };
  for (const journal of journals) {
    let node = root;
    const parts = journal.name.split("/");
    for (const part of parts.slice(0, -1)) {
      node.count += 1;
      if (!node.folders.has(part)) node.folders.set(part, { folders: new Map(), journals: [], count: 0 });
      node = node.folders.get(part);
    }
    node.count += 1;
    node.journals.push(journal);
  }
  const rows = [];
  const add = (node, prefix, depth) => {
    for (let [name, folder] of node.folders) {
      let label = `${name}/`;
      while (folder.folders.size === 1 && folder.journals.length === 0) {
        [[name, folder]] = folder.folders;
        label += `${name}/`;
      }
      const path = prefix + label;
      const open = isOpen(path, depth);
      rows.push({ folder: path, label, depth, count: folder.count, open });
      if (open) add(folder, path, depth + 1);
    }
    for (const journal of node.journals) {
      rows.push({ journal, label: journal.name.slice(prefix.length) || journal.name, depth });
    }
  };
  add(root, "", 0);
  return rows;
}
