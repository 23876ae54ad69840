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
  // The name of a ceiling may lie on the line of another one.
  const isOnLines = ({ name }) => name === "ceiling";
  result.annotations = layout.annotations?.map((label) => (isOnLines(label) ? { ...label, bgcolor: styleOf("--surface") } : label));
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

// A history sends each commit once and the times of its points as numbers: this adds what tooltips show, and gives both
// ends of the interval the places of their median, which follows them.
const SHORT = 8; // As warpwatch.contract.commit_ids.SHORT_SHA.
function expandHistory({ data, layout: { meta } }) {
  const duration = (ns) => {
    const [size, unit] = meta.units.find(([size]) => ns >= size * 0.9995) ?? meta.units.at(-1);
    return `${(ns / size).toPrecision(4)}\u2009${unit}`;
  };
  data.forEach((trace, index) => {
    if (!trace.meta?.commits) return;
    data[index - 2].x = data[index - 1].x = trace.x;
    trace.customdata = trace.meta.times.map((times, at) => {
      const [, sha, subject, byline] = meta.commits[trace.meta.commits[at]];
      const [median, low, high] = times.map(duration);
      const interval = `${trace.name}, ${low} to ${high}${trace.meta.remarks[trace.meta.remark[at]]}`;
      return [meta.address.replace("SHA", sha), sha.slice(0, SHORT), subject, byline, median, interval];
    });
  });
}

// The shown range of commits stands in the address, so that a link shows what its sender saw, and in the form, so that
// the other switches keep it.
function keepRange(place, change) {
  if (!Object.keys(change).some((key) => key.startsWith("xaxis."))) return;
  const { commits } = place.layout.meta;
  const [low, high] = place.layout.xaxis.range.map((end) => typeof end === "string" ? Date.parse(`${end.replace(" ", "T")}Z`) : end);
  const inside = commits.filter(([at]) => at >= low && at <= high);
  const shown = inside.length < commits.length ? inside : [];
  const address = new URL(location.href);
  address.searchParams.delete("page");
  for (const [name, commit] of [["from", shown[0]], ["to", shown.at(-1)]]) {
    const id = commit?.[1].slice(0, SHORT) ?? "";
    address.searchParams.delete(name);
    if (id) address.searchParams.set(name, id);
    for (const field of document.querySelectorAll(`[data-range][name=${name}]`)) field.value = id;
  }
  history.replaceState(null, "", address);
}

// Labels that would cover one another stand in rows below each other, above the lines, which give them room. One that
// finds no room is left out: the list below the chart has all of them, and zooming in makes room.
const LABEL_ROWS = { change: 4, environment: 1 }, ROW = 18;
const ruler = document.createElement("canvas").getContext("2d");
function spreadLabels(place, isResized) {
  const { xaxis, yaxis, _size } = place._fullLayout, taken = {}, moved = {};
  (place.layout.annotations ?? []).forEach((label, index) => {
    if (!(label.name in LABEL_ROWS)) return;
    const most = label.name === "change" && !isResized ? place.labelRows : LABEL_ROWS[label.name];
    const rows = taken[label.name] ??= Array.from({ length: most }, () => []);
    ruler.font = `${label.font.size}px ${styleOf("--sans")}`;
    const width = ruler.measureText(plain(label.text)).width + 8, at = xaxis.d2p(label.x);
    const left = Math.max(Math.min(at - width / 2, xaxis._length - width), 0);
    const isInSight = at >= 0 && at <= xaxis._length;
    const row = isInSight ? rows.findIndex((ends) => ends.every(([from, to]) => left > to || left + width < from)) : -1;
    rows[row]?.push([left, left + width]);
    const shown = { visible: row >= 0, xanchor: "left", xshift: left - at, yshift: label.name === "change" ? -ROW * row : 0 };
    for (const [name, value] of Object.entries(shown)) moved[`annotations[${index}].${name}`] = value;
  });
  // While the reader pans, the lines keep their height.
  if (isResized && taken.change) {
    place.labelRows = Math.max(taken.change.filter((ends) => ends.length).length, 1);
    moved["yaxis.domain"] = [yaxis.domain[0], 1 - (ROW * place.labelRows + 4) / _size.h];
  }
  Object.assign(moved, commitTicks(place));
  if (Object.keys(moved).length) return Plotly.relayout(place, moved);
}

// As many commits of the shown range are named as find room, the newest among them.
const TICK_WIDTH = 74;
function commitTicks(place) {
  const { commits } = place.layout.meta ?? {}, { xaxis } = place._fullLayout;
  if (!commits || xaxis.type === "date") return {};
  const [low, high] = xaxis.range;
  const shown = commits.filter(([at]) => at >= low && at <= high);
  const step = Math.max(1, Math.ceil(shown.length / Math.max(Math.floor(xaxis._length / TICK_WIDTH), 1)));
  const named = shown.filter((_, index) => (shown.length - 1 - index) % step === 0);
  return {
    "xaxis.tickvals": named.map(([at]) => at),
    "xaxis.ticktext": named.map(([, sha]) => `<span style="font-family:monospace">${sha.slice(0, SHORT)}</span>`),
    "xaxis.tickangle": 0,
  };
}

// A chart with many variants gets the room that its legend takes, so that the lines keep theirs. A low one stays low.
const LEAST_PLOT = 220;
async function makeRoom(place) {
  const { legend, _size } = place._fullLayout, box = place.parentElement;
  if (box.matches(".low")) return;
  const missing = Math.max(LEAST_PLOT - _size.h, 0) + Math.max((legend?._height ?? 0) - (legend?._effHeight ?? 0), 0);
  if (missing < 8) return;
  box.style.height = `${box.offsetHeight + Math.ceil(missing)}px`;
  await Plotly.Plots.resize(place);
}

// Sizes that lie close together keep their points and lose their names, but for the first and the last.
const LEAST_TICK = 15;
function sizeTicks(place) {
  const { xaxis } = place._fullLayout, { tickvals, ticktext } = place.layout.xaxis ?? {};
  if (!tickvals || !ticktext || place.layout.meta?.commits) return;
  const at = tickvals.map((value) => xaxis.d2p(value)), last = at.length - 1;
  const kept = [last];
  at.forEach((x, index) => { if (kept.every((other) => Math.abs(at[other] - x) >= LEAST_TICK)) kept.push(index); });
  if (kept.length === at.length) return;
  kept.sort((a, b) => a - b);
  return Plotly.relayout(place, { "xaxis.tickvals": kept.map((index) => tickvals[index]), "xaxis.ticktext": kept.map((index) => ticktext[index]) });
}

// A line that is drawn in grey has its own colour while the reader points at it, or at its name in the legend. Styles are
// set at the elements: a restyle of the chart would draw thousands of points anew.
function light(place, index, isLit) {
  const { own } = place.data[index]?.meta ?? {};
  const group = place.calcdata?.[index]?.[0]?.node3?.node();
  const drawn = place.data[index]?.line?.color ?? place.data[index]?.marker?.color;
  if (!own || !group || own === drawn) return;
  for (const line of group.querySelectorAll(".js-line")) {
    line.style.stroke = isLit ? own : drawn;
    line.style.strokeWidth = isLit ? "2.5px" : "1px";
  }
  for (const point of group.querySelectorAll(".point")) {
    if (point.style.fill !== "none") point.style.fill = isLit ? own : drawn;
    if (point.style.strokeWidth !== "0px") point.style.stroke = isLit ? own : drawn;
  }
}
function lightOnHover(place) {
  place.on("plotly_hover", ({ points }) => light(place, points[0].curveNumber, true));
  place.on("plotly_unhover", ({ points }) => light(place, points[0].curveNumber, false));
  const named = (event) => event.target.closest?.(".legend .traces")?.__data__?.[0]?.trace?.index;
  for (const [kind, isLit] of [["mouseover", true], ["mouseout", false]]) {
    place.addEventListener(kind, (event) => { if (named(event) !== undefined) light(place, named(event), isLit); });
  }
}

// The text of a label or tooltip without its markup.
const plain = (html) => new DOMParser().parseFromString(html.replaceAll("<br>", " · "), "text/html").body.textContent;

// A finger cannot hover: a tap on a point says what it is and offers the link, and a drag scrolls the page.
const IS_TOUCH = matchMedia("(hover: none)").matches;
function showTapped(place, point, target) {
  const facts = point.customdata.slice(1).filter((fact) => typeof fact === "string" && fact).map(plain);
  const panel = document.createElement("p");
  panel.className = "card padded tapped";
  panel.setAttribute("role", "status");
  panel.append(facts.join(" · "), " ", Object.assign(document.createElement("a"), { href: target, className: "button", textContent: "Open" }));
  const before = place.parentElement.nextElementSibling;
  if (before?.matches(".tapped")) before.replaceWith(panel);
  else place.parentElement.after(panel);
}

async function draw(place) {
  const figure = JSON.parse(document.getElementById(place.dataset.figure).textContent);
  if (figure.layout.meta?.commits) expandHistory(figure);
  // On a phone the names of ceilings would cover one another; the text beside the chart has them.
  if (place.clientWidth < 560) figure.layout.annotations = figure.layout.annotations?.filter(({ name }) => name !== "ceiling");
  if (IS_TOUCH) figure.layout.dragmode = false;
  // The chart library counts a tap, and the click that a browser adds to it, as a double click.
  await Plotly.newPlot(place, figure.data, withTheme(figure.layout), IS_TOUCH ? { ...CONFIG, doubleClick: false, displayModeBar: false } : CONFIG);
  await makeRoom(place);
  await sizeTicks(place);
  await spreadLabels(place, true);
  lightOnHover(place);
  // The first custom value of a point is where a click on it leads.
  place.on("plotly_click", (event) => {
    const point = event.points.find(({ customdata }) => typeof customdata?.[0] === "string" && /^[.]{0,2}[/]/.test(customdata[0]));
    if (!point) return;
    if (IS_TOUCH) showTapped(place, point, point.customdata[0]);
    else location.assign(point.customdata[0]);
  });
  place.on("plotly_relayout", (change) => {
    if (figure.layout.meta?.commits) keepRange(place, change);
    const keys = Object.keys(change);
    if (keys.some((key) => /^(xaxis\.(range|autorange)|autosize|width)/.test(key))) {
      spreadLabels(place, keys.some((key) => /^(autosize|width)/.test(key)));
    }
  });
  document.addEventListener("warpwatch:theme", () => Plotly.relayout(place, withTheme(place.layout)));
  place.dataset.drawn = "yes";
}

// A chart that is folded away has no size, so it is drawn when it is unfolded.
// Charts that come with a part of the page are drawn, too.
document.addEventListener("htmx:afterSettle", () => drawAll());
addEventListener("DOMContentLoaded", async () => {
  // Drawing thousands of points takes a second; the page is shown first.
  await new Promise((resolve) => { requestAnimationFrame(() => setTimeout(resolve)); });
  drawAll();
});

function drawAll() {
  for (const place of document.querySelectorAll("[data-figure]:not([data-asked])")) {
    const folded = place.closest("details:not([open])");
    place.dataset.asked = "yes";
    if (!folded) { draw(place); continue; }
    place.dataset.drawn = "later";
    folded.addEventListener("toggle", () => draw(place), { once: true });
  }
}
