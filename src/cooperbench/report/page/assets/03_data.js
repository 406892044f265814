// Where data comes from: inside this file, from files beside it, or from `cooperbench view`.

let overview = addSeriesTotals(JSON.parse(byId("overview").textContent));
const details = new Map();

// Adds to each series what the page shows of it: its rates, and counts and spreads over its pairs.
function addSeriesTotals(data) {
  data.series.forEach((series, index) => {
    const rows = data.rates.filter(
      (row) => row.run === series.run && row.setting === series.setting,
    );
    const cells = data.pairs.map((pair) => pair.cells[index]).filter(Boolean);
    const ended = cells.filter((cell) => cell.ended);
    series.all = rows.find((row) => row.repo === null);
    series.by_repo = {};
    for (const row of rows) if (row.repo !== null) series.by_repo[row.repo] = row;
    series.counts = {};
    for (const { outcome } of cells) series.counts[outcome] = (series.counts[outcome] ?? 0) + 1;
    series.cost = spread(known(ended.map((cell) => cell.cost)));
    series.seconds = spread(known(ended.map((cell) => cell.seconds)));
  });
  return data;
}

function known(values) {
  return values.filter((value) => value !== null);
}

// Sum, median, and the 10th and 90th percentiles.
function spread(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const quantile = (share) => {
    const position = share * (sorted.length - 1);
    const low = sorted[Math.floor(position)];
    const high = sorted[Math.ceil(position)];
    return low + (high - low) * (position % 1);
  };
  return {
    n: sorted.length,
    total: sorted.reduce((sum, value) => sum + value, 0),
    p10: quantile(0.1),
    median: quantile(0.5),
    p90: quantile(0.9),
  };
}

async function decompress(base64) {
  const binary = atob(base64.trim());
  const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function readFromDocument(id) {
  const element = () => byId("detail-" + id);
  if (!element() && document.readyState === "loading") {
    await new Promise((resolve) =>
      document.addEventListener("DOMContentLoaded", resolve, { once: true }),
    );
  }
  if (!element()) throw new Error("this pair is not in the file: the file is incomplete");
  return element().textContent;
}

const pendingScripts = new Map();

// Files beside the page are scripts that call `cooperbenchDetail`: browsers do not let a page
// that was opened from disk fetch other files.
function readFromFolder(id) {
  globalThis.cooperbenchDetail ??= (number, text) => pendingScripts.get(number)?.(text);
  const allowAll = { createScriptURL: (text) => text };
  globalThis.cooperbenchPolicy ??=
    globalThis.trustedTypes?.createPolicy("cooperbench", allowAll) ?? allowAll;
  return new Promise((resolve, reject) => {
    const path = `${overview.folder}/${Number(id)}.js`;
    pendingScripts.set(id, resolve);
    const script = document.createElement("script");
    script.src = globalThis.cooperbenchPolicy.createScriptURL(path);
    script.onerror = () => reject(new Error(`cannot read ${path}: it must lie beside this file`));
    script.onload = () => script.remove();
    document.head.append(script);
  });
}

async function fetchDetail(id) {
  const known = details.get(id);
  const headers = known ? { "If-None-Match": known.tag } : {};
  const response = await fetch(`detail/${Number(id)}`, { cache: "no-store", headers });
  if (response.status === 304) return known.data;
  if (!response.ok) {
    throw new Error(`the server answered ${response.status} ${response.statusText}`);
  }
  const data = await response.json();
  details.set(id, { tag: response.headers.get("ETag"), data });
  return data;
}

async function loadDetail(id) {
  if (overview.mode === "live") return fetchDetail(id);
  if (!details.has(id)) {
    const text = overview.mode === "inside" ? readFromDocument(id) : readFromFolder(id);
    details.set(id, text.then(decompress));
    details.get(id).catch(() => details.delete(id));
  }
  return details.get(id);
}

// Returns whether there is something new.
async function refreshOverview() {
  const headers = { "If-None-Match": overview.tag };
  const response = await fetch("overview", { cache: "no-store", headers });
  if (response.status === 304) return false;
  if (!response.ok) throw new Error(String(response.status));
  overview = addSeriesTotals(await response.json());
  return true;
}
