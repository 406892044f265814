// All pairs: filters, sorting, and rows that are made as they come into sight.

const CHUNK = 120;
const COLUMNS = [["messages", "messages", (cell) => cell.messages], ["steps", "steps", (cell) => cell.steps],
  ["cost", "cost", (cell) => money(cell.cost)], ["time", "time", (cell) => duration(cell.seconds)]];
const MOST_OUTCOME_COLUMNS = 4;
let table = { pairs: [], made: 0, at: -1 };

function pairSection() {
  const state = readState();
  const body = h("tbody", null);
  const more = h("p", { class: "quiet small", role: "status", id: "found" });
  const holder = h("div", null, filters(state), h("table", { class: "pairs" }, tableHead(state), body), more);
  table = { ...table, body, more, made: 0, pairs: shownPairs(state), series: focusSeries(state) };
  const end = h("div", { "aria-hidden": "true" });
  holder.append(end);
  new IntersectionObserver(addRowsInSight, { rootMargin: "800px" }).observe(end);
  addRows();
  return holder;
}

function shownSeries() {
  return overview.series.length <= MOST_OUTCOME_COLUMNS ? overview.series.map((_, at) => at) : [table.series ?? focusSeries(readState())];
}

function choice(name, label, state, options) {
  return h("label", null, label, h("select", { name, onchange: (event) => change({ [name]: event.target.value }) },
    options.map(([value, text]) => h("option", { value, selected: (state[name] ?? "") === value }, text))));
}

function filters(state) {
  const series = overview.series[focusSeries(state)];
  const of = (outcome) => series?.counts[outcome] ?? 0;
  const failed = Object.keys(overview.outcomes).filter(isFailure).reduce((sum, one) => sum + of(one), 0);
  const kinds = Object.entries(overview.outcomes).filter(([outcome]) => of(outcome) || state.outcome === outcome);
  return h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
    overview.series.length > 1 && choice("run", "run", { run: series?.id }, overview.series.map((one) => [one.id, seriesName(one)])),
    overview.repos.length > 1 && choice("repo", "repository", state, [["", "all"], ...overview.repos.map((repo) => [repo, repoName(repo)])]),
    choice("outcome", "outcome", state, [["", "any"], ["failed", `failed in any way (${failed})`],
      ...kinds.map(([outcome, { short }]) => [outcome, `${short} (${of(outcome)})`])]),
    h("label", null, "find", h("input", { type: "search", name: "q", value: state.q ?? "", placeholder: "repository, task, error  ( / )",
      oninput: (event) => change({ q: event.target.value }) })),
    (state.repo || state.outcome || state.q) && h("button", { type: "button", onclick: () => change({ repo: "", outcome: "", q: "" }) }, "Show all"));
}

function tableHead(state) {
  const heading = (key, text, numeric) => {
    const here = (SORTS[state.sort] ? state.sort : "pair") === key;
    const order = here ? (state.dir === "desc" ? "descending" : "ascending") : "none";
    const next = here ? (state.dir === "desc" ? "" : "desc") : numeric ? "desc" : "";
    return h("th", { "aria-sort": order, class: numeric ? "number" : null, scope: "col" },
      h("button", { type: "button", onclick: () => change({ sort: key === "pair" ? "" : key, dir: next }) }, text));
  };
  const focus = focusSeries(state);
  table.series = focus;
  return h("thead", null, h("tr", null, heading("pair", "pair"),
    shownSeries().map((at) => (at === focus ? heading("outcome", seriesName(overview.series[at])) : h("th", { scope: "col" }, seriesName(overview.series[at])))),
    COLUMNS.map(([key, text]) => heading(key, text, true))));
}

function addRows() {
  if (!table.body || table.made >= table.pairs.length) return sayFound();
  const next = table.pairs.slice(table.made, table.made + CHUNK);
  table.body.append(...next.map((pair, at) => rowOf(pair, table.made + at)));
  table.made += next.length;
  return sayFound();
}

// An observer tells of changes only: where the end is still in sight after more rows, because a reader scrolled on before
// the next frame, it would stay silent. Observed anew, it tells how things are.
function addRowsInSight(seen, observer) {
  if (!seen.some((one) => one.isIntersecting)) return;
  const end = seen.at(-1).target;
  addRows();
  observer.unobserve(end);
  if (table.made < table.pairs.length) observer.observe(end);
}

function sayFound() {
  const all = overview.pairs.length;
  if (table.more) table.more.textContent = table.pairs.length === all ? count(all, "pair") : `${table.pairs.length} of ${count(all, "pair")}`;
}

function rowOf(pair, at) {
  const cell = pair.cells[table.series];
  return h("tr", { class: at === table.at ? "here" : null, onclick: (event) => { if (!event.target.closest("a")) location.hash = pairAddress(pair); } },
    h("td", null, h("a", { href: pairAddress(pair) }, h("span", { class: "repo" }, repoName(pair.repo)), ` ${pair.task} `, pairName(pair))),
    shownSeries().map((series) => h("td", { "data-label": overview.series.length > 1 ? overview.series[series].setting : null },
      pair.cells[series] ? outcomeNode(pair.cells[series]) : h("span", { class: "quiet" }, "–"))),
    COLUMNS.map(([, text, value]) => h("td", { class: "number", "data-label": text }, cell?.ended ? value(cell) : "–")));
}

// Filters keep their focus and the page its place: only rows and heading are made anew.
function updateTable() {
  const old = byId("pairs");
  if (!old) return;
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const caret = focused?.name === "q" ? focused.selectionStart : null;
  table.at = -1;
  const made = section("Pairs", null, pairSection());
  old.replaceWith(made);
  if (focused?.name) {
    const again = made.querySelector(`[name="${focused.name}"]`);
    again?.focus({ preventScroll: true });
    if (caret !== null) again?.setSelectionRange(caret, caret);
  }
}

function moveTo(step) {
  const at = Math.min(Math.max(table.at + step, 0), table.pairs.length - 1);
  while (table.made <= at && table.made < table.pairs.length) addRows();
  table.body?.children[table.at]?.classList.remove("here");
  table.at = at;
  const row = table.body?.children[at];
  row?.classList.add("here");
  row?.scrollIntoView({ block: "nearest" });
}
