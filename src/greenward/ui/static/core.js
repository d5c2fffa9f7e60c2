// What all pages share: data from the server, the address, the state of the connection, and small templates.
import { addressed, bundled, here, readKept } from "/static/bundled.js";
import { html, nothing, render, svg } from "/static/vendor/lit-html/lit-html.js";
import { repeat } from "/static/vendor/lit-html/directives/repeat.js";

export { html, nothing, render, repeat, svg };

export const connection = { lost: false, running: false, changed: 0 };

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function ask(path, signal) {
  let answer;
  try {
    answer = await fetch(path, { signal, cache: "no-store" });
  } catch (error) {
    if (error.name !== "AbortError") connection.lost = true;
    throw error;
  }
  connection.lost = false;
  if (!answer.ok) throw new Refused(answer.status, await answer.text());
  return answer;
}

async function askKept(path, asBytes) {
  const found = await readKept(path, asBytes);
  if (found === null) throw new Refused(0, "This is not in the bundle: greenward ui shows it where the run is.");
  return found;
}

export const getJson = async (path, signal) => (bundled ? askKept(path, false) : (await ask(path, signal)).json());
export const getBytes = async (path, signal) => (bundled ? askKept(path, true) : (await ask(path, signal)).arrayBuffer());
export const api = (...parts) => "/api/v1/" + parts.map(encodeURIComponent).join("/");

// A query is kept as it is written: conditions such as reward>=0.5 have operators of their own.
export class Query {
  constructor(text) {
    this.parts = text.replace(/^\?/, "").split("&").filter(Boolean).map((part) => {
      const plain = decode(part);
      const found = /^([^<>=]+)(>=|<=|=|>|<)([^]*)$/.exec(plain);
      return found ? { name: found[1], operator: found[2], value: found[3] } : { name: plain, operator: "=", value: "" };
    });
  }
  get(name) {
    return this.parts.find((part) => part.name === name && part.operator === "=")?.value ?? "";
  }
  all(name) {
    return this.parts.filter((part) => part.name === name && part.operator === "=").map((part) => part.value);
  }
  copy() {
    const made = new Query("");
    made.parts = this.parts.map((part) => ({ ...part }));
    return made;
  }
  without(...names) {
    const made = this.copy();
    made.parts = made.parts.filter((part) => !names.includes(part.name));
    return made;
  }
  with(name, value, operator = "=") {
    const made = this.copy();
    made.parts = made.parts.filter((part) => !(part.name === name && part.operator === operator));
    if (value !== "" && value !== null && value !== undefined) made.parts.push({ name, operator, value: String(value) });
    return made;
  }
  toString() {
    const safe = (text) => encodeURIComponent(text).replace(/%2F/g, "/").replace(/%2C/g, ",").replace(/%3A/g, ":");
    return this.parts.map((part) => safe(part.name) + part.operator + safe(part.value)).join("&");
  }
}

function decode(text) {
  try {
    return decodeURIComponent(text.replace(/\+/g, " "));
  } catch {
    return text;
  }
}

export const link = (path, query = "") => path + (String(query) ? "?" + query : "");
export const runLink = (id, ...rest) => "/r/" + [id, ...rest].map(encodeURIComponent).join("/");

export function go(address, { replace = false } = {}) {
  const { path, query } = here();
  if (address === path + query) return;
  history[replace ? "replaceState" : "pushState"](null, "", addressed(address));
  dispatchEvent(new Event("address"));
}

export const say = (text) => {
  document.getElementById("said").textContent = text;
};

// numbers as people read them
export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(2).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}
export const count = (value) => (value ?? 0).toLocaleString("en");
export const percent = (value) => (value === null || value === undefined ? "–" : (100 * value).toFixed(1) + " %");
export function age(seconds) {
  const passed = Date.now() / 1000 - seconds;
  if (!seconds) return "–";
  if (passed < 60) return "now";
  for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (passed >= size) return Math.floor(passed / size) + " " + name;
}
export const words = (name) => String(name).replaceAll("_", " ");

const STATES = {
  running: ["▶", "link"], waiting: ["◌", "link"], finished: ["✓", "none"],
  log: ["≡", "none"], stopped: ["■", "none"], failed: ["✕", "bad"], stale: ["?", "warn"],
};
const STATE_MEANS = {
  log: "another trainer's log, which does not say whether it still runs",
  waiting: "started, no step done yet", stale: "not finished, and no process writes it",
  stopped: "interrupted; can be resumed", failed: "ended by an error",
};
export const stateBadge = (state) =>
  html`<span class="badge ${STATES[state]?.[1] ?? "none"}" title=${STATE_MEANS[state] ?? state}><span aria-hidden="true">${STATES[state]?.[0] ?? "·"}</span>${state}</span>`;

export function verdictBadge(verdict) {
  if (!verdict) return html`<span class="badge none"><span aria-hidden="true">◌</span>diagnosing …</span>`;
  const { critical = 0, warnings = 0 } = verdict;
  if (critical) return html`<span class="badge bad"><span aria-hidden="true">✕</span>${critical} critical${warnings ? `, ${warnings}` : ""}</span>`;
  if (warnings) return html`<span class="badge warn"><span aria-hidden="true">!</span>${warnings} warning${warnings > 1 ? "s" : ""}</span>`;
  if (verdict.verdict === "healthy") return html`<span class="badge good"><span aria-hidden="true">✓</span>healthy</span>`;
  return html`<span class="badge none"><span aria-hidden="true">–</span>${verdict.verdict}</span>`;
}

export const statusBadge = (status) => {
  const kind = status === "passed" ? "good" : status === "infrastructure" || status === "unknown" ? "none" : status === "cheating" ? "bad" : "warn";
  const glyph = { good: "✓", bad: "✕", warn: "✕", none: "·" }[kind];
  return html`<span class="badge ${kind}"><span aria-hidden="true">${glyph}</span>${words(status)}</span>`;
};

export function spark(values, label) {
  if (!values?.length) return nothing;
  const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
  const path = values.map((y, i) => `${i ? "L" : "M"}${((i / Math.max(values.length - 1, 1)) * 96).toFixed(1)} ${(23 - ((y - low) / span) * 20).toFixed(1)}`).join("");
  return html`<svg class="spark" viewBox="0 0 96 26" preserveAspectRatio="none" role="img" aria-label=${label}>${svg`<path d=${path}></path>`}</svg>`;
}

export function rangeBar(after, before) {
  const x = (share) => 4 + 80 * Math.min(1, Math.max(0, share));
  return html`<svg class="range" viewBox="0 0 88 12" aria-hidden="true">${svg`<line x1="4" x2="84" y1="6" y2="6"></line><line class="of" x1=${x(after.low)} x2=${x(after.high)} y1="6" y2="6"></line><circle cx=${x(after.value)} cy="6" r="3.5"></circle>${before ? svg`<circle class="was" cx=${x(before.value)} cy="6" r="3"></circle>` : nothing}`}</svg>`;
}

// What all pages have: what the address names, and a way to draw anew.
export class Page {
  loaded = false;
  constructor(params, query, update) {
    Object.assign(this, { params, query, update });
  }
  same = (params) => params.id === this.params.id;
  unfinished = () => this.data?.share < 1;
  where = (query) => link(runLink(this.params.id, "rollouts"), query);
}

// A fact in a list of them; none where nothing is known.
export const fact = (name, value) => (value === "" || value === null || value === undefined ? nothing : html`<div><dt>${name}</dt><dd>${value}</dd></div>`);
export const table = (label, heads, rows) => html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>${heads.length ? html`<thead><tr>${heads.map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>` : nothing}<tbody>${rows}</tbody></table></div>`;

// Rows of one height: only those in sight are in the page.
export class Window {
  constructor(height, narrowHeight) {
    this.heights = [height, narrowHeight];
  }
  get height() {
    return this.heights[matchMedia("(max-width: 760px)").matches ? 1 : 0];
  }
  range(body, total) {
    const top = body ? body.getBoundingClientRect().top : 200;
    const first = Math.max(0, Math.floor(-top / this.height) - 8);
    const shown = Math.min(60, Math.ceil(innerHeight / this.height) + 16);
    const begin = Math.max(0, Math.min(first, total - shown));
    return [begin, Math.min(total, begin + shown)];
  }
  rows(total, [begin, end], row, columns) {
    const space = (count, key) => html`<tr class="space" aria-hidden="true" data-key=${key}><td colspan=${columns} .style=${`height:${count * this.height}px`}></td></tr>`;
    const places = Array.from({ length: end - begin }, (_, i) => begin + i);
    return html`${space(begin, "above")}${repeat(places, (place) => place, row)}${space(total - end, "below")}`;
  }
}
