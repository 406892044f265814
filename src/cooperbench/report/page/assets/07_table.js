// All pairs: filters, sorting, and rows that are added as they come into sight.

const ROWS_PER_CHUNK = 120;
const MAX_OUTCOME_COLUMNS = 4;
const NUMBER_COLUMNS = [
  {
    key: "messages",
    title: "Messages between the agents of the pair",
    value: (cell) => whole(cell.messages),
  },
  {
    key: "steps",
    title: "Steps of all agents of the pair",
    value: (cell) => whole(cell.steps),
  },
  { key: "cost", title: "Model cost of all agents of the pair", value: (cell) => money(cell.cost) },
  {
    key: "time",
    title: "From the start of the first agent to the end of the last",
    value: (cell) => duration(cell.seconds),
  },
];
let table = { pairs: [], rendered: 0, current: -1 };

function pairSection() {
  const state = readState();
  const series = selectedSeries(state);
  const body = h("tbody", null);
  const status = h("p", { class: "quiet small", role: "status", id: "found" });
  const end = h("div", { "aria-hidden": "true" });
  table = { ...table, body, status, rendered: 0, pairs: shownPairs(state), series };
  const container = h(
    "div",
    null,
    filters(state),
    columnNote(),
    h("table", { class: "pairs" }, tableHead(state), body),
    status,
    end,
  );
  new IntersectionObserver(addRowsInSight, { rootMargin: "800px" }).observe(end);
  addRows();
  return container;
}

// With several runs in the table a reader cannot know whose numbers these are.
function columnNote() {
  const series = overview.series[table.series];
  if (!series) return null;
  const agents =
    series.setting === "solo"
      ? "steps and cost are of its only agent"
      : "steps and cost add up all agents of a pair";
  const text = `Reason and numbers are of ${seriesName(series)}: ${agents}.`;
  return h("p", { class: "quiet small", id: "column-note" }, text);
}

function shownSeries() {
  if (overview.series.length > MAX_OUTCOME_COLUMNS) return [table.series];
  return overview.series.map((series, index) => index);
}

function selectField(name, label, selected, options) {
  const onchange = (event) => changeState({ [name]: event.target.value });
  const option = ([value, text]) => h("option", { value, selected: value === selected }, text);
  return h("label", null, label, h("select", { name, onchange }, options.map(option)));
}

function filters(state) {
  const series = overview.series[selectedSeries(state)];
  const number = (outcome) => series?.counts[outcome] ?? 0;
  const failures = Object.keys(overview.outcomes).filter(isFailure);
  const failed = failures.reduce((sum, outcome) => sum + number(outcome), 0);
  const outcomes = Object.entries(overview.outcomes)
    .filter(([outcome]) => number(outcome) || state.outcome === outcome)
    .map(([outcome, { short }]) => [outcome, `${short} (${number(outcome)})`]);
  const runs = overview.series.map((other) => [other.id, seriesName(other)]);
  const repos = overview.repos.map((repo) => [repo, repoName(repo)]);
  const isFiltered = state.repo || state.outcome || state.q;
  return h(
    "form",
    { class: "filters", onsubmit: (event) => event.preventDefault() },
    overview.series.length > 1 && selectField("run", "run", series?.id, runs),
    overview.repos.length > 1 &&
      selectField("repo", "repository", state.repo ?? "", [["", "all"], ...repos]),
    selectField("outcome", "outcome", state.outcome ?? "", [
      ["", "any"],
      ["failed", `failed in any way (${failed})`],
      ...outcomes,
    ]),
    h(
      "label",
      null,
      "find",
      h("input", {
        type: "search",
        name: "q",
        value: state.q ?? "",
        placeholder: "repository, task, reason  ( / )",
        oninput: (event) => changeState({ q: event.target.value }),
      }),
    ),
    isFiltered &&
      h(
        "button",
        { type: "button", onclick: () => changeState({ repo: "", outcome: "", q: "" }) },
        "Show all",
      ),
  );
}

// A heading that sorts by its column; clicked again, it sorts the other way.
function sortHeading(state, key, text, { number = false, title = null } = {}) {
  const isCurrent = (SORT_KEYS[state.sort] ? state.sort : "pair") === key;
  const isDescending = state.dir === "desc";
  let order = "none";
  let nextDirection = number ? "desc" : "";
  if (isCurrent) {
    order = isDescending ? "descending" : "ascending";
    nextDirection = isDescending ? "" : "desc";
  }
  const onclick = () => changeState({ sort: key === "pair" ? "" : key, dir: nextDirection });
  return h(
    "th",
    { "aria-sort": order, class: number ? "number" : null, scope: "col", title },
    h("button", { type: "button", onclick }, text),
  );
}

function tableHead(state) {
  const outcomeHeading = (index) => {
    const name = seriesName(overview.series[index]);
    if (index === table.series) return sortHeading(state, "outcome", name);
    return h("th", { scope: "col" }, name);
  };
  return h(
    "thead",
    null,
    h(
      "tr",
      null,
      sortHeading(state, "pair", "pair"),
      shownSeries().map(outcomeHeading),
      h("th", { scope: "col" }, "reason"),
      NUMBER_COLUMNS.map(({ key, title }) => sortHeading(state, key, key, { number: true, title })),
    ),
  );
}

function addRows() {
  if (table.body && table.rendered < table.pairs.length) {
    const next = table.pairs.slice(table.rendered, table.rendered + ROWS_PER_CHUNK);
    table.body.append(...next.map((pair, index) => pairRow(pair, table.rendered + index)));
    table.rendered += next.length;
  }
  showNumberOfPairs();
}

// An observer reports changes only. Where the end is still in sight after rows were added, because
// the reader scrolled on before the next frame, it stays silent; observing anew makes it report.
function addRowsInSight(entries, observer) {
  if (!entries.some((entry) => entry.isIntersecting)) return;
  const end = entries.at(-1).target;
  addRows();
  observer.unobserve(end);
  if (table.rendered < table.pairs.length) observer.observe(end);
}

function showNumberOfPairs() {
  if (!table.status) return;
  const all = count(overview.pairs.length, "pair");
  const isFiltered = table.pairs.length !== overview.pairs.length;
  table.status.textContent = isFiltered ? `${table.pairs.length} of ${all}` : all;
}

function pairTitles(pair) {
  return pair.features.map((feature) => featureName(pair, feature)).join(" + ");
}

function pairRow(pair, index) {
  const cell = pair.cells[table.series];
  const open = (event) => {
    if (!event.target.closest("a")) location.hash = pairAddress(pair);
  };
  const outcomeCell = (seriesIndex) => {
    const series = overview.series[seriesIndex];
    const label = overview.series.length > 1 ? series.setting : null;
    const shown = pair.cells[seriesIndex];
    const content = shown ? outcomeNode(shown) : h("span", { class: "quiet" }, "–");
    return h("td", { class: "ended", "data-label": label }, content);
  };
  const numberCell = ({ key, value }) =>
    h("td", { class: "number", "data-label": key }, cell?.ended ? value(cell) : "–");
  return h(
    "tr",
    { class: index === table.current ? "here" : null, onclick: open },
    h(
      "td",
      null,
      h(
        "a",
        { href: pairAddress(pair) },
        h("span", { class: "repo" }, repoName(pair.repo)),
        ` ${pair.task} `,
        pairName(pair),
      ),
      hasTitles(pair) &&
        h("div", { class: "titles" }, pair.titles.map((title) => title ?? "–").join(" + ")),
    ),
    shownSeries().map(outcomeCell),
    h("td", { class: "reason", title: cell?.reason }, cell?.reason ?? ""),
    NUMBER_COLUMNS.map(numberCell),
  );
}

// Filters keep the focus and the page its position: only rows and heading are made anew.
function updateTable() {
  const old = byId("pairs");
  if (!old) return;
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const caret = focused?.name === "q" ? focused.selectionStart : null;
  table.current = -1;
  const updated = section("Pairs", null, pairSection());
  old.replaceWith(updated);
  if (!focused?.name) return;
  const field = updated.querySelector(`[name="${focused.name}"]`);
  field?.focus({ preventScroll: true });
  if (caret !== null) field?.setSelectionRange(caret, caret);
}

function moveSelection(step) {
  const last = table.pairs.length - 1;
  const index = Math.min(Math.max(table.current + step, 0), last);
  while (table.rendered <= index && table.rendered < table.pairs.length) addRows();
  table.body?.children[table.current]?.classList.remove("here");
  table.current = index;
  const row = table.body?.children[index];
  row?.classList.add("here");
  row?.scrollIntoView({ block: "nearest" });
}
