// The page of one pair: why it failed, verdicts, agents, what happened, changes, tests, files.

const MERGED_STATUSES = ["clean", "identical"];
const MERGE_TEXTS = { missing_input: "a patch is missing" };

async function renderPair(state) {
  const pair = findPair(state.pair);
  if (!pair) {
    return h(
      "div",
      null,
      h("h1", null, "There is no such pair in these runs"),
      h("a", { href: address({ ...state, pair: null }) }, "All pairs"),
    );
  }
  const selected = selectedSeries(state);
  const series = pair.cells[selected] ? selected : pair.cells.findIndex(Boolean);
  const other = overview.series.findIndex((candidate) => candidate.id === state.vs);
  const head = [navigation(pair, series, other, state), pairHeading(pair)];
  try {
    if (other >= 0 && pair.cells[other]) {
      return h("div", null, head, await comparison(pair, series, other));
    }
    const detail = await loadDetail(pair.cells[series].id);
    return h("div", null, head, pairContent(detail, pair, series));
  } catch (error) {
    return h("div", null, head, h("p", null, `This pair cannot be shown: ${error.message}`));
  }
}

function pairHeading(pair) {
  if (!hasTitles(pair)) return h("h1", null, `${taskName(pair)}, ${pairName(pair)}`);
  return [
    h("p", { class: "quiet small" }, `${taskName(pair)}, ${pairName(pair)}`),
    h("h1", null, pairTitles(pair)),
  ];
}

function navigation(pair, series, other, state) {
  const available = overview.series.filter((candidate, index) => pair.cells[index]);
  const current = overview.series[series];
  const options = available.map((candidate) => [candidate.id, seriesName(candidate)]);
  const others = options.filter(([id]) => id !== current.id);
  const choice = (label, name, selected, values) =>
    h("span", { class: "small quiet" }, selectField(name, label + " ", selected, values));
  const step = (text, title, direction) =>
    h("button", { type: "button", title, onclick: () => openNeighbor(direction) }, text);
  return h(
    "nav",
    { class: "crumbs", "aria-label": "Where you are" },
    h("a", { href: address({ ...state, pair: null }) }, "← All pairs"),
    options.length > 1 && [
      choice("run", "run", current.id, options),
      choice("compare with", "vs", overview.series[other]?.id ?? "", [["", "nothing"], ...others]),
    ],
    h("span", { class: "grow" }),
    step("↑ Previous", "Previous pair (k)", -1),
    step("↓ Next", "Next pair (j)", 1),
  );
}

function openNeighbor(direction) {
  const state = readState();
  const pairs = shownPairs(state);
  const index = pairs.indexOf(findPair(state.pair));
  const next = pairs[index < 0 ? 0 : index + direction];
  if (next) location.replace(pairAddress(next, { vs: state.vs }));
}

function pairContent(detail, pair, series) {
  const lanes = new Lanes(detail, pair);
  const history = detail.entries.length
    ? [timeStrip(detail, lanes), h("p", null, unfoldButton(lanes)), lanes.element]
    : h("p", { class: "quiet" }, "There is no record of steps.");
  return h(
    "div",
    null,
    verdictBox(detail, pair, series),
    notes(detail, pair.cells[series]),
    verdictCards(detail),
    agentTable(detail, pair),
    section("What happened", null, history),
    detail.team && section("Team", null, teamFacts(detail.team)),
    detail.coordination?.agents.length > 1 &&
      section("Coordination", null, coordinationFacts(detail.coordination)),
    section("Changes", null, changes(detail)),
    section("Tests", null, testRuns(detail, pair)),
    detail.opinion &&
      section(
        "Opinion of a judge",
        "What a model thinks about why this pair failed. An opinion with quotes, no measurement: it is part of no number of this report.",
        opinion(detail.opinion),
      ),
    section("Files", null, rawFiles(detail, pair, series)),
  );
}

function unfoldButton(lanes) {
  const button = h("button", { type: "button", id: "fold", "aria-pressed": "false" });
  const update = (open) => {
    button.setAttribute("aria-pressed", String(open));
    button.textContent = open ? "Fold all (e)" : "Unfold all (e)";
  };
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-pressed") !== "true";
    update(open);
    lanes.setAllOpen(open);
  });
  update(false);
  return button;
}

// Everything a reader needs to know first: how the pair ended, and the failing tests with their
// errors.
function verdictBox(detail, pair, series) {
  const { sentence } = overview.outcomes[detail.outcome];
  const conflicting = detail.merged?.conflicting_files ?? [];
  const isExplained = detail.failures.length > 0 || conflicting.length > 0;
  return h(
    "div",
    { class: `why is-${detail.outcome}` },
    h(
      "p",
      { class: "ended" },
      outcomeNode({ ...detail, mismatches: pair.cells[series].mismatches }),
      h("span", { class: "quiet" }, ` in ${seriesName(overview.series[series])}: ${sentence}`),
    ),
    detail.outcome === "conflict" &&
      conflicting.length > 0 &&
      h("p", null, "git cannot merge ", h("code", null, conflicting.join(", "))),
    detail.failures.map((failure) => failedTest(failure, pair)),
    !isExplained && detail.reason && !detail.error && h("p", null, detail.reason),
  );
}

function subjectName(subject) {
  if (subject === "merged") return "the merge";
  if (subject === "lead") return "the lead's patch";
  if (subject === "shared") return "the shared patch";
  return `${subject}'s patch`;
}

function failedTest(failure, pair) {
  const { subject, feature_id: feature, tests_failed: failed, tests_run: total } = failure;
  const numbers = total ? `${failed} of ${count(total, "test")}` : "the tests";
  const title = `${subjectName(subject)} fails ${numbers} of ${featureName(pair, feature)}`;
  return h(
    "div",
    { class: "failure" },
    h("p", { class: "small" }, title[0].toUpperCase() + title.slice(1)),
    failure.test && h("p", null, h("code", { class: "test" }, failure.test)),
    h("p", null, h("code", { class: "error" }, failure.error)),
    failure.excerpt && h("pre", null, markLine(failure.excerpt, failure.error)),
    h(
      "button",
      { type: "button", class: "plain small", onclick: () => showTestRun(subject, feature) },
      "Full output",
    ),
  );
}

// The text with the line of an error marked.
function markLine(text, error) {
  const line = text.split("\n").find((candidate) => candidate.includes(error));
  if (!line) return text;
  const start = text.indexOf(line);
  return [text.slice(0, start), h("mark", null, line), text.slice(start + line.length)];
}

function testRunId(subject, feature) {
  return `tests-${subject}-f${feature}`;
}

function showTestRun(subject, feature) {
  const node = byId(testRunId(subject, feature));
  if (!node) return;
  node.open = true;
  flash(node);
}

function notes(detail, cell) {
  const lines = [
    detail.error,
    ...mismatchTexts(cell.mismatches).map((text) => `mismatch: ${text}`),
    detail.unsound && `unsound: ${detail.unsound}`,
    ...detail.suspicious.map((text) => `suspicious: ${text}`),
    ...detail.review_notes.map((text) => `review note: ${text}`),
    ...detail.problems,
    ...detail.earlier_attempts,
  ];
  const unique = [...new Set(lines.filter(Boolean))];
  if (!unique.length) return null;
  return h(
    "div",
    { class: "notes small" },
    h(
      "ul",
      null,
      unique.map((line) => h("li", null, line)),
    ),
  );
}

function successText(success, yes, no) {
  if (success) return h("span", { class: "says yes" }, `✓ ${yes}`);
  return h("span", { class: "says no" }, `✗ ${no}`);
}

function testCounts(detail, subject) {
  const runs = detail.tests.filter((run) => run.subject === subject);
  if (!runs.length) return "no tests ran";
  const sum = (key) => runs.reduce((total, run) => total + run[key], 0);
  return `${sum("tests_passed")} passed, ${sum("tests_failed")} failed`;
}

function verdictCard(title, success, ...lines) {
  const shown = lines.filter(Boolean);
  return h(
    "li",
    null,
    h("div", { class: "what" }, title),
    success,
    shown.map((line) => h("div", { class: "small quiet" }, line)),
  );
}

function verdictCards(detail) {
  const { merged } = detail;
  const evaluated = detail.agents.filter((agent) => typeof agent.success === "boolean");
  if (!evaluated.length && !merged) return null;
  const agentCard = (agent) =>
    verdictCard(
      `${agent.id}'s patch alone`,
      successText(agent.success, "passes", "fails"),
      testCounts(detail, agent.id),
    );
  return h(
    "ul",
    { class: "verdict" },
    evaluated.map(agentCard),
    merged && detail.patches.length > 1 && [mergeCard(merged), mergedTestsCard(detail)],
    merged && isShared(detail) && sharedPatchCard(detail),
  );
}

// One patch of all agents, who worked on one tree: there is nothing to merge.
function isShared(detail) {
  return detail.patches[0] === "shared";
}

function sharedPatchCard(detail) {
  return verdictCard(
    "the shared patch",
    successText(detail.merged.success, "passes all tests", "fails"),
    testCounts(detail, "shared"),
  );
}

function mergeCard(merged) {
  const status = merged.merge_status;
  const text = MERGE_TEXTS[status] ?? status;
  const files = merged.conflicting_files?.join(", ");
  const order = merged.clean_order?.join(", ");
  return verdictCard(
    "plain git merge",
    successText(MERGED_STATUSES.includes(status), text, text),
    files || (status === "clean" ? "no conflicts" : merged.detail),
    order && `would merge in the order ${order}`,
  );
}

function mergedTestsCard(detail) {
  return verdictCard(
    detail.merged.strategy === "union" ? "union merge" : "merged",
    successText(detail.merged.success, "passes all tests", "fails"),
    testCounts(detail, "merged"),
  );
}

function agentTable(detail, pair) {
  const known = detail.agents.filter((agent) => agent.has_result);
  if (!known.length) return null;
  const columns = [
    { title: "agent" },
    { title: "feature" },
    { title: "model and agent" },
    { title: "ended" },
    { title: "steps", number: true },
    { title: "tokens in", number: true },
    { title: "tokens out", number: true },
    { title: "cost", number: true },
    { title: "time", number: true },
    { title: "patch", number: true },
  ];
  const row = (agent) => [
    h("span", { class: `lane-head l${detail.agents.indexOf(agent) + 1}` }, agent.id),
    agent.feature_ids.map((feature) => featureName(pair, feature)).join(", "),
    [agent.model, agent.agent].filter(Boolean).join(" · ") || "–",
    h("span", { title: agent.error }, (agent.status ?? "–").replaceAll("_", " ")),
    whole(agent.steps),
    whole(agent.prompt_tokens),
    whole(agent.completion_tokens),
    money(agent.cost),
    duration(agent.duration_seconds),
    isShared(detail) ? "shared" : size(agent.patch_bytes),
  ];
  const rows = known.map(row);
  if (known.length > 1) rows.push(totalRow(known, detail));
  return h("div", { class: "agents" }, dataTable(columns, rows));
}

function totalRow(agents, detail) {
  const sum = (key) => {
    const values = agents.map((agent) => agent[key]);
    return values.includes(null) ? null : values.reduce((total, value) => total + value, 0);
  };
  return [
    h("strong", null, agents.length === 2 ? "both agents" : `all ${agents.length} agents`),
    "",
    "",
    "",
    whole(sum("steps")),
    whole(sum("prompt_tokens")),
    whole(sum("completion_tokens")),
    money(sum("cost")),
    h("span", { title: "from the first start to the last end" }, duration(detail.seconds)),
    isShared(detail) ? "" : size(sum("patch_bytes")),
  ];
}

function testRuns(detail, pair) {
  if (!detail.tests.length) return h("p", { class: "quiet" }, "No tests have run.");
  return detail.tests.map((run) => testRun(run, detail, pair));
}

function testRun(run, detail, pair) {
  const { subject, feature } = run;
  const facts = [`${run.tests_passed ?? 0} passed`, `${run.tests_failed ?? 0} failed`];
  if (run.tests_skipped) facts.push(`${run.tests_skipped} skipped`);
  facts.push(duration(run.duration_seconds ?? 0));
  if (run.timed_out) facts.push("timed out");
  const failure = detail.failures.find(
    (candidate) => candidate.subject === subject && candidate.feature_id === feature,
  );
  const output = run.output || "Nothing was printed, or it was not kept.";
  const lacking = (label, tests) =>
    tests?.length > 0 &&
    h(
      "p",
      { class: "small" },
      `${label}, though they pass with the golden patch: ${tests.join(", ")}`,
    );
  const node = h(
    "details",
    { class: "raw", id: testRunId(subject, feature) },
    h(
      "summary",
      null,
      successText(run.success, "", ""),
      h("span", null, `${subjectName(subject)} on the tests of ${featureName(pair, feature)}`),
      h("span", { class: "quiet small" }, facts.join(", ")),
      run.error && h("span", { class: "small bad" }, run.error),
    ),
    lacking("missing", run.missing_tests),
    lacking("skipped", run.skipped_tests),
    h("pre", null, failure ? markLine(output, failure.error) : output),
  );
  node.addEventListener("toggle", () => scrollToMark(node));
  node.open = run.success === false;
  return node;
}

// Scrolls an output, not the page, to its marked line.
function scrollToMark(node) {
  const mark = node.querySelector("mark");
  const output = mark?.closest("pre");
  if (output) output.scrollTop = mark.offsetTop - output.offsetTop - output.clientHeight / 2;
}

function rawFiles(detail, pair, series) {
  const { run, setting } = overview.series[series];
  const folder = `${run}/${setting}/${pair.repo}/${pair.task}/${pair.name}`;
  const fileNode = (file) => {
    const name = h("code", null, file.name);
    const bytes = h("span", { class: "quiet small" }, size(file.bytes));
    if (file.text === undefined) {
      return h("div", { class: "raw" }, h("div", { class: "small" }, name, "  ", bytes));
    }
    return h(
      "details",
      { class: "raw" },
      h("summary", { class: "small" }, name, bytes),
      h("pre", null, file.text),
    );
  };
  return [
    h("p", { class: "quiet small" }, "In ", h("code", null, folder)),
    detail.files.map(fileNode),
  ];
}
