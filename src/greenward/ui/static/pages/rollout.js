// One answer: why did it get this reward.
import { here } from "/static/bundled.js";
import { historyBars, rewardBars } from "/static/pages/detail.js";
import { api, count, fact, getJson, go, html, link, nothing, number, Page, runLink, statusBadge } from "/static/core.js";

export class RolloutPage extends Page {
  tokens = null;
  same = (params) => ["id", "step", "row"].every((name) => params[name] === this.params[name]);
  get title() {
    return `Answer ${this.params.step}/${this.params.row}`;
  }
  list = () => this.where(this.query.without("colour"));
  up = () => this.list();
  crumbs = () => html`<i>/</i><a href=${runLink(this.params.id)}>${this.params.id.replaceAll("~", "/")}</a><i>/</i><a href=${this.list()}>Rollouts</a><i>/</i><span>step ${this.params.step}, answer ${this.params.row}</span>`;
  at = ([step, row]) => link(runLink(this.params.id, "rollouts", step, row), this.query);

  async load(signal) {
    this.data = await getJson(api("runs", this.params.id, "rollouts", this.params.step, this.params.row), signal);
    this.loaded = true;
    if (!this.data.has_tokens) return;
    this.tokens ??= new (await import("/static/tokens.js")).Tokens(this.update);
    this.update();
    await this.tokens.load(this.params.id, this.params.step, this.params.row, signal);
  }
  colour = (name) => go(link(here().path, this.query.with("colour", name)), { replace: true });

  view() {
    const one = this.data;
    return html`
      <div class="stack"><div class="headline"><h1>${one.task || "Answer"}</h1>${one.judged ? statusBadge(one.status) : nothing}</div>
        <dl class="facts">${fact("reward", number(one.reward, 4))}${fact("advantage", one.advantage && number(one.advantage, 4))}${fact("step", count(one.step))}${fact("tokens", one.tokens && number(one.tokens, 6))}${fact("ended by", one.stop)}${fact("not trained on", one.masked.replaceAll("_", " "))}</dl>
        <div class="bar">${one.previous ? html`<a class="button" href=${this.at(one.previous)}><span aria-hidden="true">←</span> Previous</a>` : nothing}${one.next ? html`<a class="button" href=${this.at(one.next)}>Next <span aria-hidden="true">→</span></a>` : nothing}
          <a class="button" href=${runLink(this.params.id, "problems", one.task)}>This problem over the run</a>
          ${one.same_count > 1 ? html`<a class="button" href=${this.where(`same=${one.same_hash}`)}>The same text ×${count(one.same_count)}</a>` : nothing}</div></div>
      <div class="two">
        <div class="stack">
          ${this.failure(one)}
          ${one.prompt ? html`<details class="card"><summary>Prompt</summary><pre>${one.prompt}</pre></details>` : nothing}
          ${one.prompt_unread ? html`<p class="note">The prompt is missing: ${one.prompt_unread}</p>` : nothing}
          <section class="card stack"><h2>Answer</h2>${one.answer ? html`<div class="lines" tabindex="0" role="region" aria-label="The answer"><ol>${one.code.map((line, i) => html`<li class=${i + 1 === one.marked_line ? "at" : ""}>${line.map(([kind, text]) => (kind ? html`<span class="t-${kind}">${text}</span>` : text))}</li>`)}</ol></div>` : html`<p class="soft">Empty.</p>`}
            ${one.rest ? html`<p class="soft">${count(one.rest)} more characters are not shown; JSONL has all.</p>` : nothing}</section>
          ${this.tokens ? this.tokens.view(this.query.get("colour"), this.colour) : nothing}
          ${one.stdout ? html`<section class="card stack"><h2>What it printed</h2><pre>${one.stdout}</pre></section>` : nothing}
          ${one.transcript.length ? html`<section class="card stack"><h2>Transcript</h2>${one.transcript.map((turn) => html`<div><h3>${turn.role}</h3><pre>${turn.text}</pre></div>`)}</section>` : nothing}
        </div>
        <aside class="stack">
          ${this.reward(one)}
          ${one.group_size > 1 ? html`<section class="card stack"><h2><a href=${runLink(this.params.id, "groups", one.step, one.group)}>Its group</a> <span class="soft small">${count(one.group_size)} answers, by reward</span></h2><div class="group">${[...one.siblings].sort((a, b) => (b.reward ?? -1e9) - (a.reward ?? -1e9)).map((other) => html`<a href=${this.at([other.step, other.row])} aria-current=${other.row === one.row ? "true" : nothing} title=${other.status}>${one.judged ? html`<span class=${other.status === "passed" ? "good" : "bad"} aria-hidden="true">${other.status === "passed" ? "✓" : "✕"}</span><span class="unseen">${other.status}</span> ` : nothing}${number(other.reward)}</a>`)}</div></section>` : nothing}
          ${this.history(one)}
          ${one.fields.length ? html`<section class="card stack"><h2>Also in its row</h2><dl class="pair">${one.fields.map(([name, text]) => html`<dt>${name}</dt><dd>${text}</dd>`)}</dl></section>` : nothing}
          ${one.source ? html`<p class="small soft">From <code>${one.source}</code>.</p>` : html`<section class="card stack"><h2>In files</h2><p class="small soft">Line ${one.row + 1} of <code>rollouts/step_${String(one.step).padStart(6, "0")}.jsonl</code>. The same on the command line:</p><pre>greenward rollouts RUN --where 'step=${one.step}&amp;same=${one.same_hash}'</pre></section>`}
        </aside>
      </div>`;
  }

  failure(one) {
    if (!one.failure && !one.error_message) return nothing;
    const { difference } = one;
    const pieces = (parts, kind) => parts.map(([equal, text]) => (equal ? text : kind === "ins" ? html`<ins>${text}</ins>` : html`<del>${text}</del>`));
    return html`<section class="card stack"><h2>What failed</h2>${difference
      ? html`<dl class="pair"><dt>call</dt><dd>${difference.call}</dd><dt>expected</dt><dd>${pieces(difference.expected, "ins")}</dd><dt>got</dt><dd>${pieces(difference.got, "del")}</dd></dl>`
      : one.failure ? html`<pre>${one.failure}</pre>` : nothing}
      ${one.error || one.error_message ? html`<p><b>${one.error}</b> ${one.error_message}</p>` : nothing}
      ${one.traceback ? html`<pre>${one.traceback}</pre>` : nothing}
      ${one.tests ? html`<p class="small"><span class="soft">Tests in order:</span> <span class="mono">${[...one.tests].map((test) => (test === "1" ? html`<span class="good">✓</span>` : html`<span class="bad">✕</span>`))}</span></p>` : nothing}</section>`;
  }

  reward(one) {
    const weighed = one.terms.every((term) => term.weight !== null);
    const sum = one.terms.reduce((total, term) => total + (term.value ?? 0) * (term.weight ?? 1), 0);
    const roles = one.rewards;
    return html`<section class="card stack"><h2>Reward ${number(one.reward, 4)}</h2>${one.terms.length ? html`<table><thead><tr><th scope="col">Term</th><th scope="col" class="right">Value</th>${weighed ? html`<th scope="col" class="right">× weight</th><th scope="col" class="right">= part</th>` : nothing}</tr></thead>
      <tbody>${one.terms.map((term) => html`<tr><td><a href=${this.where(`term.${encodeURIComponent(term.name)}<=${term.value}&sort=-reward`)} title="Answers with this value or less">${term.name}</a></td><td class="num right">${number(term.value)}</td>${weighed ? html`<td class="num right">${number(term.weight)}</td><td class="num right">${number(term.value * term.weight)}</td>` : nothing}</tr>`)}</tbody>
      ${weighed ? html`<tfoot><tr><td colspan="3">Sum</td><td class="num right">${number(sum, 4)}</td></tr></tfoot>` : nothing}</table>` : nothing}
      ${roles.length > 1 ? html`<dl class="facts">${roles.map(([role, value]) => fact(role, number(value, 4)))}</dl>` : nothing}
      ${weighed && roles.length === 1 && one.terms.length && Math.abs(sum - one.reward) > 1e-3 ? html`<p class="soft small">The reward is not the sum of its terms: a scheduled weight, a penalty for length, or a bonus has changed it.</p>` : nothing}</section>`;
  }

  history(one) {
    if (one.history.length < 2) return nothing;
    const choose = (step) => go(this.where(`step=${step}&problem=${encodeURIComponent(one.task)}`));
    if (!one.judged) return html`<section class="card stack"><h2>Its reward over the run</h2>${rewardBars(one.history, choose, one.step)}</section>`;
    const solved = one.history.filter(([, , passed]) => passed);
    return html`<section class="card stack"><h2>This problem over the run</h2>${historyBars(one.history, choose, one.step)}
      <p class="small soft">Share that passed, at ${count(one.history.length)} steps${solved.length ? `; first solved at step ${count(solved[0][0])}, last at ${count(solved.at(-1)[0])}` : "; never solved"}.</p></section>`;
  }

  key(event) {
    const next = { J: this.data?.next, K: this.data?.previous }[event.key];
    if (next) return go(this.at(next)), true;
    if (event.key === "t" && this.tokens?.known().length) return this.colour(this.tokens.next(this.query.get("colour"))), true;
    return false;
  }
}
