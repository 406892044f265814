// What happened, in time: a strip with one lane an agent, and below it every entry, folded, with messages as arrows.

const KINDS = { run: "ran", write_file: "wrote", apply_patch: "patched", think: "thought", reply: "said", tell: "was told",
  send_message: "message", receive_message: "received" };
const TALL = { write_file: 16, apply_patch: 16, run: 10 };

// What an entry is about: its text, and the first line of it.
function bodyOf({ action, args }) {
  const text = args[{ run: "command", apply_patch: "patch" }[action] ?? "content"];
  return typeof text === "string" ? text : Object.keys(args).length ? JSON.stringify(args, null, 1) : "";
}

function headOf(entry) {
  const text = String(entry.args[{ write_file: "path", apply_patch: "name" }[entry.action]] ?? bodyOf(entry));
  const line = text.split("\n").map((one) => one.trim()).find(Boolean) ?? "";
  return line.length <= 160 ? line : line.slice(0, 160) + " …";
}

function laneNames(detail) {
  return detail.agents.map((agent) => agent.id);
}

function strip(detail, lanes) {
  const last = Math.max(1, ...detail.entries.map((one) => one.t), ...detail.messages.map((one) => Math.max(one.t, one.read ?? 0)));
  const names = laneNames(detail);
  return h("div", { class: "strip" }, drawn((width) => {
    const left = width < 620 ? 8 : 70;
    const [gap, top] = [names.length > 4 ? 46 : 74, width < 620 ? 34 : 26];
    const x = (seconds) => left + (seconds / last) * (width - left - 10);
    const y = (lane) => top + lane * gap;
    const bottom = y(names.length - 1) + 22;
    const ticks = niceTicks(last, width < 620 ? 4 : 8).map((at) => [
      s("line", { class: "grid", x1: x(at), x2: x(at), y1: top - 16, y2: bottom }),
      s("text", { class: "quiet middle", x: Math.max(left + 8, Math.min(x(at), width - 24)), y: bottom + 16 }, at ? duration(at) : "start")]);
    const rows = names.map((name, lane) => s("g", { class: `l${lane + 1}` },
      s("line", { class: "lane", x1: left, x2: width - 10, y1: y(lane), y2: y(lane) }),
      s("text", { class: "fill-lane", x: 0, y: width < 620 ? y(lane) - 14 : y(lane) + 4.5 }, name)));
    const entries = detail.entries.filter((one) => one.action !== "receive_message").map((one) => {
      const tall = TALL[one.action] ?? 4;
      return s("g", { class: `l${one.lane + 1}` }, tipped(s("line", { class: "tick stroke-lane", x1: x(one.t), x2: x(one.t), y1: y(one.lane) - tall / 2, y2: y(one.lane) + tall / 2,
        onclick: () => lanes?.reveal(one) }), `${moment(one.t)} ${KINDS[one.action] ?? one.action} ${headOf(one).slice(0, 100)}`));
    });
    const arrows = detail.messages.map((one) => stripArrow(one, names, x, y, lanes));
    return picture(width, bottom + 24, "The agents' steps and messages in time", ticks, rows, entries, arrows);
  }), h("p", { class: "quiet small" }, names.length > 1
    ? "Tall ticks are edits, middle ones commands, short ones words. Arrows are messages, from sending to reading; dashed: never read."
    : "Tall ticks are edits, middle ones commands, short ones words."));
}

function niceTicks(last, wanted) {
  const steps = [0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
  const step = steps.find((one) => last / one <= wanted) ?? last;
  return Array.from({ length: Math.floor(last / step) + 1 }, (_, at) => at * step);
}

function stripArrow(message, names, x, y, lanes) {
  const [from, to] = [names.indexOf(message.from), names.indexOf(message.to)];
  if (from < 0 || to < 0) return null;
  const down = to > from ? 1 : -1;
  const [x1, y1, x2, y2] = [x(message.t), y(from) + down * 10, x(message.read ?? message.t), y(to) - down * 12];
  return s("g", { class: `l${from + 1}` }, tipped(s("path", { class: `arrow stroke-lane ${message.read === null ? "unread" : ""}`, d: `M${x1},${y1} L${x2},${y2}`,
    onclick: () => lanes?.reveal(message) }), `${message.from} → ${message.to} at ${moment(message.t)}\n${message.text.slice(0, 240)}`),
    s("path", { class: "head fill-lane", d: `M${x2 - 4},${y2 - down * 3} L${x2 + 4},${y2 - down * 3} L${x2},${y2 + down * 5} Z` }));
}

// Entries and messages in order; neighbours of different lanes share a row.
function laneRows(detail) {
  const names = laneNames(detail);
  const items = [...detail.entries.map((entry) => ({ t: entry.t, lane: entry.lane, entry })),
    ...detail.messages.map((message) => ({ t: message.t, lane: Math.max(0, names.indexOf(message.from)), message }))];
  items.sort((one, other) => one.t - other.t);
  const rows = [];
  for (const item of items) {
    const last = rows.at(-1);
    if (last && !last[item.lane]) last[item.lane] = item;
    else rows.push(Object.assign(Array(names.length).fill(null), { [item.lane]: item }));
  }
  return rows;
}

class Lanes {
  constructor(detail) {
    this.detail = detail;
    this.nodes = new Map();
    this.names = laneNames(detail);
    this.arrows = s("svg", { class: "arrows", "aria-hidden": "true" });
    const columns = { "--columns": this.names.length };
    const heads = h("div", { class: "row lane-heads" }, detail.agents.map((agent, lane) => h("div", { class: `lane-head l${lane + 1}` }, agent.id,
      agent.feature_ids && h("span", { class: "quiet small" }, ` feature ${agent.feature_ids.join(" and ")}`))));
    const rows = laneRows(detail).map((row) => h("div", { class: "row" }, row.map((item) => h("div", { class: "cell" }, item && this.node(item)))));
    this.element = h("div", { class: `lanes ${this.names.length < 2 ? "one" : this.names.length > 3 ? "many" : ""}`, vars: columns }, heads, rows, this.arrows);
    new ResizeObserver(() => this.drawArrows()).observe(this.element);
  }

  node({ entry, message }) {
    const made = message ? messageNode(message, this.names) : entryNode(entry);
    this.nodes.set(message ?? entry, made);
    return made;
  }

  reveal(item) {
    const node = this.nodes.get(item);
    if (!node) return;
    if (node.tagName === "DETAILS") node.open = true;
    node.scrollIntoView({ block: "center" });
    node.classList.add("flash");
    setTimeout(() => node.classList.remove("flash"), 1600);
  }

  foldAll(open) {
    for (const node of this.nodes.values()) if (node.tagName === "DETAILS") node.open = open;
  }

  // From the card of a message to the place where its reader got it.
  drawArrows() {
    if (this.names.length < 2) return;
    const box = this.element.getBoundingClientRect();
    const left = box.left - this.element.scrollLeft;
    const drawnArrows = this.detail.messages.flatMap((message) => {
      const card = this.nodes.get(message)?.getBoundingClientRect();
      const got = this.detail.entries.find((one) => one.action === "receive_message" && one.args.sequence === message.number && this.names[one.lane] === message.to);
      const place = got && this.nodes.get(got).getBoundingClientRect();
      if (!card || !place) return [];
      const right = place.left > card.left;
      const [x1, x2] = right ? [card.right - left + 6, place.left - left - 4] : [card.left - left - 6, place.right - left + 4];
      const [y1, y2] = [card.top - box.top + Math.min(16, card.height / 2), place.top - box.top + Math.min(14, place.height / 2)];
      const turn = (x2 - x1) * 0.55;
      const back = right ? -7 : 7;
      return [s("g", { class: `l${this.names.indexOf(message.from) + 1}` },
        s("path", { class: "stroke-lane", d: `M${x1},${y1} C${x1 + turn},${y1} ${x2 - turn},${y2} ${x2 + back},${y2}` }),
        s("path", { class: "head fill-lane", d: `M${x2 + back},${y2 - 4} L${x2},${y2} L${x2 + back},${y2 + 4} Z` }))];
    });
    this.arrows.replaceChildren(...drawnArrows);
  }
}

function messageNode(message, names) {
  return h("article", { class: `entry message l${names.indexOf(message.from) + 1}`, "data-message": message.number },
    h("div", { class: "line" }, h("span", { class: "from" }, `${message.from} → ${message.to}`), h("span", { class: "quiet small" }, `message ${message.number}`),
      message.read === null && h("span", { class: "bad" }, "never read"), h("span", { class: "grow" }), h("span", { class: "at" }, moment(message.t))),
    h("p", { class: "text" }, message.text));
}

function entryNode(entry) {
  const received = entry.action === "receive_message";
  const words = received || ["think", "reply", "tell"].includes(entry.action);
  const [head, body] = [headOf(entry), bodyOf(entry)];
  const line = [h("span", { class: "kind" }, KINDS[entry.action] ?? entry.action),
    h("span", { class: "head" }, received ? `message ${entry.args.sequence}` : head || "–"),
    entry.timed_out ? h("span", { class: "bad" }, "timed out") : entry.returncode && h("span", { class: "bad" }, `exit ${entry.returncode}`),
    h("span", { class: "at" }, moment(entry.t))];
  const style = `entry l${entry.lane + 1} ${words ? "words" : ""} ${received ? "received" : ""}`;
  const text = body === head ? "" : body;
  if (received || !(entry.thought || text || entry.observation)) return h("div", { class: style }, h("div", { class: "line" }, line));
  const node = h("details", { class: style }, h("summary", null, line));
  // The body is made when it is looked at: a pair has hundreds of them.
  node.addEventListener("toggle", () => {
    if (!node.open || node.querySelector(".body")) return;
    const facts = [entry.step && `step ${entry.step}`, entry.duration_seconds && duration(entry.duration_seconds)].filter(Boolean).join(", ");
    node.append(h("div", { class: "body" }, entry.thought && h("p", null, entry.thought), text && h("pre", null, text),
      entry.observation && [h("p", { class: "quiet small" }, "What came back:"), h("pre", null, entry.observation)], facts && h("p", { class: "quiet small" }, facts)));
  });
  return node;
}
