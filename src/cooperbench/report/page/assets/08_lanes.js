// What happened, in time: a strip with one lane for each agent, and below it every entry of the
// trajectories, folded, with messages as arrows.

const ACTION_TEXTS = {
  run: "ran",
  write_file: "wrote",
  apply_patch: "patched",
  think: "thought",
  reply: "said",
  tell: "prompt",
  send_message: "message",
  receive_message: "received",
};
const TEXT_ACTIONS = ["receive_message", "think", "reply", "tell"];
const BODY_KEYS = { run: "command", apply_patch: "patch" };
const TITLE_KEYS = { write_file: "path", apply_patch: "name" };
const TICK_HEIGHTS = { write_file: 16, apply_patch: 16, run: 10 };
const OTHER_TICK_HEIGHT = 4;
const MAX_TITLE_CHARACTERS = 160;
const MAX_FOLDED_CHARACTERS = 48;
const TICK_SECONDS = [
  0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400,
];

function entryBody({ action, args }) {
  const text = args[BODY_KEYS[action] ?? "content"];
  if (typeof text === "string") return text;
  return Object.keys(args).length ? JSON.stringify(args, null, 1) : "";
}

// The first line of an entry that is not empty.
function entryTitle(entry) {
  const text = String(entry.args[TITLE_KEYS[entry.action]] ?? entryBody(entry));
  const lines = text.split("\n").map((line) => line.trim());
  const line = lines.find(Boolean) ?? "";
  if (line.length <= MAX_TITLE_CHARACTERS) return line;
  return line.slice(0, MAX_TITLE_CHARACTERS) + " …";
}

function laneNames(detail) {
  return detail.agents.map((agent) => agent.id);
}

function lastSecond(detail) {
  const times = [1, ...detail.entries.map((entry) => entry.t)];
  for (const message of detail.messages) times.push(message.t, message.read ?? 0);
  return Math.max(...times);
}

// The lanes of all agents in real time. `lanes` is revealed on a click; it may be null.
function timeStrip(detail, lanes) {
  const names = laneNames(detail);
  const last = lastSecond(detail);
  const draw = (width) => {
    const narrow = width < NARROW_WIDTH;
    const left = narrow ? 8 : 70;
    const top = narrow ? 34 : 26;
    const gap = names.length > 4 ? 46 : 74;
    const scale = {
      x: (seconds) => left + (seconds / last) * (width - left - 10),
      y: (lane) => top + lane * gap,
    };
    const bottom = scale.y(names.length - 1) + 22;
    const tick = (seconds) => {
      const x = scale.x(seconds);
      const textX = Math.max(left + 12, Math.min(x, width - 26));
      return [
        svg("line", { class: "grid", x1: x, x2: x, y1: top - 16, y2: bottom }),
        svg(
          "text",
          { class: "quiet middle", x: textX, y: bottom + 16 },
          seconds ? duration(seconds) : "start",
        ),
      ];
    };
    const lane = (name, index) => {
      const y = scale.y(index);
      return svg(
        "g",
        { class: `l${index + 1}` },
        svg("line", { class: "lane", x1: left, x2: width - 10, y1: y, y2: y }),
        svg("text", { class: "fill-lane", x: 0, y: narrow ? y - 14 : y + 4.5 }, name),
      );
    };
    const entries = detail.entries.filter((entry) => entry.action !== "receive_message");
    return picture(
      width,
      bottom + 24,
      "The agents' steps and messages in time",
      tickSeconds(last, narrow ? 4 : 8).map(tick),
      names.map(lane),
      entries.map((entry) => stripTick(entry, scale, lanes)),
      detail.messages.map((message) => stripArrow(message, names, scale, lanes)),
    );
  };
  let caption = "Tall ticks are edits, medium ones commands, short ones texts.";
  if (names.length > 1) {
    caption += " Arrows are messages, from sending to reading; dashed: never read.";
  }
  const strip = h("div", { class: "strip" }, responsiveDrawing(draw));
  strip.append(h("p", { class: "quiet small" }, caption));
  return strip;
}

function tickSeconds(last, maximum) {
  const step = TICK_SECONDS.find((seconds) => last / seconds <= maximum) ?? last;
  return Array.from({ length: Math.floor(last / step) + 1 }, (_, index) => index * step);
}

function stripTick(entry, scale, lanes) {
  const x = scale.x(entry.t);
  const y = scale.y(entry.lane);
  const half = (TICK_HEIGHTS[entry.action] ?? OTHER_TICK_HEIGHT) / 2;
  const line = svg("line", {
    class: "tick stroke-lane",
    x1: x,
    x2: x,
    y1: y - half,
    y2: y + half,
    onclick: () => lanes?.reveal(entry),
  });
  const action = ACTION_TEXTS[entry.action] ?? entry.action;
  const text = `${moment(entry.t)} ${action} ${entryTitle(entry).slice(0, 100)}`;
  return svg("g", { class: `l${entry.lane + 1}` }, withTooltip(line, text));
}

function stripArrow(message, names, scale, lanes) {
  const from = names.indexOf(message.from);
  const to = names.indexOf(message.to);
  if (from < 0 || to < 0) return null;
  const direction = to > from ? 1 : -1;
  const start = { x: scale.x(message.t), y: scale.y(from) + direction * 10 };
  const end = { x: scale.x(message.read ?? message.t), y: scale.y(to) - direction * 12 };
  const base = end.y - direction * 3;
  const line = svg("path", {
    class: message.read === null ? "arrow stroke-lane unread" : "arrow stroke-lane",
    d: `M${start.x},${start.y} L${end.x},${end.y}`,
    onclick: () => lanes?.reveal(message),
  });
  const title = `${message.from} → ${message.to} at ${moment(message.t)}`;
  return svg(
    "g",
    { class: `l${from + 1}` },
    withTooltip(line, `${title}\n${message.text.slice(0, 240)}`),
    svg("path", {
      class: "head fill-lane",
      d: `M${end.x - 4},${base} L${end.x + 4},${base} L${end.x},${end.y + direction * 5} Z`,
    }),
  );
}

// Entries and messages in order of time; neighbors in different lanes share a row.
function laneRows(detail) {
  const names = laneNames(detail);
  const items = detail.entries.map((entry) => ({ t: entry.t, lane: entry.lane, entry }));
  for (const message of detail.messages) {
    items.push({ t: message.t, lane: Math.max(0, names.indexOf(message.from)), message });
  }
  items.sort((item, other) => item.t - other.t);
  const rows = [];
  for (const item of items) {
    let row = rows.at(-1);
    if (!row || row[item.lane]) {
      row = Array(names.length).fill(null);
      rows.push(row);
    }
    row[item.lane] = item;
  }
  return rows;
}

class Lanes {
  constructor(detail, pair) {
    this.detail = detail;
    this.nodes = new Map();
    this.names = laneNames(detail);
    this.arrows = svg("svg", { class: "arrows", "aria-hidden": "true" });
    const heads = detail.agents.map((agent, lane) => this.laneHead(agent, lane, pair));
    const cell = (item) => h("div", { class: "cell" }, item && this.itemNode(item));
    const rows = laneRows(detail).map((row) => h("div", { class: "row" }, row.map(cell)));
    this.element = h(
      "div",
      { class: `lanes ${this.sizeClass()}`, vars: { "--columns": this.names.length } },
      h("div", { class: "row lane-heads" }, heads),
      rows,
      this.arrows,
    );
    new ResizeObserver(() => this.drawArrows()).observe(this.element);
  }

  sizeClass() {
    if (this.names.length < 2) return "one";
    return this.names.length > 3 ? "many" : "";
  }

  laneHead(agent, lane, pair) {
    const features = agent.feature_ids?.map((feature) => featureName(pair, feature)) ?? [];
    return h(
      "div",
      { class: `lane-head l${lane + 1}` },
      agent.id,
      h("span", { class: "quiet small" }, ` ${features.join(" and ")}`),
    );
  }

  itemNode({ entry, message }) {
    const node = message ? messageNode(message, this.names) : entryNode(entry);
    this.nodes.set(message ?? entry, node);
    return node;
  }

  reveal(item) {
    const node = this.nodes.get(item);
    if (!node) return;
    if (node.tagName === "DETAILS") node.open = true;
    flash(node);
  }

  setAllOpen(open) {
    for (const node of this.nodes.values()) if (node.tagName === "DETAILS") node.open = open;
  }

  // Arrows go from the card of a message to the entry where its recipient got it.
  drawArrows() {
    if (this.names.length < 2) return;
    const arrows = this.detail.messages.map((message) => this.arrow(message));
    this.arrows.replaceChildren(...arrows.filter(Boolean));
  }

  receiptOf(message) {
    return this.detail.entries.find(
      (entry) =>
        entry.action === "receive_message" &&
        entry.args.sequence === message.number &&
        this.names[entry.lane] === message.to,
    );
  }

  arrow(message) {
    const receipt = this.receiptOf(message);
    const card = this.nodes.get(message)?.getBoundingClientRect();
    const target = this.nodes.get(receipt)?.getBoundingClientRect();
    if (!card || !target) return null;
    const box = this.element.getBoundingClientRect();
    const left = box.left - this.element.scrollLeft;
    const toRight = target.left > card.left;
    const x1 = (toRight ? card.right + 6 : card.left - 6) - left;
    const x2 = (toRight ? target.left - 4 : target.right + 4) - left;
    const y1 = card.top - box.top + Math.min(16, card.height / 2);
    const y2 = target.top - box.top + Math.min(14, target.height / 2);
    const bend = (x2 - x1) * 0.55;
    const back = toRight ? x2 - 7 : x2 + 7;
    return svg(
      "g",
      { class: `l${this.names.indexOf(message.from) + 1}` },
      svg("path", {
        class: "stroke-lane",
        d: `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${back},${y2}`,
      }),
      svg("path", {
        class: "head fill-lane",
        d: `M${back},${y2 - 4} L${x2},${y2} L${back},${y2 + 4} Z`,
      }),
    );
  }
}

// Scrolls to an element and marks it for a moment.
function flash(node) {
  node.scrollIntoView({ block: "center" });
  node.classList.add("flash");
  setTimeout(() => node.classList.remove("flash"), 1600);
}

function messageNode(message, names) {
  const lane = names.indexOf(message.from) + 1;
  return h(
    "article",
    { class: `entry message l${lane}`, "data-message": message.number },
    h(
      "div",
      { class: "line" },
      h("span", { class: "from" }, `${message.from} → ${message.to}`),
      h("span", { class: "quiet small" }, `message ${message.number}`),
      message.read === null && h("span", { class: "bad" }, "never read"),
      h("span", { class: "grow" }),
      h("span", { class: "at" }, moment(message.t)),
    ),
    h("p", { class: "text" }, message.text),
  );
}

function exitStatus(entry) {
  if (entry.timed_out) return h("span", { class: "bad" }, "timed out");
  if (entry.returncode) return h("span", { class: "bad" }, `exit ${entry.returncode}`);
  return null;
}

function entryNode(entry) {
  const isReceipt = entry.action === "receive_message";
  const title = entryTitle(entry);
  const body = entryBody(entry);
  const text = body === title ? "" : body;
  const line = [
    h("span", { class: "kind" }, ACTION_TEXTS[entry.action] ?? entry.action),
    h("span", { class: "head" }, isReceipt ? `message ${entry.args.sequence}` : title || "–"),
    exitStatus(entry),
    h("span", { class: "at" }, moment(entry.t)),
  ];
  const classes = ["entry", `l${entry.lane + 1}`];
  if (TEXT_ACTIONS.includes(entry.action)) classes.push("words");
  if (isReceipt) classes.push("received");
  const className = classes.join(" ");
  const isLong = title.length > MAX_FOLDED_CHARACTERS;
  const hasBody = !isReceipt && (entry.thought || text || entry.observation || isLong);
  if (!hasBody) return h("div", { class: className }, h("div", { class: "line" }, line));
  const node = h("details", { class: className }, h("summary", null, line));
  // The body is made when the entry is opened: a pair has hundreds of entries.
  node.addEventListener("toggle", () => {
    if (node.open && !node.querySelector(".body")) node.append(entryDetails(entry, text));
  });
  return node;
}

function entryDetails(entry, text) {
  const facts = [];
  if (entry.step) facts.push(`step ${entry.step}`);
  if (entry.duration_seconds) facts.push(duration(entry.duration_seconds));
  return h(
    "div",
    { class: "body" },
    entry.thought && h("p", null, entry.thought),
    text && h("pre", null, text),
    entry.observation && [
      h("p", { class: "quiet small" }, "Output:"),
      h("pre", null, entry.observation),
    ],
    facts.length > 0 && h("p", { class: "quiet small" }, facts.join(", ")),
  );
}
