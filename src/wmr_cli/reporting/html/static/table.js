// The table at the selected settings, and its summary for screen readers.

const LOSSES = { ce: "cross-entropy", margin: "negative logit margin", "zero-one": "zero-one loss" }; // as in figures/dro.py
const ANNOUNCE_DELAY_MS = 500; // after the last change, so that a moving slider is not read aloud

function updateTable() {
  const { alpha, temperature } = settings();
  const chosen = chosenMethods();
  const groups = listColumnGroups();
  showHeading(groups);
  const cells = groups.flatMap(({ columns }, number) =>
    columns.map(({ makeCells }, i) => makeCells(chosen).map((cell) => addRule(cell, number, i))),
  );
  byId("numbers-body").replaceChildren(
    ...chosen.map((method, i) => {
      const row = makeElement("tr", "", { "data-model": method.name });
      row.append(...cells.map((column) => column[i]));
      return row;
    }),
  );
  const hasBold = byId("numbers-body").querySelector("b") !== null;
  byId("numbers-note").textContent = listNotes(chosen, hasBold).join(" ");
  byId("settings-text").textContent = describeSettings(chosen);
  announce(alpha, settings().rho, chosen);
}

/** A line at the left of every group of accuracies but the first. */
function addRule(cell, group, column) {
  cell.classList.toggle("start", group > 1 && column === 0);
  return cell;
}

/** The columns of the table in groups; each makes the cells of all methods. */
function listColumnGroups() {
  const { alpha, rho, temperature } = settings();
  const all = state.methods;
  const atAlpha = `A_sa at α ${alpha}`;
  const groups = [
    { title: "", columns: [{ title: "method", kind: "text", makeCells: (chosen) => chosen.map(nameCell) }, ...trainingColumns()] },
    {
      title: "",
      columns: [
        accuracyColumn("A_nat", "a_nat"),
        accuracyColumn("A_rob", "a_rob"),
        accuracyColumn(atAlpha, "a_sa"),
        { title: "ESS", makeCells: (chosen) => chosen.map((one) => essCell(one.accuracy("a_sa", alpha), one.size)) },
      ],
    },
    {
      title: "bounds over the ε-ball",
      isShown: all.some((method) => method.boundARob()),
      columns: [
        { title: "A_rob", makeCells: (chosen) => chosen.map((one) => boundsCell("a_rob_bounds", one.boundARob())) },
        { title: atAlpha, makeCells: (chosen) => chosen.map((one) => boundsCell("a_sa_bounds", one.boundASa(alpha))) },
      ],
    },
    {
      title: temperature === CALIBRATED ? CALIBRATED : `logits ÷ ${temperature}`,
      isShown: temperature !== 1 && all.some((method) => method.models.some((model) => model.logits)),
      columns: [
        accuracyColumn(temperature === CALIBRATED ? "A_cal" : atAlpha, "a_sa_t", temperature),
        { title: "T", isShown: temperature === CALIBRATED, makeCells: (chosen) => chosen.map(temperatureCell) },
      ],
    },
    {
      title: `χ² ball, ρ ${rho}`,
      isShown: all.some((method) => method.worstCaseAt(rho)),
      columns: [
        { title: "DRO", makeCells: (chosen) => chosen.map((one) => worstCaseCell("dro", one.worstCaseAt(rho)?.accuracy)) },
        { title: "lowest", makeCells: (chosen) => chosen.map((one) => worstCaseCell("least", one.worstCaseAt(rho)?.least)) },
      ],
    },
  ];
  const isShown = (one) => one.isShown !== false;
  return groups.filter(isShown).map((group) => ({ ...group, columns: group.columns.filter(isShown) }));
}

/** The columns of the tables that describe a training. */
function trainingColumns() {
  const names = state.panel.columns.filter((name) => name !== "seeds" || !state.isSingle);
  return names.map((name) => ({
    title: name,
    kind: ["defense", "kernel_train"].includes(name) ? "text" : "",
    makeCells: (chosen) =>
      chosen.map((method) => makeElement("td", method.cells[name], { "data-cell": name, class: name === "defense" ? "text" : "" })),
  }));
}

/** A column of accuracies, the best in bold; `a_sa_t` is A_sa of scaled logits. */
function accuracyColumn(title, cellName, temperature = 1) {
  const { alpha } = settings();
  const name = cellName === "a_sa_t" ? "a_sa" : cellName;
  const makeCells = (chosen) => {
    const best = findBold(chosen, name, alpha, temperature);
    return chosen.map((method, i) => {
      const computed = cellName === "a_sa" ? method.computeASa(alpha) : null;
      return accuracyCell(cellName, method.accuracy(name, alpha, temperature), computed, best.has(i));
    });
  };
  return { title, makeCells };
}

/**
 * The positions of the methods whose accuracy is bold.
 *
 * Where the tables of the report have all of these numbers, theirs are bold here. Single seeds are not compared.
 */
function findBold(chosen, name, alpha, temperature) {
  if (state.isSingle) return new Set();
  const hasAll = chosen.length === state.methods.length && chosen.every((method) => method.hasAllClasses);
  const isPlain = name !== "a_sa";
  const field = temperature === CALIBRATED ? "a_cal" : name;
  const table = state.panel.bold.find((one) => one.alpha === alpha) ?? (isPlain ? state.panel.bold[0] : undefined);
  if (hasAll && (temperature === 1 || temperature === CALIBRATED) && table && field in table.methods)
    return new Set(table.methods[field]);
  return findBest(chosen.map((method) => method.candidate(name, alpha, temperature)));
}

function showHeading(groups) {
  const [top, names] = [makeElement("tr"), makeElement("tr")];
  groups.forEach(({ title, columns }, number) => {
    const group = makeElement("th", title, { scope: "colgroup", colspan: String(columns.length), class: "group" });
    top.append(addRule(group, number, 0));
    columns.forEach(({ title: name, kind = "" }, i) =>
      names.append(addRule(makeElement("th", name, { scope: "col", class: kind }), number, i)),
    );
  });
  byId("numbers-head").replaceChildren(top, names);
}

function nameCell(method) {
  const cell = makeElement("th", "", { scope: "row" });
  cell.append(swatch(method), method.name);
  return cell;
}

function temperatureCell(method) {
  const { temperature } = method;
  return makeElement("td", temperature === null ? "-" : temperature.toPrecision(3), { "data-cell": "temperature" });
}

/** A cell with a value and, in small print, its interval; as the tables, only the value is bold. */
function intervalCell(name, text, isBold = false) {
  const cell = makeElement("td", "", { "data-cell": name });
  const [value, interval] = text.split(" [");
  cell.append(makeElement(isBold ? "b" : "span", value));
  if (interval) cell.append(makeElement("span", ` [${interval}`, { class: "interval" }));
  return cell;
}

/** Lower and upper bound, formatted as in the tables; an attribute holds the unrounded numbers. */
function boundsCell(name, bounds) {
  const cell = intervalCell(name, formatBounds(bounds));
  if (bounds) cell.dataset.value = JSON.stringify(bounds);
  return cell;
}

/** An accuracy, formatted as in the tables; attributes hold the unrounded numbers for scripts. */
function accuracyCell(name, shown, computed, isBold) {
  const cell = intervalCell(name, formatEstimate(shown), isBold);
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

function worstCaseCell(name, value) {
  const isKnown = typeof value === "number";
  const cell = makeElement("td", isKnown ? formatPercent(value) : "-", { "data-cell": name });
  if (isKnown) cell.dataset.value = String(value);
  return cell;
}

/** The losses whose worst case in the χ² ball these methods have. */
function lossNames(chosen) {
  const models = chosen.flatMap((method) => method.models);
  const measured = models.filter((model) => model.worstCaseAt(1)?.accuracy != null);
  return [...new Set(measured.map(({ loss }) => LOSSES[loss] ?? loss))];
}

/** Notes about what is shown; the legend has the meaning of every column. */
function listNotes(chosen, hasBold) {
  const { temperature } = settings();
  const models = chosen.flatMap((method) => method.models);
  const notes = [];
  const losses = lossNames(chosen);
  if (losses.length === 1) notes.push(`Loss of DRO: ${losses[0]}.`);
  else if (losses.length) notes.push("The DRO accuracies belong to different losses; do not compare these numbers.");
  if (state.isSingle) notes.push("Seeds by themselves are not compared: nothing is bold.");
  else if (chosen.length > 1 && !hasBold)
    notes.push("Nothing is bold: all values of a column are statistically indistinguishable from the best.");
  if (byId("numbers-body").querySelector(".few"))
    notes.push("few: the weights, not the number of images, make the effective sample small.");
  if (!chosenClasses().length && state.panel.classes.length) notes.push("No class is selected.");
  if (models.some((model) => !model.has_margin_kernel))
    notes.push(`For kernel ${models[0].kernel} only recorded values are shown.`);
  if (models.some((model) => model.correct && !model.margin))
    notes.push("The attack stops early and stores no margins: A_sa is not available.");
  if (temperature === CALIBRATED) notes.push(...listCalibratedNotes(models));
  if (temperature !== 1 && models.some((model) => model.logits))
    notes.push("Logits are stored in half precision: A_sa at this temperature is accurate to about 0.01 points.");
  notes.push(...models.filter((model) => model.problem).map((model) => `${model.name}: ${model.problem}.`));
  return notes;
}

function listCalibratedNotes(models) {
  const notes = models.every((model) => model.hasAllClasses)
    ? []
    : ["T is fitted to all classes, and intervals of some classes take it as given."];
  const without = models.filter((model) => model.logits && model.temperature === null);
  notes.push(...without.map((model) => `${model.name}: no temperature fits best.`));
  return notes;
}

/** The settings in words, for a page on paper, where the controls are hidden. */
function describeSettings(chosen) {
  const { alpha, rho, temperature } = settings();
  const parts = [`α ${alpha}`];
  if (!byId("rho-field").hidden) parts.push(`ρ ${rho}`);
  if (!byId("temperature-field").hidden) parts.push(temperature === CALIBRATED ? CALIBRATED : `T ${temperature}`);
  const [classes, all] = [chosenClasses().length, state.panel.classes.length];
  if (classes < all) parts.push(`${classes} of ${all} classes`);
  if (chosen.length < state.methods.length) parts.push(`${chosen.length} of ${state.methods.length} methods`);
  return parts.join(" · ");
}

let announceTimer = 0;
function announce(alpha, rho, chosen) {
  clearTimeout(announceTimer);
  announceTimer = setTimeout(() => {
    const parts = chosen.map((method) => {
      const worst = method.worstCaseAt(rho)?.accuracy;
      const dro = typeof worst === "number" ? `, in the χ² ball ${formatPercent(worst)}` : "";
      const estimate = method.accuracy("a_sa", alpha);
      const accuracy = estimate
        ? `A_sa ${formatEstimate(estimate)}, effective sample size ${formatFixed(estimate.ess, 0)}`
        : "no A_sa";
      return `${method.name}: ${accuracy}${dro}`;
    });
    byId("announcement").textContent = `α ${alpha}, ρ ${rho}. ${parts.join(". ")}.`;
  }, ANNOUNCE_DELAY_MS);
}
