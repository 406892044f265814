// One pair: verdict, lanes, diffs, tests, files; and two attempts at it side by side.

function findPair(wanted) {
  return overview.pairs.find((pair) => pair.repo === wanted.repo && pair.task === wanted.task && pair.name === wanted.name);
}

async function renderPair(state) {
  const pair = findPair(state.pair);
  if (!pair) return h("div", null, h("h1", null, "There is no such pair in these runs"), h("a", { href: address({ ...state, pair: null }) }, "All pairs"));
  const series = pair.cells[focusSeries(state)] ? focusSeries(state) : pair.cells.findIndex(Boolean);
  const other = overview.series.findIndex((one) => one.id === state.vs);
  const head = h("div", null, crumbs(pair, series, other, state),
    h("h1", null, `${repoName(pair.repo)} ${pair.task}, ${pairName(pair)}`));
  try {
    if (other >= 0 && pair.cells[other]) return h("div", null, head, await comparison(pair, series, other));
    const detail = await detailOf(pair.cells[series].id);
    return h("div", null, head, attempt(detail, pair, series));
  } catch (error) {
    return h("div", null, head, h("p", null, `This pair cannot be shown: ${error.message}`));
  }
}

function crumbs(pair, series, other, state) {
  const runs = overview.series.map((one, at) => [one, at]).filter(([, at]) => pair.cells[at]);
  const pick = (label, at, name, options) => h("label", { class: "small quiet" }, label + " ",
    h("select", { name, onchange: (event) => change({ [name]: event.target.value }) }, options.map(([value, text]) => h("option", { value, selected: value === at }, text))));
  return h("nav", { class: "crumbs", "aria-label": "Where you are" },
    h("a", { href: address({ ...state, pair: null }) }, "← All pairs"),
    runs.length > 1 && pick("run", overview.series[series].id, "run", runs.map(([one]) => [one.id, seriesName(one)])),
    runs.length > 1 && pick("compare with", overview.series[other]?.id ?? "", "vs", [["", "nothing"], ...runs.filter(([, at]) => at !== series).map(([one]) => [one.id, seriesName(one)])]),
    h("span", { class: "grow" }),
    h("button", { type: "button", title: "Previous pair (k)", onclick: () => neighbour(-1) }, "↑ Previous"),
    h("button", { type: "button", title: "Next pair (j)", onclick: () => neighbour(1) }, "↓ Next"));
}

function neighbour(step) {
  const state = readState();
  const pairs = shownPairs(state);
  const at = pairs.findIndex((pair) => pair.repo === state.pair.repo && pair.task === state.pair.task && pair.name === state.pair.name);
  const next = pairs[at < 0 ? 0 : at + step];
  if (next) location.replace(pairAddress(next, { vs: state.vs }));
}

function attempt(detail, pair, series) {
  const lanes = new Lanes(detail);
  const fold = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
    const open = fold.getAttribute("aria-pressed") !== "true";
    fold.setAttribute("aria-pressed", String(open));
    lanes.foldAll(open);
  } }, "Unfold all (e)");
  fold.id = "fold";
  return h("div", null, h("p", { class: "quiet" }, outcomeNode(detail), ` in ${seriesName(overview.series[series])}: ${overview.outcomes[detail.outcome].sentence}`),
    notes(detail), verdict(detail), agentTable(detail),
    section("What happened", null, detail.entries.length ? [strip(detail, lanes), h("p", null, fold), lanes.element] : h("p", { class: "quiet" }, "There is no record of steps.")),
    detail.team && section("Team", null, teamOf(detail.team)),
    detail.coordination?.agents.length > 1 && section("Coordination", null, coordinationOf(detail.coordination)),
    section("Changes", null, changes(detail)), section("Tests", null, tests(detail)),
    detail.opinion && section("Opinion of a judge", "What a model thinks about why this pair failed. An opinion with quotes, no measurement: it is part of no number of this report.", opinion(detail.opinion)),
    section("Files", null, rawFiles(detail, pair, series)));
}

function notes(detail) {
  const lines = [detail.error, detail.unsound && `unsound: ${detail.unsound}`, ...detail.suspicious.map((one) => `suspicious: ${one}`), ...detail.problems].filter(Boolean);
  return lines.length > 0 && h("div", { class: "notes small" }, h("ul", null, [...new Set(lines)].map((line) => h("li", null, line))));
}

function yesNo(success, yes, no) {
  return h("span", { class: `says ${success ? "yes" : "no"}` }, success ? "✓ " + yes : "✗ " + no);
}

function verdict(detail) {
  const counts = (subject) => {
    const runs = detail.tests.filter((one) => one.subject === subject);
    const sum = (key) => runs.reduce((total, one) => total + one[key], 0);
    return runs.length ? `${sum("tests_passed")} passed, ${sum("tests_failed")} failed` : "no tests ran";
  };
  const judged = detail.agents.filter((agent) => agent.success !== null && agent.success !== undefined);
  if (!judged.length && !detail.merged) return null;
  const merged = detail.merged;
  return h("ul", { class: "verdict" },
    judged.map((agent) => h("li", null, h("div", { class: "what" }, `${agent.id}'s patch alone`), yesNo(agent.success, "passes", "fails"), h("div", { class: "small quiet" }, counts(agent.id)))),
    merged && detail.agents.length > 1 && [
      h("li", null, h("div", { class: "what" }, "plain git merge"), yesNo(["clean", "identical"].includes(merged.merge_status), merged.merge_status, merged.merge_status),
        h("div", { class: "small quiet" }, merged.conflicting_files?.join(", ") || (merged.merge_status === "clean" ? "no conflicts" : merged.detail)),
        merged.clean_order && h("div", { class: "small quiet" }, `would merge in the order ${merged.clean_order.join(", ")}`)),
      h("li", null, h("div", { class: "what" }, merged.strategy === "union" ? "union merge" : "merged"), yesNo(merged.success, "passes all tests", "fails"), h("div", { class: "small quiet" }, counts("merged")))]);
}

function agentTable(detail) {
  const known = detail.agents.filter((agent) => agent.status !== undefined);
  if (!known.length) return null;
  const number = (text) => h("td", { class: "number" }, text);
  return h("div", { class: "agents" }, h("table", null,
    h("thead", null, h("tr", null, ["agent", "feature", "who", "ended"].map((text) => h("th", null, text)), ["steps", "tokens in", "tokens out", "cost", "time", "patch"].map((text) => h("th", { class: "number" }, text)))),
    h("tbody", null, known.map((agent, lane) => h("tr", null, h("td", { class: `lane-head l${lane + 1}` }, agent.id), h("td", null, agent.feature_ids.join(", ")),
      h("td", null, [agent.model, agent.agent].filter(Boolean).join(" · ") || "–"), h("td", { title: agent.error }, (agent.status ?? "–").replaceAll("_", " ")),
      number(agent.steps), number(agent.prompt_tokens.toLocaleString("en")), number(agent.completion_tokens.toLocaleString("en")), number(money(agent.cost)),
      number(duration(agent.duration_seconds)), number(size(agent.patch_bytes)))))));
}

function teamOf({ features, metrics, integrated_by_lead: byLead, tasks }) {
  const off = Object.keys(features).filter((part) => !features[part]);
  const value = (one) => (one && typeof one === "object" ? Object.entries(one).map((each) => each.join(" ")).join(", ") : one ?? "–");
  return [h("dl", { class: "facts small" }, [["integrated by the lead", byLead === null ? "–" : byLead ? "yes" : "no"], ["switched off", off.join(", ") || "nothing"],
    ...Object.entries(metrics)].map(([name, one]) => [h("dt", null, name.replaceAll("_", " ")), h("dd", null, value(one))])),
  tasks.length > 0 && h("table", { class: "small" }, h("thead", null, h("tr", null, ["task", "state", "owner", "title", "note"].map((text) => h("th", null, text)))),
    h("tbody", null, tasks.map((task) => h("tr", null, [task.id, task.state, task.owner ?? "–", task.title, task.note].map((text) => h("td", null, String(text)))))))];
}

const MOST_EVIDENCE = 40;

// What was found about how the agents worked together: a name, a value, and evidence, with a message to go to.
function coordinationRows(found) {
  const each = (key) => found.agents.filter((one) => one[key] !== null).map((one) => `${one.agent_id} ${percent(one[key])}`).join(", ");
  const at = (message, text) => ({ message, text });
  const touched = ({ touches }) => touches.map((one) => `${one.agent_id} (${one.path}, patch line ${one.patch_line})`).join(", ") || "nobody";
  const named = (holds) => (found.mentions ?? []).filter(holds).map((one) => at(one.messages[0], `${one.sender} names ${one.name}; touched by ${touched(one)}`));
  const many = found.agents.length > 2;
  const both = many ? "two agents" : "both";
  const shared = (texts) => found.overlaps.flatMap((overlap) => texts(overlap).map((text) =>
    at(null, (many ? `${overlap.first} and ${overlap.second}: ` : "") + text)));
  const files = shared((overlap) => Object.entries(overlap.files).map(([path, met]) => `${path}: ${count(met, "overlapping change")}`));
  const counted = (name, evidence) => [name, evidence.length || "", evidence];
  return [
    ["messages sent", found.messages_known ? found.agents.map((one) => `${one.agent_id} ${one.sent}`).join(", ") : "not on record", []],
    ["steps on messages", each("step_share"), []],
    ["tokens on messages", each("token_share"), []],
    counted("questions", found.questions),
    counted("repetitions", found.repetitions),
    counted("never shown to their reader", found.never_shown),
    counted("named, and touched by the sender", named((one) => one.touched_by_sender)),
    counted("named, and touched only by others", named((one) => one.touched_by_other && !one.touched_by_sender)),
    counted("named, and touched by nobody", named((one) => !one.touches.length)),
    [`files changed by ${both}`, found.overlaps.length && String(files.length), files],
    counted(`functions and classes changed by ${both}`, shared((overlap) => overlap.symbols)),
  ].filter(([, value]) => value);
}

function coordinationOf(found) {
  const item = ({ message, text }) => h("li", null,
    message ? [h("button", { type: "button", class: "plain", onclick: () => showMessage(message) }, `message ${message}`), ": "] : null, text.slice(0, 300));
  const list = (evidence) => evidence.length > 0 && h("ul", null, evidence.slice(0, MOST_EVIDENCE).map(item),
    evidence.length > MOST_EVIDENCE && h("li", null, `… ${evidence.length - MOST_EVIDENCE} more`));
  return h("dl", { class: "facts small" }, coordinationRows(found).map(([name, value, evidence]) => [h("dt", null, name), h("dd", null, value, list(evidence))]));
}

// judge.json as it is on disk; what is missing in it is left out.
function opinion({ model, judged_at: time, label, problems }) {
  const list = (value) => (Array.isArray(value) ? value : []);
  const quote = ({ source, text }) => {
    const number = /^message:(\d+)$/.exec(source)?.[1];
    const place = String(source).replace(":", " ");
    return h("li", null, number ? h("button", { type: "button", class: "plain", onclick: () => showMessage(number) }, place) : place, ": ", h("q", null, text));
  };
  const cause = label?.cause;
  return h("div", { class: "opinion" },
    h("p", null, h("span", { class: "tag" }, "opinion"), " ", model ?? "an unnamed model", time && h("span", { class: "quiet small" }, ` ${time}`)),
    cause ? h("p", null, h("strong", null, cause === "none" ? "no cause in their cooperation" : cause), overview.labels[cause] && h("span", { class: "quiet" }, `: ${overview.labels[cause]}`))
      : h("p", { class: "quiet" }, list(problems)[0] ?? "No answer of it held."),
    label?.summary && h("p", null, label.summary),
    h("ul", { class: "small" }, list(label?.symptoms).map((one) => h("li", null, h("strong", { title: overview.labels[one.symptom] }, String(one.symptom).replaceAll("_", " ")), one.why && `: ${one.why}`,
      h("ul", { class: "quiet" }, list(one.quotes).map(quote))))));
}

function showMessage(number) {
  const node = main.querySelector(`[data-message="${Number(number)}"]`);
  node?.scrollIntoView({ block: "center" });
  node?.classList.add("flash");
  setTimeout(() => node?.classList.remove("flash"), 1600);
}

function changes(detail) {
  if (!detail.diffs.length) return h("p", { class: "quiet" }, "No patch changes a file.");
  const several = detail.agents.length > 1;
  const shared = detail.diffs.filter((file) => file.shared).length;
  return [h("p", { class: "quiet" }, several
    ? `${count(detail.diffs.length, "file")} changed, ${shared} of them by ${detail.agents.length > 2 ? "several" : "both"}. Hunks that change the same or neighbouring lines of the base are marked.`
    : `${count(detail.diffs.length, "file")} changed.`),
  detail.diffs.map((file) => changedFile(file, detail.agents))];
}

function changedFile(file, agents, folded = false) {
  const tag = file.conflict ? h("span", { class: "tag conflict" }, "conflict") : file.overlap ? h("span", { class: "tag overlap" }, "overlap") : null;
  const who = file.sides.map((side, at) => side && `${agents[at].id}: ${count(side.lines, "line")}`).filter(Boolean).join(", ");
  const node = h("details", { class: "file" }, h("summary", null, h("code", null, file.path), tag, h("span", { class: "quiet small" }, who)));
  const show = () => {
    if (!node.open || node.querySelector(".sides")) return;
    // Of many agents only those who touch the file have room.
    const shown = file.sides.map((side, at) => [side, at]).filter(([side]) => side || agents.length < 3);
    node.append(h("div", { class: "sides", vars: { "--columns": shown.length } }, shown.map(([side, at]) => h("div", { class: "side" },
      agents.length > 1 && h("div", { class: `lane-head l${at + 1}` }, agents[at].id), side ? sideNode(side) : h("p", { class: "quiet small" }, "does not touch it")))));
  };
  node.addEventListener("toggle", show);
  node.open = !folded && (file.conflict || file.overlap || agents.length === 1);
  show();
  return node;
}

function sideNode(side) {
  const note = side.binary ? "a binary file" : side.new ? "a new file" : null;
  return [note && h("p", { class: "quiet small" }, note), side.hunks.map((hunk) => h("div", { class: `hunk ${hunk.mark}` },
    h("div", { class: "where" }, `line ${hunk.start}`, hunk.heading && h("span", null, hunk.heading),
      hunk.mark && h("span", { class: `tag ${hunk.mark}` }, hunk.mark === "conflict" ? "conflicts" : "overlaps")),
    h("div", { class: "code" }, hunk.lines.map((line) => h("div", { class: { "+": "plus", "-": "minus" }[line[0]] ?? null }, line)),
      hunk.cut > 0 && h("div", { class: "quiet" }, `… ${count(hunk.cut, "more line")}`))))];
}

function tests(detail) {
  if (!detail.tests.length) return h("p", { class: "quiet" }, "No tests have run.");
  return detail.tests.map((one) => {
    const summary = h("summary", null, yesNo(one.success, "", ""), h("span", null, `${one.subject === "merged" ? "the merge" : one.subject} on the tests of feature ${one.feature}`),
      h("span", { class: "quiet small" }, `${one.tests_passed ?? 0} passed, ${one.tests_failed ?? 0} failed${one.tests_skipped ? `, ${one.tests_skipped} skipped` : ""}; ${duration(one.duration_seconds ?? 0)}${one.timed_out ? "; timed out" : ""}`),
      one.error && h("span", { class: "small bad" }, one.error));
    const lacking = [["missing", one.missing_tests], ["skipped", one.skipped_tests]].filter(([, ids]) => ids?.length);
    return h("details", { class: "raw" }, summary, lacking.map(([word, ids]) => h("p", { class: "small" }, `${word}, though they pass with the golden patch: ${ids.join(", ")}`)),
      h("pre", null, one.output || "Nothing was printed, or it was not kept."));
  });
}

function rawFiles(detail, pair, series) {
  const folder = `${overview.series[series].run}/${overview.series[series].setting}/${pair.repo}/${pair.task}/${pair.name}`;
  return [h("p", { class: "quiet small" }, "In ", h("code", null, folder)), detail.files.map((file) => {
    const line = [h("code", null, file.name), h("span", { class: "quiet small" }, size(file.bytes))];
    return file.text === undefined ? h("div", { class: "raw" }, h("div", { class: "small" }, line[0], "  ", line[1])) : h("details", { class: "raw" }, h("summary", { class: "small" }, line), h("pre", null, file.text));
  })];
}
