// Drawings in SVG: interval plots, how pairs ended, curves, ranges. Every one states its units and
// its n, and is readable without color: settings differ by shape and dashes, outcomes by pattern.

const ROW_HEIGHT = 30;
const NARROW_ROW_HEIGHT = 66;
const NARROW_WIDTH = 620;

function picture(width, height, label, ...children) {
  const viewBox = `0 0 ${width} ${height}`;
  return svg("svg", { viewBox, width, height, role: "img", "aria-label": label }, ...children);
}

// The mark of a setting: coop is a circle, solo a diamond, team a triangle, golden patches a cross.
function settingMark(setting, x, y) {
  if (setting === "team") {
    return svg("path", { class: "mark coop", d: `M${x - 6} ${y + 5}h12l-6 -11z` });
  }
  if (setting === "solo") {
    const transform = `rotate(45 ${x} ${y})`;
    const box = { x: x - 5, y: y - 5, width: 10, height: 10 };
    return svg("rect", { class: "mark solo", ...box, transform });
  }
  if (setting === "golden") {
    const d = `M${x - 5},${y - 5} l10,10 M${x - 5},${y + 5} l10,-10`;
    return svg("path", { class: "mark golden", d });
  }
  return svg("circle", { class: "mark coop", cx: x, cy: y, r: 5.5 });
}

// A 95 % interval. The legend draws the same lines.
function whisker(setting, x1, x2, y) {
  const cap = (x) => svg("line", { class: "whisker-cap", x1: x, x2: x, y1: y - 4, y2: y + 4 });
  return svg(
    "g",
    null,
    svg("line", { class: `whisker ${setting}`, x1, x2, y1: y, y2: y }),
    cap(x1),
    cap(x2),
  );
}

function legend(items, line) {
  const sample = (setting) => {
    const drawing = { width: 36, height: 14, "aria-hidden": "true" };
    const curve = svg("line", { class: `curve ${setting}`, x1: 1, x2: 35, y1: 7, y2: 7 });
    return svg(
      "svg",
      drawing,
      line === "whisker" ? whisker(setting, 1, 35, 7) : curve,
      settingMark(setting, 18, 7),
    );
  };
  return h(
    "ul",
    { class: "legend" },
    items.map(({ setting, name }) => h("li", null, sample(setting), name)),
  );
}

function tickStep(from, to, pixels) {
  const steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1];
  const room = pixels / 48;
  return steps.find((step) => (to - from) / step <= room) ?? 1;
}

function shareAxis(scale, bottom, { from, to, title }) {
  const step = tickStep(from, to, scale(to) - scale(from));
  const ticks = [];
  for (let index = Math.ceil(from / step - 1e-9); index * step <= to + 1e-9; index += 1) {
    const x = scale(index * step);
    const lineClass = index === 0 ? "axis" : "grid";
    ticks.push(
      svg("line", { class: lineClass, x1: x, x2: x, y1: 0, y2: bottom }),
      svg("text", { class: "quiet middle", x, y: bottom + 17 }, hundredths(index * step)),
    );
  }
  const middle = (scale(from) + scale(to)) / 2;
  return [...ticks, svg("text", { class: "quiet middle", x: middle, y: bottom + 35 }, title)];
}

const SHARE_AXIS = { from: 0, to: 1, title: "% of pairs, with 95 % interval" };

// rows: {label, setting, estimate, value (text), note} or {heading}. In a narrow drawing label and
// value have a line each, above the interval.
function intervalPlot(rows, label, axis = SHARE_AXIS) {
  return responsiveDrawing((width) => {
    const narrow = width < NARROW_WIDTH;
    const left = narrow ? 16 : 260;
    const right = narrow ? 14 : 218;
    const scale = (share) =>
      left + ((share - axis.from) / (axis.to - axis.from)) * (width - left - right);
    let top = 0;
    const parts = rows.map((row) => {
      const y = top;
      if (row.heading) {
        top += ROW_HEIGHT + 4;
        return fittedText({ class: "strong", x: 0, y: y + 24 }, row.heading, width, 600);
      }
      top += narrow ? NARROW_ROW_HEIGHT : ROW_HEIGHT;
      return narrow ? narrowRow(row, y, width, scale) : wideRow(row, y, width, left, scale);
    });
    return picture(width, top + 42, label, shareAxis(scale, top, axis), parts);
  });
}

function wideRow(row, top, width, left, scale) {
  const middle = top + ROW_HEIGHT / 2;
  return svg(
    "g",
    null,
    fittedText({ x: 12, y: middle + 4.5 }, row.label, left - 24),
    svg("text", { class: "quiet end", x: width, y: middle + 4.5 }, row.value),
    intervalMarks(row, middle, scale),
  );
}

function narrowRow(row, top, width, scale) {
  return svg(
    "g",
    null,
    fittedText({ x: 0, y: top + 18 }, row.label, width),
    fittedText({ class: "quiet", x: 0, y: top + 36 }, row.value, width),
    intervalMarks(row, top + 52, scale),
  );
}

function intervalMarks({ estimate, setting, label, value, note }, y, scale) {
  if (estimate.value === null || estimate.value === undefined) return null;
  const mark = settingMark(setting, scale(estimate.value), y);
  return [
    hasInterval(estimate) && whisker(setting, scale(estimate.low), scale(estimate.high), y),
    withTooltip(mark, `${label}: ${value}\n${note ?? ""}`),
  ];
}

const PATTERNS = {
  capability: (size) => {
    const corners = `M-1,1 l2,-2 M${size - 1},${size + 1} l2,-2`;
    return svg("path", { class: "hatch", d: `${corners} M0,${size} l${size},-${size}` });
  },
  conflict: (size) =>
    svg("path", { class: "hatch", d: `M0,0 l${size},${size} M0,${size} l${size},-${size}` }),
  integration: (size) => svg("circle", { class: "dot", cx: size / 2, cy: size / 2, r: 1.6 }),
  no_reference: (size) => svg("circle", { class: "ring", cx: size / 2, cy: size / 2, r: 2.2 }),
  broken: (size) => svg("path", { class: "hatch", d: `M${size / 2},0 v${size}` }),
  unevaluated: (size) => svg("path", { class: "hatch", d: `M0,${size / 2} h${size}` }),
  running: (size) => {
    const corners = `M-1,${size - 1} l2,2 M${size - 1},-1 l2,2`;
    return svg("path", { class: "hatch", d: `M0,0 l${size},${size} ${corners}` });
  },
  missing: (size) => svg("circle", { class: "dot", cx: size / 2, cy: size / 2, r: 2.6 }),
};

function patternDefinitions() {
  const tile = { width: 8, height: 8 };
  return svg(
    "defs",
    null,
    Object.entries(PATTERNS).map(([outcome, draw]) =>
      svg(
        "pattern",
        { id: "pattern-" + outcome, ...tile, patternUnits: "userSpaceOnUse" },
        svg("rect", { class: "fill-" + outcome, ...tile }),
        draw(8),
      ),
    ),
  );
}

// Attributes that paint a shape in the color and pattern of an outcome.
function outcomePaint(outcome, className = "") {
  const opacity = overview.outcomes[outcome].judged ? 1 : 0.35;
  if (!PATTERNS[outcome]) {
    return { class: `${className} fill-${outcome}`, "fill-opacity": opacity };
  }
  return { class: className, fill: `url(#pattern-${outcome})`, "fill-opacity": opacity };
}

function swatch(outcome) {
  const box = { width: 16, height: 12 };
  return svg(
    "svg",
    { ...box, "aria-hidden": "true" },
    patternDefinitions(),
    svg("rect", { ...outcomePaint(outcome), ...box }),
  );
}

// bars: {label, counts: {outcome: n}, onSelect(outcome)}
function outcomeBars(bars, label) {
  return responsiveDrawing((width) => {
    const narrow = width < NARROW_WIDTH;
    const left = narrow ? 0 : 260;
    const height = narrow ? 56 : 38;
    const parts = bars.map((bar, index) => {
      const top = index * height + (narrow ? 24 : 4);
      const textY = narrow ? top - 7 : top + 18;
      const room = narrow ? width : left - 24;
      return svg(
        "g",
        null,
        fittedText({ x: narrow ? 0 : 12, y: textY }, bar.label, room),
        barPieces(bar, left, top, width - left),
      );
    });
    return picture(width, bars.length * height + 4, label, patternDefinitions(), parts);
  });
}

function barPieces(bar, left, top, width) {
  const total = Object.values(bar.counts).reduce((sum, number) => sum + number, 0);
  const outcomes = Object.keys(overview.outcomes).filter((outcome) => bar.counts[outcome]);
  let x = left;
  return outcomes.map((outcome) => {
    const text = String(bar.counts[outcome]);
    const pieceWidth = (bar.counts[outcome] / total) * width;
    const piece = svg("rect", {
      ...outcomePaint(outcome, "part"),
      x,
      y: top,
      width: pieceWidth,
      height: 26,
      onclick: () => bar.onSelect(outcome),
    });
    const middle = x + pieceWidth / 2;
    const chipWidth = 10 + 8 * text.length;
    const chip = { x: middle - chipWidth / 2, y: top + 4, width: chipWidth, height: 18, rx: 4 };
    x += pieceWidth;
    return svg(
      "g",
      null,
      withTooltip(piece, `${overview.outcomes[outcome].short}: ${text} of ${total} pairs`),
      pieceWidth > chipWidth + 4 && [
        svg("rect", { class: "chip", ...chip }),
        svg("text", { class: "middle strong", x: middle, y: top + 17.5 }, text),
      ],
    );
  });
}

// curves: {setting (the style), name, points: [{x from 0 to 1, at (text), value, low, high, n}]};
// ticks: [{x from 0 to 1, text}].
function curveChart(curves, label, ticks, title) {
  return responsiveDrawing((width) => {
    const nameWidth = Math.max(...curves.map((curve) => textWidth(`n ${curve.name}`)));
    const left = Math.min(width / 3, Math.max(54, nameWidth + 20));
    const [right, top, height] = [14, 14, 240];
    const bottom = top + height;
    const scale = {
      x: (position) => left + position * (width - left - right),
      y: (rate) => top + (1 - rate) * height,
    };
    const axis = [0, 0.25, 0.5, 0.75, 1].map((rate) => [
      svg("line", {
        class: rate ? "grid" : "axis",
        x1: left,
        x2: width - right,
        y1: scale.y(rate),
        y2: scale.y(rate),
      }),
      svg("text", { class: "quiet end", x: left - 8, y: scale.y(rate) + 4 }, percent(rate)),
    ]);
    const tickTexts = ticks.map((tick) =>
      svg("text", { class: "quiet middle", x: scale.x(tick.x), y: bottom + 20 }, tick.text),
    );
    const counts = curves.map((curve, index) =>
      countRow(curve, bottom + 62 + 18 * index, left, scale),
    );
    const middle = (left + width - right) / 2;
    return picture(
      width,
      bottom + 54 + 18 * curves.length,
      label,
      axis,
      tickTexts,
      curves.map((curve) => curveLines(curve, scale)),
      counts,
      svg("text", { class: "quiet middle", x: middle, y: bottom + 40 }, title),
    );
  });
}

function countRow(curve, y, left, scale) {
  const counted = curve.points.filter((point) => point.n);
  return [
    fittedText({ class: "quiet", x: 0, y }, `n ${curve.name}`, left - 12),
    counted.map((point) =>
      svg("text", { class: "quiet middle", x: scale.x(point.x), y }, String(point.n)),
    ),
  ];
}

function curveLines(curve, scale) {
  const points = curve.points.filter((point) => point.value !== null);
  const path = (places) => places.map(([x, y], index) => `${index ? "L" : "M"}${x},${y}`).join("");
  const line = path(points.map((point) => [scale.x(point.x), scale.y(point.value)]));
  const bounded = points.filter(hasInterval);
  const upper = bounded.map((point) => [scale.x(point.x), scale.y(point.high)]);
  const lower = bounded.map((point) => [scale.x(point.x), scale.y(point.low)]);
  const band = path([...upper, ...lower.reverse()]) + "Z";
  const mark = (point) =>
    withTooltip(
      settingMark(curve.setting, scale.x(point.x), scale.y(point.value)),
      `${curve.name}, ${point.at}: ${percent(point.value)} (${interval(point)}), n = ${point.n}`,
    );
  return svg(
    "g",
    null,
    bounded.length > 1 && svg("path", { class: `band ${curve.setting}`, d: band }),
    svg("path", { class: `curve ${curve.setting}`, d: line }),
    points.map(mark),
  );
}

// rows: {label, setting, low, middle, high, value}; a bar from the 10th to the 90th percentile and
// a mark at the median.
function rangePlot(rows, unit, format, label) {
  return responsiveDrawing((width) => {
    const largest = Math.max(...rows.map((row) => row.high), 1e-9);
    const scale = (value) => 8 + (value / largest) * (width - 16);
    const height = 68;
    const parts = rows.map((row, index) => {
      const top = index * height;
      const y = top + 52;
      const span = `from ${format(row.low)} to ${format(row.high)} for eight in ten pairs`;
      return svg(
        "g",
        null,
        fittedText({ x: 0, y: top + 18 }, row.label, width),
        fittedText({ class: "quiet", x: 0, y: top + 36 }, row.value, width),
        svg("line", { class: "axis", x1: 8, x2: width - 8, y1: y, y2: y }),
        svg("line", { class: "range", x1: scale(row.low), x2: scale(row.high), y1: y, y2: y }),
        withTooltip(
          settingMark(row.setting, scale(row.middle), y),
          `${row.label}: median ${format(row.middle)}, ${span}`,
        ),
      );
    });
    const bottom = rows.length * height;
    const text = (className, x, content) =>
      svg("text", { class: className, x, y: bottom + 16 }, content);
    return picture(
      width,
      bottom + 24,
      label,
      parts,
      text("quiet", 0, "0"),
      text("quiet end", width, format(largest)),
      text("quiet middle", width / 2, unit),
    );
  });
}
