// Save a plot as an image that includes its title, legend and settings, which are around the plot on the page.

const LETTER_WIDTH = 6.6; // pixels, on average
const LINE_HEIGHT = 17; // pixels
const MIN_WIDTH = 720;

/** Replaces the button of plotly.js, which saves the bare plot. */
function saveButton() {
  return { name: "save", title: "Download as PNG, with title and legend", icon: Plotly.Icons.camera, click: save };
}

function save(place) {
  const { data, layout } = exportFigure(place);
  const { width, height } = layout;
  return Plotly.downloadImage({ data, layout }, { format: "png", scale: 2, filename: `wmr-${nameOf(place)}`, width, height });
}

const nameOf = (place) => place.id.replace("plot-", "");

/** The data and layout of the saved image. */
function exportFigure(place) {
  const width = Math.max(MIN_WIDTH, place.clientWidth);
  const data = addLegendEntries(place.data);
  const heading = headingOf(place, Math.floor((width - 32) / LETTER_WIDTH));
  const names = data.filter((trace) => trace.showlegend).map((trace) => trace.name);
  const columns = Math.max(1, Math.floor((width - 40) / (64 + LETTER_WIDTH * Math.max(0, ...names.map((name) => name.length)))));
  const plot = Math.max(300, place.clientHeight - 60);
  const axisHeight = 52;
  const margin = {
    l: 60,
    r: 24,
    t: 30 + LINE_HEIGHT * heading.length,
    b: axisHeight + 12 + 20 * Math.ceil(names.length / columns),
  };
  const { ground, ink } = colours();
  const corner = { x: 0, xref: "container", xanchor: "left", y: 1, yref: "container", yanchor: "top", pad: { l: 16, t: 20 } };
  const below = { orientation: "h", x: 0, xanchor: "left", y: -axisHeight / plot, yanchor: "top" };
  const layout = {
    ...place.layout,
    width,
    height: plot + margin.t + margin.b,
    margin,
    title: { text: heading.join("<br>"), font: { size: 12.5, color: ink }, ...corner },
    showlegend: true,
    // points have different sizes; for lines the legend shows dashes and marks
    legend: { ...below, font: { size: 11 }, itemsizing: place.layout.showlegend ? "constant" : "trace", itemwidth: 44 },
    paper_bgcolor: ground,
    plot_bgcolor: ground,
  };
  return { data, layout };
}

/** List every method once in the legend: the first of its traces. */
function addLegendEntries(traces) {
  const seen = new Set();
  return traces.map((trace) => {
    const key = trace.meta ?? trace.name;
    const showlegend = Boolean(trace.name) && trace.showlegend !== false && !seen.has(key);
    seen.add(key);
    return { ...trace, showlegend };
  });
}

/** Title, caption, measurement and settings, in lines of at most `most` letters. */
function headingOf(place, most) {
  const caption = place.closest("figure").querySelector("figcaption");
  const [title, ...others] = [
    caption.querySelector("b").textContent,
    caption.querySelector("span").textContent,
    state.panel.title,
    settingsOf(nameOf(place)).join(" · "),
  ].map((text) => wrapText(text, most).map((line) => escapeLabel(line, Infinity)));
  return [...title.map((line) => `<b>${line}</b>`), ...others.flat()];
}

/** The settings of a plot that its axes do not show. */
function settingsOf(name) {
  const { alpha, rho, temperature } = settings();
  const own = {
    alpha: [
      ...(temperature === CALIBRATED ? ["A_cal"] : []),
      ...(byId("axis").value === "ess" ? [] : [`dotted line: α ${alpha}`]),
    ],
    temperature: [`α ${alpha}`, `dotted line: T ${sliders.temperature.value}`],
    dro: [...lossNames(chosenMethods()).map((loss) => `loss: ${loss}`), `dotted line: ρ ${rho}`],
  };
  const classes = chosenClasses().length;
  const all = state.panel.classes.length;
  return [
    ...(own[name] ?? [`α ${alpha}`, `T ${state.models[state.detail]?.logits ? temperature : 1}`]),
    ...(classes < all ? [`${classes} of ${all} classes`] : []),
  ];
}

/** Break text into lines of at most `most` letters, between words where possible. */
function wrapText(text, most) {
  const words = text.split(/\s+/).filter(Boolean);
  return words.reduce((lines, word) => {
    const last = lines.at(-1);
    if (last !== undefined && last.length + 1 + word.length <= most) return [...lines.slice(0, -1), `${last} ${word}`];
    const pieces = Array.from({ length: Math.ceil(word.length / most) }, (_, i) => word.slice(i * most, (i + 1) * most));
    return [...lines, ...pieces];
  }, []);
}
