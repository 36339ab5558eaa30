// The table at the selected settings, and its summary for screen readers.

const LOSSES = { ce: "cross-entropy", margin: "negative logit margin", "zero-one": "zero-one loss" }; // as in figures/dro.py
const ANNOUNCE_DELAY_MS = 500; // after the last change, so that a moving slider is not read aloud

function updateTable() {
  const { alpha, rho, temperature } = settings();
  const chosen = chosenModels();
  const asRecorded = chosen.map((model) => model.aSa(alpha));
  const scaled = chosen.map((model) => model.aSa(alpha, temperature));
  const rank = (estimates, usedTemperature) =>
    rankRanges(
      estimates,
      chosen.map((model) => model.contributions(alpha, usedTemperature)),
    );
  const before = rank(asRecorded, 1);
  const after = temperature === 1 ? before : rank(scaled, temperature);
  const isScaled = state.models.some((model) => model.logits);
  const isVerified = state.models.some((model) => model.bounds);
  showHeading(alpha, rho, temperature, chosen, { isScaled, isVerified });
  byId("numbers-body").replaceChildren(
    ...chosen.map((model, i) => {
      const row = makeElement("tr", "", { "data-model": model.name });
      const name = makeElement("th", "", { scope: "row" });
      name.append(swatch(model.number), model.name);
      row.append(
        name,
        accuracyCell("a_nat", model.aNat()),
        accuracyCell("a_rob", model.aRob()),
        accuracyCell("a_sa", asRecorded[i], model.computeASa(alpha)),
      );
      row.append(essCell(asRecorded[i], model.size));
      if (chosen.length > 1) row.append(rankCell("rank", before[i], before[i]));
      if (isVerified) row.append(boundsCell("a_rob_bounds", model.boundARob(), "start"));
      if (isVerified) row.append(boundsCell("a_sa_bounds", model.boundASa(alpha)));
      if (isScaled) row.append(accuracyCell("a_sa_t", scaled[i], null, "start"));
      if (isScaled && temperature === CALIBRATED) row.append(temperatureCell(model));
      if (isScaled && chosen.length > 1) row.append(rankCell("rank_t", after[i], before[i]));
      row.append(...worstCaseCells(model, rho));
      return row;
    }),
  );
  byId("numbers-note").textContent = listNotes(chosen).join(" ");
  announce(alpha, rho, chosen, asRecorded);
}

function showHeading(alpha, rho, temperature, chosen, { isScaled, isVerified }) {
  const rank = chosen.length > 1 ? ["rank"] : [];
  const groups = [
    { title: "", names: ["model"] },
    { title: "", names: ["A_nat", "A_rob", `A_sa at α ${alpha}`, "ESS", ...rank] },
    ...(isVerified ? [{ title: "bounds over all attacks", names: ["A_rob", `A_sa at α ${alpha}`] }] : []),
    ...(isScaled ? [scaledGroup(temperature, rank)] : []),
    { title: `χ² ball, ρ ${rho}`, names: ["accuracy", "lowest"] },
  ];
  const [top, names] = [makeElement("tr"), makeElement("tr")];
  groups.forEach((group, number) => {
    const start = number > 1 ? " start" : "";
    top.append(
      makeElement("th", group.title, { scope: "colgroup", colspan: String(group.names.length), class: `group${start}` }),
    );
    group.names.forEach((name, i) =>
      names.append(makeElement("th", name, { scope: "col", class: (number ? "" : "text") + (i ? "" : start) })),
    );
  });
  byId("numbers-head").replaceChildren(top, names);
}

/** The columns at another scale of the logits. */
function scaledGroup(temperature, rank) {
  if (temperature === CALIBRATED) return { title: CALIBRATED, names: ["A_cal", "T", ...rank] };
  return { title: `logits ÷ ${temperature}`, names: ["A_sa", ...rank] };
}

function temperatureCell(model) {
  const isShown = model.logits && model.temperature !== null;
  return makeElement("td", isShown ? model.temperature.toPrecision(3) : "-", { "data-cell": "temperature" });
}

/** A cell with a value and, in small print, its interval. */
function intervalCell(name, text, kind) {
  const cell = makeElement("td", "", { "data-cell": name, class: kind });
  const [value, ...interval] = text.split(" ");
  cell.append(
    makeElement("span", value, { class: "strong" }),
    ...(interval.length ? [makeElement("span", ` ${interval.join(" ")}`, { class: "interval" })] : []),
  );
  return cell;
}

/** Lower and upper bound, formatted as in the tables; an attribute holds the unrounded numbers. */
function boundsCell(name, bounds, kind = "") {
  const cell = intervalCell(name, formatBounds(bounds), kind);
  if (bounds) cell.dataset.value = JSON.stringify(bounds);
  return cell;
}

/** An accuracy, formatted as in the tables; attributes hold the unrounded numbers for scripts. */
function accuracyCell(name, shown, computed = null, kind = "") {
  const cell = intervalCell(name, formatEstimate(shown), kind);
  if (shown) cell.dataset.value = String(shown.value);
  if (computed) cell.dataset.computed = JSON.stringify(computed);
  return cell;
}

function essCell(estimate, images) {
  const cell = makeElement("td", estimate ? formatFixed(estimate.ess, 0) : "-", { "data-cell": "ess" });
  if (estimate) cell.dataset.value = String(estimate.ess);
  if (estimate && hasLowEss(estimate.ess, images)) cell.append(makeElement("span", " few", { class: "few" }));
  return cell;
}

/** `2`, or `1–3` for a range of ranks. */
function rankText(range) {
  if (range === null) return "-";
  return range[0] === range[1] ? String(range[0]) : `${range[0]}–${range[1]}`;
}

function rankCell(name, range, usual) {
  const [text, before] = [rankText(range), rankText(usual)];
  const hasMoved = range !== null && usual !== null && text !== before;
  return makeElement("td", hasMoved ? `${text} (was ${before})` : text, { "data-cell": name, class: hasMoved ? "moved" : "" });
}

function worstCaseCells(model, rho) {
  const worst = model.worstCaseAt(rho);
  return [
    ["ball", worst?.accuracy, "start"],
    ["least", worst?.least, ""],
  ].map(([name, value, kind]) => {
    const canShowDetails = typeof value === "number";
    const cell = makeElement("td", canShowDetails ? formatPercent(value) : "-", { "data-cell": name, class: kind });
    if (canShowDetails) cell.dataset.value = String(value);
    return cell;
  });
}

/** The losses whose worst case in the χ² ball these models have. */
function lossNames(chosen) {
  const measured = chosen.filter((model) => model.worstCaseAt(1)?.accuracy != null);
  return [...new Set(measured.map(({ loss }) => LOSSES[loss] ?? loss))];
}

function listNotes(chosen) {
  const { temperature } = settings();
  const notes = ["Percent, with 95 % intervals; ESS is the effective sample size behind A_sa."];
  const losses = lossNames(chosen);
  if (losses.length === 1)
    notes.push(`χ² ball: accuracy under the weights that maximise the mean ${losses[0]}, and the lowest accuracy.`);
  else if (losses.length) notes.push("χ² ball: the models have different losses; do not compare these numbers.");
  if (chosen.some((model) => model.bounds))
    notes.push("Bounds: a verifier proves the lower one, the attack shows the upper one; the interval covers both.");
  if (chosen.length > 1) {
    notes.push(
      "Rank 1–3 is a range: a model ranks above another only if the 95 % interval of their paired difference in A_sa " +
        "excludes 0 and at least six images make the difference.",
    );
  }
  if (!chosenClasses().length && state.panel.classes.length) notes.push("No class is selected.");
  if (chosen.some((model) => !model.has_margin_kernel))
    notes.push(`For kernel ${chosen[0].kernel} only recorded values are shown.`);
  if (chosen.some((model) => model.correct && !model.margin))
    notes.push("The attack stops early and stores no margins: A_sa is not available.");
  if (temperature === CALIBRATED) notes.push(...listCalibratedNotes(chosen));
  if (temperature !== 1)
    notes.push("Logits are stored in half precision: A_sa at this temperature is accurate to about 0.01 points.");
  notes.push(...chosen.filter((model) => model.problem).map((model) => `${model.name}: ${model.problem}.`));
  return notes;
}

function listCalibratedNotes(chosen) {
  const notes = [
    "A_cal is A_sa with logits divided by T, the temperature that fits the attacked images of a model best; " +
      (chosen.every((model) => model.hasAllClasses)
        ? "its interval includes the fit."
        : "T is fitted to all classes, and intervals of some classes take it as given."),
  ];
  const without = chosen.filter((model) => model.logits && model.temperature === null);
  notes.push(...without.map((model) => `${model.name}: no temperature fits best.`));
  return notes;
}

let announceTimer = 0;
function announce(alpha, rho, chosen, estimates) {
  clearTimeout(announceTimer);
  announceTimer = setTimeout(() => {
    const parts = chosen.map((model, i) => {
      const worst = model.worstCaseAt(rho)?.accuracy;
      const ball = typeof worst === "number" ? `, in the χ² ball ${formatPercent(worst)}` : "";
      const accuracy = estimates[i]
        ? `A_sa ${formatEstimate(estimates[i])}, effective sample size ${formatFixed(estimates[i].ess, 0)}`
        : "no A_sa";
      return `${model.name}: ${accuracy}${ball}`;
    });
    byId("announcement").textContent = `α ${alpha}, ρ ${rho}. ${parts.join(". ")}.`;
  }, ANNOUNCE_DELAY_MS);
}
