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

async function fileOf(address) {
  const [place] = address.split("?");
  const path = place.endsWith("/series") ? place : address;
  const index = await once("index.json", (answer) => answer.json());
  const key = canonical(path);
  return Object.hasOwn(index, key) ? index[key] : null;
}

// What `getJson` and `getBytes` give; null where the bundle does not have it.
export async function readKept(address, asBytes) {
  const file = await fileOf(address);
  if (file === null) return null;
  if (asBytes) return once(file, (answer) => answer.arrayBuffer());
  const found = await once(file, (answer) => answer.json());
  if (!/\/rollouts\?/.test(address) && !address.endsWith("/rollouts")) return found;
  const number = (name, usual) => Number(new RegExp(`[?&]${name}=(\\d+)`).exec(address)?.[1] ?? usual);
  const first = number("first", 0);
  return { ...found, rows: found.rows.slice(first, first + number("count", 60)), rows_in_all: found.rows.length, kept: found.rows.length };
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
