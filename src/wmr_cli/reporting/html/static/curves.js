// Plots of all selected models against alpha, temperature and the radius of the χ² ball.

/** A_sa, or A_cal, against alpha or the effective sample size as a fraction of the images. */
function plotAlpha(chosen, alphas, alpha, axisName, temperature) {
  const across = (model, at, estimate) => (axisName === "ess" ? estimate.ess / model.size : at);
  const traces = chosen.flatMap((model) => {
    const points = alphas.map((at) => [at, model.computeASa(at, temperature)]).filter(([, estimate]) => estimate);
    if (!points.length) return [];
    const x = points.map(([at, estimate]) => across(model, at, estimate));
    const text = points.map(
      ([at, estimate]) =>
        `${escapeLabel(model.name)}<br>α ${at}: ${formatEstimate(estimate)}, ESS ${formatFixed(estimate.ess, 0)}`,
    );
    const ends = ["low", "high"].map((end) => points.map(([, estimate]) => 100 * estimate[end]));
    return [
      {
        x: [...x, ...[...x].reverse()],
        y: [...ends[1], ...ends[0].reverse()],
        type: "scatter",
        mode: "lines",
        fill: "toself",
        fillcolor: withOpacity(colourOf(model.number), 0.13),
        line: { width: 0 },
        hoverinfo: "skip",
      },
      { ...modelTrace(model), x, y: points.map(([, estimate]) => 100 * estimate.value), text },
      ...recordedMarks(model, across, temperature),
    ];
  });
  const isEss = axisName === "ess";
  const now = isEss ? [] : [settingLine(alpha)];
  const x = isEss ? axis("effective sample size / images", { autorange: "reversed" }) : axis("α", { rangemode: "tozero" });
  showKey("key-alpha", chosen);
  return drawPlot(
    "plot-alpha",
    traces,
    layout(x, percentAxis(largestAccuracy(chosen)), { shapes: now }),
    `${temperature === CALIBRATED ? "A_cal" : "A_sa"} of ${chosen.length} models against alpha, decreasing; the table has the values at the selected alpha`,
  );
}

/** Recorded values as large marks: A_sa filled and A_tr open, or A_cal. */
function recordedMarks(model, across, temperature) {
  if (!model.hasAllClasses) return [];
  const ownScale = [
    ["A_sa", "a_sa", ""],
    ["A_tr", "a_tr", "-open"],
  ];
  const kinds = temperature === CALIBRATED ? [["A_cal", "a_cal", ""]] : ownScale;
  return kinds.map(([title, name, open]) => {
    const rows = model.by_alpha.filter(
      (row) => row[name] && row.alpha_test !== null && model.computeASa(row.alpha_test, temperature),
    );
    return {
      x: rows.map((row) => across(model, row.alpha_test, model.computeASa(row.alpha_test, temperature))),
      y: rows.map((row) => 100 * row[name].value),
      text: rows.map(
        (row) => `${escapeLabel(model.name)}<br>recorded ${title} at α ${row.alpha_test}: ${formatEstimate(row[name])}`,
      ),
      type: "scatter",
      mode: "markers",
      marker: { color: colourOf(model.number), symbol: markOf(model.number) + open, size: 11, line: rim(open) },
      hovertemplate: "%{text}<extra></extra>",
    };
  });
}

/** A rim in the background colour separates filled marks that overlap. */
function rim(open) {
  return open ? { width: 2 } : { width: 1, color: colours().ground };
}

function plotTemperature(chosen, alpha, temperature) {
  const traces = chosen.map((model) => {
    const points = TEMPERATURES.map((at) => [at, model.computeASa(alpha, at)]).filter(([, estimate]) => estimate);
    return {
      ...modelTrace(model, { maxdisplayed: 0 }),
      x: points.map(([at]) => at),
      y: points.map(([, estimate]) => 100 * estimate.value),
      text: points.map(([at, estimate]) => `${escapeLabel(model.name)}<br>T ${formatFixed(at, 2)}: ${formatEstimate(estimate)}`),
    };
  });
  const x = axis("temperature T", { type: "log", tickvals: [0.25, 0.5, 1, 2, 4], ticktext: ["¼", "½", "1", "2", "4"] });
  showKey("key-temperature", chosen);
  return drawPlot(
    "plot-temperature",
    traces,
    layout(x, percentAxis(largestAccuracy(chosen)), { shapes: [settingLine(temperature)] }),
    `A_sa of ${chosen.length} models against temperature`,
  );
}

function plotBall(chosen, rhos, rho) {
  const traces = chosen.flatMap((model) => {
    const points = rhos.map((at) => [at, model.worstCaseAt(at)]).filter(([, worst]) => worst);
    const kinds = [
      ["accuracy", "", "accuracy under the weights of largest loss"],
      ["least", "-open", "lowest accuracy"],
    ];
    return kinds.map(([name, open, title]) => {
      const shown = points.filter(([, worst]) => worst[name] !== null);
      return {
        ...modelTrace(model, { symbol: markOf(model.number) + open }),
        line: { ...lineStyle(model.number), width: open ? 1.2 : 2 },
        x: shown.map(([at]) => at),
        y: shown.map(([, worst]) => 100 * worst[name]),
        text: shown.map(([at, worst]) => `${escapeLabel(model.name)}<br>ρ ${at}: ${title} ${formatPercent(worst[name])}`),
      };
    });
  });
  const x = axis("ρ", {
    type: "log",
    tickvals: [0.001, 0.01, 0.1, 1, 10, 100],
    ticktext: ["0.001", "0.01", "0.1", "1", "10", "100"],
  });
  showKey("key-ball", chosen);
  return drawPlot(
    "plot-ball",
    traces,
    layout(x, percentAxis(largestAccuracy(chosen)), { shapes: [settingLine(Math.max(rho, rhos[0]))] }),
    "Worst-case accuracy against the radius of the χ² ball, decreasing",
  );
}
