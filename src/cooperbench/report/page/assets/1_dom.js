// Making elements. Text only ever becomes text nodes: nothing in this page parses markup.

const HOSTILE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff]/gu;
const COLOURS = /\u001b\[[0-9;]*m/g;

// Characters that move a cursor or turn the direction of writing are shown by their number.
function clean(text) {
  return String(text).replace(COLOURS, "").replace(/\r\n/g, "\n").replace(HOSTILE, (one) => {
    const code = one.codePointAt(0);
    return code < 0x100 ? "\\x" + code.toString(16).padStart(2, "0") : "\\u" + code.toString(16).padStart(4, "0");
  });
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : clean(value));
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(clean(child)));
  }
  return node;
}

function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

function s(tag, props, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function byId(id) {
  return document.getElementById(id);
}

// A short text at the pointer, for parts of a drawing.
function tipped(node, text) {
  const tip = byId("tip");
  node.append(s("title", null, text));
  node.addEventListener("pointermove", (event) => {
    tip.textContent = clean(text);
    tip.hidden = false;
    tip.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 10) + "px";
  });
  node.addEventListener("pointerleave", () => { tip.hidden = true; });
  return node;
}

// Drawings are made for the width that they have, and made again when it changes.
function drawn(draw) {
  const box = h("div", { class: "scroller" });
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(box.clientWidth);
    if (now && now !== width) {
      width = now;
      box.replaceChildren(draw(width));
    }
  }).observe(box);
  return box;
}
