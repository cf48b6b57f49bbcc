// Liveness, keys, times and copies. Every page can be read without this.

const PERIOD = 2000;
/** Age of the last answer, in seconds, from which the page says that none comes. */
const STALE = 6;
const KEYS = [
  ["/", "find a call by an id"],
  ["j, k", "next and previous row"],
  ["Enter", "open the row"],
  ["Esc", "leave the field or the row; else go back"],
  ["p", "pause, and go on"],
  ["?", "show or hide these keys"],
];

const root = document.documentElement;
const main = document.querySelector("main");
const header = document.querySelector("header");
const state = document.querySelector("#live");
const isLive = Boolean(main && state && "live" in main.dataset);

function element(name, properties, ...inside) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...inside);
  return made;
}

// Theme

function theme(name) {
  if (name) root.dataset.theme = name;
  else delete root.dataset.theme;
}

function switchTheme() {
  const isDark = getComputedStyle(root).colorScheme === "dark" || (!root.dataset.theme && system.matches);
  const wanted = isDark ? "light" : "dark";
  const isOfSystem = (wanted === "dark") === system.matches;
  theme(isOfSystem ? "" : wanted);
  if (isOfSystem) localStorage.removeItem("theme");
  else localStorage.setItem("theme", wanted);
}

const system = matchMedia("(prefers-color-scheme: dark)");
theme(localStorage.getItem("theme"));

// Times and copies

const UNITS = [
  [60, 1, "s"],
  [3600, 60, "min"],
  [86400, 3600, "h"],
  [Infinity, 86400, "d"],
];

function relative(seconds) {
  const length = Math.abs(seconds);
  if (length < 1) return "now";
  const [, unit, name] = UNITS.find(([end]) => length < end);
  const text = `${Math.floor(length / unit)} ${name}`;
  return seconds < 0 ? `in ${text}` : `${text} ago`;
}

function showTimes() {
  if (hasSelection(document.body)) return;
  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = Date.parse(time.dateTime);
    if (Number.isNaN(at)) continue;
    time.title ||= time.dateTime;
    const text = relative((Date.now() - at) / 1000);
    if (time.textContent !== text) time.textContent = text;
  }
}

async function copy(from, button) {
  const text = from.dataset.copy || from.querySelector("[title]")?.title || from.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  } catch {
    // Over plain HTTP from elsewhere, browsers let no script write: the reader does it.
    getSelection().selectAllChildren(from);
    button.textContent = "selected";
  }
  setTimeout(() => (button.textContent = "copy"), PERIOD);
}

function addCopies(within) {
  for (const from of within.querySelectorAll("[data-copy]")) {
    const button = element("button", { type: "button", className: "copy", ariaLabel: "Copy" }, "copy");
    button.onclick = () => copy(from, button);
    from.after(button);
  }
}

// Liveness. The parts of a page that change have an id and `data-part`; what the reader holds stays as it is.

/** What the server wrote into an element, which the page shows otherwise: with relative times, for example. */
const written = new WeakMap();
/** The newest of a list, if rows are kept from jumping. */
const offered = new Map();
let isPaused = false;
let isOver = false;
let trouble = "";
let answered = Date.now();

function remember(within) {
  const all = [within, ...within.querySelectorAll("[data-part], tr[data-id]")];
  for (const one of all) if (!written.has(one)) written.set(one, one.innerHTML);
}

function hasSelection(within) {
  const selection = getSelection();
  return !selection.isCollapsed && selection.containsNode(within, true);
}

function isEdited(field) {
  if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
  if (field.options) return [...field.options].some((option) => option.selected !== option.defaultSelected);
  return field.value !== field.defaultValue;
}

function isHeld(part) {
  const fields = part.querySelectorAll("input:not([type=hidden]), select, textarea");
  return part.contains(document.activeElement) || hasSelection(part) || [...fields].some(isEdited);
}

function replace(own, made) {
  const open = new Map([...own.querySelectorAll("details")].map((one) => [nameOf(one), one.open]));
  for (const one of made.querySelectorAll("details")) one.open = open.get(nameOf(one)) ?? one.open;
  remember(made);
  addCopies(made);
  own.replaceWith(document.adoptNode(made));
}

function nameOf(details) {
  return details.id || details.querySelector("summary")?.textContent;
}

function renew(page) {
  for (const part of page.querySelectorAll("[data-part][id]")) {
    const own = document.getElementById(part.id);
    if (!own || own === part || written.get(own) === part.innerHTML) continue;
    // One without rows is no list, but a sentence.
    const isList = "rows" in own.dataset;
    if (isList && (scrollY > 0 || isHeld(own))) renewRows(own, part);
    else if (!isHeld(own)) renewWhole(own, part);
  }
  showTimes();
}

function renewWhole(own, part) {
  offered.delete(part.id);
  replace(own, part);
  tell();
}

/** Renews the rows that are there; those that are new are counted, and shown when the reader wants them. */
function renewRows(own, part) {
  const known = new Map([...own.querySelectorAll("tr[data-id]")].map((row) => [row.dataset.id, row]));
  let unseen = 0;
  for (const row of part.querySelectorAll("tr[data-id]")) {
    const old = known.get(row.dataset.id);
    known.delete(row.dataset.id);
    if (!old) unseen += 1;
    else if ((written.get(old) !== row.innerHTML || "unlisted" in old.dataset) && !isHeld(old)) replace(old, row.cloneNode(true));
  }
  known.forEach(sayUnlisted);
  offered.set(part.id, { part, unseen });
  tell();
}

/** Says of a row that is no longer listed that what it shows is past: the call ended, for example. */
function sayUnlisted(row) {
  if ("unlisted" in row.dataset) return;
  row.dataset.unlisted = "";
  row.querySelector(".mark.slow")?.after(" was");
}

function showNewer() {
  for (const [id, { part }] of offered) replace(document.getElementById(id), part);
  offered.clear();
  scrollTo(0, 0);
  showTimes();
  tell();
}

function tell() {
  const age = Math.floor((Date.now() - answered) / 1000);
  const unseen = Math.max(0, ...[...offered.values()].map((offer) => offer.unseen));
  if (isOver) return;
  if (isPaused) say("paused", "paused");
  else if (age >= STALE) say("away", "no answer", ` for ${age} s`);
  else if (trouble) say("away", trouble);
  else if (unseen) say("newer", `${unseen} newer`);
  else say("live", "live");
}

/** Only a change of the first text is read out. */
function say(kind, text, more = "") {
  const shown = state.dataset.kind === kind && state.firstChild;
  if (shown?.textContent === text) {
    state.lastChild.textContent = more;
    return;
  }
  state.dataset.kind = kind;
  const what = kind === "newer" ? element("button", { type: "button", onclick: showNewer }, text) : element("span", {}, text);
  state.replaceChildren(what, element("span", { ariaHidden: "true" }, more));
}

function sayOver() {
  isOver = true;
  state.dataset.kind = "over";
  const next = encodeURIComponent(location.pathname + location.search);
  const link = element("a", { href: `/console/login?next=${next}` }, "Log in again");
  state.replaceChildren("The session is over. ", link);
}

async function ask() {
  try {
    const signal = AbortSignal.timeout(STALE * 1000);
    const response = await fetch(location.href, { redirect: "manual", cache: "no-store", signal });
    // Only pages without a session lead elsewhere.
    if (response.type === "opaqueredirect") return sayOver();
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    answered = Date.now();
    trouble = response.ok ? "" : response.status === 404 ? "no longer there" : `answered with ${response.status}`;
    if (!isPaused) renew(page);
  } catch {
    // The daemon is away: the age of its last answer says so.
  }
  tell();
}

async function follow() {
  while (!isOver) {
    await new Promise((resolve) => setTimeout(resolve, PERIOD));
    if (!isPaused && !document.hidden) await ask();
  }
}

function pause() {
  isPaused = !isPaused;
  pauseButton.textContent = isPaused ? "Go on" : "Pause";
  answered = Date.now();
  tell();
  if (!isPaused) ask();
}

const pauseButton = element("button", { type: "button", onclick: pause, title: "p" }, "Pause");

// Keys

function move(by) {
  const rows = [...main.querySelectorAll("tbody tr")].filter((row) => row.querySelector("a[href]"));
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))];
  row?.querySelector("a[href]").focus();
}

function leave() {
  const focused = document.activeElement;
  const help = document.querySelector("#keys");
  if (help) help.remove();
  else if (focused !== document.body && focused !== main) focused.blur();
  else if (window.navigation?.canGoBack) history.back();
  else if (location.pathname !== "/console") location.assign(location.pathname.replace(/\/[^/]*$/, ""));
}

function showKeys() {
  const shown = document.querySelector("#keys");
  if (shown) return shown.remove();
  const list = element("dl", {}, ...KEYS.flatMap(([key, does]) => [
    element("dt", {}, element("kbd", {}, key)),
    element("dd", {}, does),
  ]));
  main.before(element("aside", { id: "keys", ariaLabel: "Keys" }, element("h2", {}, "Keys"), list));
  scrollTo(0, 0);
}

const ACTIONS = {
  "/": () => header.querySelector("input[type=search]").focus(),
  j: () => move(1),
  k: () => move(-1),
  p: () => isLive && !isOver && pause(),
  "?": showKeys,
  Escape: leave,
};

function onKey(event) {
  const isTyping = event.target.matches?.("input, select, textarea, [contenteditable]");
  const action = Object.hasOwn(ACTIONS, event.key) && ACTIONS[event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (isTyping && event.key !== "Escape") return;
  event.preventDefault();
  action();
}

if (header && main) {
  remember(document.body);
  addCopies(document);
  showTimes();
  // On narrow screens the views are a row that scrolls.
  document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  setInterval(showTimes, 1000);
  state?.after(
    ...(isLive ? [pauseButton] : []),
    element("button", { type: "button", onclick: switchTheme, ariaLabel: "Light or dark", title: "Light or dark" }, "◐"),
    element("button", { type: "button", onclick: showKeys, ariaLabel: "Keys", title: "Keys" }, "?"),
  );
  document.addEventListener("keydown", onKey);
}
if (isLive) {
  tell();
  setInterval(tell, 1000);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || isPaused || isOver) return;
    answered = Date.now();
    ask();
  });
  follow();
}
