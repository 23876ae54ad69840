// Small helpers of every page: switches that submit themselves, copy buttons, questions before what cannot be undone.
document.addEventListener("change", (event) => {
  const control = event.target;
  if (control.matches("[data-submit]")) control.form.requestSubmit();
});

// A published site has a page for each choice of a switch.
document.addEventListener("change", ({ target }) => { if (target.matches("[data-places]")) location.assign(target.value); });

// Switches left at their blank choice do not belong into a link that people share.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "get") return;
  for (const control of form.elements) if (control.name && control.value === "") control.disabled = true;
});
addEventListener("pageshow", () => {
  for (const control of document.querySelectorAll("form[method=get] :disabled")) control.disabled = false;
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await copy(button.dataset.copy);
  const before = button.innerHTML;
  button.textContent = "✓";
  button.setAttribute("aria-label", "Copied");
  setTimeout(() => { button.innerHTML = before; button.setAttribute("aria-label", "Copy"); }, 1500);
});

// On a narrow screen a button opens the navigation.
const menuButton = document.querySelector("[data-menu]");
function openNavigation(open) {
  menuButton.setAttribute("aria-expanded", open);
  document.getElementById("navigation").toggleAttribute("data-open", open);
}
menuButton?.addEventListener("click", () => openNavigation(menuButton.getAttribute("aria-expanded") !== "true"));
document.addEventListener("click", (event) => {
  if (!event.target.closest("[data-menu], #navigation") && menuButton) openNavigation(false);
});

// A menu of the bar closes when the reader goes elsewhere.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const menu = document.querySelector(".menu[open]");
  if (menu) {
    menu.open = false;
    menu.querySelector("summary").focus();
  } else if (menuButton?.getAttribute("aria-expanded") === "true") {
    openNavigation(false);
    menuButton.focus();
  }
});

// On a narrow screen tabs scroll; the page one is on should be in sight.
addEventListener("DOMContentLoaded", () => {
  for (const current of document.querySelectorAll(".tabs [aria-current]")) {
    const bar = current.closest(".tabs");
    bar.scrollLeft += current.getBoundingClientRect().right - bar.getBoundingClientRect().right + 24;
  }
});

// A table is a stop for the keyboard, and a landmark, only while it scrolls.
function nameScrollers() {
  for (const box of document.querySelectorAll(".scroll")) {
    const scrolls = box.scrollWidth > box.clientWidth + 1;
    const labelled = box.closest("section")?.getAttribute("aria-labelledby");
    const heading = labelled && document.getElementById(labelled)?.textContent;
    box.dataset.name ??= box.getAttribute("aria-label") ?? heading ?? document.querySelector("h1")?.textContent ?? "";
    for (const name of ["tabindex", "role", "aria-label", "aria-labelledby"]) box.removeAttribute(name);
    if (!scrolls) continue;
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", `${box.dataset.name.trim()}, table`);
  }
}
addEventListener("resize", nameScrollers);

// The server writes times in UTC; the reader sees them in their own zone. A relative time keeps its words.
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const two = (number) => String(number).padStart(2, "0");
function showLocalTimes() {
  for (const element of document.querySelectorAll("time[datetime]")) {
    const when = new Date(element.dateTime);
    const written = element.textContent.match(/^\d{4}-\d\d-\d\d( \d\d:\d\d)?$/);
    if (Number.isNaN(when.getTime()) || element.dataset.zone) continue;
    element.dataset.zone = "local";
    element.title = FULL.format(when);
    if (!written) continue;
    const day = `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
    const clock = `${two(when.getHours())}:${two(when.getMinutes())}`;
    if ("clock" in element.dataset) { element.textContent = clock; continue; }
    element.textContent = written[1] ? `${day} ${clock}` : day;
  }
}
for (const event of ["DOMContentLoaded", "htmx:afterSettle"]) {
  document.addEventListener(event, () => { nameScrollers(); showLocalTimes(); });
}

// On an error page, the way back to where the reader came from.
addEventListener("DOMContentLoaded", () => {
  const back = document.querySelector("[data-back]");
  if (!back || !document.referrer.startsWith(location.origin) || history.length < 2) return;
  back.hidden = false;
  back.addEventListener("click", () => history.back());
});

// The name that a reader signs with is remembered by this browser.
function fillNames() {
  let name = "";
  try { name = localStorage.getItem("name") ?? ""; } catch { /* Without storage, the name is typed each time. */ }
  for (const field of document.querySelectorAll("input[autocomplete=name]")) if (!field.value) field.value = name;
}
for (const event of ["DOMContentLoaded", "htmx:afterSwap"]) document.addEventListener(event, fillNames);
document.addEventListener("submit", (event) => {
  const field = event.target.querySelector("input[autocomplete=name]");
  if (!field) return;
  try { localStorage.setItem("name", field.value); } catch { /* As above. */ }
});

// A part of the page that has an address of its own: a link or a reload shows it again.
document.addEventListener("htmx:afterRequest", (event) => {
  const link = event.detail.requestConfig.elt;
  if (event.detail.successful && link.matches("[data-replaces-address]")) history.replaceState(null, "", link.href);
});

// A view is saved as the address shows it, which scripts change when the reader zooms.
document.addEventListener("submit", (event) => {
  const field = event.target.querySelector("[data-address]");
  if (field) field.value = location.pathname + location.search;
});

// The newest commits stand at the right end of a wide table.
function showNewest() {
  for (const box of document.querySelectorAll("[data-newest]")) box.scrollLeft = box.scrollWidth;
}
addEventListener("DOMContentLoaded", showNewest);

// New results do not close what the reader has opened; they come with the next ones, or with the next visit.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.target.id === "results" && event.target.querySelector("details[open]")) event.detail.shouldSwap = false;
});

// A table that is fetched anew stays where the reader moved it.
let places = [];
document.addEventListener("htmx:beforeSwap", () => {
  places = [...document.querySelectorAll(".scroll")].map((table) => table.scrollLeft);
});
document.addEventListener("htmx:afterSettle", () => {
  document.querySelectorAll(".scroll").forEach((table, index) => { table.scrollLeft = places[index] ?? 0; });
});

// The clipboard needs a secure context; a service on another machine of the office often has none.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = Object.assign(document.createElement("textarea"), { value: text });
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
