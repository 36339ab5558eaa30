// What all plots share: colours, axes, layout. plotly.js reads some texts as markup, so names go through `plain` first.

/** How the n-th model looks, as in the figures: Okabe and Ito's colours, dashes and marks in cycles of different length. */
const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"];
const DARK = [...LIGHT.slice(0, -1), "#E8EAEC"];
const DASHES = [[], [8, 3], [2, 2], [9, 3, 2, 3], [5, 2, 2, 2, 2, 2]];
const MARKS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "pentagon"];
const OUTLINES = {
  circle: "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
  square: "M-3.5,-3.5H3.5V3.5H-3.5Z",
  "triangle-up": "M0,-4.5L4.5,3.5H-4.5Z",
  diamond: "M0,-5L5,0L0,5L-5,0Z",
  "triangle-down": "M0,4.5L4.5,-3.5H-4.5Z",
  cross: "M-4.5,-1.5H-1.5V-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5Z",
  x: "M-4.2,-2.1L-2.1,-4.2L0,-2.1L2.1,-4.2L4.2,-2.1L2.1,0L4.2,2.1L2.1,4.2L0,2.1L-2.1,4.2L-4.2,2.1L-2.1,0Z",
  pentagon: "M0,-4.6L4.4,-1.4L2.7,3.7H-2.7L-4.4,-1.4Z",
};
const FEW_MARKS = 8; // on a line
const MOST_NAMED = 8; // models in the key of a plot; in the table all have their sign
const media = matchMedia("(prefers-color-scheme: dark)");
const isTouch = matchMedia("(pointer: coarse)").matches;
let config = null; // one for all: a plot with another one would be drawn anew

function isDark() {
  return (document.documentElement.dataset.theme ?? (media.matches ? "dark" : "light")) === "dark";
}

function colours() {
  return isDark()
    ? { series: DARK, ink: "#e8eaec", quiet: "#a0a8af", line: "#333a40", ground: "#1b1f23", right: "#56B4E9", wrong: "#D55E00" }
    : { series: LIGHT, ink: "#1d2125", quiet: "#5c646b", line: "#e4e6e8", ground: "#ffffff", right: "#0072B2", wrong: "#D55E00" };
}

function colourOf(number) {
  const { series } = colours();
  return series[number % series.length];
}

/** Text that plotly.js shows as it is, cut where it would fill a label. */
function plain(text, most = 48) {
  const line = text.replace(/\s+/g, " ");
  const cut = line.length > most ? `${line.slice(0, most - 1)}…` : line;
  return cut.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function faint(hex, opacity) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${red},${green},${blue},${opacity})`;
}

function axis(title, more = {}) {
  const { ink, quiet, line } = colours();
  return {
    title: { text: title, font: { size: 12, color: quiet }, standoff: 8 },
    tickfont: { size: 11, color: quiet },
    gridcolor: line,
    zerolinecolor: line,
    linecolor: line,
    automargin: true,
    fixedrange: isTouch,
    hoverformat: ".3~g",
    color: ink,
    ...more,
  };
}

function layout(x, y, more = {}) {
  const { ink, quiet, ground, line } = colours();
  return {
    xaxis: x,
    yaxis: y,
    margin: { l: 46, r: 14, t: 10, b: 42 },
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { bgcolor: ground, bordercolor: line, font: { color: ink, size: 12 }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: ink },
    hovermode: "closest",
    showlegend: false,
    dragmode: isTouch ? false : "zoom",
    ...more,
  };
}

/** A line across the plot at the present setting. */
function setting(at) {
  return {
    type: "line",
    xref: "x",
    yref: "paper",
    x0: at,
    x1: at,
    y0: 0,
    y1: 1,
    line: { color: colours().quiet, width: 1.2, dash: "dot" },
  };
}

/** A legend above the plot, at the left: the buttons come up at the right. */
function legend() {
  const place = {
    orientation: "h",
    x: 0,
    xanchor: "left",
    y: 1.02,
    yanchor: "bottom",
    font: { size: 11 },
    itemsizing: "constant",
  };
  return { showlegend: true, legend: place, margin: { l: 46, r: 14, t: 28, b: 42 } };
}

/** From 0 to `most`, a share, or a little above it. It does not move with the sliders. */
function percentAxis(most = 1) {
  return axis("percent", { range: [0, Math.min(101, Math.ceil(105 * most))] });
}

/** The largest share that a plot of these models can reach: none exceeds A_rob, and its interval not by much. */
function mostOf(models) {
  return Math.max(0.05, ...models.map((model) => model.aRob()?.high ?? 1));
}

function draw(id, traces, shape, said) {
  const place = document.getElementById(id);
  place.setAttribute("aria-label", said);
  config ??= {
    displaylogo: false,
    displayModeBar: isTouch ? false : "hover",
    modeBarButtons: [[saveButton(), "zoom2d", "pan2d", "resetScale2d"]],
    responsive: true,
  };
  return Plotly.react(place, traces, shape, config);
}

function markOf(number) {
  return MARKS[number % MARKS.length];
}

function dashOf(number) {
  return DASHES[number % DASHES.length];
}

function style(number) {
  const dashes = dashOf(number).map((length) => `${length}px`);
  return { color: colourOf(number), dash: dashes.join(",") || "solid", width: 2 };
}

/** A line of a model with some marks on it: of many points, few. */
function marked(model, more = {}) {
  return {
    name: plain(model.name, 80),
    meta: model.number,
    type: "scatter",
    mode: "lines+markers",
    line: style(model.number),
    marker: { color: colourOf(model.number), symbol: markOf(model.number), size: 6, maxdisplayed: FEW_MARKS, ...more },
    hovertemplate: "%{text}<extra></extra>",
  };
}

/** The models by sign and name above a plot, unless they are so many that the table does it better. */
function key(id, models) {
  const entries = (models.length > MOST_NAMED ? [] : models).map((model) => {
    const entry = element("span");
    entry.append(swatch(model.number), model.name);
    return entry;
  });
  document.getElementById(id).replaceChildren(...entries);
}

/** A model's sign beside its name: its line with its mark. The markup is all ours. */
function swatch(number) {
  const place = document.createElement("template");
  place.innerHTML =
    `<svg class="swatch" viewBox="-20 -6 40 12" aria-hidden="true">` +
    `<path d="M-20,0H20" stroke-dasharray="${dashOf(number).join(" ") || "none"}"/>` +
    `<path class="mark" d="${OUTLINES[markOf(number)]}"/></svg>`;
  const made = place.content.firstChild;
  made.style.setProperty("--of", colourOf(number));
  return made;
}
