// Colours, axes and layout of all plots. plotly.js parses markup in texts, so that names need `escapeLabel`.

/** The style of the n-th training, as in figures/style.py: the colours of Okabe and Ito, dashes and marks in cycles. */
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
const MARKS_PER_LINE = 8;
const MAX_KEY_ENTRIES = 8; // the table above has the signs of all methods
const media = matchMedia("(prefers-color-scheme: dark)");
const isTouch = matchMedia("(pointer: coarse)").matches;
let config = null; // one object for all plots: plotly.js redraws from scratch if it changes

function isDark() {
  return (document.documentElement.dataset.theme ?? (media.matches ? "dark" : "light")) === "dark";
}

function colours() {
  return isDark()
    ? {
        series: DARK,
        ink: "#e8eaec",
        quiet: "#a0a8af",
        line: "#333a40",
        ground: "#1b1f23",
        correct: "#56B4E9",
        misclassified: "#D55E00",
      }
    : {
        series: LIGHT,
        ink: "#1d2125",
        quiet: "#5c646b",
        line: "#e4e6e8",
        ground: "#ffffff",
        correct: "#0072B2",
        misclassified: "#D55E00",
      };
}

/** The colour of a method, or of a model; seeds of one method share it. */
function colourOf({ style }) {
  const { series } = colours();
  return series[style % series.length];
}

/** Text that plotly.js shows unchanged, shortened to fit a label. */
function escapeLabel(text, most = 48) {
  const line = text.replace(/\s+/g, " ");
  const cut = line.length > most ? `${line.slice(0, most - 1)}…` : line;
  return cut.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function withOpacity(hex, opacity) {
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

/** A vertical line at the current setting. */
function settingLine(at) {
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

/** A legend above the plot on the left, because the buttons are on the other side. */
function legendLayout() {
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

/** An axis from 0 to a little above `most`, a fraction. It does not depend on the sliders. */
function percentAxis(most = 1) {
  return axis("percent", { range: [0, Math.min(101, Math.ceil(105 * most))] });
}

/** An upper bound of what a plot of these methods shows: no value exceeds A_rob, no interval exceeds it by much. */
function largestAccuracy(methods) {
  return Math.max(0.05, ...methods.map((method) => method.accuracy("a_rob", null)?.high ?? 1));
}

function drawPlot(id, traces, plotLayout, description) {
  const place = document.getElementById(id);
  place.setAttribute("aria-label", description);
  config ??= {
    displaylogo: false,
    displayModeBar: isTouch ? false : "hover",
    modeBarButtons: [[saveButton(), "zoom2d", "pan2d", "resetScale2d"]],
    responsive: true,
  };
  return Plotly.react(place, traces, plotLayout, config);
}

function markOf({ style }) {
  return MARKS[style % MARKS.length];
}

function dashOf({ dash }) {
  return DASHES[dash % DASHES.length];
}

function lineStyle(method) {
  const dashes = dashOf(method).map((length) => `${length}px`);
  return { color: colourOf(method), dash: dashes.join(",") || "solid", width: 2 };
}

/** The line of a method, with a few marks. */
function methodTrace(method, more = {}) {
  return {
    name: escapeLabel(method.name, 80),
    meta: method.number,
    type: "scatter",
    mode: "lines+markers",
    line: lineStyle(method),
    marker: { color: colourOf(method), symbol: markOf(method), size: 6, maxdisplayed: MARKS_PER_LINE, ...more },
    hovertemplate: "%{text}<extra></extra>",
  };
}

/** Show the signs and names of the methods above a plot, unless there are too many. */
function showKey(id, methods) {
  const entries = (methods.length > MAX_KEY_ENTRIES ? [] : methods).map((method) => {
    const entry = makeElement("span");
    entry.append(swatch(method), method.name);
    return entry;
  });
  document.getElementById(id).replaceChildren(...entries);
}

/** The sign of a method: its line with its mark. The markup holds no user text. */
function swatch(method) {
  const place = document.createElement("template");
  place.innerHTML =
    `<svg class="swatch" viewBox="-20 -6 40 12" aria-hidden="true">` +
    `<path d="M-20,0H20" stroke-dasharray="${dashOf(method).join(" ") || "none"}"/>` +
    `<path class="mark" d="${OUTLINES[markOf(method)]}"/></svg>`;
  const made = place.content.firstChild;
  made.style.setProperty("--of", colourOf(method));
  return made;
}
