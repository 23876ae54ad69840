// Runs before the first paint, so that a page never flashes in the other theme.
(() => {
  const CHOICES = ["system", "light", "dark"];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let choice = "system";
  try { choice = localStorage.getItem("theme") || "system"; } catch { /* Without storage, the choice lasts for this page. */ }
  if (!CHOICES.includes(choice)) choice = "system";

  const show = () => {
    const root = document.documentElement;
    root.dataset.theme = choice === "system" ? (dark.matches ? "dark" : "light") : choice;
    root.dataset.themeChoice = choice;
    document.querySelector("[data-theme-toggle]")?.setAttribute("aria-label", `Theme: ${choice}`);
    document.dispatchEvent(new Event("warpwatch:theme"));
  };
  show();
  dark.addEventListener("change", show);
  addEventListener("DOMContentLoaded", show);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-toggle]")) return;
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    try { localStorage.setItem("theme", choice); } catch { /* As above. */ }
    show();
  });
})();
