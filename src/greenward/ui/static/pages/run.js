// One run: how it is, its curves with the marks of findings, and its config.
import { age, api, count, fact, getJson, go, html, link, nothing, number, Page, percent, repeat, runLink, say, stateBadge, table, verdictBadge } from "/static/core.js";
import { here } from "/static/bundled.js";
import { draw, readCurves, savePng, steer } from "/static/chart.js";

const ALL_TABS = [["", "Overview"], ["curves", "Curves"], ["diagnosis", "Diagnosis"], ["rollouts", "Rollouts"], ["evaluation", "Evaluation"], ["audit", "Audit"], ["config", "Config"]];
const hasTab = (run, name) => ({ rollouts: run.has_answers, evaluation: !run.is_log, audit: run.audits.length })[name] ?? true;
const tabs = (run, here) => html`<nav class="tabs" aria-label="Views of the run">${ALL_TABS.filter(([name]) => hasTab(run, name)).map(([name, title]) => html`<a href=${name ? runLink(run.id, name) : runLink(run.id)} aria-current=${here === name ? "page" : nothing}>${title}</a>`)}</nav>`;

export const runHead = (run, here) => html`
  <div class="stack">
    <div class="headline"><h1>${run.name}</h1>${stateBadge(run.state)}${verdictBadge(run.verdict)}</div>
    <dl class="facts">
      ${fact(run.is_log ? "trainer" : "recipe", run.recipe)}${fact("algorithm", run.algorithm)}${fact("model", run.model)}${fact("seed", run.seed)}
      ${fact("step", run.step === null ? "" : count(run.step) + (run.max_steps ? ` of ${count(run.max_steps)}` : ""))}
      ${fact("held-out", run.after ? `${run.before ? percent(run.before.value) + " → " : ""}${percent(run.after.value)} ${run.after.name}` : "")}
      ${fact("changed", age(run.changed) === "now" ? "now" : `${age(run.changed)} ago`)}
    </dl>
    ${progress(run)}
    ${run.is_log ? readOf(run) : nothing}
    ${tabs(run, here)}
    ${run.notes.map((text) => html`<p class="note">${text}</p>`)}
    ${run.failure ? html`<details class="note bad"><summary>The run failed</summary><pre>${run.failure}</pre></details>` : nothing}
    ${run.share < 1 ? html`<p class="note">Reading the log: ${percent(run.share)} so far.</p>` : nothing}
  </div>`;

// What another trainer's log is, what was read of it, and what it does not tell.
function readOf(run) {
  const { read, gaps = [] } = run.verdict ?? {};
  const inner = run.inner.length ? html`<p>${count(run.inner.length)} runs are in it: ${run.inner.map(([id, name]) => html`<a class="chip" href=${runLink(id)}>${name}</a> `)}</p>` : nothing;
  if (!read) return inner;
  const also = run.also.length ? html`<p class="small">Also of this training: ${run.also.map(([id, name]) => html`<a class="chip" href=${runLink(id)}>${name}</a> `)}</p>` : nothing;
  const lacks = [...new Set(gaps.map((gap) => gap.subject))];
  return html`${inner}${also}<p class="small">Read: <b>${read.format}</b> <span class="mono">${read.file}</span>, ${read.rows}; ${count(read.signals)} signals at ${count(read.steps)} steps, ${count(read.first)} to ${count(read.last)}${read.counted_by ? html`, counted by <span class="mono">${read.counted_by}</span>` : nothing}.</p>
    ${lacks.length ? html`<p class="small soft">Not in it: ${lacks.slice(0, 12).join(", ")}${lacks.length > 12 ? ` and ${lacks.length - 12} more` : ""} (<a href=${runLink(run.id, "diagnosis")}>what would enable these checks</a>)</p>` : nothing}`;
}

function progress(run) {
  const { phase, done, total, unit, eta, numbers } = run.progress;
  if (!phase || !(run.state === "running" || run.state === "waiting")) return nothing;
  const share = total ? Math.min(1, (done ?? 0) / total) : 0;
  return html`<div><p class="small"><b>${phase}</b> ${total ? `${count(done ?? 0)} of ${count(total)} ${unit}s` : ""} <span class="soft">${[numbers, eta].filter(Boolean).join(" · ")}</span></p>${total ? html`<div class="meter" role="progressbar" aria-label=${phase} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(100 * share)}><i .style=${`width:${100 * share}%`}></i></div>` : nothing}</div>`;
}

export const marksOf = (run) =>
  (run.verdict?.causes ?? []).flatMap((cause) => [cause.finding, ...cause.consequences]).filter((one) => one.onset);

export class RunPage extends Page {
  curves = new Map();
  visible = new Set();
  observer = new IntersectionObserver((entries) => this.seen(entries), { rootMargin: "200px" });
  get title() {
    return this.run?.name ?? this.params.id;
  }
  get tab() {
    return this.params.tab ?? "";
  }
  crumbs = () => html`<i>/</i><span>${this.run?.name ?? this.params.id}</span>`;
  up = () => (this.tab ? runLink(this.params.id) : "/");
  unfinished = () => this.loaded && (this.run.share < 1 || !this.run.verdict || this.run.verdict.outdated || this.counted === "");
  get base() {
    return here().path;
  }

  async load(signal) {
    this.signal = signal;
    this.run = await getJson(api("runs", this.params.id), signal);
    this.loaded = true;
    this.update();
    await this.fetchCurves([...this.visible]);
  }

  seen(entries) {
    const fresh = [];
    for (const { target, isIntersecting } of entries) {
      const key = target.dataset.key;
      if (!isIntersecting) this.visible.delete(key);
      else if (!this.visible.has(key)) {
        this.visible.add(key);
        fresh.push(key);
      }
    }
    if (fresh.length) this.fetchCurves(fresh).catch(() => {});
  }

  async fetchCurves(keys) {
    const wanted = keys.filter((key) => this.run.keys.some((section) => section.keys.includes(key)));
    const settings = { from: this.query.get("from"), to: this.query.get("to"), px: 480, smooth: Number(this.query.get("smooth")) || 1 };
    for (let begin = 0; begin < wanted.length; begin += 24) {
      const found = await readCurves(this.params.id, wanted.slice(begin, begin + 24), settings, this.signal);
      for (const [key, curve] of found.curves) this.curves.set(key, curve);
    }
    this.update();
  }

  view() {
    const { run, tab } = this;
    return html`${runHead(run, tab)}${tab === "config" ? this.config() : tab === "diagnosis" ? this.diagnosis() : tab === "curves" ? this.allCurves() : this.overview()}`;
  }

  overview() {
    const { run } = this;
    if (run.holds) return nothing;
    return html`${this.verdict()}
      <section class="stack"><h2>Curves</h2>${run.curated.length ? html`<div class="charts">${this.charts(run.curated)}</div>` : html`<p class="soft">${run.is_log && run.verdict ? "No curve could be read." : "No step is logged yet: curves appear here by themselves."}</p>`}</section>
      ${run.evaluations.length ? this.evaluations() : nothing}`;
  }

  verdict() {
    const { verdict } = this.run;
    if (!verdict) return html`<section class="card"><p class="soft">The run is being diagnosed …</p></section>`;
    return html`<section class="card stack"><h2>${verdict.headline}</h2>
      ${verdict.outdated ? html`<p class="soft">Of an earlier state of the log; the run is diagnosed again within a minute.</p>` : nothing}
      ${(verdict.causes ?? []).slice(0, 4).map((cause) => html`<div class="cause">
        <p><b class=${cause.severity === "critical" ? "bad" : "warn"}>${cause.severity}</b> ${cause.finding.title}. ${cause.finding.measured}</p>
        ${cause.consequences.length ? html`<p class="soft">Followed by: ${cause.consequences.map((one) => one.brief || one.title).join("; ")}.</p>` : nothing}
        ${cause.finding.actions.length ? html`<p><span class="soft">First:</span> ${cause.finding.actions[0]}</p>` : nothing}
        ${cause.finding.selection ? html`<p><a href=${this.where(cause.finding.selection)}>Answers behind this</a> · <a href=${runLink(this.params.id, "diagnosis")}>Diagnosis</a></p>` : nothing}
      </div>`)}
      ${verdict.gaps?.length ? html`<details><summary class="soft">${verdict.gaps.length} check${verdict.gaps.length > 1 ? "s" : ""} could not be made</summary><ul>${verdict.gaps.map((gap) => html`<li>${gap.subject}: ${gap.reason}. <span class="soft">${gap.enable}</span></li>`)}</ul></details>` : nothing}
    </section>`;
  }

  diagnosis() {
    const { verdict } = this.run;
    if (!verdict) return html`<p class="empty">The run is being diagnosed …</p>`;
    this.countAnswers();
    return html`<section class="stack"><h2>${verdict.headline}</h2><p class="soft">${verdict.checks ? `${count(verdict.checks)} checks were made.` : ""} ${(verdict.notes ?? []).join(" ")}</p></section>
      ${(verdict.causes ?? []).map((cause) => html`<section class="card stack">${this.finding(cause.finding, true)}${cause.consequences.length ? html`<h3 class="soft">What followed from it</h3>${cause.consequences.map((one) => this.finding(one, false))}` : nothing}</section>`)}
      ${verdict.remarks?.length ? html`<section class="stack"><h2>Remarks</h2>${verdict.remarks.map((one) => html`<p>${one.title}. <span class="soft">${one.measured}</span></p>`)}</section>` : nothing}
      ${verdict.gaps?.length ? html`<section class="stack"><h2>What could not be checked</h2>${table("Table", ["Check", "Why", "What would allow it"], verdict.gaps.map((gap) => html`<tr><td>${gap.subject}</td><td>${gap.reason}</td><td>${gap.enable}</td></tr>`))}</section>` : nothing}`;
  }

  finding(one, isCause) {
    const number_ = this.counts.get(one.selection);
    const known = one.signals.filter((key) => this.run.keys.some((section) => section.keys.includes(key))).slice(0, 2);
    return html`<article class="stack"><div class="headline"><span class="badge ${one.severity === "critical" ? "bad" : "warn"}"><span aria-hidden="true">${one.severity === "critical" ? "✕" : "!"}</span>${one.severity}</span><h3>${one.title}</h3></div>
      <p>${one.measured}</p>
      <p class="soft small">${one.onset ? `from step ${count(Math.round(one.onset.step))}, between ${count(Math.round(one.onset.low))} and ${count(Math.round(one.onset.high))}` : "of the run as a whole"}${one.p_value === null ? "" : ` · adjusted p ${number(one.p_value, 2)}`} · ${one.docs}</p>
      ${one.selection ? html`<p><a class="button" href=${this.where(one.selection)}>${number_ === undefined ? "Answers behind this" : number_ ? `${count(number_)} answers behind this` : "No kept answer shows this"}</a></p>` : nothing}
      ${known.length && isCause ? html`<div class="charts">${this.charts(known)}</div>` : nothing}
      ${isCause && one.actions.length ? html`<div><h3>What to do</h3><ol>${one.actions.map((text) => html`<li>${text}</li>`)}</ol><p class="soft small">What would confirm it: ${one.confirm}</p></div>` : nothing}</article>`;
  }

  // How many answers each selection holds, asked once for each verdict.
  async countAnswers() {
    if (this.counted === this.run.verdict.headline) return;
    this.counted = this.run.verdict.headline;
    const selections = new Set((this.run.verdict.causes ?? []).flatMap((cause) => [cause.finding, ...cause.consequences]).map((one) => one.selection).filter(Boolean));
    for (const selection of selections) {
      try {
        const found = await getJson(`${api("runs", this.params.id, "rollouts")}?${selection}&count=1`, this.signal);
        if (found.share < 1) return void (this.counted = "");
        this.counts.set(selection, found.matching);
      } catch {
        return void (this.counted = "");
      }
    }
    this.update();
  }
  counts = new Map();

  evaluations() {
    const last = [...this.run.evaluations].reverse();
    const names = [...new Set(last.flatMap((one) => Object.keys(one.metrics)))].slice(0, 6);
    return html`<section class="stack"><h2>Held-out evaluations</h2>${table("Table", ["Step", "On", ...names], last.slice(0, 30).map((one) => html`<tr><td class="num">${count(one.step)}</td><td>${one.suite ?? "held-out"}</td>${names.map((name) => html`<td class="num">${estimate(one.metrics[name])}</td>`)}</tr>`))}</section>`;
  }

  allCurves() {
    const { query } = this;
    const wanted = query.get("q").toLowerCase();
    const from = query.get("from"), to = query.get("to");
    const range = from !== "" || to !== "";
    const sections = this.run.keys.map(({ title, keys }) => ({ title, keys: keys.filter((key) => `${key} ${this.theirs(key)}`.toLowerCase().includes(wanted)) })).filter(({ keys }) => keys.length);
    const set = (name, value) => go(link(this.base, query.with(name, value)), { replace: true });
    return html`<div class="bar">
        <input class="field grow" type="search" data-search placeholder="Find a curve" aria-label="Find a curve" .value=${query.get("q")} @input=${(event) => set("q", event.target.value)}>
        <label class="small" data-live>Smooth <select class="field" @change=${(event) => set("smooth", event.target.value)} aria-label="Smoothing window">${["", "5", "20", "100", "500"].map((size) => html`<option value=${size} ?selected=${query.get("smooth") === size}>${size ? `over ${size}` : "off"}</option>`)}</select></label>
        <button class="button" aria-pressed=${query.get("log") === "1"} @click=${() => set("log", query.get("log") ? "" : "1")}>Log axis</button>
        ${range ? html`<button class="button" @click=${() => go(link(this.base, query.without("from", "to")))}>All steps</button>${!this.run.has_answers ? nothing : html`<a class="button" href=${this.rolloutsOfRange()}>Rollouts of steps ${from || "0"} to ${to || "the end"}</a>`}` : html`<span class="soft small only-wide">Drag over a curve to zoom</span>`}
      </div>
      ${unknown(query, ["q", "smooth", "log", "from", "to"])}
      <p class="soft small only-bundled">This bundle has up to 600 points of a curve, and files of the first ones and of those with findings.</p>
      ${sections.map(({ title, keys }) => html`<section class="stack"><h2>${title} <span class="soft small">${keys.length}</span></h2><div class="charts">${this.charts(keys)}</div></section>`)}
      ${sections.length ? nothing : html`<p class="empty">${this.run.rows ? "No curve has such a name." : "No step is logged yet."}</p>`}`;
  }

  rolloutsOfRange = () => this.where(`step=${this.query.get("from") || 0}-${this.query.get("to")}`);

  theirs = (key) => this.run.names[key] ?? "";

  charts(keys) {
    const marks = marksOf(this.run);
    return repeat(keys, (key) => key, (key) => {
      const query = `key=${encodeURIComponent(key)}${this.rangeQuery()}`;
      const own = marks.filter((mark) => mark.signals.includes(key));
      const file = (form) => `${api("runs", this.params.id)}/series.${form}?${query}${this.query.get("log") ? "&log=1" : ""}`;
      return html`<figure class="card chart" data-key=${key}><header><h3 title=${this.theirs(key) ? `${key}, logged as ${this.theirs(key)}` : key}>${key}${this.theirs(key) ? html` <span class="soft small">${this.theirs(key)}</span>` : nothing}</h3><span class="read" data-read></span></header>
        <div class="plot" tabindex="0" role="img" aria-label=${this.describe(key, own)} @keydown=${(event) => steer(event.currentTarget, event)}></div>
        <footer>${own.length ? html`<span class="marks">${own.map((mark) => html`<a class=${mark.severity === "critical" ? "" : "warn"} href=${mark.selection ? this.where(mark.selection) : runLink(this.params.id, "diagnosis")} title=${mark.measured}>${mark.severity === "critical" ? "✕" : "!"} ${mark.title}, from step ${count(mark.onset.step)}</a>`)}</span>` : nothing}
          <a href=${file("csv")} download>CSV</a><a href=${file("svg")} download>SVG</a><button data-live @click=${() => savePng(file("svg"), `${key.replaceAll("/", "-")}.png`)}>PNG</button>
          <details><summary class="soft">table</summary>${this.table(key)}</details></footer></figure>`;
    });
  }
  rangeQuery() {
    const [from, to] = [this.query.get("from"), this.query.get("to")];
    return (from !== "" ? `&from=${from}` : "") + (to !== "" ? `&to=${to}` : "");
  }

  describe(key, marks) {
    const curve = this.curves.get(key);
    if (!curve?.x.length) return `${key}: not drawn yet`;
    const last = curve.x.length - 1;
    return `${key}: ${number(curve.mean[0])} at step ${curve.x[0]}, ${number(curve.mean[last])} at step ${curve.x[last]}.${marks.map((mark) => ` ${mark.title} from step ${mark.onset.step}.`).join("")} Arrow keys read values.`;
  }

  table(key) {
    const curve = this.curves.get(key);
    if (!curve) return nothing;
    const by = Math.max(1, Math.ceil(curve.x.length / 50));
    const places = Array.from({ length: Math.ceil(curve.x.length / by) }, (_, i) => i * by);
    return html`<table><thead><tr><th scope="col">step</th><th scope="col">${key}</th></tr></thead><tbody>${places.map((i) => html`<tr><td class="num">${curve.x[i]}</td><td class="num">${number(curve.mean[i], 5)}</td></tr>`)}</tbody></table>`;
  }

  config() {
    const wanted = this.query.get("q").toLowerCase();
    const rows = Object.entries(this.run.config).filter(([key, value]) => `${key} ${JSON.stringify(value)}`.toLowerCase().includes(wanted));
    return html`<div class="bar"><input class="field grow" type="search" data-search placeholder="Find a setting" aria-label="Find a setting" .value=${this.query.get("q")} @input=${(event) => go(link(this.base, this.query.with("q", event.target.value)), { replace: true })}></div>
      <dl class="facts"><div><dt>folder</dt><dd class="mono">${this.run.path}</dd></div></dl>
      ${table("Table", [], rows.map(([key, value]) => html`<tr><th scope="row" class="mono">${key}</th><td class="mono">${typeof value === "string" ? value : JSON.stringify(value)}</td></tr>`))}
      ${rows.length ? nothing : html`<p class="empty">No setting is known.</p>`}`;
  }

  after(root) {
    const hosts = root.querySelectorAll("figure.chart");
    const seen = new Set();
    for (const figure of hosts) {
      seen.add(figure);
      if (!this.watched?.has(figure)) this.observer.observe(figure);
      const key = figure.dataset.key;
      if (!this.visible.has(key) || !this.curves.has(key)) continue;
      const reading = figure.querySelector("[data-read]");
      draw(figure.querySelector(".plot"), {
        lines: [{ label: key, curve: this.curves.get(key), index: 0 }],
        marks: marksOf(this.run).filter((mark) => mark.signals.includes(key)).map((mark) => ({ ...mark.onset, severity: mark.severity })),
        log: this.query.get("log") === "1", from: this.query.get("from"), to: this.query.get("to"),
        read: (text) => { reading.textContent = text || this.lastValue(key); },
        onRange: (low, high) => go(link(runLink(this.params.id, "curves"), this.query.with("from", low).with("to", high))),
      });
      if (!reading.textContent) reading.textContent = this.lastValue(key);
    }
    this.watched = seen;
  }
  lastValue(key) {
    const curve = this.curves.get(key);
    return curve?.x.length ? number(curve.mean[curve.x.length - 1], 4) : "";
  }

  key(event) {
    if (event.key === "r" && this.run.has_answers && this.query.get("from") !== "") return go(this.rolloutsOfRange()), true;
    if (this.tab !== "curves") return false;
    const { query } = this;
    if (event.key === "l") return go(link(this.base, query.with("log", query.get("log") ? "" : "1")), { replace: true }), true;
    if (event.key === "s") return go(link(this.base, query.with("smooth", query.get("smooth") ? "" : "20")), { replace: true }), say(query.get("smooth") ? "not smoothed" : "smoothed over 20 points"), true;
    return false;
  }
}

export const estimate = (found) => (found && typeof found.value === "number" ? html`${Math.abs(found.value) <= 1 ? percent(found.value) : number(found.value)} <span class="soft small">${typeof found.low === "number" ? `${Math.abs(found.high) <= 1 ? `${(100 * found.low).toFixed(1)}–${(100 * found.high).toFixed(1)}` : `${number(found.low)}–${number(found.high)}`}` : ""}</span>` : "–");

export const unknown = (query, known) => {
  const parts = query.parts.filter((part) => !known.includes(part.name));
  return parts.length ? html`<p class="note">Not understood in the address: ${parts.map((part) => part.name + part.operator + part.value).join(", ")}</p>` : nothing;
};
