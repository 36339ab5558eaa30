// Plots of one model: its classes, its weights, its images.

const MAX_SVG_POINTS = 2000;
const BINS = 40;
const MAX_TICKS = 40;

/** A_rob and A_sa of every selected class of one model. */
function plotClasses(model, classes, alpha, temperature) {
  const labels = classes.map((one) => one.label);
  const parts = labels.map((label) => classAccuracies(model, label, alpha, temperature));
  const { quiet } = colours();
  const kinds = [
    ["A_rob", "rob", quiet, "circle-open", -0.12],
    [`A_sa at α ${alpha}`, "sa", colourOf(model), "circle", 0.12],
  ];
  const traces = kinds.map(([title, name, color, symbol, shift]) => {
    const shown = parts.map((part, i) => [i + shift, part[name], part]).filter(([, estimate]) => estimate);
    return {
      name: title,
      x: shown.map(([at]) => at),
      y: shown.map(([, estimate]) => 100 * estimate.value),
      error_y: {
        type: "data",
        symmetric: false,
        thickness: 1.2,
        width: 0,
        color,
        array: shown.map(([, estimate]) => 100 * (estimate.high - estimate.value)),
        arrayminus: shown.map(([, estimate]) => 100 * (estimate.value - estimate.low)),
      },
      text: shown.map(
        ([, estimate, part]) => `${escapeLabel(part.name)}, ${part.size} images<br>${title}: ${formatEstimate(estimate)}`,
      ),
      type: "scatter",
      mode: "markers",
      marker: { color, symbol, size: 8 },
      cliponaxis: false, // a mark at 100 is drawn in full
      hovertemplate: "%{text}<extra></extra>",
    };
  });
  const x = axis("class", {
    ...classTicks(parts.map((part) => part.name)),
    range: [-0.6, parts.length - 0.4],
    showgrid: false,
    zeroline: false,
  });
  return drawPlot(
    "plot-classes",
    traces,
    layout(x, percentAxis(), legendLayout()),
    "Accuracy under attack and A_sa of each class",
  );
}

/** Class names along an axis; if there are too many, every n-th. */
function classTicks(names) {
  const every = Math.ceil(names.length / MAX_TICKS);
  const positions = [...names.keys()].filter((i) => i % every === 0);
  return { tickvals: positions, ticktext: positions.map((i) => escapeLabel(names[i], 14)) };
}

/** Accuracies of one class; the model's selection of classes stays. */
function classAccuracies(model, label, alpha, temperature) {
  const positions = model.positions.filter((i) => model.label[i] === label);
  const correct = pickValues(model.correct, positions);
  const margins = model.canComputeASa ? model.marginsAtPositions(positions, temperature) : null;
  return {
    name: model.nameOf(label),
    size: positions.length,
    rob: plainAccuracy(correct),
    sa: margins && weightedAccuracy(exponentialLogWeights(margins, alpha), correct),
  };
}

/** Histograms of images and of weight by margin. */
function plotWeights(model, alpha, temperature) {
  const margins = model.selectedMargins(temperature);
  const weights = model.weights(alpha, temperature);
  const images = new Float64Array(BINS);
  const weight = new Float64Array(BINS);
  margins.forEach((margin, i) => {
    const bin = Math.min(BINS - 1, Math.max(0, Math.floor(((margin + 1) / 2) * BINS)));
    images[bin] += 100 / margins.length;
    weight[bin] += (100 * weights[i]) / margins.length;
  });
  const x = Array.from(images, (_, i) => -1 + (2 * i + 1) / BINS);
  const text = x.map(
    (at, i) =>
      `margin ${formatFixed(at - 1 / BINS, 2)} to ${formatFixed(at + 1 / BINS, 2)}<br>${formatFixed(images[i], 1)} % of the images, ${formatFixed(weight[i], 1)} % of the weight`,
  );
  const { quiet } = colours();
  const common = { x, hovertext: text, hovertemplate: "%{hovertext}<extra></extra>", width: 2 / BINS };
  const traces = [
    {
      ...common,
      name: "weight",
      y: Array.from(weight),
      type: "bar",
      marker: { color: withOpacity(colourOf(model), 0.75) },
    },
    {
      ...common,
      width: undefined,
      name: "images",
      y: Array.from(images),
      type: "scatter",
      mode: "lines",
      line: { shape: "hvh", color: quiet, width: 1.4 },
    },
  ];
  return drawPlot(
    "plot-weights",
    traces,
    layout(axis("margin", { range: [-1.02, 1.02] }), axis("percent", { rangemode: "tozero" }), {
      ...legendLayout(),
      barmode: "overlay",
      bargap: 0,
    }),
    "Fraction of images and of weight by margin",
  );
}

const hasWebGl = (() => {
  const canvas = document.createElement("canvas");
  return Boolean(canvas.getContext("webgl2") ?? canvas.getContext("webgl"));
})();

/** A point per image by margin and class; without WebGL only every n-th image. */
function plotImages(model, classes, alpha, temperature, selected) {
  const margins = model.selectedMargins(temperature) ?? model.selected("margin");
  const weights = model.weights(alpha, temperature) ?? new Float64Array(margins.length).fill(1);
  const rows = new Map(classes.map((one, i) => [one.label, i]));
  const every = hasWebGl ? 1 : Math.ceil(margins.length / MAX_SVG_POINTS);
  // the golden ratio spreads the points of a class evenly
  const height = (i) => rows.get(model.label[model.positions[i]]) + 0.7 * (((i * 0.6180339887) % 1) - 0.5);
  const usual = margins.length > 4000 ? 3 : 5;
  const size = (i) => Math.min(22, Math.max(usual / 2, usual * Math.sqrt(weights[i])));
  const { correct, misclassified, ink } = colours();
  const kinds = [
    ["correct", 1, correct, "circle"],
    ["misclassified", 0, misclassified, "diamond"],
  ];
  const traces = kinds.map(([name, outcome, color, symbol]) => {
    const shown = [...margins.keys()].filter((i) => i % every === 0 && model.correct[model.positions[i]] === outcome);
    return {
      name,
      x: shown.map((i) => margins[i]),
      y: shown.map(height),
      customdata: shown.map((i) => model.positions[i]),
      type: hasWebGl ? "scattergl" : "scatter",
      mode: "markers",
      marker: { color, symbol, size: shown.map(size), opacity: margins.length > 4000 ? 0.4 : 0.55, line: { width: 0 } },
      hoverinfo: "none",
    };
  });
  const at = model.positions.indexOf(selected ?? -1);
  traces.push({
    x: at < 0 ? [] : [margins[at]],
    y: at < 0 ? [] : [height(at)],
    type: "scatter",
    mode: "markers",
    showlegend: false,
    hoverinfo: "skip",
    marker: { symbol: "circle-open", size: 24, color: ink, line: { width: 2 } },
  });
  const y = axis("class", {
    ...classTicks(classes.map((one) => model.nameOf(one.label))),
    range: [classes.length - 0.4, -0.6],
    showgrid: false,
    zeroline: false,
  });
  return drawPlot(
    "plot-images",
    traces,
    layout(axis("margin", { range: [-1.04, 1.04] }), y, legendLayout()),
    "Every image by margin and class; the box below shows one image",
  );
}
