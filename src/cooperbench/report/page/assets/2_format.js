// Numbers and names as people read them.

// Halves go away from zero, as in the terminal: hundredths_text in report/formatting.py says the same of every share.
function hundredths(share, digits = 0) {
  const text = Number(Math.abs(100 * share).toFixed(9)).toFixed(digits);
  return (share < 0 && Number(text) !== 0 ? "−" : "") + text;
}

function percent(rate, digits = 0) {
  return rate === null || rate === undefined ? "–" : hundredths(rate, digits) + " %";
}

function interval(one, digits = 0) {
  if (one.low === null || one.low === undefined) return "no interval";
  return `${hundredths(one.low, digits)}–${hundredths(one.high, digits)} %`;
}

function money(value) {
  if (!value) return "$0";
  return "$" + (value >= 100 ? value.toFixed(0) : value >= 0.995 ? value.toFixed(2) : value.toFixed(value >= 0.01 ? 2 : 4));
}

function duration(seconds) {
  if (seconds < 60) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
  const [big, small, unit] = seconds < 3600 ? [60, 1, "min"] : [3600, 60, "h"];
  const parts = Math.round(seconds / small);
  const rest = parts % 60;
  return `${Math.floor(parts / (big / small))} ${unit}` + (rest ? " " + String(rest).padStart(2, "0") : "");
}

// A place in time, the same width in every row.
function moment(seconds) {
  const tenths = Math.round(10 * seconds);
  if (tenths < 100) return `0:0${(tenths / 10).toFixed(1)}`;
  const whole = Math.floor(seconds < 10 ? 10 : seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

function count(number, noun, nouns) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : nouns ?? noun + "s"}`;
}

function size(bytes) {
  return bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

// Of a cell of the table or of a pair's details: how it ended, and marks where its tests are unsound or may not have decided.
function outcomeNode({ outcome, unsound, suspicious }) {
  const { mark, short, sentence } = overview.outcomes[outcome];
  const doubts = suspicious?.length ?? suspicious;
  return [h("span", { class: `outcome is-${outcome}`, title: sentence }, h("b", { "aria-hidden": "true" }, mark), h("span", null, short)),
    unsound ? [" ", h("span", { class: "tag unsound", title: unsound }, "unsound")] : null,
    doubts ? [" ", h("span", { class: "tag suspicious", title: "the tests may not have decided" }, "suspicious")] : null];
}

function pairName(pair) {
  return "f" + pair.features.join(" + f");
}

function repoName(repo) {
  return repo.replace(/_task$/, "");
}

function seriesName(series) {
  const alone = overview.series.filter((one) => one.run === series.run).length === 1;
  return alone && series.run.includes(series.setting) ? series.run : `${series.run} · ${series.setting}`;
}
