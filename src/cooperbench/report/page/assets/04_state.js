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
  let path = "";
  const keys = [...FILTERS];
  if (state.pair) {
    const parts = ["pair", state.pair.repo, state.pair.task, state.pair.name];
    path = parts.map(encodeURIComponent).join("/");
    keys.push("vs");
  }
  const query = new URLSearchParams();
  for (const key of keys) if (state[key]) query.set(key, state[key]);
  return "#/" + path + (query.size ? "?" + query : "");
}

// Filters replace the address; opening and leaving a pair (`newEntry`) adds to the history.
function changeState(changes, { newEntry = false } = {}) {
  const target = address({ ...readState(), ...changes });
  if (target === (location.hash || "#/")) return;
  if (newEntry) {
    location.hash = target;
  } else {
    history.replaceState(null, "", target);
    show();
  }
}

function pairAddress(pair, changes = {}) {
  const { repo, task, name } = pair;
  return address({ ...readState(), vs: "", ...changes, pair: { repo, task, name } });
}

function findPair({ repo, task, name }) {
  return overview.pairs.find(
    (pair) => pair.repo === repo && pair.task === task && pair.name === name,
  );
}

// The series that the table counts and sorts by: the one in the address, else the first coop one.
function selectedSeries(state) {
  const named = overview.series.findIndex((series) => series.id === state.run);
  if (named >= 0) return named;
  const coop = overview.series.findIndex((series) => series.setting === "coop");
  return Math.max(0, coop);
}

// A number for each column that can be sorted by; null goes last in either direction.
const SORT_KEYS = {
  pair: (pair) => pair.order,
  outcome: (pair, series) => {
    const cell = pair.cells[series];
    return cell ? Object.keys(overview.outcomes).indexOf(cell.outcome) : null;
  },
  messages: (pair, series) => pair.cells[series]?.messages ?? null,
  steps: (pair, series) => pair.cells[series]?.steps ?? null,
  cost: (pair, series) => pair.cells[series]?.cost ?? null,
  time: (pair, series) => pair.cells[series]?.seconds ?? null,
};

function searchText(pair, cell) {
  const parts = [pair.repo, `task${pair.task}`, pair.name, ...pair.titles, cell?.reason];
  if (cell?.unsound) parts.push("unsound");
  if (cell?.suspicious) parts.push("suspicious");
  if (cell?.mismatches.length) parts.push("mismatch");
  return parts.filter(Boolean).join(" ").toLowerCase();
}

function comparePairs(key, sign, series) {
  return (pair, other) => {
    const value = key(pair, series);
    const otherValue = key(other, series);
    if (value === null && otherValue === null) return pair.order - other.order;
    if (value === null) return 1;
    if (otherValue === null) return -1;
    return sign * (value - otherValue) || pair.order - other.order;
  };
}

function shownPairs(state) {
  const series = selectedSeries(state);
  const terms = (state.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const matching = overview.pairs.filter((pair) => {
    const cell = pair.cells[series];
    if (state.repo && pair.repo !== state.repo) return false;
    if (state.outcome && !hasOutcome(cell, state.outcome)) return false;
    const text = searchText(pair, cell);
    return terms.every((term) => text.includes(term));
  });
  const key = SORT_KEYS[state.sort] ?? SORT_KEYS.pair;
  const sign = state.dir === "desc" ? -1 : 1;
  return matching.sort(comparePairs(key, sign, series));
}

function isFailure(outcome) {
  return outcome !== "passed" && Boolean(overview.outcomes[outcome]?.judged);
}

function hasOutcome(cell, outcome) {
  if (outcome === "failed") return isFailure(cell?.outcome);
  return (cell?.outcome ?? "missing") === outcome;
}
