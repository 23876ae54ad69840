// Small helpers of every page: switches that submit themselves, copy buttons, questions before what cannot be undone.
document.addEventListener("change", (event) => {
  const control = event.target;
  if (control.matches("[data-submit]")) control.form.requestSubmit();
});

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

// On a narrow screen the bar scrolls; the page one is on should be in sight.
addEventListener("DOMContentLoaded", () => {
  for (const current of document.querySelectorAll("nav [aria-current], .tabs [aria-current]")) {
    const bar = current.closest("nav, .tabs");
    bar.scrollLeft += current.getBoundingClientRect().right - bar.getBoundingClientRect().right + 24;
  }
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
