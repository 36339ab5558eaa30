// A model of a panel at any alpha, rho, temperature and selection of classes. Costly results are cached.

const TEMPERATURES = Array.from({ length: 9 }, (_, i) => 2 ** ((i - 4) / 2));
const MAX_KEPT_TEMPERATURES = 60;
const CALIBRATED = "calibrated"; // in place of a temperature: that which fits the model's attacked images best

class Model {
  /** `style` is that of its method, see drawing.js. */
  constructor(facts, style, arrays, classes) {
    Object.assign(this, facts);
    this.style = style;
    this.classNames = new Map(classes.map(({ label, name }) => [label, name === null ? String(label) : `${label} ${name}`]));
    const rows = Object.fromEntries(Object.entries(facts.rows ?? {}).map(([name, number]) => [name, arrays[number]]));
    this.index = rows.index ?? [];
    this.label = rows.label ?? [];
    this.prediction = rows.prediction ?? null;
    this.margin = rows.margin ?? null;
    this.losses = rows.loss ?? null;
    this.logits = rows.logits ?? null;
    this.correct = rows.prediction ? Uint8Array.from(rows.prediction, (prediction, i) => +(prediction === rows.label[i])) : null;
    const unpack = (bits) => (bits ? unpackBits(bits, rows.label.length) : null);
    this.clean = unpack(rows.clean);
    this.certified = unpack(rows.certified);
    this.broken = unpack(rows.broken);
    this.lowest = rows.lowest ?? null;
    this.highest = rows.highest ?? null;
    this.marginsByTemperature = new Map();
    this.selectClasses(null);
  }

  /** Whether A_sa can be computed at any alpha, which needs margins and the paper's kernel. */
  get canComputeASa() {
    return this.has_margin_kernel && this.margin !== null && this.correct !== null;
  }

  nameOf(label) {
    return this.classNames.get(label) ?? String(label);
  }

  /** Select the images of these classes; null selects all. */
  selectClasses(labels) {
    this.hasAllClasses = labels === null;
    const positions = Uint32Array.from(this.label.keys());
    this.positions = this.hasAllClasses ? positions : positions.filter((i) => labels.has(this.label[i]));
    this.cache = new Map();
  }

  get size() {
    return this.positions.length;
  }

  /** Compute once for the selected classes. */
  cached(name, make) {
    if (!this.cache.has(name)) this.cache.set(name, make());
    return this.cache.get(name);
  }

  /** One of the arrays, at the selected images. */
  selected(name) {
    const values = this[name];
    if (values === null || this.hasAllClasses) return values;
    return this.cached(name, () => pickValues(values, this.positions));
  }

  /** Margins of all images, with logits / `temperature`; null if that needs logits and there are none. */
  allMargins(temperature) {
    if (temperature === CALIBRATED) return this.temperature === null ? null : this.allMargins(this.temperature);
    if (temperature === 1 || this.logits === null) return temperature === 1 ? this.margin : null;
    if (!this.marginsByTemperature.has(temperature)) {
      if (this.marginsByTemperature.size >= MAX_KEPT_TEMPERATURES) this.marginsByTemperature.clear();
      const classes = this.logits.length / this.label.length;
      this.marginsByTemperature.set(temperature, probabilityMargins(this.logits, classes, this.label, temperature));
    }
    return this.marginsByTemperature.get(temperature);
  }

  /** How log-weights depend on the fitted temperature; null at any other, and without some of its images. */
  fitAt(alpha, temperature) {
    if (temperature !== CALIBRATED || !this.hasAllClasses || !this.logits || this.temperature === null) return null;
    const classes = this.logits.length / this.label.length;
    this.derivatives ??= fitDerivatives(this.logits, classes, this.label, this.temperature);
    return { ...this.derivatives, slopes: this.derivatives.slopes.map((slope) => -alpha * slope) };
  }

  marginsAtPositions(positions, temperature) {
    const margins = this.allMargins(temperature);
    return margins && pickValues(margins, positions);
  }

  selectedMargins(temperature) {
    return this.hasAllClasses ? this.allMargins(temperature) : this.marginsAtPositions(this.positions, temperature);
  }

  aNat() {
    if (this.hasAllClasses || this.clean === null) return this.hasAllClasses ? this.a_nat : null;
    return plainAccuracy(this.selected("clean"));
  }

  aRob() {
    if (this.hasAllClasses || this.correct === null) return this.hasAllClasses ? this.a_rob : null;
    return plainAccuracy(this.selected("correct"));
  }

  /** Bounds of A_rob over all attacks. */
  boundARob() {
    if (this.hasAllClasses || this.certified === null) return this.bounds?.a_rob ?? null;
    if (!this.size) return null;
    const notBroken = this.selected("broken").map((is) => 1 - is);
    return boundAccuracy(plainAccuracy(this.selected("certified")), plainAccuracy(notBroken), this.size);
  }

  /** Bounds of A_sa over all attacks: of the record if it has this alpha, else computed here. */
  boundASa(alpha) {
    const recorded = this.bounds?.by_alpha.find((row) => row.alpha_test === alpha)?.a_sa;
    if (this.hasAllClasses && recorded) return recorded;
    if (!this.has_margin_kernel || this.certified === null) return null;
    return this.cached(`bounds ${alpha}`, () => {
      const rows = ["lowest", "highest", "certified", "broken"].map((name) => [name, this.selected(name)]);
      return boundSampledAccuracy(Object.fromEntries(rows), alpha);
    });
  }

  /** A_sa, computed here. */
  computeASa(alpha, temperature = 1) {
    if (!this.canComputeASa || !this.size) return null;
    return this.cached(`A_sa ${alpha} ${temperature}`, () => {
      const margins = this.selectedMargins(temperature);
      const logWeights = margins && exponentialLogWeights(margins, alpha);
      return logWeights && weightedAccuracy(logWeights, this.selected("correct"), this.fitAt(alpha, temperature));
    });
  }

  /** A_sa of the record if it has this alpha, because its interval may be a bootstrap; else computed here. */
  aSa(alpha, temperature = 1) {
    const recorded = temperature === CALIBRATED ? this.recordedAt(alpha)?.a_cal : temperature === 1 && this.recordedASa(alpha);
    return (this.hasAllClasses && recorded) || this.computeASa(alpha, temperature);
  }

  recordedAt(alpha) {
    return this.by_alpha.find((row) => row.alpha_test === alpha) ?? null;
  }

  recordedASa(alpha) {
    return this.recordedAt(alpha)?.a_sa ?? null;
  }

  get storedAlphas() {
    return this.by_alpha.map((row) => row.alpha_test).filter((alpha) => alpha !== null);
  }

  /** The worst case over all weights in the χ² ball of radius `rho`. */
  worstCaseAt(rho) {
    if (this.correct === null || !this.size) return null;
    const least = worstAccuracy(this.selected("correct"), rho);
    const losses = this.loss === "zero-one" ? this.zeroOneLosses() : this.selected("losses");
    if (losses === null) return { accuracy: null, loss: null, least };
    const ranking = this.cached("ranking", () => sortLosses(losses));
    return this.cached(`worst case ${rho}`, () => {
      const worst = worstCase(ranking, rho);
      return { accuracy: accuracyUnder(ranking, worst, this.selected("correct")), loss: worst.value, least };
    });
  }

  zeroOneLosses() {
    return Float64Array.from(this.selected("correct"), (correct) => 1 - correct);
  }

  /** The weights of the selected images, in units of the equal weight. */
  weights(alpha, temperature) {
    const margins = this.canComputeASa && this.size ? this.selectedMargins(temperature) : null;
    if (margins === null) return null;
    const weights = relativeWeights(exponentialLogWeights(margins, alpha));
    const mean = sum(weights) / weights.length;
    return weights.map((weight) => weight / mean);
  }

  /** What each selected image adds to an accuracy, and its influence; null without rows. */
  contributions(name, alpha, temperature) {
    if (!this.size) return null;
    if (name === "a_sa") return this.weightedContributions(alpha, temperature);
    const mask = name === "a_nat" ? "clean" : "correct";
    if (this[mask] === null) return null;
    return this.cached(`contributions ${name}`, () => contributionsOf(new Float64Array(this.size), this.selected(mask)));
  }

  weightedContributions(alpha, temperature) {
    const margins = this.canComputeASa ? this.selectedMargins(temperature) : null;
    const logWeights = margins && exponentialLogWeights(margins, alpha);
    return logWeights && contributionsOf(logWeights, this.selected("correct"), this.fitAt(alpha, temperature));
  }

  /** The largest difference between recorded and computed numbers, at the alphas and radii of the record. */
  compareWithRecord() {
    const parts = this.storedAlphas.map((alpha) => [this.recordedASa(alpha)?.value, this.computeASa(alpha)?.value]);
    parts.push(...this.dro.map((row) => [row.accuracy, this.worstCaseAt(row.rho)?.accuracy]));
    const both = parts.filter(([one, other]) => Number.isFinite(one) && Number.isFinite(other));
    return { compared: both.length, largest: Math.max(0, ...both.map(([one, other]) => Math.abs(one - other))) };
  }
}

/** The values at these positions, in an array of the same type. */
function pickValues(values, positions) {
  const some = new values.constructor(positions.length);
  for (let i = 0; i < some.length; i += 1) some[i] = values[positions[i]];
  return some;
}
