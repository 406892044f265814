// Drawings in SVG: forest plot, how pairs ended, curves, ranges. Every one says its units and its n, and is
// readable without colour: settings differ by shape and dashes, outcomes by pattern and label.

const ROW = 30;

function picture(width, height, label, ...children) {
  return s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, ...children);
}

function shape(setting, x, y) {
  if (setting === "team") return s("path", { class: "mark coop", d: `M${x - 6} ${y + 5}h12l-6 -11z` });
  if (setting === "solo") return s("rect", { class: "mark solo", x: x - 5, y: y - 5, width: 10, height: 10, transform: `rotate(45 ${x} ${y})` });
  if (setting === "golden") return s("path", { class: "mark golden", d: `M${x - 5},${y - 5} l10,10 M${x - 5},${y + 5} l10,-10` });
  return s("circle", { class: "mark coop", cx: x, cy: y, r: 5.5 });
}

function percentAxis(scale, top, bottom, from, to) {
  const every = to - from > 0.5 && scale(to) - scale(from) > 360 ? 0.2 : 0.5;
  const ticks = [];
  for (let at = Math.ceil(from / every) * every; at <= to + 1e-9; at += every) {
    ticks.push(s("line", { class: Math.abs(at) < 1e-9 ? "axis" : "grid", x1: scale(at), x2: scale(at), y1: top, y2: bottom }),
      s("text", { class: "quiet middle", x: scale(at), y: bottom + 17 }, `${Math.round(100 * at)}`));
  }
  return [...ticks, s("text", { class: "quiet middle", x: (scale(from) + scale(to)) / 2, y: bottom + 35 }, "% of pairs, with 95 % interval")];
}

// rows: {label, note, setting, rate, low, high, value} or {heading}
function forest(rows, label) {
  return drawn((width) => {
    const narrow = width < 620;
    const left = narrow ? 8 : 260;
    const right = narrow ? 12 : 218;
    const height = narrow ? 50 : ROW;
    const heights = rows.map((row) => (row.heading ? ROW + 4 : height));
    const tall = heights.reduce((sum, one) => sum + one, 0);
    const scale = (rate) => left + rate * (width - left - right);
    let y = 0;
    const parts = rows.map((row, at) => {
      const top = y;
      y += heights[at];
      if (row.heading) return s("text", { class: "strong", x: 0, y: top + 24 }, row.heading);
      const middle = narrow ? top + 36 : top + height / 2;
      const text = narrow ? top + 16 : middle + 4.5;
      const known = row.rate !== null && row.rate !== undefined;
      return s("g", null,
        s("text", { x: narrow ? 0 : 12, y: text }, row.label),
        s("text", { class: "quiet end", x: width, y: text }, row.value),
        row.low !== null && row.low !== undefined && s("line", { class: "whisker", x1: scale(row.low), x2: scale(row.high), y1: middle, y2: middle }),
        known && tipped(shape(row.setting, scale(row.rate), middle), `${row.label}: ${row.value}\n${row.note ?? ""}`));
    });
    return picture(width, tall + 42, label, percentAxis(scale, 0, tall, 0, 1), parts);
  });
}

const PATTERNS = {
  capability: (size) => [s("path", { class: "hatch", d: `M-1,1 l2,-2 M0,${size} l${size},-${size} M${size - 1},${size + 1} l2,-2` })],
  conflict: (size) => [s("path", { class: "hatch", d: `M0,0 l${size},${size} M0,${size} l${size},-${size}` })],
  integration: (size) => [s("circle", { class: "dot", cx: size / 2, cy: size / 2, r: 1.6 })],
  no_reference: (size) => [s("circle", { class: "ring", cx: size / 2, cy: size / 2, r: 2.2 })],
  broken: (size) => [s("path", { class: "hatch", d: `M${size / 2},0 v${size}` })],
  unevaluated: (size) => [s("path", { class: "hatch", d: `M0,${size / 2} h${size}` })],
  running: (size) => [s("path", { class: "hatch", d: `M0,0 l${size},${size} M-1,${size - 1} l2,2 M${size - 1},-1 l2,2` })],
  missing: (size) => [s("circle", { class: "dot", cx: size / 2, cy: size / 2, r: 2.6 })],
};

function patterns() {
  return s("defs", null, Object.entries(PATTERNS).map(([outcome, marks]) =>
    s("pattern", { id: "pattern-" + outcome, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
      s("rect", { class: "fill-" + outcome, width: 8, height: 8 }), marks(8))));
}

function swatch(outcome) {
  const url = PATTERNS[outcome] ? `url(#pattern-${outcome})` : null;
  return s("svg", { width: 16, height: 12, "aria-hidden": "true" }, PATTERNS[outcome] && patterns(),
    s("rect", { class: url ? null : "fill-" + outcome, fill: url, width: 16, height: 12, "fill-opacity": overview.outcomes[outcome].judged ? 1 : 0.35 }));
}

// bars: {label, counts: {outcome: n}, onpick(outcome)}
function splitBars(bars, label) {
  return drawn((width) => {
    const narrow = width < 620;
    const left = narrow ? 0 : 260;
    const height = narrow ? 56 : 38;
    const parts = bars.map((bar, at) => {
      const total = Object.values(bar.counts).reduce((sum, one) => sum + one, 0);
      const top = at * height + (narrow ? 24 : 4);
      let x = left;
      const pieces = Object.keys(overview.outcomes).filter((one) => bar.counts[one]).map((outcome) => {
        const wide = (bar.counts[outcome] / total) * (width - left);
        const piece = s("rect", { class: `part ${PATTERNS[outcome] ? "" : "fill-" + outcome}`, fill: PATTERNS[outcome] ? `url(#pattern-${outcome})` : null,
          x, y: top, width: wide, height: 26, "fill-opacity": overview.outcomes[outcome].judged ? 1 : 0.35, onclick: () => bar.onpick(outcome) });
        const text = String(bar.counts[outcome]);
        const fits = wide > 14 + 8 * text.length;
        const chip = fits && [s("rect", { class: "chip", x: x + wide / 2 - 5 - 4 * text.length, y: top + 4, width: 10 + 8 * text.length, height: 18, rx: 4 }),
          s("text", { class: "middle strong", x: x + wide / 2, y: top + 17.5 }, text)];
        x += wide;
        return s("g", null, tipped(piece, `${overview.outcomes[outcome].short}: ${text} of ${total} pairs`), chip);
      });
      return s("g", null, s("text", { x: narrow ? 0 : 12, y: narrow ? top - 7 : top + 18 }, bar.label), pieces);
    });
    return picture(width, bars.length * height + 4, label, patterns(), parts);
  });
}

// curves: {setting (the style), name, points: [{x from 0 to 1, at, value, low, high, n}]}; ticks: [place, text]
function curveChart(curves, label, ticks, title) {
  return drawn((width) => {
    const [left, right, top, height] = [54, 12, 14, 260];
    const x = (value) => left + value * (width - left - right);
    const y = (rate) => top + (1 - rate) * height;
    const axis = [0, 0.25, 0.5, 0.75, 1].flatMap((at) => [
      s("line", { class: at ? "grid" : "axis", x1: left, x2: width - right, y1: y(at), y2: y(at) }),
      s("text", { class: "quiet end", x: left - 8, y: y(at) + 4 }, `${100 * at} %`),
    ]);
    const places = ticks.map(([at, text]) => s("text", { class: "quiet middle", x: x(at), y: top + height + 20 }, text));
    const lines = curves.map((curve) => {
      const points = curve.points.filter((one) => one.value !== null);
      const path = points.map((one, at) => `${at ? "L" : "M"}${x(one.x)},${y(one.value)}`).join("");
      const known = points.filter((one) => one.low !== null);
      const band = known.map((one, at) => `${at ? "L" : "M"}${x(one.x)},${y(one.high)}`).join("")
        + [...known].reverse().map((one) => `L${x(one.x)},${y(one.low)}`).join("") + "Z";
      return s("g", null, known.length > 1 && s("path", { class: `band ${curve.setting}`, d: band }), s("path", { class: `curve ${curve.setting}`, d: path }),
        points.map((one) => tipped(shape(curve.setting, x(one.x), y(one.value)),
          `${curve.name}, ${one.at}: ${percent(one.value)} (${interval(one)}), n = ${one.n}`)));
    });
    const counts = curves.map((curve, at) => [
      s("text", { class: "quiet", x: 0, y: top + height + 62 + 18 * at }, curve.name),
      curve.points.filter((one) => one.n).map((one) => s("text", { class: "quiet middle", x: x(one.x), y: top + height + 62 + 18 * at }, String(one.n)))]);
    return picture(width, top + height + 54 + 18 * curves.length, label, axis, places, lines, counts,
      s("text", { class: "quiet middle", x: (left + width - right) / 2, y: top + height + 40 }, title));
  });
}

// rows: {label, low, middle, high, value}; a bar from the 10th to the 90th percentile, a mark at the median.
function ranges(rows, unit, format, label) {
  return drawn((width) => {
    const most = Math.max(...rows.map((row) => row.high), 1e-9);
    const scale = (value) => 8 + (value / most) * (width - 16);
    const height = 50;
    const parts = rows.map((row, at) => {
      const middle = at * height + 34;
      return s("g", null, s("text", { x: 0, y: at * height + 16 }, row.label), s("text", { class: "quiet end", x: width, y: at * height + 16 }, row.value),
        s("line", { class: "axis", x1: 8, x2: width - 8, y1: middle, y2: middle }),
        s("line", { class: "range", x1: scale(row.low), x2: scale(row.high), y1: middle, y2: middle }),
        tipped(shape(row.setting, scale(row.middle), middle), `${row.label}: median ${format(row.middle)}, from ${format(row.low)} to ${format(row.high)} for eight in ten pairs`));
    });
    const bottom = rows.length * height;
    return picture(width, bottom + 24, label, parts, s("text", { class: "quiet", x: 0, y: bottom + 16 }, "0"),
      s("text", { class: "quiet end", x: width, y: bottom + 16 }, format(most)), s("text", { class: "quiet middle", x: width / 2, y: bottom + 16 }, unit));
  });
}
