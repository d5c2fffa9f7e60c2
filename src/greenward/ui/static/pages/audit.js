// What an audit of a reward found: the kind of grader, the cheats that it accepted, and pairs in the wrong order.
import { api, count, getJson, go, html, link, nothing, number, Page, runLink } from "/static/core.js";
import { runHead } from "/static/pages/run.js";

export const auditLine = (one) => {
  const [accepted, cheats, , , pairs] = one.counts;
  if (one.says_nothing) return "It never told right from wrong: is the data of the shape it expects?";
  return `It accepted ${count(accepted)} of ${count(cheats)} wrong or cheating answers${pairs ? `, ${count(pairs)} pairs in the wrong order` : ""}`;
};
export const auditBadge = (one) => {
  const [kind, glyph, text] = one.error || one.says_nothing ? ["none", "–", "cannot tell"] : one.sound ? ["good", "✓", "sound"] : ["bad", "✕", "not sound"];
  return html`<span class="badge ${kind}"><span aria-hidden="true">${glyph}</span>${text}</span>`;
};

export class AuditPage extends Page {
  same = (params) => params.id === this.params.id && params.audit === this.params.audit;
  title = "Audit";
  up = () => (this.params.id ? runLink(this.params.id) : "/");
  crumbs = () => html`${this.params.id ? html`<i>/</i><a href=${runLink(this.params.id)}>${this.run?.name ?? this.params.id}</a>` : nothing}<i>/</i><span>Audit</span>`;

  async load(signal) {
    const { id } = this.params;
    this.run = id ? await getJson(api("runs", id), signal) : null;
    const chosen = this.params.audit ?? (this.query.get("audit") || this.run?.audits[0]?.[0]);
    this.data = chosen ? await getJson(api("audits", chosen) + (id ? "?run=" + encodeURIComponent(id) : ""), signal) : null;
    this.loaded = true;
  }

  view() {
    const { data, run } = this;
    if (!data) return html`${runHead(run, "audit")}<p class="empty">No audit lies in the folder of this run or above it. Save one: <code>greenward audit REWARD --json &gt; audit.json</code></p>`;
    return html`${run ? runHead(run, "audit") : nothing}
      ${run?.audits.length > 1 ? html`<div class="bar">${run.audits.map(([id, name]) => html`<button class="button" aria-pressed=${id === data.id} @click=${() => go(link(runLink(run.id, "audit"), this.query.with("audit", id)))}>${name}</button>`)}</div>` : nothing}
      <section class="stack"><div class="headline">${run ? html`<h2>${this.heading()}</h2>` : html`<h1>${this.heading()}</h1>`}${auditBadge(data)}</div><p>${auditLine(data)}.</p>
        <dl class="facts"><div><dt>reward</dt><dd class="mono">${data.function}</dd></div><div><dt>called as</dt><dd>${data.signature}, ${data.presentation}</dd></div><div><dt>file</dt><dd class="mono">${data.name}</dd></div></dl>
        ${data.left_out ? html`<p class="note">Left out: tasks of ${data.left_out}, where no right answer scored above a wrong one.</p>` : nothing}
        ${data.told_apart || data.says_nothing ? nothing : html`<p class="note">No right answer scored above a wrong one of the same form.</p>`}</section>
      ${data.in_run ? this.inRun(data.in_run) : nothing}
      ${data.findings.length ? html`<section class="stack"><h2>What kind of grader it is</h2><div class="scroll" tabindex="0" role="region" aria-label="Kinds"><table><thead><tr><th scope="col">Kind</th><th scope="col" class="right">Answers</th><th scope="col">Why</th><th scope="col">Example</th></tr></thead><tbody>${data.findings.map((one) => html`<tr><th scope="row">${one.kind}</th><td class="num right">${count(one.count)} of ${count(one.of)}</td><td>${one.why}</td><td class="mono">${one.example}</td></tr>`)}</tbody></table></div></section>` : nothing}
      ${this.trials("Cheats that were accepted", data.accepted)}
      ${data.pairs.length ? html`<section class="stack"><h2>Pairs in the wrong order <span class="soft small">${count(data.counts[4])}</span></h2><div class="scroll" tabindex="0" role="region" aria-label="Pairs"><table><thead><tr><th scope="col">Worse answer</th><th scope="col" class="right">Paid</th><th scope="col">Better answer</th><th scope="col" class="right">Paid</th></tr></thead><tbody>${data.pairs.map((one) => html`<tr><td>${one.worse}</td><td class="num right">${number(one.worse_score)}</td><td>${one.better}</td><td class="num right">${number(one.better_score)}</td></tr>`)}</tbody></table></div></section>` : nothing}
      ${this.trials("Answers that killed or hung it, or made it raise", data.broken_by)}
      ${this.trials("Right answers that were refused", data.false_refusals)}
      ${this.trials("Spellings of right values that were refused", data.refused_spellings)}`;
  }

  heading() {
    const { kinds } = this.data;
    const text = kinds.length ? kinds.join(", ") : this.data.says_nothing ? "cannot tell" : "sound";
    return text[0].toUpperCase() + text.slice(1);
  }

  inRun(found) {
    const where = (query) => link(runLink(this.run.id, "rollouts"), query);
    return html`<section class="card stack"><h2>In the answers of this run</h2>
      <p>${found.cheating ? html`<a href=${where("status=cheating")}>${count(found.cheating)} of ${count(found.total)} answers</a> were found cheating.` : `No answer of ${count(found.total)} was found cheating.`}</p>
      ${found.same.length ? html`<p>With the very text of a cheat that was accepted:</p><div class="bar">${found.same.map(([name, hash, times]) => html`<a class="button" href=${where(`same=${hash}`)}>${name} ×${count(times)}</a>`)}</div>` : html`<p class="soft">None has the very text of a cheat that was accepted.</p>`}</section>`;
  }

  trials(title, { count: all, families }) {
    if (!all) return nothing;
    const shown = families.reduce((sum, one) => sum + one.trials.length, 0);
    return html`<section class="stack"><h2>${title} <span class="soft small">${count(all)}</span></h2>
      ${families.map((one) => html`<article class="card stack"><div class="headline"><h3>${one.family}</h3><span class="soft">${one.why}</span></div>
        ${one.trials.map((trial) => html`<details><summary>${trial.answer} <span class="soft">${[trial.task_id, trial.outcome, trial.score === null ? "" : `paid ${number(trial.score)}`, trial.detail].filter(Boolean).join(" · ")}</span></summary>${trial.text ? html`<pre tabindex="0">${trial.text}</pre>` : html`<p class="soft">The answer is empty.</p>`}${trial.rest ? html`<p class="soft">${count(trial.rest)} more characters are in the file.</p>` : nothing}</details>`)}</article>`)}
      ${shown < all ? html`<p class="soft">${count(all - shown)} more are in the file.</p>` : nothing}</section>`;
  }
}
