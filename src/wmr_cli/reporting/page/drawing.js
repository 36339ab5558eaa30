// What all plots share: colours, axes, layout. plotly.js reads some texts as markup, so names go through `plain` first.

const LIGHT = ["#0b7285", "#d9480f", "#5f3dc4", "#2b8a3e", "#c2255c", "#1864ab", "#b58105", "#495057", "#862e9c", "#66a80f"];
const DARK = ["#4fc3d4", "#ff9a57", "#b197fc", "#69db7c", "#f783ac", "#74c0fc", "#ffd43b", "#ced4da", "#da77f2", "#c0eb75"];
const MARKS = ["circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "triangle-down", "pentagon", "bowtie"];
const DASHES = ["solid", "dash", "dashdot", "longdash"];
const media = matchMedia("(prefers-color-scheme: dark)");
const isTouch = matchMedia("(pointer: coarse)").matches;
const CONFIG = {
  displaylogo: false,
  displayModeBar: isTouch ? false : "hover",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  responsive: true,
};

function isDark() {
  return (document.documentElement.dataset.theme ?? (media.matches ? "dark" : "light")) === "dark";
}

function colours() {
  return isDark()
    ? { series: DARK, ink: "#e8eaec", quiet: "#a0a8af", line: "#333a40", ground: "#1b1f23", right: "#4fc3d4", wrong: "#ff9a57" }
    : { series: LIGHT, ink: "#1d2125", quiet: "#5c646b", line: "#e4e6e8", ground: "#ffffff", right: "#0b7285", wrong: "#d9480f" };
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

/** A legend above the plot, at the right. */
function legend() {
  const place = {
    orientation: "h",
    x: 1,
    xanchor: "right",
    y: 1.02,
    yanchor: "bottom",
    font: { size: 11 },
    itemsizing: "constant",
  };
  return { showlegend: true, legend: place, margin: { l: 46, r: 14, t: 28, b: 42 } };
}

/** From 0 to `most`, a share, or a little above it. It does not move with the sliders. */
function inPercent(most = 1) {
  return axis("percent", { range: [0, Math.min(101, Math.ceil(105 * most))] });
}

/** The largest share that a plot of these models can reach: none exceeds A_rob, and its interval not by much. */
function mostOf(models) {
  return Math.max(0.05, ...models.map((model) => model.aRob()?.high ?? 1));
}

function draw(id, traces, shape, said) {
  const place = document.getElementById(id);
  place.setAttribute("aria-label", said);
  return Plotly.react(place, traces, shape, CONFIG);
}

function style(number) {
  return { color: colourOf(number), dash: DASHES[Math.floor(number / LIGHT.length) % DASHES.length], width: 2 };
}
