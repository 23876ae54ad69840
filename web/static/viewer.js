// The Perfetto viewer is large, so it is loaded when somebody asks for it; it follows the theme of the page.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-viewer]");
  if (!button) return;
  const place = document.getElementById("perfetto");
  const frame = document.createElement("iframe");
  frame.className = "viewer";
  frame.title = "Trace in the Perfetto viewer";
  frame.tabIndex = 0;
  try {
    const theme = document.documentElement.dataset.theme;
    const settings = JSON.parse(localStorage.getItem("perfettoSettings") ?? "{}");
    localStorage.setItem("perfettoSettings", JSON.stringify({ ...settings, theme }));
  } catch { /* Without storage, the viewer has its own theme. */ }
  frame.src = button.dataset.viewer;
  place.replaceChildren(frame);
  place.hidden = false;
  button.disabled = true;
});
