import { Query } from "/static/core.js";

// A bundle on a static host: answers that were kept, by address, and pages behind a #.
export const bundled = document.documentElement.hasAttribute("data-bundled");

const CHOSEN = ["first", "count", "px", "smooth", "from", "to"];
const kept = new Map();

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function canonical(address) {
  const [path, query = ""] = address.split("?");
  const parts = query.split("&").filter(Boolean).map(decode).filter((part) => !CHOSEN.includes(part.split("=")[0]));
  // The order of Python's sorted, by code points.
  parts.sort((a, b) => compare([...a], [...b]));
  return decode(path) + (parts.length ? "?" + parts.join("&") : "");
}

function compare(a, b) {
  for (let i = 0; i < Math.min(a.length, b.length); i += 1) if (a[i] !== b[i]) return a[i].codePointAt(0) - b[i].codePointAt(0);
  return a.length - b.length;
}

function once(file, read) {
  if (!kept.has(file)) kept.set(file, fetch("data/" + file).then((answer) => (answer.ok ? read(answer) : Promise.reject(new Error(`${file} of this bundle is missing.`)))));
  return kept.get(file);
}

const indexed = () => once("index.json", (answer) => answer.json());
const isList = (address) => /\/rollouts(\?|$)/.test(address);

async function fileOf(address) {
  const index = await indexed();
  const [place] = address.split("?");
  const key = canonical(place.endsWith("/series") ? place : address);
  return index[key] ?? null;
}

// What `getJson` and `getBytes` give; null where the bundle does not have it.
export async function readKept(address, asBytes) {
  const exact = await fileOf(address);
  const index = await indexed();
  const [place] = address.split("?");
  const file = exact ?? (isList(address) ? index[canonical(place)] : null);
  if (!file) return null;
  if (asBytes) return once(file, (answer) => answer.arrayBuffer());
  const found = await once(file, (answer) => answer.json());
  if (!isList(address)) return found;
  const number = (name, usual) => Number(new RegExp(`[?&]${name}=(\\d+)`).exec(address)?.[1] ?? usual);
  const first = number("first", 0);
  const conditions = file === exact ? [] : new Query(address.split("?")[1]).parts;
  const rows = filtered(found, conditions);
  if (!rows) return null;
  const shown = rows.slice(first, first + number("count", 60)).map((row) => ({ ...row, absent: !index[canonical(`${place}/${row.step}/${row.row}`)] }));
  const some = conditions.length ? { matching: rows.length, total: found.rows.length, here: true } : {};
  return { ...found, ...some, rows: shown, rows_in_all: rows.length, kept: rows.length };
}

const NAMED = { problem: "task", status: "status", stop: "stop", error: "error", group: "group" };

// The kept rows that conditions hold for, in their order; null where a list does not tell.
function filtered({ rows, columns }, conditions) {
  for (const { name, operator, value: wanted } of conditions) {
    const limit = Number(wanted);
    if (CHOSEN.includes(name)) continue;
    if (name === "step" && operator === "=") {
      const [low, high = low] = wanted.split("-");
      rows = rows.filter(({ step }) => step >= low && step <= (high || Infinity));
    } else if (name === "task") rows = rows.filter(({ task }) => task.includes(wanted));
    else if (NAMED[name]) rows = rows.filter((row) => (name === "problem" ? [wanted] : wanted.split(",")).includes(row[NAMED[name]]));
    else if (limit === limit && (/^(step|passed|advantage|tokens|length)$/.test(name) || (name === "reward" && columns.roles.length < 2)))
      rows = rows.filter((row) => {
        const has = name === "passed" ? row.status === "passed" : row[name];
        const over = has === null ? NaN : has - limit;
        return (over === 0 && operator.includes("=")) || (over > 0 && operator[0] === ">") || (over < 0 && operator[0] === "<");
      });
    else return null;
  }
  return rows;
}

// Where the page is: its path and query.
export function here() {
  if (!bundled) return { path: location.pathname, query: location.search };
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  return { path, query: query ? "?" + query : "" };
}

export const addressed = (address) => (bundled ? "#" + address : address);

// Links are written as for the server; those to files that the bundle does not have are hidden by the style.
export function mend(root) {
  if (!bundled) return;
  for (const anchor of root.querySelectorAll('a[href^="/"]')) {
    const address = anchor.getAttribute("href");
    if (anchor.hasAttribute("download")) mendFile(anchor, address).catch(() => {});
    else anchor.setAttribute("href", "#" + address);
  }
}

async function mendFile(anchor, address) {
  const file = await fileOf(address);
  if (file === null || anchor.getAttribute("href") !== address) return;
  anchor.href = "data/" + file;
  anchor.download ||= (/key=([^&]*)/.exec(decode(address))?.[1] ?? "data").replaceAll("/", "-") + file.slice(file.indexOf("."));
}
