// What is shown, keys, light and dark, and following a run that goes on.

const REFRESH_MILLISECONDS = 2000;
const HIDDEN_REFRESH_MILLISECONDS = 10000;
const THEME_KEY = "cooperbench-theme";
const main = byId("main");
let overviewNode = null;
let overviewScroll = 0;
let renderNumber = 0;

async function show() {
  const state = readState();
  renderNumber += 1;
  if (state.pair) {
    await showPair(state, renderNumber);
  } else {
    showOverview();
  }
}

function showOverview() {
  const wasShown = overviewNode !== null && main.firstElementChild === overviewNode;
  overviewNode ??= renderOverview();
  if (!wasShown) {
    main.replaceChildren(overviewNode);
    scrollTo({ top: overviewScroll, behavior: "instant" });
  }
  main.classList.remove("wide");
  const runs = [...new Set(overview.series.map((series) => series.run))];
  byId("where").textContent = clean(runs.join(", "));
  updateTable();
}

async function showPair(state, number) {
  if (overviewNode && main.firstElementChild === overviewNode) overviewScroll = scrollY;
  const rendered = await renderPair(state);
  // Something else may have been opened while this pair was loaded.
  if (number !== renderNumber) return;
  const key = JSON.stringify(state.pair);
  const isSamePair = main.dataset.pair === key && main.firstElementChild !== overviewNode;
  const scroll = isSamePair ? scrollY : 0;
  const opened = isSamePair ? [...main.querySelectorAll("details")].map((node) => node.open) : [];
  main.dataset.pair = key;
  main.classList.add("wide");
  main.replaceChildren(rendered);
  main.querySelectorAll("details").forEach((node, index) => {
    if (opened[index]) node.open = true;
  });
  byId("where").textContent = clean(
    `${repoName(state.pair.repo)} ${state.pair.task} ${state.pair.name}`,
  );
  scrollTo({ top: scroll, behavior: "instant" });
}

function closePair() {
  if (readState().pair) changeState({ pair: null, vs: "" }, { newEntry: true });
}

function openSelectedPair() {
  const pair = table.pairs[table.current];
  if (pair && !readState().pair) location.hash = pairAddress(pair);
}

function moveTo(direction) {
  if (readState().pair) openNeighbor(direction);
  else moveSelection(direction);
}

async function focusSearch() {
  closePair();
  await new Promise((resolve) => setTimeout(resolve));
  const field = document.querySelector("input[name=q]");
  field?.scrollIntoView({ block: "center" });
  field?.focus();
}

const KEYS = {
  j: { text: "next pair", action: () => moveTo(1) },
  k: { text: "previous pair", action: () => moveTo(-1) },
  Enter: { text: "open the pair", action: openSelectedPair },
  Escape: { text: "back to all pairs", action: closePair },
  "/": { text: "find", action: focusSearch },
  e: { text: "unfold all steps of a pair", action: () => byId("fold")?.click() },
  t: { text: "light or dark", action: switchTheme },
  "?": { text: "these keys", action: () => byId("help").showModal() },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (event.target.closest?.("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "Enter" && event.target.closest?.("a, button, summary")) return;
  const key = KEYS[event.key];
  if (!key) return;
  event.preventDefault();
  key.action();
});

function fillHelpDialog() {
  const row = ([key, { text }]) => [h("dt", null, h("kbd", null, key)), h("dd", null, text)];
  byId("help").replaceChildren(
    h("h2", { id: "help-title" }, "Keys"),
    h("dl", null, Object.entries(KEYS).map(row)),
    h("form", { method: "dialog" }, h("button", null, "Close")),
  );
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let selectedTheme = readTheme();

// Some browsers forbid storage to files; the choice then lasts as long as the page.
function readTheme() {
  try {
    return localStorage.getItem(THEME_KEY);
  } catch {
    return null;
  }
}

function saveTheme() {
  try {
    localStorage.setItem(THEME_KEY, selectedTheme);
  } catch {
    // See readTheme.
  }
}

function applyTheme() {
  const preferred = prefersDark.matches ? "dark" : "light";
  document.documentElement.dataset.theme = selectedTheme ?? preferred;
}

function switchTheme() {
  selectedTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  saveTheme();
  applyTheme();
}

// Loads the shown pair again and returns whether it has changed.
async function shownPairChanged() {
  const state = readState();
  const pair = state.pair && findPair(state.pair);
  if (!pair) return false;
  const cell = pair.cells[selectedSeries(state)] ?? pair.cells.find(Boolean);
  if (!cell) return false;
  const tag = details.get(cell.id)?.tag;
  await loadDetail(cell.id);
  return details.get(cell.id)?.tag !== tag;
}

async function refresh() {
  if (await refreshOverview()) {
    overviewNode = null;
    if (!readState().pair) overviewScroll = scrollY;
    await show();
  } else if (await shownPairChanged()) {
    await show();
  }
}

async function follow() {
  const status = byId("live");
  try {
    await refresh();
    status.textContent = overview.finished ? "● up to date" : "● live";
  } catch {
    status.textContent = "○ the server has gone";
  }
  status.hidden = false;
  setTimeout(follow, document.hidden ? HIDDEN_REFRESH_MILLISECONDS : REFRESH_MILLISECONDS);
}

applyTheme();
prefersDark.addEventListener("change", applyTheme);
byId("theme").addEventListener("click", switchTheme);
byId("keys").addEventListener("click", () => byId("help").showModal());
fillHelpDialog();
addEventListener("hashchange", show);
show();
if (overview.mode === "live") follow();
