// Runs side by side: what differs between them, and whether it mattered.
import { api, count, getJson, go, html, link, nothing, number, Page, percent, repeat, runLink, stateBadge, statusBadge, table } from "/static/core.js";
import { colour, dash, draw, readCurves, steer } from "/static/chart.js";

const PREFERRED = ["reward/mean", "pass_rate", "completion/mean_length", "entropy", "grad_norm", "groups/with_signal"];
const MORE = 12;

export const codeLines = (lines, marked) => html`<div class="lines" tabindex="0" role="region" aria-label="Code"><ol>${lines.map((line, i) => html`<li class=${i + 1 === marked ? "at" : ""}>${line.map(([kind, text]) => (kind ? html`<span class="t-${kind}">${text}</span>` : text))}</li>`)}</ol></div>`;

export class ComparePage extends Page {
  curves = new Map();
  answers = null;
  same = () => true;
  title = "Compare";
  crumbs = () => html`<i>/</i><span>Compare</span>`;
  up = () => link("/", this.query.get("runs") ? new URLSearchParams({ runs: this.query.get("runs") }) : "");
  ids = () => this.query.get("runs").split(",").filter(Boolean).slice(0, 20);
  show = (query, replace = false) => go(link("/compare", query), { replace });

  async load(signal) {
    this.signal = signal;
    this.data = await getJson("/api/v1/compare?runs=" + encodeURIComponent(this.ids().join(",")), signal);
    this.loaded = true;
    this.update();
    const keys = this.keys();
    await Promise.all([
      ...this.data.runs.map(async (run) => {
        const found = await readCurves(run.id, keys, { px: 400, smooth: Number(this.query.get("smooth")) || 1 }, signal);
        this.curves.set(run.id, found.curves);
      }),
      this.loadAnswers(),
    ]);
  }

  async loadAnswers() {
    const task = this.query.get("task");
    const pair = this.data.pairs.find((one) => one.b === this.query.get("with")) ?? this.data.pairs[0];
    if (!task || !pair) return void (this.answers = null);
    const found = await Promise.all([pair.a, pair.b].map((id) => getJson(`${api("runs", id, "evaluation")}?task=${encodeURIComponent(task)}`, this.signal)));
    this.answers = { task, pair, found };
  }

  keys() {
    const wanted = this.query.get("q").toLowerCase();
    const every = this.data.keys.filter((key) => !wanted || key.toLowerCase().includes(wanted));
    const first = PREFERRED.filter((key) => every.includes(key));
    return [...first, ...every.filter((key) => !first.includes(key) && !key.startsWith("time/") && !key.startsWith("perf/"))].slice(0, wanted ? 24 : Math.max(6, first.length));
  }

  view() {
    const { runs, pairs, settings, surroundings, missing } = this.data;
    return html`<div class="stack"><h1>${runs.length} run${runs.length === 1 ? "" : "s"} compared</h1>
        ${missing.length ? html`<p class="note">Not here: ${missing.join(", ")}</p>` : nothing}
        ${table("Table", ["Run", "State", "Held-out", "Step"], runs.map((run, i) => html`<tr><td>${this.swatch(i)} <a class="name" href=${runLink(run.id)}>${run.name}</a>${i ? nothing : html` <span class="soft small">the others are compared with it</span>`}</td><td>${stateBadge(run.state)}</td><td class="num">${run.after ? percent(run.after.value) : "–"}</td><td class="num">${count(run.step)}</td></tr>`))}
        ${runs.length < 2 ? html`<p class="soft">Tick further runs in the <a href=${this.up()}>list</a>.</p>` : nothing}</div>
      ${pairs.length ? html`<section class="stack"><h2>Did it matter?</h2>${pairs.map((pair) => this.pair(pair))}</section>` : nothing}
      ${this.answersOf()}
      <section class="stack"><h2>What differs</h2>${settings.length || surroundings.length ? html`${this.table("Settings", settings)}${this.table("Code, packages and machine", surroundings)}` : html`<p class="soft">Neither settings nor surroundings that are known.</p>`}</section>
      <section class="stack"><h2>Curves</h2><div class="bar"><input class="field grow" type="search" data-search placeholder="Find a curve that all have" aria-label="Find a curve" .value=${this.query.get("q")} @change=${(event) => this.show(this.query.with("q", event.target.value), true)}></div>
        <div class="legend">${runs.map((run, i) => html`<span>${this.swatch(i)}${run.name}</span>`)}</div>
        <div class="charts">${repeat(this.keys(), (key) => key, (key) => html`<figure class="card chart" data-key=${key}><header><h3 title=${key}>${key}</h3><span class="read" data-read></span></header><div class="plot" tabindex="0" role="img" aria-label=${`${key} of ${runs.length} runs. Arrow keys read values.`} @keydown=${(event) => steer(event.currentTarget, event)}></div></figure>`)}</div></section>`;
  }

  swatch = (i) => html`<svg class="swatch" viewBox="0 0 22 8" aria-hidden="true"><line x1="0" x2="22" y1="4" y2="4" class="s-${colour(i)}" stroke-dasharray=${dash(i).join(" ")}></line></svg>`;

  pair(pair) {
    const other = this.data.runs.find((run) => run.id === pair.b);
    if (pair.reason) return html`<div class="card"><h3>${other?.name}</h3><p class="soft">No paired comparison: ${pair.reason}</p></div>`;
    const { value, low, high } = pair.difference;
    const sign = (share) => `${share >= 0 ? "+" : "−"}${Math.abs(100 * share).toFixed(1)}`;
    const tone = !pair.significant ? "soft" : value > 0 ? "good" : "bad";
    const flips = (tasks, total, title, kind) => html`<div><h3><span class=${kind}>${count(total)}</span> ${title}</h3><div class="chips">${tasks.slice(0, this.query.get("all") ? 200 : MORE).map((task) => html`<button class="chip" aria-pressed=${this.query.get("task") === task} @click=${() => this.show(this.query.with("task", task).with("with", pair.b), true)}>${task}</button>`)}${total > MORE && !this.query.get("all") ? html`<button class="button" @click=${() => this.show(this.query.with("all", "1"), true)}>all</button>` : nothing}</div></div>`;
    return html`<div class="card stack"><p><b class="figure-inline ${tone}">${sign(value)} points</b> <span class="soft">of ${pair.rates.map((one) => percent(one.value)).join(" → ")}, 95 % ${sign(low)} to ${sign(high)}, p = ${number(pair.p_value, 2)} (${pair.test}, ${count(pair.problems)} problems)</span></p>
      <p>${other?.name}: ${pair.significant ? (value > 0 ? "better than the first" : "worse than the first") : "cannot be told from chance"}${pair.detectable ? html` <span class="soft">· these problems can show a difference of ${(100 * pair.detectable).toFixed(1)} points</span>` : nothing}</p>
      ${pair.remarks.map((text) => html`<p class="note">${text}</p>`)}
      <div class="side-by-side">${flips(pair.won, pair.flips[0], "problems fixed", "good")}${flips(pair.lost, pair.flips[1], "problems broken", "bad")}</div></div>`;
  }

  answersOf() {
    if (!this.answers || this.answers.task !== this.query.get("task")) return nothing;
    const { task, pair, found } = this.answers;
    const names = [pair.a, pair.b].map((id) => this.data.runs.find((run) => run.id === id)?.name ?? id);
    return html`<section class="stack" id="answers"><h2>${task}</h2>${found.find((one) => one.prompt) ? html`<details class="card"><summary>Prompt</summary><pre>${found.find((one) => one.prompt).prompt}</pre></details>` : nothing}
      <div class="side-by-side">${found.map((side, i) => html`<div class="stack"><h3>${names[i]} <span class="soft small">step ${count(side.step)}</span></h3>${side.answers.slice(0, 3).map((one) => html`<div class="card stack"><p>${statusBadge(one.status)}</p>${codeLines(one.code)}${one.failure ? html`<pre>${one.failure}</pre>` : nothing}</div>`)}${side.answers.length ? nothing : html`<p class="soft">No answer is kept.</p>`}</div>`)}</div></section>`;
  }

  table = (title, rows) => (rows.length ? table("Table", [title, ...this.data.runs.map((run) => run.name)], rows.map(([key, ...values]) => html`<tr><th scope="row" class="mono">${key}</th>${values.map((value) => html`<td class="mono">${value ?? html`<span class="soft">–</span>`}</td>`)}</tr>`)) : nothing);

  after(root) {
    for (const figure of root.querySelectorAll("figure.chart")) {
      const key = figure.dataset.key;
      const lines = this.data.runs.map((run, index) => ({ label: run.name, index, curve: this.curves.get(run.id)?.get(key) }));
      if (!lines.some((line) => line.curve)) continue;
      const reading = figure.querySelector("[data-read]");
      draw(figure.querySelector(".plot"), { lines, read: (text) => { reading.textContent = text; } });
    }
  }
}
