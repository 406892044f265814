// The first page: the coordination deficit of each model, what it rests on, and all pairs.

const SETTING_TEXTS = {
  coop: "coop: one agent for each feature",
  solo: "solo: one agent for all features",
  team: "team: a lead and members",
};
const SHOWN_PROBLEMS = 200;
const FIRST_MEASURES = 12;

function renderOverview() {
  return h(
    "div",
    null,
    headline(),
    mismatchList(),
    overview.left_out.map((line) => h("p", { class: "quiet" }, line)),
    section("How pairs ended", null, endings()),
    section("Success rates", null, successRates()),
    overview.agent_curves.length > 0 &&
      section("Number of agents", null, overview.agent_curves.map(agentCurve)),
    overview.workload.length > 0 &&
      section(
        "Constant workload",
        "The same features with other numbers of agents. One agent is solo.",
        overview.workload.map(workloadFigure),
      ),
    overview.difficulty && section("Difficulty", null, difficulty()),
    overview.coupling.length > 0 &&
      section(
        "Coupling",
        "Pairs by how closely their golden patches are coupled: do agents fail at merging text, or at agreeing on meaning?",
        overview.coupling.map(textTable),
      ),
    overview.studies.length > 0 &&
      section("Study", null, overview.studies.map(studyFigures)),
    overview.forks.trees.length > 0 &&
      section(
        "Forks",
        "A recorded pair that goes on from one point several times: with an intervention, and without one (control).",
        overview.forks.tables.map(textTable),
        overview.forks.trees.map(forkTree),
      ),
    section("Cost and time", null, costAndTime()),
    overview.team.rows.length > 0 &&
      section(
        "Teams",
        "By lead: the lead's patch alone passes the tests of all features. It is part of no verdict.",
        teamTable(overview.team),
      ),
    overview.coordination.length > 0 &&
      section(
        "Coordination",
        "Computed from messages, steps and patches on disk; the definitions are in docs/coordination.md.",
        coordinationTable(),
      ),
    section("Pairs", null, pairSection()),
    uncheckedList(),
    unreadableFiles(),
    h("p", { class: "quiet small" }, `Made by CooperBench ${overview.version}, ${overview.time}.`),
  );
}

function section(title, introduction, ...children) {
  return h(
    "section",
    { id: title.toLowerCase().replaceAll(" ", "-") },
    h("h2", null, title),
    introduction && h("p", { class: "quiet" }, introduction),
    children,
  );
}

// Files that do not fit together, before all numbers.
function mismatchList() {
  const { mismatches } = overview;
  if (!mismatches.length) return null;
  return section(
    "Mismatches",
    `Something on disk does not fit. Numbers marked ${MISMATCH_MARK} rest on it; the definitions are in docs/statistics.md.`,
    noteList(mismatches),
  );
}

function uncheckedList() {
  const { unchecked } = overview;
  if (!unchecked.length) return null;
  return section(
    "Not checked",
    "There is no record of this, mostly because an older version made the run.",
    noteList(unchecked),
  );
}

function unreadableFiles() {
  const { problems } = overview;
  if (!problems.length) return null;
  return section(
    "What could not be read",
    `${count(problems.length, "line")}; none of it is part of a rate.`,
    noteList(problems),
  );
}

function noteList(texts) {
  const hidden = texts.length - SHOWN_PROBLEMS;
  const lines = texts.slice(0, SHOWN_PROBLEMS).map((line) => h("li", null, line));
  return h(
    "div",
    { class: "notes small" },
    h("ul", null, lines, hidden > 0 && h("li", null, `… ${hidden} more`)),
  );
}

// The deficit of every model, in the same size: none is promoted. A single one also gets a figure.
function headline() {
  const { deficits, without_solo: withoutSolo } = overview;
  if (!deficits.length) return rateHeadline();
  const names = withoutSolo.map((id) => seriesName(findSeries(id))).join(", ");
  return h(
    "div",
    { id: "deficit" },
    h("p", { class: "eyebrow" }, "Coordination deficit"),
    deficits.length === 1 ? deficitFigure(deficits[0]) : deficitIntroduction(deficits),
    deficitPlots(deficits),
    names &&
      h("p", { class: "quiet small" }, `No solo run of the same agent and model for ${names}.`),
  );
}

function deficitFigure(row) {
  const { coordination_deficit: deficit, retention } = row;
  const solo = percent(row.first_rate.value);
  const together = percent(row.second_rate.value);
  const facts = [
    hasInterval(deficit) ? `95 % interval ${pointsInterval(deficit)}` : pointsInterval(deficit),
    `${count(row.n, "pair")} in ${count(deficit.clusters, "task")}`,
    `McNemar p ${pValue(row.mcnemar_p)}`,
  ];
  if (retention.value !== null) facts.push(`retention ${percent(retention.value)}`);
  return h(
    "div",
    { class: "headline" },
    h(
      "div",
      { class: "figure" },
      hundredths(deficit.value, 1),
      h("span", { class: "unit" }, ` percentage points${mismatchMark(row.affected)}`),
    ),
    h(
      "div",
      null,
      h(
        "p",
        null,
        `One agent alone solves ${solo} of the pairs; together, with an agent for each feature, they solve ${together}.`,
      ),
      h("p", { class: "quiet" }, facts.join("; ") + "."),
      unsoundNote([row]),
      h("p", { class: "quiet small" }, comparisonName(row)),
    ),
  );
}

function deficitIntroduction(deficits) {
  const models = count(deficits.length, "comparison");
  return [
    h(
      "p",
      null,
      `What is lost when several agents share the work of one: ${models} of solo and coop or team on the same pairs, in alphabetical order.`,
    ),
    unsoundNote(deficits),
  ];
}

function unsoundNote(deficits) {
  const unsound = deficits.reduce((sum, row) => sum + row.unsound, 0);
  if (!unsound) return null;
  const text = `${count(unsound, "unsound pair")} among them; report --sound-only leaves them out.`;
  return h("p", { class: "quiet" }, text);
}

function pValue(p) {
  return p < 0.001 ? "< 0.001" : `= ${p.toFixed(3)}`;
}

function comparisonName(row) {
  const name = `${seriesName(findSeries(row.first))} minus ${seriesName(findSeries(row.second))}`;
  return name + mismatchMark(row.affected);
}

// The smallest range of the axis that shows every interval, zero, and `least`.
function axisRange(estimates, least) {
  const values = [0, ...least];
  for (const { value, low, high } of estimates) values.push(value, low ?? value, high ?? value);
  const known = values.filter((value) => value !== null);
  const from = Math.floor(Math.min(...known) * 10 - 1e-9) / 10;
  const to = Math.ceil(Math.max(...known) * 10 + 1e-9) / 10;
  return { from: Math.min(0, from), to };
}

function deficitPlots(deficits) {
  const rows = [...deficits].sort((row, other) => row.label.localeCompare(other.label));
  const deficitRows = rows.map((row) => ({
    label: row.label + mismatchMark(row.affected),
    setting: row.setting,
    estimate: row.coordination_deficit,
    value: `${hundredths(row.coordination_deficit.value, 1)} (${pointsInterval(row.coordination_deficit)})  n = ${row.n}`,
    note: `${comparisonName(row)}; McNemar p ${pValue(row.mcnemar_p)}`,
  }));
  const retentionRows = rows.map((row) => ({
    label: row.label + mismatchMark(row.affected),
    setting: row.setting,
    estimate: row.retention,
    value:
      row.retention.value === null
        ? "undefined: solo solves no pair"
        : `${percent(row.retention.value)} (${interval(row.retention)})  n = ${row.n}`,
    note: row.retention.note,
  }));
  const plot = (title, plotRows, least, unit) =>
    h(
      "figure",
      null,
      h("h3", null, title),
      intervalPlot(plotRows, title, {
        ...axisRange(
          plotRows.map((row) => row.estimate),
          least,
        ),
        title: unit,
      }),
    );
  return h(
    "div",
    null,
    h(
      "div",
      { class: "pair-of-charts" },
      plot("Deficit", deficitRows, [0.1], "percentage points, solo minus together, 95 % interval"),
      plot("Retention", retentionRows, [1], "% of solo's success, with 95 % interval"),
    ),
    settingsLegend(rows.map((row) => row.setting)),
    h(
      "p",
      { class: "quiet small" },
      "Right of 0 the agents lose by sharing the work. Retention is together divided by solo: 100 % means that nothing is lost.",
    ),
  );
}

// Without a solo run there is no deficit: the success of every run, in the same size.
function rateHeadline() {
  const { series, without_solo: withoutSolo } = overview;
  if (!series.length) return h("p", null, "There is nothing in these runs yet.");
  const advice = withoutSolo.length
    ? "There is no solo run of the same agent and model here: add one of the same pairs to see the coordination deficit."
    : "Add a run of the same pairs in the other setting to see the coordination deficit.";
  if (series.length > 1) return h("p", { class: "quiet" }, advice);
  const rate = series[0].all.rates.overall;
  const passed = Math.round((rate.value ?? 0) * rate.n);
  const range = rate.n ? `, 95 % interval ${interval(rate)}` : "";
  return h(
    "div",
    null,
    h("p", { class: "eyebrow" }, `${series[0].setting}, overall success`),
    h(
      "div",
      { class: "headline" },
      h(
        "div",
        { class: "figure" },
        rate.n ? hundredths(rate.value) : "–",
        h("span", { class: "unit" }, ` % of pairs${affectedMark("overall", series[0].all)}`),
      ),
      h(
        "div",
        null,
        h("p", null, `${passed} of ${count(rate.n, "evaluated pair")}${range}.`),
        h("p", { class: "quiet" }, advice),
      ),
    ),
  );
}

function endings() {
  const isUsed = (outcome) => overview.series.some((series) => series.counts[outcome]);
  const bars = overview.series.map((series) => ({
    label: seriesName(series),
    counts: series.counts,
    onSelect: (outcome) => {
      changeState({ run: series.id, outcome });
      byId("pairs").scrollIntoView();
    },
  }));
  const legendItem = ([outcome, { short, sentence }]) =>
    h("li", { title: sentence }, swatch(outcome), short);
  return h(
    "figure",
    null,
    outcomeBars(bars, "How the pairs of each run ended"),
    h(
      "ul",
      { class: "legend" },
      Object.entries(overview.outcomes)
        .filter(([outcome]) => isUsed(outcome))
        .map(legendItem),
    ),
    h(
      "figcaption",
      null,
      "Number of pairs by the first thing that went wrong. Click a part to see its pairs.",
    ),
  );
}

// The verdicts as the overview names them, the one that counts first.
function verdicts() {
  const { overall, ...others } = overview.verdicts;
  return Object.entries({ overall, ...others });
}

function rateValue(rate) {
  if (!rate.n) return "n = 0";
  return `${percent(rate.value)}  (${interval(rate)})  n = ${rate.n}`;
}

function rateRow(label, rate, setting) {
  const facts = [];
  if (rate.clusters) facts.push(count(rate.clusters, "task"));
  if (rate.design_effect) facts.push(`design effect ${rate.design_effect.toFixed(1)}`);
  facts.push(rate.method);
  return { label, setting, estimate: rate, value: rateValue(rate), note: facts.join(", ") };
}

function affectedMark(number, row) {
  return mismatchMark(row.affected.includes(number));
}

function verdictRows(verdict) {
  const rows = [];
  for (const series of overview.series) {
    const { rates, sound_rates: soundRates, unsound } = series.all;
    if (!rates[verdict]) continue;
    const mark = affectedMark(verdict, series.all);
    rows.push(rateRow(seriesName(series) + mark, rates[verdict], series.setting));
    if (unsound) {
      const label = `without ${count(unsound, "unsound pair")}${mark}`;
      rows.push(rateRow(label, soundRates[verdict], series.setting));
    }
  }
  return rows.length ? [{ heading: verdict }, ...rows] : [];
}

function repositoryRows(repo) {
  const known = overview.series.filter((series) => series.by_repo[repo]);
  const row = (series) => {
    const part = series.by_repo[repo];
    const label = seriesName(series) + affectedMark("overall", part);
    return rateRow(label, part.rates.overall, series.setting);
  };
  return [{ heading: repoName(repo) }, ...known.map(row)];
}

function successRates() {
  const rows = verdicts().flatMap(([verdict]) => verdictRows(verdict));
  const meanings = verdicts().map(([verdict, meaning]) => `${verdict}: ${meaning}`);
  let caption = meanings.join("; ") + ". Intervals take pairs of one task as one cluster.";
  if (overview.series.some((series) => series.all.unsound)) {
    caption += " Unsound: tests of a feature pass without the feature.";
  }
  const doubtful = overview.series.filter((series) => series.all.suspicious);
  const doubtText = (series) =>
    `${seriesName(series)}: ${series.all.suspicious} suspicious: the tests may not have decided. Type suspicious into find to list these pairs.`;
  const unconfirmed = overview.series.filter((series) => series.all.unconfirmed);
  const unconfirmedText = (series) =>
    `${seriesName(series)}: ${series.all.unconfirmed} of ${count(series.all.successes, "success", "successes")} not confirmed by tests that must fail.`;
  return h(
    "figure",
    null,
    intervalPlot(rows, "Success rates with 95 % intervals"),
    settingsLegend(overview.series.map((series) => series.setting)),
    h("figcaption", null, caption),
    doubtful.map((series) => h("p", { class: "small" }, doubtText(series))),
    unconfirmed.map((series) => h("p", { class: "small" }, unconfirmedText(series))),
    overview.repos.length > 1 &&
      h(
        "details",
        null,
        h("summary", null, "Overall, by repository"),
        intervalPlot(overview.repos.flatMap(repositoryRows), "Overall success by repository"),
      ),
  );
}

function settingsLegend(settings) {
  const items = [...new Set(settings)].map((setting) => ({
    setting,
    name: SETTING_TEXTS[setting],
  }));
  return legend(items, "whisker");
}

// Success over the number of agents, and how often patches merge: the agents' and golden ones.
function agentCurve({ runs, setting, points, left_out: leftOut, unit }) {
  const styles = [
    { setting: "coop", name: "overall", estimate: (point) => point.rates.overall },
    { setting: "solo", name: "merge", estimate: (point) => point.rates.merge },
    { setting: "golden", name: "golden patches merge", estimate: (point) => point.golden },
  ];
  const counted = points.map((point) => ({ ...point, n: point.groups }));
  const { curves, ticks } = curvesOverNumbers(counted, styles, unit);
  const { n, clusters } = points[0].rates.overall;
  let caption = `${runs.join(", ")} (${setting}): nested groups of the same features, ${count(n, "largest group")} of ${count(clusters, "task")}, 95 % intervals over tasks.`;
  if (leftOut) caption += ` ${count(leftOut, "group")} not nested left out.`;
  return h(
    "figure",
    null,
    curveChart(
      curves,
      `Success by number of ${unit}`,
      ticks,
      `${unit}; below it the number of groups`,
    ),
    legend(curves, "curve"),
    h("figcaption", null, caption),
  );
}

// The same features with one, two, … agents: success as a chart, all measures as a table.
function workloadFigure({ curve, table }) {
  const styles = [
    { setting: "coop", name: "overall", estimate: (point) => point.means.overall },
    { setting: "solo", name: "merge", estimate: (point) => point.means.merge },
  ];
  const counted = curve.points.map((point) => ({ ...point, n: curve.groups }));
  const { curves, ticks } = curvesOverNumbers(counted, styles, "agents");
  return h(
    "figure",
    null,
    curveChart(
      curves,
      `Success of ${curve.features} features by number of agents`,
      ticks,
      "agents; below it the number of groups",
    ),
    legend(curves, "curve"),
    textTable(table),
  );
}

// The levels of each factor as a chart and a table; then the effects of all factors.
function studyFigures({ factors, effects }) {
  return h("div", null, factors.map(levelFigure), textTable(effects));
}

function levelFigure({ curve, table }) {
  if (!curve.is_ordered) return textTable(table);
  const styles = [
    { setting: "coop", name: "overall", estimate: (point) => point.means.overall },
    { setting: "solo", name: "merge", estimate: (point) => point.means.merge },
  ];
  const counted = curve.points.map((point) => ({
    ...point,
    label: point.level,
    n: (point.means.overall ?? point.means.merge)?.n ?? 0,
  }));
  const { curves, ticks } = curvesOverNumbers(counted, styles, curve.factor);
  return h(
    "figure",
    null,
    curveChart(curves, `Success by ${curve.factor}`, ticks, `${curve.factor}; below it the pairs`),
    legend(curves, "curve"),
    textTable(table),
  );
}

// Curves and ticks for points at whole numbers, which need not be equally far apart.
function curvesOverNumbers(points, styles, unit) {
  const position = (index) => 0.04 + (0.92 * index) / (points.length - 1);
  const curves = styles
    .filter(({ estimate }) => points.some(estimate))
    .map(({ estimate, ...style }) => ({
      ...style,
      points: points
        .map((point, index) => ({
          ...estimate(point),
          known: Boolean(estimate(point)),
          x: position(index),
          at: `${point.label ?? point.agents} ${unit}`,
          n: point.n,
        }))
        .filter((point) => point.known),
    }));
  const ticks = points.map((point, index) => ({
    x: position(index),
    text: String(point.label ?? point.agents),
  }));
  return { curves, ticks };
}

function bucketCurve(curve, setting, side) {
  const points = curve.buckets.map((bucket) => {
    const center = (bucket.low + bucket.high) / 2;
    return { ...bucket[side], x: center, at: `difficulty ${center.toFixed(2)}` };
  });
  return { setting, name: setting, points };
}

// One chart for each model, and one for all of them where there are several.
function difficulty() {
  const { curves, configurations, scores, unscored } = overview.difficulty;
  const names = [...new Set(curves.map((curve) => curve.configuration))];
  const settings = ["solo", ...new Set(curves.map((curve) => curve.setting))];
  let caption = `Difficulty of a pair: 1 − mean solo success over ${count(configurations.length, "configuration")}, rescaled to 0…1; ${count(scores, "pair")} in ten buckets, Wilson 95 % intervals.`;
  if (unscored) caption += ` ${count(unscored, "pair")} without a solo verdict left out.`;
  return h(
    "figure",
    null,
    h("div", { class: "pair-of-charts" }, names.map(difficultyChart)),
    legend(
      settings.map((setting) => ({ setting, name: setting })),
      "curve",
    ),
    h("figcaption", null, caption),
    h("div", { class: "scroller" }, areaTable(curves)),
  );
}

function difficultyChart(configuration) {
  const own = overview.difficulty.curves.filter((curve) => curve.configuration === configuration);
  const curves = [
    bucketCurve(own[0], "solo", "solo"),
    ...own.map((curve) => bucketCurve(curve, curve.setting, "together")),
  ].filter((curve) => curve.points.some((point) => point.n));
  const title = configuration === "all" ? "All models" : configuration;
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((value) => ({ x: value, text: String(value) }));
  return h(
    "div",
    { class: "chart" },
    h("h3", null, title),
    curveChart(curves, `Success by difficulty: ${title}`, ticks, "difficulty of the pair"),
  );
}

function areaTable(curves) {
  const area = (value) => (value === null ? "–" : value.toFixed(3).replace("-", "−"));
  const columns = [
    { title: "model" },
    { title: "setting" },
    { title: "area solo", number: true },
    { title: "area together", number: true },
    { title: "difference", number: true },
    { title: "retention", number: true },
  ];
  const rows = curves.map((curve) => [
    curve.configuration,
    curve.setting,
    area(curve.solo_area),
    area(curve.together_area),
    area(curve.delta_area),
    percent(curve.retention),
  ]);
  return dataTable(columns, rows);
}

function textTable({ title, rows: [headings, ...rows], notes }) {
  const columns = headings.map((heading) => ({ title: heading }));
  return h(
    "div",
    null,
    title && h("h3", null, title),
    h("div", { class: "scroller" }, dataTable(columns, rows)),
    notes.map((line) => h("p", { class: "quiet small" }, line)),
  );
}

// The recorded run, the fork point, and a branch for each fork: how it ended, where it diverged.
function forkTree({ run, fork_point, repo, task, name, replayed, branches }) {
  const branch = ({ arm, series, outcome, divergence }) =>
    h(
      "li",
      { class: "branch" },
      h("a", { href: pairAddress({ repo, task, name }, { run: series }) }, arm),
      " ",
      outcomeNode({ outcome }),
      " ",
      h(
        "span",
        { class: "quiet small" },
        divergence || (isEnded(outcome) ? "does the same as in the recorded run" : ""),
      ),
    );
  return h(
    "div",
    { class: "forks" },
    h("h3", null, `${repoName(repo)} ${task} ${name}`),
    h("ul", null, [
      h("li", null, `recorded in ${run}`, h("ul", null, [
        h("li", null, `replayed to ${fork_point} (${replayed})`, h("ul", null, branches.map(branch))),
      ])),
    ]),
  );
}

function isEnded(outcome) {
  return overview.outcomes[outcome]?.judged;
}

function costAndTime() {
  const rows = (key, format) =>
    overview.series
      .filter((series) => series[key].total)
      .map((series) => ({
        label: seriesName(series) + (key === "cost" ? affectedMark("cost", series.all) : ""),
        setting: series.setting,
        low: series[key].p10,
        middle: series[key].median,
        high: series[key].p90,
        value: `median ${format(series[key].median)}, total ${format(series[key].total)}, n = ${series[key].n}`,
      }));
  const chart = (title, plotRows, unit, format) =>
    h(
      "figure",
      null,
      h("h3", null, title),
      plotRows.length
        ? rangePlot(plotRows, unit, format, title)
        : h("p", { class: "quiet" }, "None is on record."),
    );
  return [
    h(
      "div",
      { class: "pair-of-charts" },
      chart("Cost of a pair", rows("cost", money), "US dollars", money),
      chart("Time of a pair", rows("seconds", duration), "wall-clock time", duration),
    ),
    h(
      "p",
      { class: "quiet small" },
      "Cost adds up the model calls of all agents of a pair; time is from the start of the first agent to the end of the last. Tests are not included. Mark: median. Bar: from the 10th to the 90th percentile of pairs.",
    ),
  ];
}

function teamTable({ columns: sums, rows }) {
  const titles = ["pairs", "by lead", ...Object.values(sums)];
  const columns = [{ title: "run" }, ...titles.map((title) => ({ title, number: true }))];
  const cells = rows.map((row) => [
    row.run,
    row.pairs,
    rateValue(row.integrated_by_lead),
    ...Object.keys(sums).map((name) => Math.round(row.sums[name])),
  ]);
  return h("div", { class: "scroller" }, dataTable(columns, cells));
}

function coordinationTable() {
  const names = new Set();
  for (const run of overview.coordination) for (const row of run.rows) names.add(row.name);
  const first = [...names].slice(0, FIRST_MEASURES);
  const rest = [...names].slice(FIRST_MEASURES);
  return [
    measureTable(first),
    rest.length > 0 &&
      h(
        "details",
        null,
        h("summary", null, count(rest.length, "more measure")),
        measureTable(rest),
      ),
  ];
}

function measureTable(names) {
  const cell = (run, name) => {
    const measure = run.rows.find((row) => row.name === name);
    if (!measure) return "–";
    return [measure.value, h("span", { class: "quiet small" }, ` n = ${measure.n}`)];
  };
  const columns = [
    { title: "mean or share, with 95 % interval" },
    ...overview.coordination.map((run) => ({
      title: seriesName(findSeries(run.series)),
      number: true,
    })),
  ];
  const rows = names.map((name) => [name, ...overview.coordination.map((run) => cell(run, name))]);
  return h("div", { class: "scroller" }, dataTable(columns, rows, "measures"));
}
