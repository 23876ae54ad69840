// The small histories of an operator's cases show the same commits: a line through all of them says which one the
// reader points at.
const list = document.querySelector("[data-commits]");
const shas = list.dataset.commits.split(" ").filter(Boolean);
const WIDTH = 216, LEFT = 40, EDGE = 5;
const step = (WIDTH - LEFT - EDGE) / Math.max(shas.length - 1, 1);
const pictures = [...list.querySelectorAll("svg.multiple")];
const readout = document.querySelector("[data-commit-at]");
const lines = pictures.map((picture) => {
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  line.setAttribute("class", "cross");
  picture.append(line);
  return line;
});

list.addEventListener("pointermove", (event) => {
  const picture = event.target.closest("svg.multiple") ?? event.target.closest("a")?.querySelector("svg.multiple");
  if (!picture) return;
  const box = picture.getBoundingClientRect();
  const at = Math.round(((event.clientX - box.left) / box.width * WIDTH - LEFT) / step);
  const place = Math.max(0, Math.min(shas.length - 1, at));
  for (const line of lines) line.setAttribute("d", `M${(LEFT + place * step).toFixed(1)} 0V46`);
  readout.textContent = shas[place] ?? "";
});
list.addEventListener("pointerleave", () => {
  for (const line of lines) line.setAttribute("d", "");
  readout.textContent = "";
});

// A variant that is drawn in grey has its colour while the reader points at it, in the legend or at any of its marks.
const marks = () => document.querySelectorAll("[data-variant]");
function lightVariant(name) {
  for (const mark of marks()) {
    mark.toggleAttribute("data-lit", mark.dataset.variant === name);
    for (const shape of mark.querySelectorAll("[data-own]")) {
      shape.dataset.shown ??= shape.getAttribute(shape.hasAttribute("stroke") ? "stroke" : "fill");
      const colour = mark.dataset.variant === name ? shape.dataset.own : shape.dataset.shown;
      shape.setAttribute(shape.hasAttribute("stroke") ? "stroke" : "fill", colour);
    }
  }
}
for (const picture of document.querySelectorAll(".ceilings-picture, .legend")) {
  picture.addEventListener("pointerover", (event) => lightVariant(event.target.closest("[data-variant]")?.dataset.variant));
  picture.addEventListener("pointerleave", () => lightVariant(undefined));
}
// The case that is shown is in sight in a list that scrolls.
const chosen = list.querySelector("[aria-current]");
if (chosen) {
  list.scrollTop = chosen.offsetTop - list.offsetTop - 40;
  list.scrollLeft = chosen.offsetLeft - list.offsetLeft - 20;
}
