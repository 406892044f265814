// Numbers and names as people read them.

// Halves are rounded away from zero, as in the terminal (hundredths_text in report/formatting.py).
function hundredths(share, digits = 0) {
  const text = Number(Math.abs(100 * share).toFixed(9)).toFixed(digits);
  const isNegative = share < 0 && Number(text) !== 0;
  return isNegative ? "−" + text : text;
}

function percent(rate, digits = 0) {
  if (rate === null || rate === undefined) return "–";
  return hundredths(rate, digits) + " %";
}

function hasInterval(estimate) {
  return estimate.low !== null && estimate.low !== undefined;
}

function interval(estimate, digits = 0) {
  if (!hasInterval(estimate)) return "no interval";
  return `${hundredths(estimate.low, digits)}–${hundredths(estimate.high, digits)} %`;
}

function pointsInterval(estimate) {
  if (!hasInterval(estimate)) return "no interval: too few tasks";
  return `${hundredths(estimate.low, 1)} to ${hundredths(estimate.high, 1)}`;
}

// What is not known: an imported run may lack some numbers.
const UNKNOWN = "–";

function whole(number) {
  return number === null ? UNKNOWN : number.toLocaleString("en");
}

function money(value) {
  if (value === null) return UNKNOWN;
  if (!value) return "$0";
  if (value >= 100) return "$" + Math.round(value).toLocaleString("en");
  return "$" + value.toFixed(value >= 0.01 ? 2 : 4);
}

function duration(seconds) {
  if (seconds === null) return UNKNOWN;
  if (seconds < 10) return seconds.toFixed(1) + " s";
  if (seconds < 60) return seconds.toFixed(0) + " s";
  const isHours = seconds >= 3600;
  const parts = Math.round(isHours ? seconds / 60 : seconds);
  const remainder = parts % 60;
  const text = `${Math.floor(parts / 60)} ${isHours ? "h" : "min"}`;
  return remainder ? `${text} ${String(remainder).padStart(2, "0")}` : text;
}

// A time since the start of a pair, equally wide in every row.
function moment(seconds) {
  const tenths = Math.round(10 * seconds);
  if (tenths < 100) return `0:0${(tenths / 10).toFixed(1)}`;
  const whole = Math.floor(Math.max(10, seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

function count(number, noun, plural = noun + "s") {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1e6) return `${(bytes / 1000).toFixed(1)} kB`;
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

// Stands beside every number that a mismatch affects.
const MISMATCH_MARK = "†";

function mismatchMark(isAffected) {
  return isAffected ? ` ${MISMATCH_MARK}` : "";
}

// How a cell of the table or a pair ended, with marks for unsound tests and doubtful verdicts.
function outcomeNode({ outcome, unsound, suspicious, mismatches }) {
  const { mark, short, sentence } = overview.outcomes[outcome];
  const doubts = Array.isArray(suspicious) ? suspicious.length : suspicious;
  const tag = (name, title) => [" ", h("span", { class: `tag ${name}`, title }, name)];
  return [
    h(
      "span",
      { class: `outcome is-${outcome}`, title: sentence },
      h("b", { "aria-hidden": "true" }, mark),
      h("span", null, short),
    ),
    unsound && tag("unsound", unsound),
    doubts > 0 && tag("suspicious", "the tests may not have decided"),
    mismatches?.length > 0 && tag("mismatch", mismatchTexts(mismatches).join("\n")),
  ];
}

function mismatchTexts(indexes) {
  return indexes.map((index) => overview.mismatches[index]);
}

function pairName(pair) {
  return pair.features.map((feature) => `f${feature}`).join(" + ");
}

// The title of a feature, e.g. `f2 wildcards`; only its number without the dataset at hand.
function featureName(pair, feature) {
  const title = pair.titles[pair.features.indexOf(Number(feature))];
  return title ? `f${feature} ${title}` : `f${feature}`;
}

function hasTitles(pair) {
  return pair.titles.some(Boolean);
}

function repoName(repo) {
  return repo.replace(/_task$/, "");
}

function taskName(pair) {
  return `${repoName(pair.repo)} ${pair.task}`;
}

function seriesName(series) {
  const ofRun = overview.series.filter((other) => other.run === series.run);
  if (ofRun.length === 1 && series.run.includes(series.setting)) return series.run;
  return `${series.run} · ${series.setting}`;
}

function findSeries(id) {
  return overview.series.find((series) => series.id === id);
}
