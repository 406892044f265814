// The patches of a pair, side by side, file by file.

const LINE_CLASSES = { "+": "plus", "-": "minus" };

function changes(detail) {
  if (!detail.diffs.length) return h("p", { class: "quiet" }, "No patch changes a file.");
  const files = count(detail.diffs.length, "file");
  let text = `${files} changed.`;
  if (detail.patches.length > 1) {
    const shared = detail.diffs.filter((file) => file.shared).length;
    const agents = detail.patches.length > 2 ? "several" : "both";
    text = `${files} changed, ${shared} of them by ${agents}. Hunks that change the same or neighboring lines of the base are marked.`;
  }
  return [
    h("p", { class: "quiet" }, text, " Click a file to see its changes."),
    detail.diffs.map((file) => changedFile(file, detail.patches)),
  ];
}

function fileTag(file) {
  if (file.conflict) return h("span", { class: "tag conflict" }, "conflict");
  if (file.overlap) return h("span", { class: "tag overlap" }, "overlap");
  return null;
}

function changedFile(file, patches, folded = false) {
  const authors = [];
  file.sides.forEach((side, index) => {
    if (side) authors.push(`${patches[index]}: ${count(side.lines, "line")}`);
  });
  const node = h(
    "details",
    { class: "file" },
    h(
      "summary",
      null,
      h("code", null, file.path),
      fileTag(file),
      h("span", { class: "quiet small" }, authors.join(", ")),
    ),
  );
  const showSides = () => {
    if (node.open && !node.querySelector(".sides")) node.append(fileSides(file, patches));
  };
  node.addEventListener("toggle", showSides);
  node.open = !folded && (file.conflict || file.overlap || patches.length === 1);
  showSides();
  return node;
}

function fileSides(file, patches) {
  // With many patches there is room only for those that touch the file.
  const shown = file.sides
    .map((side, index) => ({ side, index }))
    .filter(({ side }) => side || patches.length < 3);
  const column = ({ side, index }) =>
    h(
      "div",
      { class: "side" },
      patches.length > 1 && h("div", { class: `lane-head l${index + 1}` }, patches[index]),
      side ? hunks(side) : h("p", { class: "quiet small" }, "does not touch it"),
    );
  return h("div", { class: "sides", vars: { "--columns": shown.length } }, shown.map(column));
}

function sideNote(side) {
  if (side.binary) return "a binary file";
  return side.new ? "a new file" : null;
}

function hunks(side) {
  const note = sideNote(side);
  return [note && h("p", { class: "quiet small" }, note), side.hunks.map(hunkNode)];
}

function hunkNode(hunk) {
  const line = (text) => h("div", { class: LINE_CLASSES[text[0]] ?? null }, text);
  const tag = hunk.mark === "conflict" ? "conflicts" : "overlaps";
  return h(
    "div",
    { class: `hunk ${hunk.mark}` },
    h(
      "div",
      { class: "where" },
      `line ${hunk.start}`,
      hunk.heading && h("span", null, hunk.heading),
      hunk.mark && h("span", { class: `tag ${hunk.mark}` }, tag),
    ),
    h(
      "div",
      { class: "code" },
      hunk.lines.map(line),
      hunk.cut > 0 && h("div", { class: "quiet" }, `… ${count(hunk.cut, "more line")}`),
    ),
  );
}
