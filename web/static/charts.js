// Draws every figure of the page: the server sends Plotly's JSON, this adds the theme's colours and the clicks.
const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function themed() {
  const axis = { gridcolor: styleOf("--line"), zerolinecolor: styleOf("--line-strong"), linecolor: styleOf("--line-strong") };
  return {
    font: { family: styleOf("--sans"), size: 12, color: styleOf("--muted") },
    hoverlabel: {
      bgcolor: styleOf("--surface"), bordercolor: styleOf("--line-strong"), align: "left",
      font: { family: styleOf("--sans"), size: 12, color: styleOf("--text") },
    },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: styleOf("--line-strong"), activecolor: styleOf("--accent") },
    axis,
  };
}

function withTheme(layout) {
  const { axis, ...rest } = themed();
  const result = { ...layout, ...rest };
  for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) result[key] = { ...layout[key], ...axis };
  return result;
}

// Plotly can upload a chart to a cloud service. Data must not leave this host, so its button and its address are removed.
// Dragging zooms and a double click resets, so two buttons are enough; each is a stop for the keyboard.
const CONFIG = {
  responsive: true, displaylogo: false, plotlyServerURL: "", showSendToCloud: false,
  modeBarButtons: [["toImage", "resetScale2d"]],
  toImageButtonOptions: { format: "png", scale: 2, filename: "warpwatch" },
};

// The shown range of commits stands in the address, so that a link shows what its sender saw, and in the form, so that
// the other switches keep it.
function keepRange(place, change) {
  if (!Object.keys(change).some((key) => key.startsWith("xaxis."))) return;
  const { commits } = place.layout.meta;
  const [low, high] = place.layout.xaxis.range.map((end) => typeof end === "string" ? Date.parse(`${end.replace(" ", "T")}Z`) : end);
  const inside = commits.filter(([at]) => at >= low && at <= high);
  const shown = inside.length < commits.length ? inside : [];
  const address = new URL(location.href);
  for (const [name, commit] of [["from", shown[0]], ["to", shown.at(-1)]]) {
    address.searchParams.delete(name);
    if (commit) address.searchParams.set(name, commit[1]);
    for (const field of document.querySelectorAll(`[data-range][name=${name}]`)) field.value = commit?.[1] ?? "";
  }
  history.replaceState(null, "", address);
}

async function draw(place) {
  const figure = JSON.parse(document.getElementById(place.dataset.figure).textContent);
  // On a phone the names of ceilings would cover one another; the text beside the chart has them.
  if (place.clientWidth < 560) figure.layout.annotations = figure.layout.annotations?.filter(({ name }) => name !== "ceiling");
  await Plotly.newPlot(place, figure.data, withTheme(figure.layout), CONFIG);
  // The first custom value of a point is where a click on it leads.
  place.on("plotly_click", (event) => {
    const target = event.points.map((point) => point.customdata?.[0]).find((value) => typeof value === "string" && value.startsWith("/"));
    if (target) location.assign(target);
  });
  if (figure.layout.meta?.commits) place.on("plotly_relayout", (change) => keepRange(place, change));
  document.addEventListener("warpwatch:theme", () => Plotly.relayout(place, withTheme(place.layout)));
  place.dataset.drawn = "yes";
}

// A chart that is folded away has no size, so it is drawn when it is unfolded.
addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll("[data-figure]")) {
    const folded = place.closest("details:not([open])");
    if (!folded) { draw(place); continue; }
    place.dataset.drawn = "later";
    folded.addEventListener("toggle", () => draw(place), { once: true });
  }
});
