// The search palette (/ or Ctrl-K), the list of shortcuts (?) and "g" followed by a letter.
const SHORTCUTS = [
  ["/", "Search"], ["Ctrl K", "Search"], ["g h", "Home"], ["g o", "Overview"], ["g r", "Regressions"], ["g c", "Commits"],
  ["g d", "Compare"], ["g k", "Kernels"], ["g s", "Settings"],
  ["g u", "Runs"], ["g j", "Jobs"], ["g t", "Traces"], ["g n", "New run"], ["?", "This list"],
];
const PLACES = {
  h: "/", o: "/overview", r: "/regressions", c: "/commits", d: "/compare", k: "/kernels", u: "/runs",
  s: "/settings/repository", j: "/runs/jobs", t: "/runs/traces", n: "/runs/new",
};
const PAGES = {
  Home: "/", Overview: "/overview", Regressions: "/regressions", Commits: "/commits", Branches: "/commits?tab=branches", Compare: "/compare",
  Kernels: "/kernels", Runs: "/runs", Jobs: "/runs/jobs", Traces: "/runs/traces", Judgements: "/runs/judgements",
  "New run": "/runs/new",
  Settings: "/settings/repository", "Code host": "/settings/repository?tab=code-host", "CI access": "/settings/repository?tab=ci",
  Notifications: "/settings/repository?tab=notifications", Schedules: "/settings/repository?tab=schedules",
  Retention: "/settings/repository?tab=retention", "Muted series": "/settings/repository?tab=muted",
  "Saved views": "/settings/repository?tab=views", Watches: "/settings/repository?tab=watches",
  Users: "/settings/people?tab=users", "API tokens": "/settings/people?tab=tokens", "Audit log": "/settings/people?tab=audit",
  Devices: "/settings/devices", "Worker keys": "/settings/devices?tab=keys", Health: "/settings/devices?tab=health",
  "Self-tests": "/settings/devices?tab=self-tests", "How verdicts are made": "/verdicts",
};
// Pages of errors and of the API belong to no repository; the search then goes on where the reader was before.
let repository = document.body.dataset.repository;
try {
  if (repository) sessionStorage.setItem("repository", repository);
  else repository = sessionStorage.getItem("repository");
} catch { /* Without storage, the palette lists pages only. */ }
const within = (path) => (repository && path !== "/" ? `${path}${path.includes("?") ? "&" : "?"}repository=${encodeURIComponent(repository)}` : path);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function dialogOf(className, label, ...children) {
  const dialog = make("dialog", { class: className, "aria-label": label }, ...children);
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.body.append(dialog);
  return dialog;
}

// --- search -------------------------------------------------------------------------------------------------------

let palette;
let latest = 0;

function openPalette() {
  palette ??= makePalette();
  palette.dialog.showModal();
  palette.input.select();
  refresh();
}

function makePalette() {
  const list = make("ul", { id: "palette-results", role: "listbox", "aria-label": "Results" });
  const input = make("input", {
    type: "text", role: "combobox", "aria-label": "Search operators, cases, commits, regressions and jobs",
    "aria-expanded": "true", "aria-controls": "palette-results", "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false",
    placeholder: "Operator, case, commit, regression or job",
  });
  const note = make("p", { role: "status" });
  input.addEventListener("input", refresh);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { event.preventDefault(); choose(current() + step); }
    if (event.key === "Enter") list.querySelector("[aria-selected=true]")?.click();
  });
  return { dialog: dialogOf("palette", "Search", input, list, note), input, list, note };
}

const options = () => [...palette.list.children];
const current = () => options().findIndex((option) => option.getAttribute("aria-selected") === "true");

function choose(index) {
  const all = options();
  if (!all.length) { palette.input.removeAttribute("aria-activedescendant"); return; }
  const chosen = all[(index + all.length) % all.length];
  for (const option of all) option.setAttribute("aria-selected", String(option === chosen));
  palette.input.setAttribute("aria-activedescendant", chosen.id);
  chosen.scrollIntoView({ block: "nearest" });
}

function show(entries, note) {
  palette.list.replaceChildren(...entries.map((entry, index) => {
    const option = make("li", { role: "option", id: `palette-${index}`, "aria-selected": "false" },
      make("span", { class: "kind" }, entry.kind), make("span", { class: "title" }, entry.title), make("span", { class: "detail" }, entry.detail));
    option.addEventListener("click", () => location.assign(entry.path));
    return option;
  }));
  palette.note.textContent = note;
  palette.list.hidden = !entries.length;
  choose(0);
}

const pages = (words) => Object.entries(PAGES).filter(([name]) => name.toLowerCase().includes(words.toLowerCase()))
  .map(([name, path]) => ({ kind: "page", title: name, detail: "", path: within(path) }));

// Without words the palette lists the pages. Answers that come late, for words that have changed since, are dropped.
async function refresh() {
  const words = palette.input.value.trim();
  const turn = ++latest;
  if (!words || !repository) {
    show(pages(words), "");
    return;
  }
  const answer = await fetch(`/api/v1/search?limit=20&repository=${encodeURIComponent(repository)}&q=${encodeURIComponent(words)}`);
  if (turn !== latest) return;
  if (!answer.ok) { show([], "The search failed; try again."); return; }
  const page = await answer.json();
  if (turn !== latest) return;
  const entries = [...page.items, ...pages(words)];
  show(entries, entries.length ? (page.next_before ? "More match; add a word." : "") : `Nothing in ${repository} matches all words.`);
}

// --- shortcuts ----------------------------------------------------------------------------------------------------

let shortcuts;

function openShortcuts() {
  // A page may have keys of its own, which stand first.
  const own = [...document.querySelectorAll("[data-page-shortcuts] dt")].map((key) => [key.textContent, key.nextElementSibling.textContent]);
  shortcuts ??= dialogOf("shortcuts", "Shortcuts", make("h2", {}, "Shortcuts"), make("dl", {}, ...[...own, ...SHORTCUTS].flatMap(([keys, name]) => [
    make("dt", {}, ...keys.split(" ").map((key) => make("kbd", {}, key)).flatMap((key, index) => (index ? [" ", key] : [key]))), make("dd", {}, name),
  ])));
  shortcuts.showModal();
}

let awaitsPlace = false;
document.addEventListener("keydown", (event) => {
  const opensSearch = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k";
  // Until the next frame is drawn, the field of a dialog that was just closed has the focus, and nobody types there.
  const isTyping = event.target.checkVisibility?.() && event.target.closest("input, textarea, select, [contenteditable], dialog:not(.shortcuts)");
  if (!opensSearch && (isTyping || event.ctrlKey || event.metaKey || event.altKey)) return;
  // The keys work while their list is open, too.
  if (event.key !== "Escape") shortcuts?.close();
  if (opensSearch || event.key === "/") { event.preventDefault(); openPalette(); return; }
  if (event.key === "?") { openShortcuts(); return; }
  if (awaitsPlace && PLACES[event.key]) location.assign(within(PLACES[event.key]));
  awaitsPlace = event.key === "g";
});
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-palette]")) openPalette();
  if (event.target.closest("[data-shortcuts]")) openShortcuts();
});
