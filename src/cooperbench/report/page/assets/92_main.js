// What is shown, keys, light and dark, and following a run that goes on.

const main = byId("main");
let home = null;
let shown = 0;
let placeAtHome = 0;

async function show() {
  const state = readState();
  const turn = ++shown;
  if (!state.pair) {
    const back = main.firstElementChild !== home;
    if (!home) home = renderOverview();
    if (back) {
      main.replaceChildren(home);
      scrollTo({ top: placeAtHome, behavior: "instant" });
    }
    main.classList.remove("wide");
    byId("where").textContent = clean(overview.series.map((one) => one.run).filter((run, at, all) => all.indexOf(run) === at).join(", "));
    updateTable();
    return;
  }
  if (home && main.firstElementChild === home) placeAtHome = scrollY;
  const made = await renderPair(state);
  if (turn !== shown) return;
  const stays = main.dataset.pair === JSON.stringify(state.pair) && main.firstElementChild !== home;
  const place = stays ? scrollY : 0;
  const unfolded = stays ? [...main.querySelectorAll("details")].map((one) => one.open) : [];
  main.dataset.pair = JSON.stringify(state.pair);
  main.classList.add("wide");
  main.replaceChildren(made);
  [...main.querySelectorAll("details")].forEach((one, at) => { if (unfolded[at]) one.open = true; });
  byId("where").textContent = clean(`${repoName(state.pair.repo)} ${state.pair.task} ${state.pair.name}`);
  scrollTo({ top: place, behavior: "instant" });
}

const KEYS = {
  j: ["next pair", () => (readState().pair ? neighbour(1) : moveTo(1))],
  k: ["previous pair", () => (readState().pair ? neighbour(-1) : moveTo(-1))],
  Enter: ["open the pair", () => { const pair = table.pairs[table.at]; if (!readState().pair && pair) location.hash = pairAddress(pair); }],
  Escape: ["back to all pairs", () => { const state = readState(); if (state.pair) change({ pair: null, vs: "" }, { step: true }); }],
  "/": ["find", () => find()],
  e: ["unfold all steps of a pair", () => byId("fold")?.click()],
  t: ["light or dark", () => switchTheme()],
  "?": ["these keys", () => byId("help").showModal()],
};

async function find() {
  if (readState().pair) change({ pair: null, vs: "" }, { step: true });
  await new Promise((done) => setTimeout(done));
  const field = document.querySelector("input[name=q]");
  field?.scrollIntoView({ block: "center" });
  field?.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const typing = event.target.closest?.("input, select, textarea");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "Enter" && event.target.closest?.("a, button, summary")) return;
  const known = KEYS[event.key];
  if (!known) return;
  event.preventDefault();
  known[1]();
});

function helpDialog() {
  byId("help").replaceChildren(h("h2", { id: "help-title" }, "Keys"),
    h("dl", null, Object.entries(KEYS).map(([key, [meaning]]) => [h("dt", null, h("kbd", null, key)), h("dd", null, meaning)])),
    h("form", { method: "dialog" }, h("button", null, "Close")));
}

const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;

function applyTheme() {
  document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
}

function switchTheme() {
  chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  // Some browsers forbid storage to files; the choice then lasts as long as the page.
  try { localStorage.setItem("cooperbench-theme", chosen); } catch { /* see above */ }
  applyTheme();
}

async function detailChanged() {
  const state = readState();
  const pair = state.pair && findPair(state.pair);
  const id = pair && (pair.cells[focusSeries(state)] ?? pair.cells.find(Boolean))?.id;
  if (id === undefined || id === null) return false;
  const before = details.get(id)?.tag;
  await detailOf(id);
  return details.get(id)?.tag !== before;
}

async function follow() {
  const sign = byId("live");
  try {
    if (await refreshOverview()) {
      home = null;
      if (!readState().pair) placeAtHome = scrollY;
      await show();
    } else if (await detailChanged()) await show();
    sign.textContent = overview.finished ? "● up to date" : "● live";
  } catch {
    sign.textContent = "○ the server has gone";
  }
  sign.hidden = false;
  setTimeout(follow, document.hidden ? 10000 : 2000);
}

try { chosen = localStorage.getItem("cooperbench-theme"); } catch { /* see switchTheme */ }
applyTheme();
dark.addEventListener("change", applyTheme);
byId("theme").addEventListener("click", switchTheme);
byId("keys").addEventListener("click", () => byId("help").showModal());
helpDialog();
addEventListener("hashchange", show);
show();
if (overview.mode === "live") follow();
