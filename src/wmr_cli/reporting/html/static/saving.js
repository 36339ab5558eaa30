// A plot as a picture to take along. On the page its title, its key and the settings stand around it; here they are part of it.

const LETTER = 6.6; // pixels of a letter's width, about
const LINE = 17; // pixels
const LEAST_WIDTH = 720;

/** In place of plotly's own button, which takes the bare plot. */
function saveButton() {
  return { name: "save", title: "Download as PNG, with title and key", icon: Plotly.Icons.camera, click: save };
}

function save(place) {
  const { data, layout } = pictured(place);
  const { width, height } = layout;
  return Plotly.downloadImage({ data, layout }, { format: "png", scale: 2, filename: `wmr-${nameOf(place)}`, width, height });
}

const nameOf = (place) => place.id.replace("plot-", "");

/** The plot as it is now, with all that a reader needs who has nothing but the picture. */
function pictured(place) {
  const width = Math.max(LEAST_WIDTH, place.clientWidth);
  const [data, heading] = [keyed(place.data), headingOf(place, Math.floor((width - 32) / LETTER))];
  const names = data.filter((trace) => trace.showlegend).map((trace) => trace.name);
  const columns = Math.max(1, Math.floor((width - 40) / (64 + LETTER * Math.max(0, ...names.map((name) => name.length)))));
  const [plot, axisHeight] = [Math.max(300, place.clientHeight - 60), 52];
  const margin = { l: 60, r: 24, t: 30 + LINE * heading.length, b: axisHeight + 12 + 20 * Math.ceil(names.length / columns) };
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
    // points may have any size; of lines the key shows dashes and marks
    legend: { ...below, font: { size: 11 }, itemsizing: place.layout.showlegend ? "constant" : "trace", itemwidth: 44 },
    paper_bgcolor: ground,
    plot_bgcolor: ground,
  };
  return { data, layout };
}

/** Every name once in the key: of several traces of a model, the first. */
function keyed(traces) {
  const seen = new Set();
  return traces.map((trace) => {
    const who = trace.meta ?? trace.name;
    const showlegend = Boolean(trace.name) && trace.showlegend !== false && !seen.has(who);
    seen.add(who);
    return { ...trace, showlegend };
  });
}

/** Title, caption, what was measured, and the settings, on lines of at most so many letters. */
function headingOf(place, most) {
  const caption = place.closest("figure").querySelector("figcaption");
  const [title, ...others] = [
    caption.querySelector("b").textContent,
    caption.querySelector("span").textContent,
    state.panel.title,
    settingsOf(nameOf(place)).join(" · "),
  ].map((text) => folded(text, most).map((line) => plain(line, Infinity)));
  return [...title.map((line) => `<b>${line}</b>`), ...others.flat()];
}

/** What a plot depends on that its axes do not show. */
function settingsOf(name) {
  const { alpha, rho, temperature } = settings();
  const own = {
    alpha: at("axis").value === "ess" ? [] : [`dotted line: α ${alpha}`],
    temperature: [`α ${alpha}`, `dotted line: T ${temperature}`],
    ball: [...lossNames(chosenModels()).map((loss) => `loss: ${loss}`), `dotted line: ρ ${rho}`],
  };
  const [classes, all] = [chosenClasses().length, state.panel.classes.length];
  return [
    ...(own[name] ?? [`α ${alpha}`, `T ${state.models[state.looked]?.logits ? temperature : 1}`]),
    ...(classes < all ? [`${classes} of ${all} classes`] : []),
  ];
}

/** Text on lines of at most so many letters, broken between words, or anywhere in a word that is longer. */
function folded(text, most) {
  const words = text.split(/\s+/).filter(Boolean);
  return words.reduce((lines, word) => {
    const last = lines.at(-1);
    if (last !== undefined && last.length + 1 + word.length <= most) return [...lines.slice(0, -1), `${last} ${word}`];
    const pieces = Array.from({ length: Math.ceil(word.length / most) }, (_, i) => word.slice(i * most, (i + 1) * most));
    return [...lines, ...pieces];
  }, []);
}
