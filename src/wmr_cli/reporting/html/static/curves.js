// Plots of all chosen models over a setting: alpha, temperature, the radius of the ball.

/** A_sa over alpha, or over the share of images that it effectively rests on. */
function plotAlpha(chosen, alphas, alpha, axisName) {
  const across = (model, at, estimate) => (axisName === "ess" ? estimate.ess / model.size : at);
  const traces = chosen.flatMap((model) => {
    const points = alphas.map((at) => [at, model.computed(at)]).filter(([, estimate]) => estimate);
    if (!points.length) return [];
    const x = points.map(([at, estimate]) => across(model, at, estimate));
    const text = points.map(
      ([at, estimate]) => `${plain(model.name)}<br>α ${at}: ${percent(estimate)}, ESS ${fixed(estimate.ess, 0)}`,
    );
    const ends = ["low", "high"].map((end) => points.map(([, estimate]) => 100 * estimate[end]));
    return [
      {
        x: [...x, ...[...x].reverse()],
        y: [...ends[1], ...ends[0].reverse()],
        type: "scatter",
        mode: "lines",
        fill: "toself",
        fillcolor: faint(colourOf(model.number), 0.13),
        line: { width: 0 },
        hoverinfo: "skip",
      },
      { ...marked(model), x, y: points.map(([, estimate]) => 100 * estimate.value), text },
      ...recordedMarks(model, across),
    ];
  });
  const isEss = axisName === "ess";
  const now = isEss ? [] : [setting(alpha)];
  const x = isEss ? axis("effective sample size / images", { autorange: "reversed" }) : axis("α", { rangemode: "tozero" });
  key("key-alpha", chosen);
  return draw(
    "plot-alpha",
    traces,
    layout(x, percentAxis(mostOf(chosen)), { shapes: now }),
    `A_sa of ${chosen.length} models over alpha, falling; the table has the values at your alpha`,
  );
}

/** Recorded values, larger than the marks of a line: A_sa filled, A_tr open. */
function recordedMarks(model, across) {
  if (!model.isWhole) return [];
  const kinds = [
    ["A_sa", "a_sa", ""],
    ["A_tr", "a_tr", "-open"],
  ];
  return kinds.map(([title, name, open]) => {
    const rows = model.by_alpha.filter((row) => row[name] && row.alpha_test !== null && model.computed(row.alpha_test));
    return {
      x: rows.map((row) => across(model, row.alpha_test, model.computed(row.alpha_test))),
      y: rows.map((row) => 100 * row[name].value),
      text: rows.map((row) => `${plain(model.name)}<br>recorded ${title} at α ${row.alpha_test}: ${percent(row[name])}`),
      type: "scatter",
      mode: "markers",
      marker: { color: colourOf(model.number), symbol: markOf(model.number) + open, size: 11, line: rim(open) },
      hovertemplate: "%{text}<extra></extra>",
    };
  });
}

/** Filled marks have a rim of the ground's colour, which keeps apart those that lie on each other. */
function rim(open) {
  return open ? { width: 2 } : { width: 1, color: colours().ground };
}

function plotTemperature(chosen, alpha, temperature) {
  const traces = chosen.map((model) => {
    const points = TEMPERATURES.map((at) => [at, model.computed(alpha, at)]).filter(([, estimate]) => estimate);
    return {
      ...marked(model, { maxdisplayed: 0 }),
      x: points.map(([at]) => at),
      y: points.map(([, estimate]) => 100 * estimate.value),
      text: points.map(([at, estimate]) => `${plain(model.name)}<br>T ${fixed(at, 2)}: ${percent(estimate)}`),
    };
  });
  const x = axis("temperature T", { type: "log", tickvals: [0.25, 0.5, 1, 2, 4], ticktext: ["¼", "½", "1", "2", "4"] });
  key("key-temperature", chosen);
  return draw(
    "plot-temperature",
    traces,
    layout(x, percentAxis(mostOf(chosen)), { shapes: [setting(temperature)] }),
    `A_sa of ${chosen.length} models over temperature`,
  );
}

function plotBall(chosen, rhos, rho) {
  const traces = chosen.flatMap((model) => {
    const points = rhos.map((at) => [at, model.inBall(at)]).filter(([, worst]) => worst);
    const kinds = [
      ["accuracy", "", "accuracy where the loss is largest"],
      ["least", "-open", "least accuracy"],
    ];
    return kinds.map(([name, open, title]) => {
      const shown = points.filter(([, worst]) => worst[name] !== null);
      return {
        ...marked(model, { symbol: markOf(model.number) + open }),
        line: { ...style(model.number), width: open ? 1.2 : 2 },
        x: shown.map(([at]) => at),
        y: shown.map(([, worst]) => 100 * worst[name]),
        text: shown.map(([at, worst]) => `${plain(model.name)}<br>ρ ${at}: ${title} ${inPercent(worst[name])}`),
      };
    });
  });
  const x = axis("ρ", {
    type: "log",
    tickvals: [0.001, 0.01, 0.1, 1, 10, 100],
    ticktext: ["0.001", "0.01", "0.1", "1", "10", "100"],
  });
  key("key-ball", chosen);
  return draw(
    "plot-ball",
    traces,
    layout(x, percentAxis(mostOf(chosen)), { shapes: [setting(Math.max(rho, rhos[0]))] }),
    "Accuracy in the worst case over the radius of the ball, falling",
  );
}
