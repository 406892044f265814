// Two runs of the same pair, side by side.

const COMPARED_NUMBERS = [
  { name: "messages", key: "messages", format: whole },
  { name: "steps of all agents", key: "steps", format: whole },
  { name: "cost of all agents", key: "cost", format: money },
  { name: "time", key: "seconds", format: duration },
];

async function comparison(pair, first, second) {
  const indexes = [first, second];
  const loaded = await Promise.all(indexes.map((index) => loadDetail(pair.cells[index].id)));
  const series = indexes.map((index) => overview.series[index]);
  const cells = indexes.map((index) => pair.cells[index]);
  const columns = ["", ...series.map(seriesName), "difference"].map((title) => ({ title }));
  const sameOutcome = cells[0].outcome === cells[1].outcome;
  const rows = [
    ["outcome", ...cells.map(outcomeNode), sameOutcome ? "same" : "changed"],
    ["reason", ...cells.map((cell) => cell.reason ?? "–"), ""],
    ...COMPARED_NUMBERS.map((number) => numberRow(number, cells)),
  ];
  return h(
    "div",
    { class: "comparison" },
    dataTable(columns, rows),
    h(
      "div",
      { class: "sides" },
      loaded.map((detail, index) => comparisonColumn(detail, pair, indexes[index])),
    ),
  );
}

function numberRow({ name, key, format }, cells) {
  if (cells.some((cell) => cell[key] === null)) {
    return [name, ...cells.map((cell) => format(cell[key])), UNKNOWN];
  }
  const change = cells[1][key] - cells[0][key];
  let difference = "same";
  if (change > 0) difference = "+" + format(change);
  if (change < 0) difference = "−" + format(-change);
  return [name, ...cells.map((cell) => format(cell[key])), difference];
}

function comparisonColumn(detail, pair, series) {
  const names = laneNames(detail);
  const messages = detail.messages.map((message) => messageNode(message, names));
  return h(
    "div",
    { class: "side" },
    h("h2", null, seriesName(overview.series[series])),
    notes(detail, pair.cells[series]),
    detail.failures.map((failure) => failedTest(failure, pair)),
    verdictCards(detail),
    h("h3", null, "In time"),
    timeStrip(detail, null),
    h("h3", null, "Messages"),
    messages.length ? messages : h("p", { class: "quiet small" }, "None."),
    h("h3", null, "Changes"),
    detail.diffs.map((file) => changedFile(file, detail.agents, true)),
    h("h3", null, "Tests"),
    testRuns(detail, pair),
  );
}
