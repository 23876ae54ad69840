// The form for a new run: choosing a commit fills its field, and every change counts the jobs again.
const form = document.getElementById("run");
const changed = () => { if (form.elements.commits.value.trim()) form.dispatchEvent(new Event("warpwatch:form")); };

form?.addEventListener("change", changed);
form?.addEventListener("click", (event) => {
  const choice = event.target.closest("[data-fill]");
  if (!choice) return;
  const field = form.elements[choice.dataset.fill];
  field.value = choice.dataset.value;
  for (const other of form.querySelectorAll(".pick")) other.setAttribute("aria-pressed", String(other === choice));
  changed();
});
