// The first page: the one number, what it rests on, and all pairs.

// The verdicts as the overview names them, the one that counts first.
function verdicts() {
  return Object.entries(overview.verdicts).sort(([one], [other]) => (other === "overall") - (one === "overall"));
}

function rateValue(rate) {
  return rate.n ? `${percent(rate.value)}  (${interval(rate)})  n = ${rate.n}` : "n = 0";
}

function rateRow(label, rate, setting) {
  const clusters = rate.clusters ? `${count(rate.clusters, "task")}, ` : "";
  const effect = rate.design_effect ? `design effect ${rate.design_effect.toFixed(1)}, ` : "";
  return { label, setting, rate: rate.value, low: rate.low, high: rate.high, value: rateValue(rate), note: clusters + effect + rate.method };
}

function renderOverview() {
  const failures = overview.problems.length;
  return h("div", null,
    headline(),
    overview.left_out.map((line) => h("p", { class: "quiet" }, line)),
    section("How pairs ended", null, endings()),
    section("Success rates", null, rates()),
    overview.agent_curves.length > 0 && section("Number of agents", null, overview.agent_curves.map(agentCurve)),
    overview.difficulty && section("Difficulty", null, difficulty()),
    overview.ablations.length > 0 && section("Ablation", null, overview.ablations.map(ablation)),
    section("Cost and time", null, costs()),
    overview.team.rows.length > 0 && section("Teams", "By lead: the lead's patch alone passes the tests of all features. It is part of no verdict.", teamTable(overview.team)),
    overview.coordination.length > 0 && section("Coordination", "Computed from messages, steps and patches on disk; the definitions are in docs/coordination.md.", coordinationTable()),
    section("Pairs", null, pairSection()),
    failures > 0 && section("What could not be read", `${count(failures, "line")}; none of it is part of a rate.`,
      h("div", { class: "notes small" }, h("ul", null, overview.problems.slice(0, 200).map((line) => h("li", null, line)),
        failures > 200 && h("li", null, `… ${failures - 200} more`)))),
    h("p", { class: "quiet small" }, `Made by CooperBench ${overview.version}, ${overview.time}.`));
}

function section(title, words, ...children) {
  return h("section", { id: title.toLowerCase().replaceAll(" ", "-") }, h("h2", null, title), words && h("p", { class: "quiet" }, words), children);
}

function headline() {
  const [first, ...others] = overview.deficits;
  if (!first) return plainHeadline();
  const one = (id) => overview.series.find((series) => series.id === id);
  const { coordination_deficit: deficit, retention, mcnemar_p: p, unsound } = first;
  const range = ({ low, high }, none) => (low === null ? none : `${hundredths(low, 1)} to ${hundredths(high, 1)}`);
  const span = deficit.low === null ? "no interval: too few tasks" : `95 % interval ${range(deficit)}`;
  return h("div", null,
    h("p", { class: "eyebrow" }, "Coordination deficit"),
    h("div", { class: "headline" },
      h("div", { class: "figure" }, hundredths(deficit.value, 1), h("span", { class: "unit" }, " percentage points")),
      h("div", null,
        h("p", null, `One agent alone solves ${percent(first.first_rate.value)} of the pairs; together, an agent for each feature, they solve ${percent(first.second_rate.value)}.`),
        h("p", { class: "quiet" }, `${span}; ${count(first.n, "pair")} in ${count(deficit.clusters, "task")}`
          + `; McNemar p ${p < 0.001 ? "< 0.001" : "= " + p.toFixed(3)}`
          + (retention.value === null ? "." : `; retention ${percent(retention.value)}.`)),
        unsound.length > 0 && h("p", { class: "quiet" }, `${count(unsound.length, "unsound pair")} among them; report --sound-only leaves them out.`),
        h("p", { class: "quiet small" }, `${seriesName(one(first.first))} minus ${seriesName(one(first.second))}`))),
    others.length > 0 && h("div", { class: "others small scroller" }, h("table", null,
      h("thead", null, h("tr", null, ["solo", "together"].map((text) => h("th", null, text)), ["deficit, points", "95 % interval", "pairs"].map((text) => h("th", { class: "number" }, text)))),
      h("tbody", null, others.map((row) => h("tr", null, h("td", null, seriesName(one(row.first))), h("td", null, seriesName(one(row.second))),
        h("td", { class: "number" }, hundredths(row.coordination_deficit.value, 1)), h("td", { class: "number" }, range(row.coordination_deficit, "–")),
        h("td", { class: "number" }, row.n)))))),
    overview.without_solo.length > 0 && h("p", { class: "quiet small" }, `No solo run of the same agent and model for ${overview.without_solo.map((id) => seriesName(one(id))).join(", ")}.`));
}

function plainHeadline() {
  const series = overview.series[focusSeries({})];
  if (!series) return h("p", null, "There is nothing in these runs yet.");
  const rate = series.all.rates.overall;
  return h("div", null, h("p", { class: "eyebrow" }, `${series.setting}, overall success`),
    h("div", { class: "headline" }, h("div", { class: "figure" }, rate.n ? hundredths(rate.value) : "–", h("span", { class: "unit" }, " % of pairs")),
      h("div", null, h("p", null, `${Math.round((rate.value ?? 0) * rate.n)} of ${count(rate.n, "judged pair")}${rate.n ? `, 95 % interval ${interval(rate)}` : ""}.`),
        h("p", { class: "quiet" }, overview.without_solo.length > 0
          ? "There is no solo run of the same agent and model here: add one of the same pairs to see the coordination deficit."
          : "Add a run of the same pairs in the other setting to see the coordination deficit."))));
}

function endings() {
  const used = Object.keys(overview.outcomes).filter((outcome) => overview.series.some((series) => series.counts[outcome]));
  return h("figure", null,
    splitBars(overview.series.map((series) => ({ label: seriesName(series), counts: series.counts,
      onpick: (outcome) => { change({ run: series.id, outcome }); byId("pairs").scrollIntoView(); } })), "How the pairs of each run ended"),
    h("ul", { class: "legend" }, used.map((outcome) => h("li", { title: overview.outcomes[outcome].sentence }, swatch(outcome), overview.outcomes[outcome].short))),
    h("figcaption", null, "Number of pairs by the first thing that went wrong. Click a part to see its pairs."));
}

function rates() {
  const rows = verdicts().flatMap(([key]) => {
    const known = overview.series.filter((series) => series.all.rates[key]);
    return known.length ? [{ heading: key }, ...known.flatMap((series) => [rateRow(seriesName(series), series.all.rates[key], series.setting),
      ...(series.all.unsound ? [rateRow(`without ${count(series.all.unsound, "unsound pair")}`, series.all.sound_rates[key], series.setting)] : [])])] : [];
  });
  const repos = overview.repos.flatMap((repo) => [{ heading: repoName(repo) },
    ...overview.series.filter((series) => series.by_repo[repo]).map((series) => rateRow(seriesName(series), series.by_repo[repo], series.setting))]);
  return h("figure", null, forest(rows, "Success rates with 95 % intervals"), settingsLegend(),
    h("figcaption", null, verdicts().map(([key, meaning]) => `${key}: ${meaning}`).join("; ") + ". Intervals take pairs of one task as one cluster."
      + (overview.series.some((series) => series.all.unsound) ? " Unsound: tests of a feature pass without the feature." : "")),
    overview.series.filter((series) => series.all.suspicious).map((series) =>
      h("p", { class: "small" }, `${seriesName(series)}: ${series.all.suspicious} suspicious: the tests may not have decided. Type suspicious into find to list these pairs.`)),
    overview.repos.length > 1 && h("details", null, h("summary", null, "Overall, by repository"), forest(repos, "Overall success by repository")));
}

function settingsLegend() {
  const there = [...new Set(overview.series.map((series) => series.setting))];
  const words = { coop: "coop: one agent a feature", solo: "solo: one agent for all", team: "team: a lead and members" };
  return curvesLegend(there.map((setting) => ({ setting, name: words[setting] })));
}

function curvesLegend(curves) {
  return h("ul", { class: "legend" }, curves.map(({ setting, name }) => h("li", null,
    s("svg", { width: 34, height: 14, "aria-hidden": "true" }, s("line", { class: `curve ${setting}`, x1: 0, x2: 34, y1: 7, y2: 7 }), shape(setting, 17, 7)), name)));
}

// Success over the number of agents, and how often patches merge: theirs, and golden ones.
function agentCurve({ runs, setting, points, left_out: left }) {
  const unit = setting === "solo" ? "features" : "agents";
  const place = (at) => 0.04 + (0.92 * at) / (points.length - 1);
  const styles = [["coop", "overall", (point) => point.rates.overall], ["solo", "merge", (point) => point.rates.merge], ["golden", "golden patches merge", (point) => point.golden]];
  const curves = styles.filter(([, , value]) => points.some(value)).map(([style, name, value]) => ({ setting: style, name,
    points: points.flatMap((point, at) => (value(point) ? [{ ...value(point), x: place(at), at: `${point.agents} ${unit}`, n: point.groups }] : [])) }));
  return h("figure", null, curveChart(curves, `Success by number of ${unit}`, points.map((point, at) => [place(at), String(point.agents)]), `${unit}; below it the number of groups`),
    curvesLegend(curves),
    h("figcaption", null, `${runs.join(", ")} (${setting}): nested groups of the same features, ${count(points[0].rates.overall.n, "largest group")} of ${count(points[0].rates.overall.clusters, "task")}, 95 % intervals over tasks.`
      + (left ? ` ${count(left, "group")} not nested left out.` : "")));
}

function difficulty() {
  const { curves: areas, configurations, scores: pairs, unscored } = overview.difficulty;
  const all = areas.filter((one) => one.configuration === "all");
  const line = (curve, setting, side) => ({ setting, name: setting, area: curve[`${side}_area`],
    points: curve.buckets.map((bucket) => ({ ...bucket[side], x: (bucket.low + bucket.high) / 2, at: `difficulty ${((bucket.low + bucket.high) / 2).toFixed(2)}` })) });
  const curves = [line(all[0], "solo", "solo"), ...all.map((curve) => line(curve, curve.setting, "together"))];
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((at) => [at, String(at)]);
  const area = (value) => (value === null ? "–" : value.toFixed(3).replace("-", "−"));
  const missing = unscored ? ` ${count(unscored, "pair")} without a solo verdict left out.` : "";
  return h("figure", null, curveChart(curves, "Success by difficulty of the pair", ticks, "difficulty of the pair; below it n in each bucket"),
    curvesLegend(curves.map((curve) => ({ setting: curve.setting, name: `${curve.name}, area ${area(curve.area)}` }))),
    h("figcaption", null, `Difficulty of a pair: 1 − mean solo success over ${count(configurations.length, "configuration")}, rescaled to 0…1; ${count(pairs, "pair")} in ten buckets, Wilson 95 % intervals.`
      + all.map((one) => ` Area between solo and ${one.setting}: ${area(one.delta_area)}, retention ${percent(one.retention)}.`).join("") + missing),
    areas.length > 1 && h("div", { class: "scroller" }, h("table", { class: "small" },
      h("thead", null, h("tr", null, h("th", null, "configuration"), h("th", null, "setting"), ["area solo", "area together", "difference", "retention"].map((text) => h("th", { class: "number" }, text)))),
      h("tbody", null, areas.map((one) => h("tr", null, h("td", null, one.configuration), h("td", null, one.setting), [one.solo_area, one.together_area, one.delta_area].map((value) => h("td", { class: "number" }, area(value))),
        h("td", { class: "number" }, percent(one.retention))))))));
}

function ablation({ title, rows: [headings, ...rows], notes }) {
  return h("div", null, h("h3", null, title),
    h("div", { class: "scroller" }, h("table", { class: "small" },
      h("thead", null, h("tr", null, headings.map((text) => h("th", null, text)))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((text) => h("td", null, text))))))),
    notes.map((line) => h("p", { class: "quiet small" }, line)));
}

function costs() {
  const rows = (key, format) => overview.series.filter((series) => series[key].total).map((series) => ({
    label: seriesName(series), setting: series.setting, low: series[key].p10, middle: series[key].median, high: series[key].p90,
    value: `${format(series[key].total)} in all, n = ${series[key].n}` }));
  const nothing = () => h("p", { class: "quiet" }, "None is on record.");
  const [money_, time] = [rows("cost", money), rows("seconds", duration)];
  return h("div", { class: "pair-of-charts" },
    h("figure", null, h("h3", null, "Cost of a pair"), money_.length ? ranges(money_, "US dollars", money, "Cost of a pair") : nothing()),
    h("figure", null, h("h3", null, "Time of a pair"), time.length ? ranges(time, "wall-clock time of the agents", duration, "Time of a pair") : nothing()),
    h("p", { class: "quiet small" }, "Mark: median. Bar: from the 10th to the 90th percentile of pairs."));
}

const FIRST_MEASURES = 12;

function teamTable({ columns, rows }) {
  const number = (text) => h("td", { class: "number" }, text);
  return h("div", { class: "scroller" }, h("table", { class: "small" },
    h("thead", null, h("tr", null, h("th", null, "run"), ["pairs", "by lead", ...Object.values(columns)].map((text) => h("th", { class: "number" }, text)))),
    h("tbody", null, rows.map((row) => h("tr", null, h("td", null, row.run), number(row.pairs), number(rateValue(row.integrated_by_lead)),
      Object.keys(columns).map((name) => number(Math.round(row.sums[name]))))))));
}

function coordinationTable() {
  const names = [...new Set(overview.coordination.flatMap((run) => run.rows.map((row) => row.name)))];
  const [first, rest] = [names.slice(0, FIRST_MEASURES), names.slice(FIRST_MEASURES)];
  return [measures(first), rest.length > 0 && h("details", null, h("summary", null, `${count(rest.length, "more measure")}`), measures(rest))];
}

function measures(names) {
  const cell = (run, name) => run.rows.find((row) => row.name === name);
  const label = (id) => seriesName(overview.series.find((series) => series.id === id));
  return h("div", { class: "scroller" }, h("table", { class: "measures" },
    h("thead", null, h("tr", null, h("th", null, "mean or share, with 95 % interval"), overview.coordination.map((run) => h("th", { class: "number" }, label(run.series))))),
    h("tbody", null, names.map((name) => h("tr", null, h("td", null, name), overview.coordination.map((run) => {
      const one = cell(run, name);
      return h("td", { class: "number" }, one?.value ?? "–", one && h("span", { class: "quiet small" }, ` n = ${one.n}`));
    }))))));
}
