// A method: a training with the models of its seeds. Its numbers are means over seeds, as in rows.py of the tables.

class Method {
  /** `seeds` has the models of each seed, several if a checkpoint was evaluated more than once. */
  constructor({ name, style, dash = style, cells, seeds }, number) {
    Object.assign(this, { name, style, dash, cells, seeds, number });
  }

  get models() {
    return this.seeds.flat();
  }

  get first() {
    return this.seeds[0][0];
  }

  get size() {
    return this.first.size;
  }

  get hasAllClasses() {
    return this.first.hasAllClasses;
  }

  get storedAlphas() {
    return sortedUnique(this.models.flatMap((model) => model.storedAlphas));
  }

  /** The first result of every seed that is not null; null if a seed has none. */
  perSeed(find) {
    const found = this.seeds.map((models) => {
      for (const model of models) {
        const result = find(model) ?? null;
        if (result !== null) return result;
      }
      return null;
    });
    return found.includes(null) ? null : found;
  }

  mean(find) {
    const found = this.perSeed(find);
    return found && meanEstimate(found);
  }

  has(find) {
    return this.perSeed((model) => find(model) || null) !== null;
  }

  get canComputeASa() {
    return this.has((model) => model.canComputeASa);
  }

  /** A_nat, A_rob or A_sa by the field name of a record; at any temperature but 1, `a_sa` is that of scaled logits. */
  accuracy(name, alpha, temperature = 1) {
    const found = this.estimates(name, alpha, temperature);
    return found && meanEstimate(found);
  }

  /** The accuracy of every seed, from a record with this alpha where a seed has one; null if a seed has none. */
  estimates(name, alpha, temperature) {
    return (
      this.perSeed((model) => (model.recordedAt(alpha) ? accuracyOf(model, name, alpha, temperature) : null)) ??
      this.perSeed((model) => accuracyOf(model, name, alpha, temperature))
    );
  }

  computeASa(alpha, temperature = 1) {
    return this.mean((model) => model.computeASa(alpha, temperature));
  }

  /** A recorded accuracy; null unless every seed has it. */
  recorded(name, alpha) {
    return this.mean((model) => model.recordedAt(alpha)?.[name]);
  }

  boundARob() {
    return this.meanOf(["lower", "upper", "low", "high"], (model) => model.boundARob());
  }

  boundASa(alpha) {
    return this.meanOf(["lower", "upper", "low", "high"], (model) => model.boundASa(alpha));
  }

  worstCaseAt(rho) {
    return this.meanOf(["accuracy", "least"], (model) => model.worstCaseAt(rho));
  }

  /** The mean of each number over seeds; null where a seed lacks it. */
  meanOf(names, find) {
    const found = this.perSeed(find);
    const mean = (values) => (values.some((value) => value === null) ? null : meanValue(values));
    return found && Object.fromEntries(names.map((name) => [name, mean(found.map((one) => one[name]))]));
  }

  /** The temperature behind A_cal. */
  get temperature() {
    const found = this.perSeed((model) => (model.logits ? model.temperature : null));
    return found && meanValue(found);
  }

  /** What `findBest` compares: an accuracy, its value for each seed, and what the images add to it. */
  candidate(name, alpha, temperature = 1) {
    const found = this.estimates(name, alpha, temperature);
    if (!found) return null;
    const bySeed = new Map(this.seeds.map(([model], i) => [model.seed, found[i].value]));
    const parts = this.perSeed((model) => model.contributions(name, alpha, temperature));
    return { estimate: meanEstimate(found), bySeed, parts: parts && meanContributions(parts) };
  }
}

function accuracyOf(model, name, alpha, temperature) {
  if (name === "a_nat") return model.aNat();
  return name === "a_rob" ? model.aRob() : model.aSa(alpha, temperature);
}

/** The methods of a panel; with `isSingle`, each seed by itself in the colour and with the mark of its method. */
function makeMethods(panel, models, isSingle) {
  const pooled = panel.methods.map((one) => ({ ...one, seeds: one.seeds.map((numbers) => numbers.map((i) => models[i])) }));
  const shown = isSingle ? pooled.flatMap(splitSeeds) : pooled;
  return shown.map((facts, number) => new Method(facts, number));
}

function splitSeeds(method) {
  if (method.seeds.length === 1) return [method];
  return method.seeds.map((seed, i) => ({ ...method, name: seed[0].name, seeds: [seed], dash: method.style + i }));
}
