// The frame around all pages: which page an address means, polling for what is new, keys, and the head.
import { api, connection, getJson, go, html, link, nothing, render, Query, Refused, runLink } from "/static/core.js";
import { addressed, bundled, here, mend } from "/static/bundled.js";
import { redraw } from "/static/chart.js";
import { RunsPage } from "/static/pages/runs.js";
import { RunPage } from "/static/pages/run.js";
import { RolloutsPage } from "/static/pages/rollouts.js";
import { RolloutPage } from "/static/pages/rollout.js";
import { ComparePage } from "/static/pages/compare.js";
import { AuditPage } from "/static/pages/audit.js";
import { EvaluationPage, GroupPage, ProblemPage } from "/static/pages/detail.js";

const root = document.getElementById("app");
const ROUTES = [
  [/^\/$/, RunsPage, []],
  [/^\/r\/([^/]+)$/, RunPage, ["id"]],
  [/^\/compare$/, ComparePage, []],
  [/^\/r\/([^/]+)\/(curves|diagnosis|config)$/, RunPage, ["id", "tab"]],
  [/^\/r\/([^/]+)\/audit$/, AuditPage, ["id"]],
  [/^\/audit\/([^/]+)$/, AuditPage, ["audit"]],
  [/^\/r\/([^/]+)\/rollouts$/, RolloutsPage, ["id"]],
  [/^\/r\/([^/]+)\/evaluation$/, EvaluationPage, ["id"]],
  [/^\/r\/([^/]+)\/groups\/(\d+)\/([^/]+)$/, GroupPage, ["id", "step", "group"]],
  [/^\/r\/([^/]+)\/problems\/([^/]+)$/, ProblemPage, ["id", "task"]],
  [/^\/r\/([^/]+)\/rollouts\/(\d+)\/(\d+)$/, RolloutPage, ["id", "step", "row"]],
];
let page = null, failure = "", loading = null, cursor = "", gone = 0, timer = 0, frame = 0, shownTab = null;

export function update() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(draw);
}

function draw() {
  render(view(), root);
  document.title = (page?.title ? page.title + " · " : "") + "greenward";
  if (page?.loaded) page.after?.(root);
  mend(root);
  const tab = root.querySelector(".tabs [aria-current]");
  if (tab && tab !== shownTab) tab.parentElement.scrollLeft = tab.offsetLeft - 80;
  shownTab = tab;
}

function route() {
  const found = ROUTES.map(([pattern, kind, names]) => [pattern.exec(here().path), kind, names]).find(([match]) => match);
  const query = new Query(here().query).without("token");
  if (!found) {
    page = null;
    failure = "There is no page at this address.";
    return update();
  }
  const [match, kind, names] = found;
  const params = Object.fromEntries(names.map((name, i) => [name, decodeURIComponent(match[i + 1])]));
  const same = page instanceof kind && page.same(params);
  if (!same) {
    loading?.abort();
    page = new kind(params, query, update);
    cursor = "";
    gone = 0;
    failure = "";
    scrollTo(0, 0);
  } else {
    page.params = params;
    page.query = query;
  }
  load();
}

async function load() {
  const mine = page;
  loading?.abort();
  loading = new AbortController();
  update();
  try {
    await mine.load(loading.signal);
    if (mine === page) failure = "";
  } catch (error) {
    if (error.name === "AbortError" || mine !== page) return;
    if (error instanceof Refused) {
      if (error.status === 404 && mine.loaded) gone ||= Date.now();
      else failure = error.message;
    } else if (!connection.lost) failure = String(error.message);
  }
  if (mine === page) update();
}

async function poll() {
  if (bundled) return;
  clearTimeout(timer);
  let wait = 1e4;
  if (!document.hidden && page) {
    const mine = page;
    const wasLost = connection.lost;
    try {
      const found = await getJson("/api/v1/changes" + (page.params.id ? "?run=" + encodeURIComponent(page.params.id) : ""));
      if (mine === page) {
        connection.running = found.running;
        const busy = mine.loaded ? mine.unfinished?.() : failure;
        if (found.running || busy || !mine.loaded) wait = 1e3;
        if (!found.exists && mine.loaded) gone ||= Date.now();
        else gone = 0;
        if ((cursor && found.cursor !== cursor && found.exists) || busy || wasLost) {
          connection.changed = Date.now();
          load();
        }
        cursor = found.cursor;
      }
    } catch {
      wait = 2e3;
    }
    if (connection.lost || connection.lost !== wasLost) update();
  }
  timer = setTimeout(poll, wait);
}

const clock = (moment) => new Date(moment).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
const theme = () => document.documentElement.dataset.theme ?? "";
function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem("theme", name);
  } catch { /* a browser that keeps nothing */ }
  redraw();
  update();
}
const THEMES = { "": ["light", "◐", "as the system"], light: ["dark", "☀", "light"], dark: ["", "☾", "dark"] };

function view() {
  const [next, glyph, named] = THEMES[theme()];
  return html`
    <header class="top"><div>
      <a class="brand" href="/">greenward</a>
      <nav class="crumbs" aria-label="Where you are">${page?.crumbs?.() ?? nothing}</nav>
      <span class="live" data-live title=${connection.changed ? "last change seen at " + clock(connection.changed) : ""}><span class="dot ${connection.lost ? "off" : connection.running ? "on" : ""}"></span>${connection.lost ? "no connection" : connection.running ? "live" : "at rest"}</span>
      <button class="plain" @click=${() => setTheme(next)} aria-label=${`Colours: ${named}. Change.`}><span aria-hidden="true">${glyph}</span></button>
      <button class="plain" @click=${help} aria-label="Keys and help">?</button>
    </div></header>
    <main id="content" tabindex="-1">
      ${connection.lost ? html`<p class="note bad" role="status">The server does not answer. What is shown is the last state; it goes on by itself when <code>greenward ui</code> runs again.</p>` : nothing}
      ${gone ? html`<p class="note bad" role="status">Deleted or moved at ${clock(gone)}. The last state is shown.</p>` : nothing}
      ${failure ? html`<p class="note bad" role="alert">${failure}</p>` : nothing}
      ${page ? (page.loaded ? page.view() : failure ? nothing : html`<p class="empty">Reading …</p>`) : html`<p><a href="/">All runs</a></p>`}
    </main>
    <dialog id="help" aria-labelledby="help-title" @click=${(event) => event.target.id === "help" && event.target.close()}>
      <div class="stack"><h2 id="help-title">Keys</h2>
      <table class="keys"><tbody>${KEYS.map(([keys, what]) => html`<tr><td>${keys.map((key) => html`<kbd>${key}</kbd> `)}</td><td>${what}</td></tr>`)}</tbody></table>
      <label class="small"><input type="checkbox" .checked=${!keysOff()} @change=${(event) => localStorage.setItem("keys", event.target.checked ? "" : "off")}> Single keys do something</label>
      <p class="soft small">Everything on a page is in its address: copy it to share the view. In Rollouts, conditions such as <code>step=40-</code>, <code>reward&gt;=0.5</code> or <code>stop=length</code> are those of <code>greenward rollouts --where</code>.</p>
      <button class="button" @click=${() => document.getElementById("help").close()}>Close</button></div>
    </dialog>`;
}

const KEYS = [
  [["/"], "search"], [["j", "k"], "next, previous row"], [["Enter"], "open the row"], [["Esc"], "up"],
  [["J", "K"], "next, previous answer"], [["x"], "tick the run"], [["c"], "compare the ticked runs"], [["f"], "failing answers only"],
  [["s"], "smooth curves"], [["l"], "logarithmic axis"], [["r"], "rollouts of the range"], [["g", "r"], "all runs"], [["g", "c"], "curves"], [["g", "o"], "rollouts"], [["g", "d"], "diagnosis"], [["t"], "what tokens are coloured by"], [["d"], "difference to the best of a group"],
  [["y"], "copy the address"], [["?"], "this list"],
];
const help = () => document.getElementById("help").showModal();
const keysOff = () => localStorage.getItem("keys") === "off";
let before = "";

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("help")?.open) return;
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape") {
    if (typing) return event.target.blur();
    const up = page?.up?.();
    if (up) go(up);
    return;
  }
  if (typing || keysOff()) return;
  const two = before === "g" ? "g" + event.key : "";
  before = event.key;
  const id = page?.params.id;
  if (two === "gr") return go("/");
  if (two === "gc" && id) return go(runLink(id, "curves"));
  if (two === "go" && id) return go(runLink(id, "rollouts"));
  if (two === "gd" && id) return go(runLink(id, "diagnosis"));
  if (event.key === "?") return help();
  if (event.key === "y") return navigator.clipboard?.writeText(location.href);
  if (event.key === "/") {
    const field = root.querySelector("[data-search]");
    if (field) {
      event.preventDefault();
      field.focus();
    }
    return;
  }
  if (page?.key?.(event)) event.preventDefault();
});

addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href]");
  if (bundled && anchor?.getAttribute("href") === "#content") {
    event.preventDefault();
    return document.getElementById("content").focus();
  }
  if (!anchor || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || anchor.hasAttribute("download") || anchor.target) return;
  const address = new URL(anchor.href);
  if (bundled || address.origin !== location.origin || address.pathname.startsWith("/api/") || address.hash) return;
  event.preventDefault();
  go(address.pathname + address.search);
});
addEventListener("popstate", route);
addEventListener("address", route);
addEventListener("scroll", () => page?.windowed && update(), { passive: true });
addEventListener("resize", () => page?.windowed && update());
document.addEventListener("visibilitychange", () => !document.hidden && poll());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  redraw();
  update();
});
try {
  setTheme(localStorage.getItem("theme") ?? "");
} catch { /* a browser that keeps nothing */ }
const token = new URLSearchParams(location.search).get("token");
if (token) history.replaceState(null, "", link(addressed(here().path), new Query(here().query).without("token")));
route();
poll();
