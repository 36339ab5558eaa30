// The table at the reader's settings, and what a screen reader is told of it.

const LOSSES = { ce: "cross-entropy", margin: "negative logit margin", "zero-one": "zero-one loss" }; // as the figures say
const QUIET = 500; // milliseconds after the last change before it is told

function numbers() {
  const { alpha, rho, temperature } = settings();
  const chosen = chosenModels();
  const asRecorded = chosen.map((model) => model.aSa(alpha));
  const scaled = chosen.map((model) => model.aSa(alpha, temperature));
  const placed = (shares, used) =>
    rankRanges(
      shares,
      chosen.map((model) => model.parts(alpha, used)),
    );
  const before = placed(asRecorded, 1);
  const after = temperature === 1 ? before : placed(scaled, temperature);
  const isScaled = state.models.some((model) => model.logits);
  heading(alpha, rho, temperature, chosen, isScaled);
  at("numbers-body").replaceChildren(
    ...chosen.map((model, i) => {
      const row = element("tr", "", { "data-model": model.name });
      const name = element("th", "", { scope: "row" });
      name.append(swatch(model.number), model.name);
      row.append(
        name,
        shareCell("a_nat", model.aNat()),
        shareCell("a_rob", model.aRob()),
        shareCell("a_sa", asRecorded[i], model.computed(alpha)),
      );
      row.append(essCell(asRecorded[i], model.size));
      if (chosen.length > 1) row.append(rankCell("rank", before[i], before[i]));
      if (isScaled) row.append(shareCell("a_sa_t", scaled[i], null, "start"));
      if (isScaled && chosen.length > 1) row.append(rankCell("rank_t", after[i], before[i]));
      row.append(...ballCells(model, rho));
      return row;
    }),
  );
  at("numbers-note").textContent = notes(chosen).join(" ");
  tell(alpha, rho, chosen, asRecorded);
}

function heading(alpha, rho, temperature, chosen, isScaled) {
  const ranked = chosen.length > 1 ? ["rank"] : [];
  const groups = [
    { title: "", names: ["model"] },
    { title: "", names: ["A_nat", "A_rob", `A_sa at α ${alpha}`, "ESS", ...ranked] },
    ...(isScaled ? [{ title: `logits ÷ ${temperature}`, names: ["A_sa", ...ranked] }] : []),
    { title: `in the ball, ρ ${rho}`, names: ["accuracy", "least"] },
  ];
  const [top, names] = [element("tr"), element("tr")];
  groups.forEach((group, number) => {
    const start = number > 1 ? " start" : "";
    top.append(element("th", group.title, { scope: "colgroup", colspan: String(group.names.length), class: `group${start}` }));
    group.names.forEach((name, i) =>
      names.append(element("th", name, { scope: "col", class: (number ? "" : "text") + (i ? "" : start) })),
    );
  });
  at("numbers-head").replaceChildren(top, names);
}

/** A share as the tables write it; the numbers behind it are there for scripts. */
function shareCell(name, shown, computed = null, kind = "") {
  const cell = element("td", "", { "data-cell": name, class: kind });
  const [value, ...interval] = percent(shown).split(" ");
  cell.append(
    element("span", value, { class: "strong" }),
    ...(interval.length ? [element("span", ` ${interval.join(" ")}`, { class: "interval" })] : []),
  );
  if (shown) cell.dataset.value = String(shown.value);
  if (computed) cell.dataset.computed = JSON.stringify(computed);
  return cell;
}

function essCell(estimate, images) {
  const cell = element("td", estimate ? fixed(estimate.ess, 0) : "-", { "data-cell": "ess" });
  if (estimate) cell.dataset.value = String(estimate.ess);
  if (estimate && restsOnFew(estimate.ess, images)) cell.append(element("span", " few", { class: "few" }));
  return cell;
}

/** `2`, or `1–3` where these places are left open. */
function rankText(range) {
  if (range === null) return "-";
  return range[0] === range[1] ? String(range[0]) : `${range[0]}–${range[1]}`;
}

function rankCell(name, range, usual) {
  const [text, before] = [rankText(range), rankText(usual)];
  const hasMoved = range !== null && usual !== null && text !== before;
  return element("td", hasMoved ? `${text} (was ${before})` : text, { "data-cell": name, class: hasMoved ? "moved" : "" });
}

function ballCells(model, rho) {
  const worst = model.inBall(rho);
  return [
    ["ball", worst?.accuracy, "start"],
    ["least", worst?.least, ""],
  ].map(([name, value, kind]) => {
    const isThere = typeof value === "number";
    const cell = element("td", isThere ? inPercent(value) : "-", { "data-cell": name, class: kind });
    if (isThere) cell.dataset.value = String(value);
    return cell;
  });
}

/** By which losses the worst case in a ball is that of these models. */
function lossNames(chosen) {
  const measured = chosen.filter((model) => model.inBall(1)?.accuracy != null);
  return [...new Set(measured.map(({ loss }) => LOSSES[loss] ?? loss))];
}

function notes(chosen) {
  const { temperature } = settings();
  const told = ["Percent, with 95 % intervals; ESS is the effective sample size behind A_sa."];
  const losses = lossNames(chosen);
  if (losses.length === 1)
    told.push(`In the ball: accuracy where the mean ${losses[0]} is largest, and the least accuracy.`);
  else if (losses.length) told.push("In the ball the models were measured by different losses; do not compare those numbers.");
  if (chosen.length > 1) {
    told.push(
      "Rank 1–3 is any place from 1 to 3: a model is above another only where the 95 % interval of their difference in A_sa, " +
        "over the same images, leaves out 0 and at least six images make it.",
    );
  }
  if (!chosenClasses().length && state.panel.classes.length) told.push("No class is chosen.");
  if (chosen.some((model) => model.kernel !== "exp"))
    told.push(`Weights of kernel ${chosen[0].kernel} are recorded, not computed here.`);
  if (chosen.some((model) => model.right && !model.margin))
    told.push("An attack that stops early leaves no margins, so there is no A_sa.");
  if (temperature !== 1) told.push("Scaled logits are kept in half precision: their A_sa is right to about 0.01 points.");
  told.push(...chosen.filter((model) => model.problem).map((model) => `${model.name}: ${model.problem}.`));
  return told;
}

let telling = 0;
function tell(alpha, rho, chosen, estimates) {
  clearTimeout(telling);
  telling = setTimeout(() => {
    const parts = chosen.map((model, i) => {
      const worst = model.inBall(rho)?.accuracy;
      const ball = typeof worst === "number" ? `, in the ball ${inPercent(worst)}` : "";
      const sure = estimates[i]
        ? `A_sa ${percent(estimates[i])}, effective sample size ${fixed(estimates[i].ess, 0)}`
        : "no A_sa";
      return `${model.name}: ${sure}${ball}`;
    });
    at("told").textContent = `α ${alpha}, ρ ${rho}. ${parts.join(". ")}.`;
  }, QUIET);
}
