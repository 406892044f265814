// What is shown is in the address: it can be shared, and going back works.

const FILTERS = ["run", "repo", "outcome", "q", "sort", "dir"];

function readState() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const state = Object.fromEntries(new URLSearchParams(query));
  const [kind, repo, task, features] = path.split("/").map(decodeURIComponent);
  if (kind === "pair" && features) state.pair = { repo, task: Number(task), name: features };
  return state;
}

function address(state) {
  const pair = state.pair ? ["pair", state.pair.repo, state.pair.task, state.pair.name].map(encodeURIComponent).join("/") : "";
  const query = new URLSearchParams(
    [...FILTERS, ...(state.pair ? ["vs"] : [])].filter((key) => state[key]).map((key) => [key, state[key]]));
  return "#/" + pair + (query.size ? "?" + query : "");
}

// Filters change the address without an entry in the history; opening and leaving a pair makes one.
function change(changes, { step = false } = {}) {
  const target = address({ ...readState(), ...changes });
  if (target === (location.hash || "#/")) return;
  if (step) location.hash = target;
  else {
    history.replaceState(null, "", target);
    show();
  }
}

function pairAddress(pair, more = {}) {
  return address({ ...readState(), vs: "", ...more, pair: { repo: pair.repo, task: pair.task, name: pair.name } });
}

function focusSeries(state) {
  const named = overview.series.findIndex((one) => one.id === state.run);
  if (named >= 0) return named;
  const coop = overview.series.findIndex((one) => one.setting === "coop");
  return Math.max(0, coop);
}

// One number or text a pair for each column that can be sorted by; null goes last in either direction.
const SORTS = {
  pair: (pair) => pair.order,
  outcome: (pair, series) => pair.cells[series] && Object.keys(overview.outcomes).indexOf(pair.cells[series].outcome),
  messages: (pair, series) => pair.cells[series]?.messages ?? null,
  steps: (pair, series) => pair.cells[series]?.steps ?? null,
  cost: (pair, series) => pair.cells[series]?.cost ?? null,
  time: (pair, series) => pair.cells[series]?.seconds ?? null,
};

function shownPairs(state) {
  const series = focusSeries(state);
  const words = (state.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const found = overview.pairs.filter((pair) => {
    const cell = pair.cells[series];
    if (state.repo && pair.repo !== state.repo) return false;
    if (state.outcome && !hasOutcome(cell, state.outcome)) return false;
    const text = `${pair.repo} task${pair.task} ${pair.name} ${cell?.error ?? ""} ${cell?.unsound ? "unsound" : ""} ${cell?.suspicious ? "suspicious" : ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const key = SORTS[state.sort] ?? SORTS.pair;
  const sign = state.dir === "desc" ? -1 : 1;
  const compared = (one, other) => {
    const [a, b] = [key(one, series), key(other, series)];
    if (a === null || b === null || a === undefined || b === undefined) return (a == null) - (b == null);
    return sign * (a - b);
  };
  return found.sort((one, other) => compared(one, other) || one.order - other.order);
}

function isFailure(outcome) {
  return outcome !== "passed" && Boolean(overview.outcomes[outcome]?.judged);
}

function hasOutcome(cell, wanted) {
  if (wanted === "failed") return isFailure(cell?.outcome);
  return (cell?.outcome ?? "missing") === wanted;
}
