// A group that was compared, a problem over the run, and an evaluation by problem.
import { api, count, fact, getJson, go, html, link, nothing, number, Page, runLink, statusBadge, svg, table } from "/static/core.js";
import { here } from "/static/bundled.js";
import { codeLines } from "/static/pages/compare.js";
import { estimate, runHead } from "/static/pages/run.js";

class Detail extends Page {
  same = (params) => JSON.stringify(params) === JSON.stringify(this.params);
  up = () => runLink(this.params.id, "rollouts");
  trail = (name) => html`<i>/</i><a href=${runLink(this.params.id)}>${this.params.id.replaceAll("~", "/")}</a><i>/</i><span>${name}</span>`;
}

export class GroupPage extends Detail {
  get title() {
    return `Group ${this.params.group}`;
  }
  crumbs = () => this.trail(`step ${this.params.step}, group ${this.params.group}`);
  async load(signal) {
    this.data = await getJson(`${api("runs", this.params.id, "group")}?step=${this.params.step}&group=${encodeURIComponent(this.params.group)}`, signal);
    this.loaded = true;
  }
  view() {
    const { data } = this;
    const diff = this.query.get("diff") === "1";
    return html`<div class="stack"><h1>${data.cards[0].task || `Group ${data.group}`}</h1>
      <dl class="facts">${fact("step", count(data.step))}${fact(data.judged ? "passed" : "answers", (data.judged ? `${data.passed} of ` : "") + data.size)}${fact("mean reward", number(data.mean))}${fact("spread", number(data.spread))}</dl>
      ${data.reason ? html`<p class="note">${data.reason}</p>` : nothing}
      <div class="bar"><button class="button" aria-pressed=${diff} @click=${() => this.key({ key: "d" })}>Difference to the best</button><a class="button" href=${runLink(this.params.id, "problems", data.cards[0].task)}>This problem over the run</a></div></div>
      <div class="side-by-side">${data.cards.map((card, i) => html`<section class="card stack"><div class="headline"><h2><a href=${runLink(this.params.id, "rollouts", card.step, card.row)}>${number(card.reward, 4)}</a></h2>${data.judged ? statusBadge(card.status) : nothing}${i ? nothing : html`<span class="soft small">the best</span>`}</div>
        <dl class="facts">${fact("advantage", card.advantage && number(card.advantage))}${fact("tokens", card.tokens && number(card.tokens, 6))}${card.terms.map(([name, value]) => fact(name, number(value)))}</dl>
        ${card.failure ? html`<p class="mono small">${card.failure}</p>` : nothing}
        ${diff && i ? html`<div class="lines" tabindex="0" role="region" aria-label="Difference to the best"><ol>${card.against.map(([sign, text]) => html`<li class=${sign === "+" ? "plus" : sign === "-" ? "minus" : ""}>${sign} ${text}</li>`)}</ol></div>` : codeLines(card.code)}</section>`)}</div>`;
  }
  key(event) {
    if (event.key !== "d") return false;
    go(link(here().path, this.query.with("diff", this.query.get("diff") ? "" : "1")), { replace: true });
    return true;
  }
}

export class ProblemPage extends Detail {
  get title() {
    return this.params.task;
  }
  crumbs = () => this.trail("Problem");
  async load(signal) {
    this.data = await getJson(`${api("runs", this.params.id, "problem")}?task=${encodeURIComponent(this.params.task)}`, signal);
    this.loaded = true;
  }
  view() {
    const { data } = this;
    const asked = data.history;
    const solved = asked.filter(([, , passed]) => passed);
    const task = encodeURIComponent(this.params.task);
    return html`<div class="stack"><h1>${data.task}</h1><dl class="facts">${fact("answers", `${count(data.count)}, ${count(data.different)} different`)}${fact("asked at", `${count(asked.length)} steps`)}${solved.length ? html`${fact("first solved", `step ${count(solved[0][0])}`)}${fact("last solved", `step ${count(solved.at(-1)[0])}`)}` : fact("solved", data.judged ? "never in training" : "")}</dl>
      <div class="bar"><a class="button" href=${this.where(`problem=${task}`)}>All its answers</a></div></div>
      ${asked.length ? html`<section class="card stack"><h2>${data.judged ? "Share of answers that passed" : "Mean reward"}</h2>${(data.judged ? historyBars : rewardBars)(asked, (step) => go(this.where(`step=${step}&problem=${task}`)))}</section>` : html`<p class="empty">The run kept no answer to this problem.</p>`}
      ${data.evaluations.length ? html`<section class="stack"><h2>In evaluations</h2>${table("Table", ["Step", "On", "Passed"], data.evaluations.map(([step, suite, samples, passed]) => html`<tr><td class="num">${count(step)}</td><td>${suite ?? "held-out"}</td><td class="num">${passed} of ${samples}</td></tr>`))}</section>` : nothing}
      ${data.clusters.length ? html`<section class="stack"><h2>What was written, the most frequent first</h2><div class="side-by-side">${data.clusters.map((one) => html`<section class="card stack"><div class="headline"><h3><a href=${this.where(`same=${one.same}&problem=${task}`)}>×${count(one.times)}</a></h3>${data.judged ? statusBadge(one.status) : nothing}<span class="soft small">step${one.steps[0] === one.steps[1] ? "" : `s ${count(one.steps[0])} to`} ${count(one.steps[1])}, reward ${number(one.reward)}${one.passed && one.passed < one.times ? `, passed ${one.passed} times` : ""}</span></div>${codeLines(one.code)}${one.failure ? html`<p class="mono small">${one.failure}</p>` : nothing}</section>`)}</div></section>` : nothing}`;
  }
}

export const historyBars = (asked, choose, chosen) => bars("Share of answers that passed", asked.map(([step, answers, passed]) => [step, passed / answers, `${passed} of ${answers} passed`]), "passed", choose, chosen);

// From 0, or the least reward below it, to the largest.
export function rewardBars(asked, choose, chosen) {
  const means = asked.map(([, , , mean]) => mean ?? 0);
  const low = Math.min(0, ...means), high = Math.max(0, ...means);
  return html`${bars("Mean reward", asked.map(([step, answers, , mean]) => [step, ((mean ?? low) - low) / (high - low || 1), `mean reward ${number(mean)} of ${answers}`]), "", choose, chosen)}<p class="small soft">Mean reward, from ${number(low)} to ${number(high)}, at ${count(asked.length)} steps.</p>`;
}

function bars(what, shares, kind, choose, chosen) {
  const width = 100 / shares.length;
  const bar = (of, i, height) => svg`<rect class=${of} x=${i * width + 0.2} width=${Math.max(width - 0.4, 0.3)} y=${50 - height} height=${height}></rect>`;
  return html`<svg class="bars" viewBox="0 0 100 52" preserveAspectRatio="none" role="img" aria-label=${`${what}, by step`}>${shares.map(([step, share, said], i) => svg`${bar(step === chosen ? "chosen" : "ground", i, 48)}${bar(step === chosen ? "at" : kind, i, 48 * share)}<rect class="hit" x=${i * width} width=${width} y="0" height="52" @click=${() => choose(step)}><title>step ${step}: ${said}</title></rect>`)}</svg>
    <div class="axis"><span>step ${count(shares[0][0])}</span><span>${count(shares.at(-1)[0])}</span></div>`;
}

export class EvaluationPage extends Detail {
  title = "Evaluation";
  crumbs = () => this.trail("Evaluation");
  up = () => runLink(this.params.id);
  address = (query) => link(runLink(this.params.id, "evaluation"), query);
  async load(signal) {
    const [step, suite, task] = ["step", "suite", "task"].map((name) => this.query.get(name));
    const asked = `${step ? `step=${step}&` : ""}${suite ? `suite=${encodeURIComponent(suite)}&` : ""}`;
    this.run = await getJson(api("runs", this.params.id), signal);
    try {
      this.data = await getJson(`${api("runs", this.params.id, "evaluation")}?${asked}`, signal);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      this.data = null;
    }
    this.answers = this.data && task ? await getJson(`${api("runs", this.params.id, "evaluation")}?${asked}task=${encodeURIComponent(task)}`, signal) : null;
    this.loaded = true;
  }
  view() {
    const { data, query, run } = this;
    if (!data) return html`${runHead(run, "evaluation")}<p class="empty">This run was not evaluated yet.</p>`;
    const flips = (test) => data.problems.filter(([, samples, passed, before]) => typeof before === "number" && test(passed / samples, before)).length;
    const only = query.get("show");
    const kinds = { fixed: (now, was) => now > 0 && was === 0, broken: (now, was) => now === 0 && was > 0, failed: (now) => now === 0, passed: (now) => now === 1 };
    const shown = data.problems.filter(([, samples, passed, before]) => !only || kinds[only]?.(samples ? passed / samples : 0, before ?? NaN));
    return html`${runHead(run, "evaluation")}
      <section class="stack"><div class="bar"><label class="small">Evaluation <select class="field" @change=${(event) => { const [step, suite] = event.target.value.split("|"); go(this.address(query.without("task").with("step", step).with("suite", suite))); }}>${data.steps.map(([step, suite]) => html`<option value=${`${step}|${suite ?? ""}`} ?selected=${step === data.step && suite === data.suite}>step ${count(step)}, ${suite ?? "held-out"}</option>`)}</select></label></div>
      <div class="scroll" tabindex="0" role="region" aria-label="Table"><table class="narrow"><tbody>${[...Object.entries(data.metrics), ...Object.entries(data.rates).slice(0, 40)].map(([name, one]) => html`<tr><th scope="row">${name}</th><td class="num">${estimate(one)}</td></tr>`)}</tbody></table></div></section>
      <section class="stack"><h2>${count(data.problems.length)} problems</h2>
        <div class="bar">${Object.entries({ "": "All", passed: "Always solved", failed: "Never solved", ...(data.before === null ? {} : { fixed: `Fixed since step ${data.before} (${flips(kinds.fixed)})`, broken: `Broken since (${flips(kinds.broken)})` }) }).map(([name, title]) => html`<button class="button" aria-pressed=${only === name} @click=${() => go(this.address(query.with("show", name)))}>${title}</button>`)}</div>
        <div class="cells">${shown.slice(0, 2000).map(([task, samples, passed]) => html`<a class="cell" data-share=${samples ? Math.round((4 * passed) / samples) : 0} aria-current=${query.get("task") === task ? "true" : nothing} href=${this.address(query.with("task", task))} title=${`${task}: ${passed} of ${samples}`}><span class="unseen">${task}: ${passed} of ${samples}</span><span aria-hidden="true">${passed === samples ? "✓" : passed ? passed : "·"}</span></a>`)}</div>
        ${shown.length ? nothing : html`<p class="empty">None.</p>`}</section>
      ${this.answers ? html`<section class="stack"><h2>${query.get("task")}</h2>${this.answers.prompt ? html`<details class="card"><summary>Prompt</summary><pre>${this.answers.prompt}</pre></details>` : nothing}<div class="side-by-side">${this.answers.answers.map((one) => html`<div class="card stack"><p>${statusBadge(one.status)}</p>${codeLines(one.code)}${one.failure ? html`<pre>${one.failure}</pre>` : nothing}</div>`)}</div><p><a href=${runLink(this.params.id, "problems", query.get("task"))}>This problem over the run</a></p></section>` : nothing}`;
  }
}
