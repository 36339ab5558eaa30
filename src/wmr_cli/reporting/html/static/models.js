// One model of a panel, at any alpha, rho, temperature and choice of classes. Everything costly is computed once and kept.

const TEMPERATURES = Array.from({ length: 9 }, (_, i) => 2 ** ((i - 4) / 2));
const MOST_KEPT = 60;

class Model {
  constructor(facts, number, arrays, classes) {
    Object.assign(this, facts);
    this.number = number;
    this.classNames = new Map(classes.map(({ label, name }) => [label, name === null ? String(label) : `${label} ${name}`]));
    const rows = Object.fromEntries(Object.entries(facts.rows ?? {}).map(([name, number]) => [name, arrays[number]]));
    this.index = rows.index ?? [];
    this.label = rows.label ?? [];
    this.prediction = rows.prediction ?? null;
    this.margin = rows.margin ?? null;
    this.losses = rows.loss ?? null;
    this.logits = rows.logits ?? null;
    this.right = rows.prediction ? Uint8Array.from(rows.prediction, (seen, i) => +(seen === rows.label[i])) : null;
    this.clean = rows.clean ? unpackedBits(rows.clean, rows.label.length) : null;
    this.tempered = new Map();
    this.choose(null);
  }

  /** Whether A_sa can be had at any alpha: the paper's kernel, from margins. */
  get isLive() {
    return this.kernel === "exp" && this.margin !== null && this.right !== null;
  }

  nameOf(label) {
    return this.classNames.get(label) ?? String(label);
  }

  /** Keep to the images of these classes; null for all. */
  choose(labels) {
    this.isWhole = labels === null;
    const positions = Uint32Array.from(this.label.keys());
    this.positions = this.isWhole ? positions : positions.filter((i) => labels.has(this.label[i]));
    this.cache = new Map();
  }

  get size() {
    return this.positions.length;
  }

  /** Made once for the present choice of classes. */
  once(name, make) {
    if (!this.cache.has(name)) this.cache.set(name, make());
    return this.cache.get(name);
  }

  /** One of the arrays, at the chosen images. */
  at(name) {
    const values = this[name];
    if (values === null || this.isWhole) return values;
    return this.once(name, () => picked(values, this.positions));
  }

  /** Of all images, as recorded or with the logits divided by `temperature`; null where no logits are kept. */
  wholeMargins(temperature) {
    if (temperature === 1 || this.logits === null) return temperature === 1 ? this.margin : null;
    if (!this.tempered.has(temperature)) {
      if (this.tempered.size >= MOST_KEPT) this.tempered.clear();
      const classes = this.logits.length / this.label.length;
      this.tempered.set(temperature, probabilityMargins(this.logits, classes, this.label, temperature));
    }
    return this.tempered.get(temperature);
  }

  marginsOf(positions, temperature) {
    const margins = this.wholeMargins(temperature);
    return margins && picked(margins, positions);
  }

  marginsAt(temperature) {
    return this.isWhole ? this.wholeMargins(temperature) : this.marginsOf(this.positions, temperature);
  }

  aNat() {
    if (this.isWhole || this.clean === null) return this.isWhole ? this.a_nat : null;
    return plainAccuracy(this.at("clean"));
  }

  aRob() {
    if (this.isWhole || this.right === null) return this.isWhole ? this.a_rob : null;
    return plainAccuracy(this.at("right"));
  }

  /** A_sa as the browser computes it. */
  computed(alpha, temperature = 1) {
    if (!this.isLive || !this.size) return null;
    return this.once(`A_sa ${alpha} ${temperature}`, () => {
      const margins = this.marginsAt(temperature);
      return margins && weightedAccuracy(exponentialLogWeights(margins, alpha), this.at("right"));
    });
  }

  /** A_sa to show: the record's own where it has this alpha, its interval may be a bootstrap; else computed. */
  aSa(alpha, temperature = 1) {
    const isRecorded = this.isWhole && temperature === 1;
    return (isRecorded && this.recorded(alpha)) || this.computed(alpha, temperature);
  }

  recorded(alpha) {
    return this.by_alpha.find((row) => row.alpha_test === alpha)?.a_sa ?? null;
  }

  get storedAlphas() {
    return this.by_alpha.map((row) => row.alpha_test).filter((alpha) => alpha !== null);
  }

  /** What an attacker could do at most who may move this far from equal weights. */
  inBall(rho) {
    if (this.right === null || !this.size) return null;
    const least = worstAccuracy(this.at("right"), rho);
    const losses = this.loss === "zero-one" ? this.zeroOne() : this.at("losses");
    if (losses === null) return { accuracy: null, loss: null, least };
    const ranking = this.once("ranking", () => ranked(losses));
    return this.once(`ball ${rho}`, () => {
      const worst = worstCase(ranking, rho);
      return { accuracy: ballAccuracy(ranking, worst, this.at("right")), loss: worst.value, least };
    });
  }

  zeroOne() {
    return Float64Array.from(this.at("right"), (right) => 1 - right);
  }

  /** The weights of the chosen images as multiples of an equal share. */
  weights(alpha, temperature) {
    const margins = this.isLive && this.size ? this.marginsAt(temperature) : null;
    if (margins === null) return null;
    const weights = scaledWeights(exponentialLogWeights(margins, alpha));
    const mean = sum(weights) / weights.length;
    return weights.map((weight) => weight / mean);
  }

  /** What each chosen image adds to A_sa, and its influence on it; null where rows are not there. */
  parts(alpha, temperature) {
    const margins = this.isLive && this.size ? this.marginsAt(temperature) : null;
    return margins && partsOf(exponentialLogWeights(margins, alpha), this.at("right"));
  }

  /** The largest difference between the record and what the browser computes at its alphas and radii. */
  difference() {
    const parts = this.storedAlphas.map((alpha) => [this.recorded(alpha)?.value, this.computed(alpha)?.value]);
    parts.push(...this.dro.map((row) => [row.accuracy, this.inBall(row.rho)?.accuracy]));
    const both = parts.filter(([one, other]) => Number.isFinite(one) && Number.isFinite(other));
    return { compared: both.length, largest: Math.max(0, ...both.map(([one, other]) => Math.abs(one - other))) };
  }
}

/** The values at these positions, in an array of the same kind. */
function picked(values, positions) {
  const some = new values.constructor(positions.length);
  for (let i = 0; i < some.length; i += 1) some[i] = values[positions[i]];
  return some;
}
