// Where data comes from: inside this file, from files beside it, or from `cooperbench view`.

let overview = prepared(JSON.parse(byId("overview").textContent));
const details = new Map();

// Of each series what the page shows: its rates, and counts and spreads over its pairs.
function prepared(made) {
  made.series.forEach((series, at) => {
    const rows = made.rates.filter((row) => row.run === series.run && row.setting === series.setting);
    const cells = made.pairs.map((pair) => pair.cells[at]).filter(Boolean);
    const ended = cells.filter((cell) => cell.ended);
    series.all = rows.find((row) => row.repo === null);
    series.by_repo = Object.fromEntries(rows.filter((row) => row.repo !== null).map((row) => [row.repo, row.rates.overall]));
    series.counts = {};
    for (const { outcome } of cells) series.counts[outcome] = (series.counts[outcome] ?? 0) + 1;
    series.cost = spread(ended.map((cell) => cell.cost));
    series.seconds = spread(ended.map((cell) => cell.seconds));
  });
  return made;
}

// Sum, median, and the range of eight in ten.
function spread(values) {
  const sorted = [...values].sort((one, other) => one - other);
  const at = (share) => {
    const place = share * (sorted.length - 1);
    const [low, high] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
    return low + (high - low) * (place % 1);
  };
  return { n: sorted.length, total: sorted.reduce((sum, one) => sum + one, 0), p10: at(0.1), median: at(0.5), p90: at(0.9) };
}

async function unpacked(base64) {
  const binary = atob(base64.trim());
  const bytes = Uint8Array.from(binary, (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function insideText(id) {
  const found = () => byId("detail-" + id);
  if (!found() && document.readyState === "loading") {
    await new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
  }
  if (!found()) throw new Error("this pair is not in the file: it was not written to its end");
  return found().textContent;
}

const arrived = new Map();

function besideText(id) {
  globalThis.cooperbenchDetail ??= (number, text) => arrived.get(number)?.(text);
  const policy = (globalThis.cooperbenchPolicy ??= globalThis.trustedTypes?.createPolicy("cooperbench", {
    createScriptURL: (text) => text,
  }) ?? { createScriptURL: (text) => text });
  return new Promise((done, fail) => {
    arrived.set(id, done);
    const script = document.createElement("script");
    script.src = policy.createScriptURL(`${overview.folder}/${Number(id)}.js`);
    script.onerror = () => fail(new Error(`cannot read ${overview.folder}/${id}.js: it must lie beside this file`));
    script.onload = () => script.remove();
    document.head.append(script);
  });
}

async function liveDetail(id) {
  const known = details.get(id);
  const answer = await fetch(`detail/${Number(id)}`, { cache: "no-store", headers: known ? { "If-None-Match": known.tag } : {} });
  if (answer.status === 304) return known.data;
  if (!answer.ok) throw new Error(`the server says: ${answer.status} ${answer.statusText}`);
  const data = await answer.json();
  details.set(id, { tag: answer.headers.get("ETag"), data });
  return data;
}

async function detailOf(id) {
  if (overview.mode === "live") return liveDetail(id);
  if (!details.has(id)) {
    const text = overview.mode === "inside" ? insideText(id) : besideText(id);
    details.set(id, text.then(unpacked));
    details.get(id).catch(() => details.delete(id));
  }
  return details.get(id);
}

// True when there is something new.
async function refreshOverview() {
  const answer = await fetch("overview", { cache: "no-store", headers: { "If-None-Match": overview.tag } });
  if (answer.status === 304) return false;
  if (!answer.ok) throw new Error(String(answer.status));
  overview = prepared(await answer.json());
  return true;
}
