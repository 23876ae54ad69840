// Runs before the first paint, so that a page never flashes in the other theme.
(() => {
  const wanted = () => {
    try {
      const kept = localStorage.getItem("theme");
      if (kept === "dark" || kept === "light") return kept;
    } catch { /* Storage may be off; the system's choice is then the only one. */ }
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  };
  const show = () => {
    document.documentElement.dataset.theme = wanted();
    document.dispatchEvent(new Event("warpwatch:theme"));
  };
  show();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-toggle]")) return;
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", next); } catch { /* Kept for this page only. */ }
    document.documentElement.dataset.theme = next;
    document.dispatchEvent(new Event("warpwatch:theme"));
  });
})();
