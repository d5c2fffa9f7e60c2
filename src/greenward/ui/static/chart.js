// Curves: the only file that touches uPlot. A host element keeps its chart, which is drawn again for new data.
import { getBytes, api, number, say } from "/static/core.js";

const uPlot = () => window.uPlot;
export const COLOURS = ["main", "second", "control", "third", "fourth", "fifth"];
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3], [12, 4], [4, 4]];
export const colour = (index) => COLOURS[index % COLOURS.length];
export const dash = (index) => DASHES[Math.floor(index / COLOURS.length) % DASHES.length] ?? [];
const charts = new Set();
const sync = { key: "curves" };

export async function readCurves(run, keys, { from = "", to = "", px = 400, smooth = 1 } = {}, signal) {
  const query = keys.map((key) => "key=" + encodeURIComponent(key)).join("&");
  const range = (from !== "" ? `&from=${from}` : "") + (to !== "" ? `&to=${to}` : "");
  const bytes = await getBytes(`${api("runs", run, "series")}?${query}${range}&px=${px}&smooth=${smooth}`, signal);
  const size = new DataView(bytes).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, size)));
  let at = 4 + size;
  const take = (kind, length) => {
    const part = new kind(bytes.slice(at, at + length * kind.BYTES_PER_ELEMENT));
    at += part.byteLength;
    return part;
  };
  const curves = new Map();
  for (const one of head.curves) {
    const found = { ...one, x: new Float64Array(0), mean: new Float32Array(0) };
    if (!one.missing) {
      found.x = take(Float64Array, one.count);
      found.mean = take(Float32Array, one.count);
      if (!one.raw) {
        found.low = take(Float32Array, one.count);
        found.high = take(Float32Array, one.count);
      }
      if (one.smooth) {
        found.smoothX = take(Float64Array, one.smooth);
        found.smoothY = take(Float32Array, one.smooth);
      }
    }
    curves.set(one.key, found);
  }
  return { curves, share: head.share, rows: head.rows };
}

const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
function resolved(name) {
  // light-dark() is resolved by the browser where it is used as a colour.
  const probe = document.createElement("i");
  probe.style.color = styleOf(name);
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
const faint = (text, share) => text.replace(/^rgb\((.*)\)$/, `rgba($1, ${share})`);
const plain = (values) => Array.from(values, (value) => (Number.isFinite(value) ? value : null));
const positive = (values) => values.map((value) => (value > 0 ? value : null));

// lines: [{label, curve, index}]; marks: [{step, low, high, severity}]
export function draw(host, { lines, marks = [], log = false, from, to, read, onRange }) {
  let chart = host.chart;
  const known = lines.filter((line) => line.curve && line.curve.x.length);
  if (!known.length || !uPlot()) {
    if (chart) drop(host);
    host.textContent = lines.some((line) => line.curve) ? "No finite value in this range." : "";
    return;
  }
  const tables = [], series = [{}], bands = [];
  for (const { label, curve, index } of known) {
    const shade = resolved(colour(index));
    const smooth = Boolean(curve.smooth);
    const base = series.length;
    const columns = [plain(curve.mean)];
    const single = curve.x.length === 1;
    series.push({ label, stroke: smooth ? faint(shade, 0.3) : shade, width: smooth ? 1 : 1.75, dash: dash(index), spanGaps: false, points: { show: single || curve.x.length < 40, size: 4, fill: shade } });
    if (!curve.raw) {
      columns.push(plain(curve.low), plain(curve.high));
      const edge = { stroke: "transparent", width: 0, points: { show: false }, label: "" };
      series.push(edge, { ...edge });
      bands.push({ series: [base + 2, base + 1], fill: faint(shade, 0.16) });
    }
    tables.push([plain(curve.x), ...(log ? columns.map(positive) : columns)]);
    if (smooth) {
      series.push({ label, stroke: shade, width: 2, dash: dash(index), points: { show: false } });
      const values = plain(curve.smoothY);
      tables.push([plain(curve.smoothX), log ? positive(values) : values]);
    }
  }
  const data = tables.length === 1 ? tables[0] : uPlot().join(tables, tables.map((table) => table.slice(1).map(() => 1)));
  const shape = JSON.stringify([series.map((one) => [one.label, one.stroke, one.dash]), log, bands.length]);
  host.marks = marks;
  host.read = read;
  host.onRange = onRange;
  host.lines = known;
  host.range = [from === "" || from === undefined ? null : Number(from), to === "" || to === undefined ? null : Number(to)];
  if (chart && host.shape === shape) {
    chart.setData(data);
    return;
  }
  drop(host);
  host.shape = shape;
  host.textContent = "";
  const ink = resolved("soft"), line = resolved("line");
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif", gap: 4 };
  chart = new (uPlot())({
    width: Math.max(host.clientWidth, 120),
    height: host.clientHeight || 190,
    padding: [10, 14, 0, 0],
    legend: { show: false },
    cursor: { sync, drag: { x: true, y: false, setScale: false }, points: { size: 6 }, y: false },
    scales: {
      x: { time: false, range: (u, low, high) => [host.range[0] ?? low, Math.max(host.range[1] ?? high, (host.range[0] ?? low) + 1)] },
      y: { distr: log ? 3 : 1 },
    },
    axes: [
      { ...axis, size: 26, values: (u, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? number(tick, 6) : "")) },
      { ...axis, size: 52, values: (u, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
    ],
    series, bands,
    hooks: {
      draw: [(u) => drawMarks(u, host)],
      setCursor: [(u) => readOut(u, host)],
      setSelect: [(u) => {
        if (u.select.width < 4) return;
        const low = Math.max(0, Math.floor(u.posToVal(u.select.left, "x")));
        const high = Math.ceil(u.posToVal(u.select.left + u.select.width, "x"));
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        host.onRange?.(low, high);
      }],
    },
  }, data, host);
  host.chart = chart;
  charts.add(host);
  observer.observe(host);
}

function drawMarks(u, host) {
  const { ctx } = u;
  const { left, top, width, height } = u.bbox;
  for (const mark of host.marks) {
    const shade = resolved(mark.severity === "critical" ? "bad" : "warn");
    const x = (value) => Math.min(left + width, Math.max(left, u.valToPos(value, "x", true)));
    ctx.save();
    ctx.fillStyle = faint(shade, 0.1);
    ctx.fillRect(x(mark.low), top, Math.max(1, x(mark.high) - x(mark.low)), height);
    ctx.strokeStyle = shade;
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x(mark.step), top);
    ctx.lineTo(x(mark.step), top + height);
    ctx.stroke();
    ctx.restore();
  }
}

function readOut(u, host) {
  const place = u.cursor.idx;
  if (place === null || place === undefined) return host.read?.("");
  const names = new Set(host.lines.map((line) => line.label));
  const parts = [];
  u.series.forEach((one, index) => {
    const value = index && one.label && names.has(one.label) ? u.data[index][place] : null;
    if (value !== null && value !== undefined) parts.push(names.size > 1 ? `${one.label} ${number(value, 4)}` : number(value, 4));
  });
  const text = `step ${number(u.data[0][place], 7)} · ${parts.join(" → ")}`;
  host.read?.(text);
  return text;
}

// The arrow keys move the cursor of the chart that has the focus, and what it shows is said.
export function steer(host, event) {
  const u = host.chart;
  const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!u || !by) return;
  event.preventDefault();
  const last = u.data[0].length - 1;
  const place = Math.min(last, Math.max(0, (host.place ?? (by > 0 ? -1 : last + 1)) + (Number.isFinite(by) ? by : by > 0 ? last + 1 : -last - 1)));
  host.place = place;
  u.setCursor({ left: u.valToPos(u.data[0][place], "x"), top: 20 });
  say(readOut(u, host) ?? "");
}

function drop(host) {
  observer.unobserve(host);
  host.chart?.destroy();
  host.chart = null;
  charts.delete(host);
}

const observer = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const width = Math.floor(target.clientWidth);
    if (target.chart && width && Math.abs(target.chart.width - width) > 1) target.chart.setSize({ width, height: target.clientHeight });
  }
});

export function redraw() {
  for (const host of [...charts]) {
    if (!host.isConnected) drop(host);
    else host.shape = "";
  }
}

// A picture of twice the size, of the drawing that the server makes for files.
export async function savePng(address, name) {
  const text = new TextDecoder().decode(await getBytes(address));
  const image = new Image();
  const source = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    image.src = source;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 1280;
    canvas.height = Math.round((1280 * image.height) / image.width);
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const made = await new Promise((done) => canvas.toBlob(done, "image/png"));
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(made);
    anchor.download = name;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 1000);
  } finally {
    URL.revokeObjectURL(source);
  }
}
