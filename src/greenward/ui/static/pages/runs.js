// All runs of the folders: which is best, which has findings, which runs.
import { age, count, getJson, go, html, link, nothing, number, Page, percent, rangeBar, runLink, spark, stateBadge, table, verdictBadge, Window } from "/static/core.js";
import { auditBadge, auditLine } from "/static/pages/audit.js";

const COLUMNS = [
  ["tick", ""], ["name", "Run"], ["state", "State"], ["held", "Held-out"], ["reward", "Reward"], ["spark", "Curve"], ["verdict", "Diagnosis"], ["step", "Step"], ["changed", "Changed"],
];
const ORDER = { running: 0, waiting: 1, failed: 2, stale: 3, stopped: 4, finished: 5 };
const severity = (run) => (run.verdict?.critical ?? 0) * 1000 + (run.verdict?.warnings ?? 0);
const VALUES = {
  name: (run) => run.name, state: (run) => ORDER[run.state] ?? 9, held: (run) => -(run.after?.value ?? -1), reward: (run) => -(run.reward ?? -1e300),
  verdict: (run) => -severity(run), step: (run) => -(run.step ?? -1), changed: (run) => -run.changed,
};

export class RunsPage extends Page {
  windowed = true;
  window = new Window(57, 125);
  at = -1;
  same = () => true;
  title = "Runs";
  crumbs = () => html`<span class="soft">${(this.data?.folders ?? []).join(" · ")}</span>`;
  unfinished = () => this.loaded && !this.data.complete;

  async load(signal) {
    this.data = await getJson("/api/v1/runs", signal);
    this.loaded = true;
  }

  shown() {
    const wanted = this.query.get("q").toLowerCase().split(/\s+/).filter(Boolean);
    const arms = this.query.get("arms") === "1";
    const sort = this.query.get("sort");
    const value = VALUES[sort.replace("-", "")];
    const rows = this.data.runs.filter((run) => (arms || !run.parent) && wanted.every((word) => matches(run, word)));
    if (value) rows.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (sort.startsWith("-") ? -1 : 1));
    return rows;
  }

  ticked = () => this.query.get("runs").split(",").filter(Boolean);
  tick(id) {
    const ticked = this.ticked();
    const next = ticked.includes(id) ? ticked.filter((one) => one !== id) : [...ticked, id].slice(0, 20);
    go(link("/", this.query.with("runs", next.join(","))), { replace: true });
  }

  view() {
    const { runs, problems, waiting } = this.data;
    const rows = this.shown();
    this.rows = rows;
    const arms = runs.filter((run) => run.parent).length;
    const ticked = this.ticked();
    if (!runs.length && !this.data.audits.length)
      return html`<h1>No runs yet</h1><p>There is no run below ${this.data.folders.join(", ")}. ${waiting ? this.looking(waiting) : html`Start one with <code>greenward train quickstart</code>: it appears here by itself.`}</p>${this.problems(problems)}`;
    return html`
      <h1 class="unseen">Runs</h1>
      ${this.tiles(runs.filter((run) => !run.parent && !run.holds))}
      ${this.problems(problems)}
      ${waiting ? html`<p class="soft" role="status">${this.looking(waiting)}</p>` : nothing}
      <div class="bar">
        <input class="field grow" data-search type="search" placeholder="Filter: name, algorithm:grpo, state:running, seed:1 …" aria-label="Filter runs" .value=${this.query.get("q")} @input=${(event) => go(link("/", this.query.with("q", event.target.value)), { replace: true })}>
        ${arms ? html`<button class="button" aria-pressed=${this.query.get("arms") === "1"} @click=${() => go(link("/", this.query.with("arms", this.query.get("arms") ? "" : "1")))}>Arms and warm starts (${arms})</button>` : nothing}
        <a class="button" href="/api/v1/runs" download="runs.json">JSON</a>
        <button class="button" ?disabled=${ticked.length < 2} @click=${() => this.compare()}>Compare${ticked.length ? ` ${ticked.length}` : ""}</button>
        <span class="soft small num">${count(rows.length)} of ${count(runs.length - (this.query.get("arms") === "1" ? 0 : arms))}</span>
      </div>
      <div><table class="grid-table runs" aria-rowcount=${rows.length + 1}>
        <colgroup class="only-wide">${COLUMNS.map(([name]) => html`<col class="c-${name}">`)}</colgroup>
        <thead><tr>${COLUMNS.map(([name, title]) => html`<th class="c-${name}" scope="col" aria-sort=${this.sorted(name)}>${VALUES[name] ? html`<button @click=${() => this.sort(name)}>${title}${{ ascending: " ↑", descending: " ↓", none: "" }[this.sorted(name)]}</button>` : title || html`<span class="unseen">Compare</span>`}</th>`)}</tr></thead>
        <tbody>${this.window.rows(rows.length, this.window.range(document.querySelector(".runs tbody"), rows.length), (place) => this.row(rows[place], place, ticked), COLUMNS.length)}</tbody>
      </table>${rows.length ? nothing : html`<p class="empty">No run matches.</p>`}</div>
      ${this.audits()}`;
  }

  audits() {
    if (!this.data.audits.length) return nothing;
    return html`<section class="stack"><h2>Audits of rewards</h2>${table("Audits", ["Audit", "Verdict", "Kind of grader"], this.data.audits.map((one) => html`<tr><td>${one.error ? one.name : html`<a class="name" href=${"/audit/" + encodeURIComponent(one.id)}>${one.name}</a>`}<span class="soft small cut">${one.function ?? ""}</span></td><td>${auditBadge(one)}</td><td>${one.error ? html`<span class="warn">${one.error}</span>` : html`${one.kinds.join(", ")} <span class="soft">${auditLine(one)}</span>`}</td></tr>`))}</section>`;
  }

  sorted(name) {
    const sort = this.query.get("sort");
    return sort === name ? "ascending" : sort === "-" + name ? "descending" : "none";
  }
  sort(name) {
    const next = { none: name, ascending: "-" + name, descending: "" }[this.sorted(name)];
    go(link("/", this.query.with("sort", next)));
  }

  looking = (waiting) => `${count(waiting)} more file${waiting > 1 ? "s are" : " is"} being looked at, whether ${waiting > 1 ? "they are logs" : "it is a log"}.`;
  problems = (problems) => problems.map((text) => html`<p class="note">${text}</p>`);

  tiles(runs) {
    const measured = runs.filter((run) => run.after);
    const usual = mostCommon(measured.map((run) => `${run.task}|${run.after.name}|${run.after.problems}`));
    const alike = measured.filter((run) => `${run.task}|${run.after.name}|${run.after.problems}` === usual);
    const best = alike.reduce((top, run) => (!top || run.after.value > top.after.value ? run : top), null);
    const close = best ? alike.filter((run) => run !== best && run.after.high >= best.after.low).length : 0;
    const unread = runs.some((run) => !run.config_known);
    const found = runs.filter((run) => severity(run)).sort((a, b) => severity(b) - severity(a));
    const critical = found.filter((run) => run.verdict.critical).length;
    const waiting = runs.filter((run) => !run.verdict).length;
    const untold = runs.filter((run) => run.verdict && !severity(run) && !["healthy", "no step yet"].includes(run.verdict.verdict)).length;
    const active = runs.filter((run) => run.state === "running" || run.state === "waiting");
    const failed = runs.filter((run) => run.state === "failed" || run.state === "stale");
    return html`<section class="tiles" aria-label="Summary">
      <div class="card tile"><h2>Best on held-out problems</h2>${unread ? html`<p class="figure">…</p><p class="soft">Reading the settings of the runs</p>` : best
        ? html`<p class="figure">${percent(best.after.value)}</p><p><a href=${runLink(best.id)}>${best.name}</a> <span class="soft">${best.after.name}, 95 % ${percent(best.after.low)} to ${percent(best.after.high)}${close ? `; ${close} other${close > 1 ? "s" : ""} within it` : ""}</span></p>`
        : html`<p class="figure">–</p><p class="soft">No run was evaluated yet.</p>`}</div>
      <div class="card tile"><h2>With findings</h2><p class="figure ${critical ? "bad" : found.length ? "warn" : waiting || untold ? "" : "good"}">${found.length ? `${found.length} of ${runs.length}` : waiting ? "…" : "none"}</p>
        ${found.slice(0, 2).map((run) => html`<p class="cut" title=${run.verdict.headline}><a href=${runLink(run.id)}>${run.name}</a> <span class="soft">${run.verdict.headline}</span></p>`)}
        ${waiting ? html`<p class="soft">${waiting} still to be diagnosed</p>` : found.length ? nothing : html`<p class="soft">Nothing wrong was found in what could be checked${untold ? `; ${untold} ${untold > 1 ? "are" : "is"} too short or lack${untold > 1 ? "" : "s"} signals` : ""}.</p>`}</div>
      <div class="card tile"><h2>Running</h2><p class="figure">${active.length}</p>${active.slice(0, 2).map((run) => html`<p class="cut"><a href=${runLink(run.id)}>${run.name}</a> <span class="soft">${doing(run)}</span></p>`)}
        ${failed.length ? html`<p><span class="soft">${failed.length} failed or left unfinished:</span> <a href=${runLink(failed[0].id)}>${failed[0].name}</a></p>` : active.length ? nothing : html`<p class="soft">${count(runs.length)} run${runs.length > 1 ? "s" : ""} in all</p>`}</div>
    </section>`;
  }

  row(run, place, ticked) {
    const folder = run.name.slice(0, run.name.lastIndexOf("/") + 1);
    const facts = [run.also.length ? `also ${run.also.join(", ")}` : "", run.recipe, run.algorithm, run.seed === null || run.seed === undefined ? "" : `seed ${run.seed}`].filter((one, i, all) => one && all.indexOf(one) === i);
    const share = run.step && run.max_steps ? Math.min(1, run.step / run.max_steps) : 0;
    const active = run.state === "running" || run.state === "waiting";
    return html`<tr class="row ${place === this.at ? "here" : ""}" aria-rowindex=${place + 2}>
      <td class="c-tick"><input type="checkbox" aria-label=${`Compare ${run.name}`} .checked=${ticked.includes(run.id)} @change=${() => this.tick(run.id)}></td>
      <td class="c-name"><a class="name cut" href=${runLink(run.id)} title=${run.name}><span class="soft">${folder}</span>${run.name.slice(folder.length)}</a><span class="soft small cut">${run.problems.length ? html`<span class="warn">${run.problems[0]}</span>` : facts.join(" · ")}</span></td>
      <td class="c-state">${stateBadge(run.state)}${active ? html`<span class="soft small cut" title=${doing(run)}>${doing(run)}</span>` : nothing}</td>
      <td class="c-held num">${run.after ? html`${rangeBar(run.after, run.before)}<span class="small" title=${`${run.after.name}: ${percent(run.after.low)} to ${percent(run.after.high)}`}>${run.before ? html`<span class="soft">${percent(run.before.value)} →</span> ` : nothing}${percent(run.after.value)}</span>` : html`<span class="soft">–</span>`}</td>
      <td class="c-reward num">${number(run.reward)}</td>
      <td class="c-spark">${spark(run.verdict?.spark, `${run.verdict?.spark_of} over the run`)}</td>
      <td class="c-verdict" title=${run.verdict?.headline ?? ""}>${run.parent ? nothing : verdictBadge(run.verdict)}</td>
      <td class="c-step num">${run.step === null ? "–" : count(run.step)}${run.max_steps && run.step !== run.max_steps ? html`<span class="soft">/${count(run.max_steps)}</span>` : nothing}${active && share ? html`<div class="meter"><i .style=${`width:${100 * share}%`}></i></div>` : nothing}</td>
      <td class="c-changed num soft" title=${run.changed ? new Date(run.changed * 1000).toLocaleString() : ""}>${age(run.changed)}</td>
    </tr>`;
  }

  compare = () => go("/compare?runs=" + this.ticked().map(encodeURIComponent).join(","));

  key(event) {
    if (event.key === "x" && this.rows?.[this.at]) return this.tick(this.rows[this.at].id), true;
    if (event.key === "c" && this.ticked().length > 1) return this.compare(), true;
    const by = { j: 1, k: -1 }[event.key];
    if (by) {
      this.at = Math.max(0, Math.min(this.rows.length - 1, this.at + by));
      const body = document.querySelector(".runs tbody").getBoundingClientRect().top + scrollY;
      const y = body + this.at * this.window.height;
      if (y < scrollY + 60 || y > scrollY + innerHeight - 80) scrollTo(0, y - innerHeight / 2);
      this.update();
      return true;
    }
    const run = this.rows?.[this.at];
    if (event.key === "Enter" && run && event.target === document.body) return go(runLink(run.id)), true;
    return false;
  }
}

function doing(run) {
  const { phase, done, total, unit, eta } = run.progress;
  if (!phase) return "";
  return [phase, total ? `${done ?? 0}/${total} ${unit ?? ""}s` : "", eta].filter(Boolean).join(" · ");
}

function matches(run, word) {
  const found = /^(name|state|algorithm|recipe|task|seed|model):(.+)$/.exec(word);
  if (found) return String(run[found[1]] ?? "").toLowerCase().includes(found[2]);
  return `${run.name} ${run.recipe} ${run.algorithm} ${run.task} ${run.state} ${run.model}`.toLowerCase().includes(word);
}

function mostCommon(texts) {
  const counts = new Map();
  for (const text of texts) counts.set(text, (counts.get(text) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0];
}
