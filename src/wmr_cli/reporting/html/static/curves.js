// Plots of all selected methods against alpha, temperature and the radius of the χ² ball.

/** A_sa, or A_cal, against alpha or the effective sample size as a fraction of the images. */
function plotAlpha(chosen, alphas, alpha, axisName, temperature) {
  const across = (method, at, estimate) => (axisName === "ess" ? estimate.ess / method.size : at);
  const traces = chosen.flatMap((method) => {
    const points = alphas.map((at) => [at, method.computeASa(at, temperature)]).filter(([, estimate]) => estimate);
    if (!points.length) return [];
    const x = points.map(([at, estimate]) => across(method, at, estimate));
    const text = points.map(
      ([at, estimate]) =>
        `${escapeLabel(method.name)}<br>α ${at}: ${formatEstimate(estimate)}, ESS ${formatFixed(estimate.ess, 0)}`,
    );
    const ends = ["low", "high"].map((end) => points.map(([, estimate]) => 100 * estimate[end]));
    return [
      {
        x: [...x, ...[...x].reverse()],
        y: [...ends[1], ...ends[0].reverse()],
        type: "scatter",
        mode: "lines",
        fill: "toself",
        fillcolor: withOpacity(colourOf(method), 0.13),
        line: { width: 0 },
        hoverinfo: "skip",
      },
      { ...methodTrace(method), x, y: points.map(([, estimate]) => 100 * estimate.value), text },
      ...recordedMarks(method, across, temperature),
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
    `${temperature === CALIBRATED ? "A_cal" : "A_sa"} of ${chosen.length} methods against alpha, decreasing; the table has the values at the selected alpha`,
  );
}

/** Recorded values as large marks: A_sa filled and A_tr open, or A_cal. */
function recordedMarks(method, across, temperature) {
  if (!method.hasAllClasses) return [];
  const ownScale = [
    ["A_sa", "a_sa", ""],
    ["A_tr", "a_tr", "-open"],
  ];
  const kinds = temperature === CALIBRATED ? [["A_cal", "a_cal", ""]] : ownScale;
  return kinds.map(([title, name, open]) => {
    const points = method.storedAlphas
      .map((at) => ({ at, recorded: method.recorded(name, at), computed: method.computeASa(at, temperature) }))
      .filter(({ recorded, computed }) => recorded && computed);
    return {
      x: points.map(({ at, computed }) => across(method, at, computed)),
      y: points.map(({ recorded }) => 100 * recorded.value),
      text: points.map(
        ({ at, recorded }) => `${escapeLabel(method.name)}<br>recorded ${title} at α ${at}: ${formatEstimate(recorded)}`,
      ),
      type: "scatter",
      mode: "markers",
      marker: { color: colourOf(method), symbol: markOf(method) + open, size: 11, line: rim(open) },
      hovertemplate: "%{text}<extra></extra>",
    };
  });
}

/** A rim in the background colour separates filled marks that overlap. */
function rim(open) {
  return open ? { width: 2 } : { width: 1, color: colours().ground };
}

function plotTemperature(chosen, alpha, temperature) {
  const traces = chosen.map((method) => {
    const points = TEMPERATURES.map((at) => [at, method.computeASa(alpha, at)]).filter(([, estimate]) => estimate);
    return {
      ...methodTrace(method, { maxdisplayed: 0 }),
      x: points.map(([at]) => at),
      y: points.map(([, estimate]) => 100 * estimate.value),
      text: points.map(([at, estimate]) => `${escapeLabel(method.name)}<br>T ${formatFixed(at, 2)}: ${formatEstimate(estimate)}`),
    };
  });
  const x = axis("temperature T", { type: "log", tickvals: [0.25, 0.5, 1, 2, 4], ticktext: ["¼", "½", "1", "2", "4"] });
  showKey("key-temperature", chosen);
  return drawPlot(
    "plot-temperature",
    traces,
    layout(x, percentAxis(largestAccuracy(chosen)), { shapes: [settingLine(temperature)] }),
    `A_sa of ${chosen.length} methods against temperature`,
  );
}

function plotDro(chosen, rhos, rho) {
  const traces = chosen.flatMap((method) => {
    const points = rhos.map((at) => [at, method.worstCaseAt(at)]).filter(([, worst]) => worst);
    const kinds = [
      ["accuracy", "", "accuracy under the weights of largest loss"],
      ["least", "-open", "lowest accuracy"],
    ];
    return kinds.map(([name, open, title]) => {
      const shown = points.filter(([, worst]) => worst[name] !== null);
      return {
        ...methodTrace(method, { symbol: markOf(method) + open }),
        line: { ...lineStyle(method), width: open ? 1.2 : 2 },
        x: shown.map(([at]) => at),
        y: shown.map(([, worst]) => 100 * worst[name]),
        text: shown.map(([at, worst]) => `${escapeLabel(method.name)}<br>ρ ${at}: ${title} ${formatPercent(worst[name])}`),
      };
    });
  });
  const x = axis("ρ, radius of the χ² ball", {
    type: "log",
    tickvals: [0.001, 0.01, 0.1, 1, 10, 100],
    ticktext: ["0.001", "0.01", "0.1", "1", "10", "100"],
  });
  showKey("key-dro", chosen);
  return drawPlot(
    "plot-dro",
    traces,
    layout(x, percentAxis(largestAccuracy(chosen)), { shapes: [settingLine(Math.max(rho, rhos[0]))] }),
    "Worst-case accuracy against the radius of the χ² ball, decreasing",
  );
}
