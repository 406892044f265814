// Creating elements. Text only ever becomes text nodes: nothing in this page parses markup.

const UNSAFE_CHARACTERS =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff]/gu;
const COLOR_SEQUENCES = /\u001b\[[0-9;]*m/g;
const MAX_COLUMNS_ON_TABLETS = 10;
const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

// Characters that move the cursor or change the writing direction are shown by their number.
function escapeCharacter(character) {
  const code = character.codePointAt(0);
  if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
  return "\\u" + code.toString(16).padStart(4, "0");
}

function clean(text) {
  return String(text)
    .replace(COLOR_SEQUENCES, "")
    .replace(/\r\n/g, "\n")
    .replace(UNSAFE_CHARACTERS, escapeCharacter);
}

// Properties: `on…` is an event listener, `vars` are CSS variables, all others are attributes.
function setProperty(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) {
    node.addEventListener(name.slice(2), value);
  } else if (name === "vars") {
    for (const [variable, text] of Object.entries(value)) node.style.setProperty(variable, text);
  } else {
    node.setAttribute(name, value === true ? "" : clean(value));
  }
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) setProperty(node, name, value);
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(clean(child)));
  }
  return node;
}

// An HTML element, as in hyperscript: h(tag, properties, ...children).
function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

// An SVG element, in the same way.
function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), properties, children);
}

function byId(id) {
  return document.getElementById(id);
}

// columns: {title, number (right-aligned)}; rows: lists of cells, each a text, a node or a list of both.
// On narrow screens CSS shows a row as a card, with the column's title before each cell.
function dataTable(columns, rows, className = "small") {
  const sizeClass = columns.length > MAX_COLUMNS_ON_TABLETS ? "many-columns" : "";
  const cellClass = (column) => (column.number ? "number" : null);
  const heading = (column) => h("th", { class: cellClass(column), scope: "col" }, column.title);
  const cell = (content, index) =>
    h("td", { class: cellClass(columns[index]), "data-label": columns[index].title }, content);
  return h(
    "table",
    { class: `stacked ${sizeClass} ${className}` },
    h("thead", null, h("tr", null, columns.map(heading))),
    h(
      "tbody",
      null,
      rows.map((row) => h("tr", null, row.map(cell))),
    ),
  );
}

// Shows a short text at the pointer, for parts of a drawing.
function withTooltip(node, text) {
  const tip = byId("tip");
  node.append(svg("title", null, text));
  node.addEventListener("pointermove", (event) => {
    tip.textContent = clean(text);
    tip.hidden = false;
    const left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8);
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 10) + "px";
  });
  node.addEventListener("pointerleave", () => {
    tip.hidden = true;
  });
  return node;
}

// A drawing that is made for the available width, and made again when the width changes.
function responsiveDrawing(draw) {
  const box = h("div", { class: "drawing" });
  let drawnWidth = 0;
  const observer = new ResizeObserver(() => {
    const width = Math.floor(box.clientWidth);
    if (width && width !== drawnWidth) {
      drawnWidth = width;
      box.replaceChildren(draw(width));
    }
  });
  observer.observe(box);
  return box;
}

const measuringContext = document.createElement("canvas").getContext("2d");

function textWidth(text, weight = 400) {
  const family = getComputedStyle(document.body).fontFamily;
  measuringContext.font = `${weight} 13px ${family}`;
  return measuringContext.measureText(clean(text)).width;
}

// Shortens a text of a drawing until it fits; SVG does not wrap.
function fitText(text, width, weight = 400) {
  if (textWidth(text, weight) <= width) return text;
  let end = text.length - 1;
  while (end > 1 && textWidth(text.slice(0, end) + "…", weight) > width) end -= 1;
  return text.slice(0, end).trimEnd() + "…";
}

// A text of a drawing; the whole text is shown at the pointer where it had to be shortened.
function fittedText(properties, text, width, weight = 400) {
  const shortened = fitText(text, width, weight);
  if (shortened === text) return svg("text", properties, text);
  const className = `${properties.class ?? ""} shortened`;
  return withTooltip(svg("text", { ...properties, class: className }, shortened), text);
}
