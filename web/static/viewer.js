// The Perfetto viewer is large, so it is loaded when somebody unfolds it; it follows the theme of the page.
document.querySelector("[data-viewer]")?.parentElement.addEventListener("toggle", (event) => {
  const place = document.getElementById("perfetto");
  if (!event.target.open || place.firstChild) return;
  const frame = document.createElement("iframe");
  frame.className = "viewer";
  frame.title = "Trace in the Perfetto viewer";
  frame.tabIndex = 0;
  try {
    const theme = document.documentElement.dataset.theme;
    const settings = JSON.parse(localStorage.getItem("perfettoSettings") ?? "{}");
    localStorage.setItem("perfettoSettings", JSON.stringify({ ...settings, theme }));
  } catch { /* Without storage, the viewer has its own theme. */ }
  frame.src = event.target.querySelector("[data-viewer]").dataset.viewer;
  place.replaceChildren(frame);
});
