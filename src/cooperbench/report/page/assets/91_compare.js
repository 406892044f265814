// Two runs of the same pair, side by side.

const DIFFERENCES = [
  ["outcome", outcomeNode, null],
  ["messages", (cell) => cell.messages, (change) => change],
  ["steps", (cell) => cell.steps, (change) => change],
  ["cost", (cell) => money(cell.cost), (change, one, other) => money(Math.abs(other.cost - one.cost)), "cost"],
  ["time", (cell) => duration(cell.seconds), (change, one, other) => duration(Math.abs(other.seconds - one.seconds)), "seconds"],
];

async function comparison(pair, one, other) {
  const sides = [one, other];
  const loaded = await Promise.all(sides.map((series) => detailOf(pair.cells[series].id)));
  const cells = sides.map((series) => pair.cells[series]);
  return h("div", { class: "comparison" },
    h("table", null,
      h("thead", null, h("tr", null, h("th", null, ""), sides.map((series) => h("th", null, seriesName(overview.series[series]))), h("th", null, "difference"))),
      h("tbody", null, DIFFERENCES.map(([name, value, difference, key = name]) => {
        const change = difference && cells[1][key] - cells[0][key];
        return h("tr", null, h("th", { scope: "row" }, name), cells.map((cell) => h("td", { class: "number-left" }, value(cell))),
          h("td", null, !difference ? (cells[0].outcome === cells[1].outcome ? "same" : "changed") : change === 0 ? "same" : `${change < 0 ? "−" : "+"}${difference(Math.abs(change), ...cells)}`));
      }))),
    h("div", { class: "sides" }, loaded.map((detail, at) => column(detail, sides[at]))));
}

function column(detail, series) {
  const names = laneNames(detail);
  return h("div", { class: "side" }, h("h2", null, seriesName(overview.series[series])), notes(detail), verdict(detail),
    h("h3", null, "In time"), strip(detail, null),
    h("h3", null, "Messages"), detail.messages.length ? detail.messages.map((message) => messageNode(message, names)) : h("p", { class: "quiet small" }, "None."),
    h("h3", null, "Changes"), detail.diffs.map((file) => changedFile(file, detail.agents, true)),
    h("h3", null, "Tests"), tests(detail));
}
