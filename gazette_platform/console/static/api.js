// Requests to the broker, with the token that its user gave for this tab.

import { EventParser } from "./format.js";

const KEY = "gazette-token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function ask(path, { accept, body, signal } = {}) {
  const headers = {};
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (accept) headers.Accept = accept;
  if (body) headers["Content-Type"] = "application/json";
  const options = { headers, signal, credentials: "omit", cache: "no-store" };
  if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The broker does not answer.");
  }
  if (response.ok) return response;
  const text = await response.text();
  let problem = text.trim();
  try {
    problem = JSON.parse(text).error;
  } catch {
    // the gateway's errors are plain texts
  }
  throw new ApiError(response.status, problem || response.statusText);
}

function address(name, query) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined);
  return given.length ? `/console/api/${name}?${new URLSearchParams(given)}` : `/console/api/${name}`;
}

export async function get(name, query = {}, signal = undefined) {
  return (await ask(address(name, query), { signal })).json();
}

export async function post(name, body, signal = undefined) {
  return (await ask(`/console/api/${name}`, { body, signal })).json();
}

async function* texts(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The connection to the broker broke.");
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Values of an answer that comes as lines of JSON, as they come.
export async function* lines(name, query, signal) {
  let rest = "";
  for await (const text of texts(await ask(address(name, query), { signal }))) {
    const found = (rest + text).split("\n");
    rest = found.pop();
    for (const line of found) yield JSON.parse(line);
  }
}

// Messages of a journal from an offset on, some at a time, for ever.
export async function* tail(journal, offset, signal) {
  const path = journal.split("/").map(encodeURIComponent).join("/");
  const parser = new EventParser();
  const response = await ask(`/${path}?offset=${offset}&block=true`, { accept: "text/event-stream", signal });
  yield { begin: Number(response.headers.get("X-Write-Head")), events: [] };
  for await (const text of texts(response)) yield { events: parser.feed(text) };
}
