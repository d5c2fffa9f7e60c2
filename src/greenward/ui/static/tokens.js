// The tokens of an answer, coloured by a number of each: a line of bars, the text, a legend and a table.
import { api, count, getJson, html, nothing, number, say, svg } from "/static/core.js";

// Bounds between the shades. Advantage has no scale of its own: its bounds are shares of the largest in the answer.
const COLOURS = {
  logprob: { title: "Log-probability", bounds: [0.01, 0.1, 0.5, 1, 2, 4], size: (value) => -value, sign: "−" },
  entropy: { title: "Entropy", bounds: [0.1, 0.3, 0.6, 1, 2, 3], size: (value) => value },
  advantage: { title: "Advantage", bounds: [0.01, 1 / 3, 2 / 3], size: (value) => value, two: true, relative: true },
  ratio: { title: "Ratio", bounds: [0.02, 0.1, 0.3], size: (value) => value - 1, two: true, middle: 1 },
  kl: { title: "KL", bounds: [0.001, 0.01, 0.03, 0.1, 0.3, 1], size: (value) => value },
};
const BARS = 300, ROWS = 100, PIECES = 1500;

export class Tokens {
  turns = null;
  at = new Map();
  first = new Map();
  constructor(update) {
    this.update = update;
  }

  async load(id, step, row, signal) {
    this.turns = (await getJson(`${api("runs", id, "tokens")}?step=${step}&row=${row}`, signal)).turns;
  }

  known = () => Object.keys(COLOURS).filter((name) => this.turns?.some((turn) => turn.numbers[name]));
  chosen = (asked) => (this.known().includes(asked) ? asked : this.known()[0]);
  next = (asked) => this.known()[(this.known().indexOf(this.chosen(asked)) + 1) % this.known().length];

  view(asked, choose) {
    if (!this.turns?.length) return nothing;
    const name = this.chosen(asked);
    return html`<section class="card stack"><h2>Tokens</h2>
      ${name ? html`<div class="bar" role="group" aria-label="Coloured by">${this.known().map((one) => html`<button class="button" aria-pressed=${one === name} @click=${() => choose(one)}>${COLOURS[one].title}</button>`)}</div>` : html`<p class="soft">No number is kept.</p>`}
      ${this.turns.map((turn, i) => this.turn(turn, i, name))}</section>`;
  }

  turn(turn, i, name) {
    const values = turn.numbers[name];
    const scale = values ? scaleOf(name, values, turn.mask) : null;
    const level = (place) => (scale && turn.mask[place] && values[place] !== null ? scale.level(values[place]) : "");
    const at = this.at.get(i);
    const begin = Math.floor((at ?? 0) / PIECES) * PIECES;
    const pieces = turn.pieces.slice(begin, begin + PIECES);
    return html`<div class="stack">${this.turns.length > 1 ? html`<h3>Turn ${i + 1} <span class="soft small">${turn.role}</span></h3>` : nothing}
      ${scale ? html`${this.bars(turn, values, scale, i)}${legend(scale)}` : html`<p class="soft">This turn has no such number: nothing in its group differed, or another process trained on it.</p>`}
      <p class="small num" data-token>${at === undefined ? html`<span class="soft">Point at a token, or use the arrow keys on the bars.</span>` : this.said(turn, at)}</p>
      <pre class="tokens" tabindex="0" @pointerover=${(event) => this.point(i, event.target.dataset?.at)}>${pieces.map((piece, j) => html`<span data-at=${begin + j} class="${level(begin + j)}${turn.mask[begin + j] ? "" : " not-own"}${begin + j === at ? " at" : ""}">${piece.replaceAll("\n", "⏎\n")}</span>`)}</pre>
      ${turn.pieces.length > PIECES ? html`<div class="bar"><button class="button" ?disabled=${begin === 0} @click=${() => this.point(i, begin - PIECES)}>Tokens before</button><span class="small num">${count(begin + 1)} to ${count(begin + pieces.length)} of ${count(turn.pieces.length)}</span><button class="button" ?disabled=${begin + PIECES >= turn.pieces.length} @click=${() => this.point(i, begin + PIECES)}>Tokens after</button></div>` : nothing}
      ${turn.rest ? html`<p class="soft">${count(turn.rest)} more tokens are in the file.</p>` : nothing}
      ${this.table(turn, i)}</div>`;
  }

  said = (turn, at) => `token ${count(at + 1)} “${turn.pieces[at]}”: ${Object.entries(turn.numbers).map(([name, values]) => `${COLOURS[name].title.toLowerCase()} ${number(values[at])}`).join(", ")}${turn.mask[at] ? "" : " (not written by the policy)"}`;

  point(i, at) {
    if (at === undefined) return;
    this.at.set(i, Number(at));
    this.update();
  }

  steer(event, turn, i) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = Math.min(turn.pieces.length - 1, Math.max(0, (this.at.get(i) ?? -1) + by));
    this.point(i, at);
    say(this.said(turn, at));
  }

  // Several tokens share a bar where there are many: that of the largest size.
  bars(turn, values, scale, i) {
    const each = Math.ceil(values.length / BARS);
    const width = 100 / Math.ceil(values.length / each);
    const bars = [];
    for (let begin = 0; begin < values.length; begin += each) {
      let best = null;
      for (let place = begin; place < Math.min(begin + each, values.length); place += 1)
        if (values[place] !== null && turn.mask[place] && (best === null || Math.abs(scale.size(values[place])) > Math.abs(scale.size(values[best])))) best = place;
      if (best === null) continue;
      const size = scale.size(values[best]) / scale.most;
      const high = scale.two ? 23 * Math.min(1, Math.abs(size)) : 46 * Math.min(1, Math.max(0, size));
      bars.push(svg`<rect class=${scale.two ? (size < 0 ? "below" : "above") : ""} x=${(begin / each) * width} width=${Math.max(width * 0.86, 0.2)} y=${scale.two ? (size < 0 ? 25 : 25 - high) : 48 - high} height=${Math.max(high, 0.6)}></rect>`);
    }
    const numbers = values.filter((value) => value !== null);
    const mean = numbers.reduce((sum, value) => sum + value, 0) / Math.max(1, numbers.length);
    return html`<svg class="bars heat" viewBox="0 0 100 50" preserveAspectRatio="none" tabindex="0" role="img" aria-label=${`${scale.title} of ${count(values.length)} tokens: mean ${number(mean)}, least ${number(least(numbers))}, largest ${number(-least(numbers.map((value) => -value)))}. Arrow keys read tokens.`} @keydown=${(event) => this.steer(event, turn, i)}>${bars}</svg>`;
  }

  table(turn, i) {
    const names = Object.keys(turn.numbers);
    const first = this.first.get(i) ?? 0;
    const places = turn.pieces.map((_, place) => place).slice(first, first + ROWS);
    const move = (by) => {
      this.first.set(i, first + by);
      this.update();
    };
    return html`<details><summary>Table</summary><div class="stack"><div class="scroll" tabindex="0" role="region" aria-label="Numbers by token"><table class="narrow"><thead><tr><th scope="col">#</th><th scope="col">Token</th>${names.map((name) => html`<th scope="col" class="right">${COLOURS[name].title}</th>`)}<th scope="col">Written by</th></tr></thead>
      <tbody>${places.map((place) => html`<tr><td class="num">${count(place + 1)}</td><td class="mono">${turn.pieces[place].replaceAll("\n", "⏎")}</td>${names.map((name) => html`<td class="num right">${number(turn.numbers[name][place], 4)}</td>`)}<td>${turn.mask[place] ? "policy" : "environment"}</td></tr>`)}</tbody></table></div>
      ${turn.pieces.length > ROWS ? html`<div class="bar"><button class="button" ?disabled=${first === 0} @click=${() => move(-ROWS)}>Earlier</button><span class="small num">${count(first + 1)} to ${count(first + places.length)} of ${count(turn.pieces.length)}</span><button class="button" ?disabled=${first + ROWS >= turn.pieces.length} @click=${() => move(ROWS)}>Later</button></div>` : nothing}</div></details>`;
  }
}

const least = (numbers) => numbers.reduce((low, value) => Math.min(low, value), Infinity);

function scaleOf(name, values, mask) {
  const { bounds, size, two, relative, title, sign = "", middle = 0 } = COLOURS[name];
  const own = values.filter((value, place) => value !== null && mask[place]).map(size);
  const most = Math.max(-least(own.map((value) => -Math.abs(value))), 1e-9);
  const edges = relative ? bounds.map((bound) => bound * most) : bounds;
  const level = (value) => {
    const found = size(value);
    const step = edges.filter((edge) => Math.abs(found) >= edge).length;
    return step === 0 ? "" : two ? (found < 0 ? `below-${step}` : `above-${step}`) : `shade-${step}`;
  };
  return { title, two, most, size, level, edges, sign, middle };
}

function legend({ title, two, edges, sign, middle }) {
  const shown = (value) => (middle ? number(middle + value) : sign + number(value));
  const steps = two
    ? [...edges.map((edge, i) => [`below-${i + 1}`, `≤ ${middle ? number(middle - edge) : "−" + number(edge)}`]).reverse(), ...edges.map((edge, i) => [`above-${i + 1}`, `≥ ${shown(edge)}`])]
    : edges.map((edge, i) => [`shade-${i + 1}`, `${sign ? "≤" : "≥"} ${shown(edge)}`]);
  return html`<p class="tokens legend small"><span class="soft">${title}:</span>${steps.map(([kind, text]) => html`<span class=${kind}>${text}</span>`)}</p>`;
}
