// How the agents of a pair worked together: the task list of a team, computed facts with the
// messages they rest on, and the opinion of a model.

const MAX_EVIDENCE = 40;
const MAX_EVIDENCE_CHARACTERS = 300;

function factValue(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "object") return value;
  return Object.entries(value)
    .map((entry) => entry.join(" "))
    .join(", ");
}

function yesOrNo(value) {
  if (value === null) return "–";
  return value ? "yes" : "no";
}

function teamFacts({ features, metrics, integrated_by_lead: byLead, tasks }) {
  const disabled = Object.keys(features).filter((part) => !features[part]);
  const facts = [
    ["integrated by the lead", yesOrNo(byLead)],
    ["switched off", disabled.join(", ") || "nothing"],
    ...Object.entries(metrics),
  ];
  const fact = ([name, value]) => [
    h("dt", null, name.replaceAll("_", " ")),
    h("dd", null, factValue(value)),
  ];
  const columns = ["task", "state", "owner", "title", "note"].map((title) => ({ title }));
  const row = (task) => {
    const cells = [task.id, task.state, task.owner ?? "–", task.title, task.note];
    return cells.map(String);
  };
  return [
    h("dl", { class: "facts small" }, facts.map(fact)),
    tasks.length > 0 && dataTable(columns, tasks.map(row)),
  ];
}

// The evidence of a fact is a list of {message (its number, or null), text}.
function mentionEvidence(mention) {
  const touches = mention.touches.map(
    (touch) => `${touch.agent_id} (${touch.path}, patch line ${touch.patch_line})`,
  );
  const text = `${mention.sender} names ${mention.name}; touched by ${touches.join(", ") || "nobody"}`;
  return { message: mention.messages[0], text };
}

function overlapEvidence(found, textsOf) {
  const showAgents = found.agents.length > 2;
  const evidence = [];
  for (const overlap of found.overlaps) {
    const prefix = showAgents ? `${overlap.first} and ${overlap.second}: ` : "";
    for (const text of textsOf(overlap)) evidence.push({ message: null, text: prefix + text });
  }
  return evidence;
}

// Who changed what in a workspace that all agents share; empty if each had its own.
function workspaceRows(workspace) {
  if (!workspace) return [];
  const contribution = (agent) => {
    const files = `${count(agent.own_changes, "own change")} (+${agent.added} −${agent.removed})`;
    const joint = `${agent.joint_changes} while others ran commands too`;
    return `${agent.agent_id}: ${files}, ${joint}; last in ${count(agent.final_files.length, "file")}`;
  };
  const overwrite = ({ path, status, agents, previous_agents }) => {
    const verb = status === "D" ? "deleted" : "changed";
    return `${agents.join(" or ")} ${verb} ${path} after ${previous_agents.join(" or ")}`;
  };
  const evidence = (texts) => texts.map((text) => ({ message: null, text }));
  return [
    {
      name: "changes of the shared workspace",
      value: String(workspace.changes),
      evidence: evidence(workspace.contributions.map(contribution)),
    },
    {
      name: "changes of files that another had changed",
      value: String(workspace.overwrites.length),
      evidence: evidence(workspace.overwrites.map(overwrite)),
    },
  ];
}

// Facts about how the agents worked together: {name, value, evidence}.
function coordinationRows(found) {
  const shares = (key) =>
    found.agents
      .filter((agent) => agent[key] !== null)
      .map((agent) => `${agent.agent_id} ${percent(agent[key])}`)
      .join(", ");
  const counted = (name, evidence) => ({ name, value: evidence.length || "", evidence });
  const mentions = found.mentions ?? [];
  const mentioned = (condition) => mentions.filter(condition).map(mentionEvidence);
  const both = found.agents.length > 2 ? "two agents" : "both";
  const files = overlapEvidence(found, (overlap) =>
    Object.entries(overlap.files).map(
      ([path, changes]) => `${path}: ${count(changes, "overlapping change")}`,
    ),
  );
  const sent = found.agents.map((agent) => `${agent.agent_id} ${agent.sent}`).join(", ");
  const rows = [
    { name: "messages sent", value: found.messages_known ? sent : "not on record", evidence: [] },
    { name: "steps on messages", value: shares("step_share"), evidence: [] },
    { name: "tokens on messages", value: shares("token_share"), evidence: [] },
    counted("questions", found.questions),
    counted("repetitions", found.repetitions),
    counted("never shown to their reader", found.never_shown),
    counted(
      "named, and touched by the sender",
      mentioned((mention) => mention.touched_by_sender),
    ),
    counted(
      "named, and touched only by others",
      mentioned((mention) => mention.touched_by_other && !mention.touched_by_sender),
    ),
    counted(
      "named, and touched by nobody",
      mentioned((mention) => !mention.touches.length),
    ),
    {
      name: `files changed by ${both}`,
      value: found.overlaps.length ? String(files.length) : "",
      evidence: files,
    },
    counted(
      `functions and classes changed by ${both}`,
      overlapEvidence(found, (overlap) => overlap.symbols),
    ),
    ...workspaceRows(found.workspace),
  ];
  return rows.filter((row) => row.value);
}

function messageLink(number, text) {
  const onclick = () => showMessage(number);
  return h("button", { type: "button", class: "plain", onclick }, text);
}

function coordinationFacts(found) {
  const item = ({ message, text }) =>
    h(
      "li",
      null,
      message && [messageLink(message, `message ${message}`), ": "],
      text.slice(0, MAX_EVIDENCE_CHARACTERS),
    );
  const list = (evidence) => {
    const hidden = evidence.length - MAX_EVIDENCE;
    return h(
      "ul",
      null,
      evidence.slice(0, MAX_EVIDENCE).map(item),
      hidden > 0 && h("li", null, `… ${hidden} more`),
    );
  };
  const fact = ({ name, value, evidence }) => [
    h("dt", null, name),
    h("dd", null, value, evidence.length > 0 && list(evidence)),
  ];
  return h("dl", { class: "facts small" }, coordinationRows(found).map(fact));
}

function listOrEmpty(value) {
  return Array.isArray(value) ? value : [];
}

// judge.json as it is on disk; what is missing in it is left out.
function opinion({ model, judged_at: time, label, problems }) {
  const symptom = ({ symptom: name, why, quotes }) =>
    h(
      "li",
      null,
      h("strong", { title: overview.labels[name] }, String(name).replaceAll("_", " ")),
      why && `: ${why}`,
      h("ul", { class: "quiet" }, listOrEmpty(quotes).map(quoteNode)),
    );
  return h(
    "div",
    { class: "opinion" },
    h(
      "p",
      null,
      h("span", { class: "tag" }, "opinion"),
      " ",
      model ?? "an unnamed model",
      time && h("span", { class: "quiet small" }, ` ${time}`),
    ),
    causeNode(label?.cause, listOrEmpty(problems)),
    label?.summary && h("p", null, label.summary),
    h("ul", { class: "small" }, listOrEmpty(label?.symptoms).map(symptom)),
  );
}

function causeNode(cause, problems) {
  if (!cause) return h("p", { class: "quiet" }, problems[0] ?? "It gave no usable answer.");
  const meaning = overview.labels[cause];
  return h(
    "p",
    null,
    h("strong", null, cause === "none" ? "no cause in their cooperation" : cause),
    meaning && h("span", { class: "quiet" }, `: ${meaning}`),
  );
}

function quoteNode({ source, text }) {
  const number = /^message:(\d+)$/.exec(source)?.[1];
  const name = String(source).replace(":", " ");
  return h("li", null, number ? messageLink(number, name) : name, ": ", h("q", null, text));
}

function showMessage(number) {
  const node = main.querySelector(`[data-message="${Number(number)}"]`);
  if (node) flash(node);
}
