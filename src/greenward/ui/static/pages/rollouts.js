// The answers of a run: show me those that …
import { api, count, getJson, go, html, link, nothing, number, Page, percent, runLink, statusBadge, svg, Window, words } from "/static/core.js";
import { bundled } from "/static/bundled.js";
import { runHead } from "/static/pages/run.js";

const PAGE = 60;
const NAMES = { status: "Status", error: "Error", stop: "Ended by", task: "Problem" };
const MORE = 8;

export class RolloutsPage extends Page {
  windowed = true;
  window = new Window(45, 89);
  at = -1;
  open = {};
  title = "Rollouts";
  crumbs = () => html`<i>/</i><a href=${runLink(this.params.id)}>${this.run?.name ?? this.params.id}</a><i>/</i><span>Rollouts</span>`;
  up = () => runLink(this.params.id);
  show = (query, replace = false) => go(this.where(query), { replace });

  async load(signal) {
    this.signal = signal;
    const asked = String(this.query);
    const path = `${api("runs", this.params.id, "rollouts")}?${asked}`;
    const [run, data] = await Promise.all([getJson(api("runs", this.params.id), signal), getJson(`${path}${asked ? "&" : ""}first=0&count=${PAGE}`, signal)]);
    if (asked !== this.asked) scrollTo(0, Math.min(scrollY, 200));
    this.run = run;
    this.data = data;
    this.asked = asked;
    this.rows = new Map(data.rows.map((row, i) => [i, row]));
    this.pending = new Set([0]);
    this.loaded = true;
  }

  async fetchRows(place) {
    const page = Math.floor(place / PAGE);
    if (this.pending.has(page)) return;
    this.pending.add(page);
    const asked = this.asked;
    try {
      const found = await getJson(`${api("runs", this.params.id, "rollouts")}?${asked}${asked ? "&" : ""}first=${page * PAGE}&count=${PAGE}`, this.signal);
      if (asked !== this.asked) return;
      found.rows.forEach((row, i) => this.rows.set(page * PAGE + i, row));
      this.update();
    } catch {
      this.pending.delete(page);
    }
  }

  view() {
    const { data, query } = this;
    if (!data.total && data.share === 1)
      return html`${runHead(this.run, "rollouts")}${this.unread()}<p class="empty">${data.unread.length ? "No answer could be read." : "This run kept no rollouts. Reinforcement learning keeps the answers that it trains on; other training has none."}</p>`;
    const total = data.rows_in_all;
    const range = this.window.range(document.querySelector(".answers tbody"), total);
    for (let place = range[0]; place < range[1]; place += 1) if (!this.rows.has(place)) this.fetchRows(place);
    const files = (form) => `${api("runs", this.params.id)}/rollouts.${form}?${query}`;
    return html`${runHead(this.run, "rollouts")}
      <div class="split">
        <aside class="stack facets ${this.facetsOpen ? "open" : ""}" aria-label="Filters">${Object.entries(NAMES).map(([name, title]) => (name === "status" && !data.judged ? nothing : this.facet(name, title)))}${Object.entries(data.histograms).map(([name, bins]) => this.histogram(name, bins))}</aside>
        <section class="stack" aria-label="Answers">
          ${this.steps(data.steps)}
          <div class="bar">
            <input class="field grow" data-live data-search type="search" placeholder="Search in answers, prompts and failures" aria-label="Search in answers" .value=${query.get("text")} @change=${(event) => this.show(query.with("text", event.target.value))}>
            ${data.judged ? html`<button class="button" aria-pressed=${query.get("passed") === "0"} @click=${() => this.toggle("passed", "0")}>Failing only</button>` : nothing}
            <button class="button" aria-pressed=${query.get("fold") === "1"} @click=${() => this.toggle("fold", "1")}>Fold identical</button>
            <label class="small only-narrow">Sort <select class="field" aria-label="Sort" @change=${(event) => this.show(query.with("sort", event.target.value))}>${[["", "as trained"], ["-reward", "reward ↓"], ["reward", "reward ↑"], ["-length", "longest"]].map(([value, title]) => html`<option value=${value} ?selected=${query.get("sort") === value}>${title}</option>`)}</select></label>
            <button class="button only-narrow" aria-expanded=${Boolean(this.facetsOpen)} @click=${() => { this.facetsOpen = !this.facetsOpen; this.update(); }}>Filters</button>
            <a class="button" href=${files("csv")} download>CSV</a><a class="button" href=${files("jsonl")} download>JSONL</a>
          </div>
          <form class="bar" @submit=${(event) => { event.preventDefault(); go(this.where(event.target.elements.where.value)); }}>
            <input class="field grow mono" name="where" aria-label="Conditions, as of greenward rollouts --where" title="The same text works in: greenward rollouts RUN --where '…'" placeholder="step=40-&reward>=0.5&sort=-tokens" .value=${decodeURIComponent(String(query))}>
            <button class="button">Apply</button>
          </form>
          <p class="soft small only-bundled">Search, files of answers, other orders and conditions on terms, groups or percentiles need <code>greenward ui</code>.</p>
          ${this.chips()}
          ${data.unknown.length ? html`<p class="note">Not understood: ${data.unknown.join(", ")}</p>` : nothing}
          ${data.dropped ? html`<p class="note">This run was resumed or cut: ${count(data.dropped)} answers that were here are gone.</p>` : nothing}
          ${this.unread()}
          ${data.broken ? html`<p class="note">${count(data.broken)} line(s) cannot be read and were left out.</p>` : nothing}
          ${bundled && String(query) !== this.asked ? html`<p class="empty"><a href=${this.where("")}>Show all</a></p>` : html`<p class="soft small" role="status">${count(data.matching)} of ${count(data.total)} answers${data.here ? " in this bundle" : ""}${query.get("fold") ? `, ${count(total)} different` : ""}${data.share < 1 ? `; ${percent(data.share)} of the files are indexed` : ""}${data.searched < 1 ? `; ${percent(data.searched)} of them were searched: narrow the steps to search all` : ""}${data.kept < data.matching ? `; ${count(data.kept)} are in this bundle` : ""}</p>
          ${total ? this.table(total, range) : html`<p class="empty">${data.total ? "No answer matches." : "Being read …"} <a href=${this.where("")}>Show all</a></p>`}`}
        </section>
      </div>`;
  }

  unread = () => this.data.unread.map((why) => html`<p class="note">${why}</p>`);
  toggle = (name, value) => this.show(this.query.get(name) === value ? this.query.without(name) : this.query.without(name).with(name, value));

  chips() {
    const parts = this.query.parts.filter(({ name }) => !["sort", "fold"].includes(name));
    if (!parts.length) return nothing;
    return html`<div class="chips" aria-label="Conditions">${parts.map((part) => html`<button class="chip" title="Remove this condition" @click=${() => { const made = this.query.copy(); made.parts = made.parts.filter((one) => !(one.name === part.name && one.operator === part.operator && one.value === part.value)); this.show(made); }}>${part.name} ${part.operator} ${words(part.value)} <span aria-hidden="true">×</span></button>`)}<a class="button" href=${this.where("")}>Clear</a></div>`;
  }

  facet(name, title) {
    const values = this.data.facets[name] ?? [];
    if (values.length < 2 && !this.query.get(name) && name !== "status") return nothing;
    const chosen = name === "task" ? this.query.all("problem") : this.query.get(name).split(",").filter(Boolean);
    const open = this.open[name];
    const shown = open ? values : values.slice(0, MORE);
    return html`<div class="facet"><h3>${title}</h3>${shown.map(([value, times]) => html`<button aria-pressed=${chosen.includes(value)} title=${value} @click=${() => this.choose(name, value, chosen)}><span>${name === "status" ? words(value) : value}</span><span>${count(times)}</span></button>`)}
      ${values.length > MORE ? html`<button @click=${() => { this.open[name] = !open; this.update(); }}><span class="soft">${open ? "fewer" : `${values.length - MORE} more`}</span></button>` : nothing}</div>`;
  }
  choose(name, value, chosen) {
    if (name === "task") return this.show(chosen.includes(value) ? this.query.without("problem") : this.query.without("problem", "task").with("problem", value));
    const next = chosen.includes(value) ? chosen.filter((one) => one !== value) : [...chosen, value];
    this.show(this.query.with(name, next.join(",")));
  }

  histogram(name, { counts, edges, low, high }) {
    const most = Math.max(...counts, 1);
    const width = 100 / counts.length;
    return html`<div class="facet"><h3>${name[0].toUpperCase() + name.slice(1)}</h3>
      <svg class="bars" viewBox="0 0 100 52" preserveAspectRatio="none" role="img" aria-label=${`Distribution of ${name}`}>${counts.map((value, i) => svg`<rect x=${i * width + 0.3} width=${width - 0.6} y=${50 - (48 * value) / most} height=${(48 * value) / most + (value ? 1 : 0)}></rect><rect class="hit" x=${i * width} width=${width} y="0" height="52" @click=${() => this.bounds(name, edges[i], edges[i + 1], i === counts.length - 1)}><title>${number(edges[i])} to ${number(edges[i + 1])}: ${count(value)}</title></rect>`)}</svg>
      <div class="axis"><span>${number(low)}</span><span>${number(high)}</span></div></div>`;
  }
  bounds(name, low, high, last) {
    this.show(this.query.without(name).with(name, low, ">=").with(name, high, last ? "<=" : "<"));
  }

  steps({ counts, passed, edges }) {
    if (counts.length < 2) return nothing;
    const most = Math.max(...counts, 1);
    const width = 100 / counts.length;
    const chosen = /^(\d*)-?(\d*)$/.exec(this.query.get("step"));
    const [low, high] = chosen && this.query.get("step") ? [Number(chosen[1] || 0), this.query.get("step").includes("-") ? Number(chosen[2] || Infinity) : Number(chosen[1])] : [null, null];
    const span = edges[edges.length - 1] - edges[0];
    const x = (step) => Math.max(0, Math.min(100, ((step - edges[0]) / span) * 100));
    return html`<div><svg class="bars" viewBox="0 0 100 52" preserveAspectRatio="none" role="img" aria-label="Answers and passed answers by step">
        ${counts.map((value, i) => svg`<rect x=${i * width + 0.1} width=${width - 0.2} y=${50 - (48 * value) / most} height=${(48 * value) / most}></rect><rect class="passed" x=${i * width + 0.1} width=${width - 0.2} y=${50 - (48 * passed[i]) / most} height=${(48 * passed[i]) / most}></rect>`)}
        ${low === null ? nothing : svg`<rect class="chosen" x=${x(low)} width=${Math.max(0.5, x(Math.min(high + 1, edges.at(-1))) - x(low))} y="0" height="52"></rect>`}
        ${counts.map((value, i) => svg`<rect class="hit" x=${i * width} width=${width} y="0" height="52" @pointerdown=${() => { this.from = i; }} @pointerup=${() => this.brush(i, edges)}><title>steps ${edges[i]} to ${edges[i + 1] - 1}: ${count(value)} answers, ${count(passed[i])} passed</title></rect>`)}</svg>
      <div class="axis"><span>step ${count(edges[0])}</span><span class="only-wide">answers by step${this.data.judged ? ", passed ones in green" : ""}; drag to choose steps</span><span>${count(edges.at(-1) - 1)}</span></div>
      <div class="bar only-narrow"><label class="grow small">Up to step <input type="range" .min=${edges[0]} .max=${edges.at(-1) - 1} .value=${Number.isFinite(high ?? NaN) ? high : edges.at(-1) - 1} @change=${(event) => this.show(this.query.with("step", `-${event.target.value}`))}></label></div></div>`;
  }
  brush(to, edges) {
    const [low, high] = [Math.min(this.from ?? to, to), Math.max(this.from ?? to, to)];
    const [first, last] = [edges[low], edges[high + 1] - 1];
    this.show(this.query.with("step", first === last ? first : `${first}-${last}`));
  }

  table(total, range) {
    const { judged, counted, histograms } = this.data;
    const head = [["step", "Step", "a-step"], judged && ["", "Status", "a-status"], ["", "Problem", "a-task"], ["reward", "Reward", "a-num"], histograms.advantage && ["advantage", "Advantage", "a-adv a-num"], counted ? ["tokens", "Tokens", "a-tokens a-num"] : ["length", "Characters", "a-tokens a-num"], ["", judged ? "Answer, or what failed" : "Answer", "a-text"]].filter(Boolean);
    const sort = this.query.get("sort");
    return html`<div><table class="grid-table answers" aria-rowcount=${total + 1}><thead><tr>${head.map(([name, title, kind]) => {
      const order = name && sort === name ? "ascending" : name && sort === "-" + name ? "descending" : "none";
      return html`<th scope="col" class=${kind} aria-sort=${name ? order : nothing}>${name ? html`<button @click=${() => this.show(this.query.with("sort", { none: "-" + name, descending: name, ascending: "" }[order]))}>${title}${{ ascending: " ↑", descending: " ↓", none: "" }[order]}</button>` : title}</th>`;
    })}</tr></thead>
      <tbody>${this.window.rows(total, range, (place) => this.row(place), head.length)}</tbody></table></div>`;
  }

  row(place) {
    const row = this.rows.get(place);
    if (!row) return html`<tr class="row"><td colspan="7" class="soft">…</td></tr>`;
    return html`<tr class="row ${place === this.at ? "here" : ""}" aria-rowindex=${place + 2}>
      <td class="a-step num"><a class="name" href=${row.absent ? nothing : this.answer(row)} title=${`Step ${row.step}, answer ${row.row}`}>${count(row.step)}<span class="soft">/${row.row}</span></a></td>
      ${this.data.judged ? html`<td class="a-status">${statusBadge(row.status)}</td>` : nothing}
      <td class="a-task" title=${row.task}>${row.task}${row.times > 1 ? html`<span class="times">×${count(row.times)}</span>` : nothing}</td>
      <td class="a-num num">${number(row.reward)}</td>${this.data.histograms.advantage ? html`<td class="a-adv num">${number(row.advantage)}</td>` : nothing}
      <td class="a-tokens num">${number(this.data.counted ? row.tokens : row.length)}${row.stop === "length" ? html` <span class="warn" title="cut off at the token limit">✂</span>` : nothing}</td>
      <td class="a-text peek" title=${row.failure || row.preview}>${row.failure || row.preview}</td></tr>`;
  }
  answer = (row) => link(runLink(this.params.id, "rollouts", row.step, row.row), this.query);

  key(event) {
    const by = { j: 1, k: -1 }[event.key];
    if (by) {
      this.at = Math.max(0, Math.min(this.data.rows_in_all - 1, this.at + by));
      const body = document.querySelector(".answers tbody").getBoundingClientRect().top + scrollY;
      const y = body + this.at * this.window.height;
      if (y < scrollY + 60 || y > scrollY + innerHeight - 80) scrollTo(0, y - innerHeight / 2);
      this.update();
      return true;
    }
    const row = this.rows?.get(this.at);
    if (event.key === "Enter" && row && event.target === document.body) return go(this.answer(row)), true;
    if (event.key === "f") return this.toggle("passed", "0"), true;
    return false;
  }
}
