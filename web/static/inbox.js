// The inbox of regressions by keyboard: j and k move, Enter opens, x selects, e accepts and a assigns what is selected, or
// the row that the keyboard is at.
const rowsOfInbox = () => [...document.querySelectorAll("[data-inbox] tbody tr")];
const currentRow = () => document.activeElement?.closest?.("[data-inbox] tbody tr");

function moveBy(step) {
  const rows = rowsOfInbox();
  const at = rows.indexOf(currentRow());
  const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1)];
  next?.querySelector("th a").focus();
  next?.scrollIntoView({ block: "nearest" });
}

function triageBy(button) {
  const form = document.querySelector("[data-inbox]");
  const control = form?.querySelector(button);
  if (!control) return;
  const box = currentRow()?.querySelector("[name=chosen]");
  if (!form.querySelector("[name=chosen]:checked") && box) box.checked = true;
  if (form.querySelector("[name=chosen]:checked")) control.click();
}

// The button that waits for a name. Enter after the name would press the first button of the form.
let waiting = null;
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-inbox] button");
  if (button) waiting = button.form.checkValidity() ? null : button;
});

const ACTIONS = {
  j: () => moveBy(1),
  k: () => moveBy(-1),
  x: () => currentRow()?.querySelector("[name=chosen]").click(),
  e: () => triageBy("[name=state][value=accepted]"),
  a: () => triageBy("[name=take]"),
};
// A letter after g leads to another page.
let isAfterG = false;
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && waiting && event.target === waiting.form?.elements.author) {
    event.preventDefault();
    waiting.click();
  }
  const isTyping = event.target.closest?.("input:not([type=checkbox]), textarea, select, dialog");
  const action = ACTIONS[event.key];
  const acts = action && !isTyping && !isAfterG && !event.ctrlKey && !event.metaKey && !event.altKey;
  isAfterG = event.key === "g";
  if (!acts) return;
  event.preventDefault();
  action();
});

// Patterns come a moment later with a new table, which keeps what was selected.
let selected = [];
let place = -1;
document.addEventListener("htmx:beforeSwap", () => {
  selected = [...document.querySelectorAll("[name=chosen]:checked")].map((box) => box.value);
  place = rowsOfInbox().indexOf(currentRow());
});
document.addEventListener("htmx:afterSwap", () => {
  for (const box of document.querySelectorAll("[name=chosen]")) if (selected.includes(box.value)) box.checked = true;
  rowsOfInbox()[place]?.querySelector("th a").focus();
});
