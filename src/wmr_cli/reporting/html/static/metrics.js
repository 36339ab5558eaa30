// The arithmetic of wmr_cli.measures for the browser. tests/reporting/html/test_metrics_js.py compares the two.

const Z95 = 1.959963984540054;
// 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom
const T95 = [
  12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139, 2.200985, 2.178813,
  2.160369, 2.144787, 2.13145, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
];
const TIE_TOLERANCE = 1e-150; // squares of smaller differences would underflow
const MIN_DIFFERING_IMAGES = 6; // fewer cannot make a difference significant, as in a two-sided sign test

/** Compensated summation (Neumaier), so that the result does not depend on the order of the images. */
class Sum {
  total = 0;
  compensation = 0;

  add(value) {
    const next = this.total + value;
    this.compensation += Math.abs(this.total) >= Math.abs(value) ? this.total - next + value : value - next + this.total;
    this.total = next;
  }

  get value() {
    return this.total + this.compensation;
  }
}

function sum(values) {
  const total = new Sum();
  for (let i = 0; i < values.length; i += 1) total.add(values[i]);
  return total.value;
}

function count(mask) {
  let hits = 0;
  for (let i = 0; i < mask.length; i += 1) hits += mask[i];
  return hits;
}

// --- weights and accuracies -------------------------------------------------------------------------------------------

/** The paper's kernel exp(-alpha * margin), as a logarithm. */
function exponentialLogWeights(margins, alpha) {
  const logs = new Float64Array(margins.length);
  for (let i = 0; i < logs.length; i += 1) logs[i] = -alpha * margins[i];
  return logs;
}

/** Weights relative to the largest, which is 1, so that none overflows. */
function relativeWeights(logWeights) {
  let peak = -Infinity;
  for (let i = 0; i < logWeights.length; i += 1) peak = Math.max(peak, logWeights[i]);
  const weights = new Float64Array(logWeights.length);
  for (let i = 0; i < weights.length; i += 1) weights[i] = Math.exp(logWeights[i] - peak);
  return weights;
}

/**
 * A_sa with its interval and effective sample size: the accuracy if images are sampled by these weights.
 *
 * With `fit`, the interval includes the uncertainty of the temperature, as in `contributionsOf`.
 */
function weightedAccuracy(logWeights, correct, fit = null) {
  if (!logWeights.length) return null;
  const weights = relativeWeights(logWeights);
  const total = new Sum();
  const totalSquared = new Sum();
  const correctTotal = new Sum();
  const correctSquared = new Sum();
  for (let i = 0; i < weights.length; i += 1) {
    const weight = weights[i];
    total.add(weight);
    totalSquared.add(weight * weight);
    if (correct[i]) {
      correctTotal.add(weight);
      correctSquared.add(weight * weight);
    }
  }
  const ess = total.value ** 2 / totalSquared.value;
  const hits = count(correct);
  if (hits === 0 || hits === correct.length) {
    const value = hits > 0 ? 1 : 0;
    return { value, low: value, high: value, ess };
  }
  const value = correctTotal.value / total.value;
  if (fit) {
    const { influence } = contributionsOf(logWeights, correct, fit);
    return logitDelta(value, sum(influence.map((one) => one * one)), ess);
  }
  const misclassifiedSquared = totalSquared.value - correctSquared.value;
  const spread = correctSquared.value * (1 - value) ** 2 + misclassifiedSquared * value ** 2;
  return logitDelta(value, Math.max(0, spread) / total.value ** 2, ess);
}

/** The values of two estimates, from the lower end of one to the upper end of the other. */
function boundAccuracy(lower, upper, images) {
  const ends = (estimate) => (hasWidth(estimate) ? estimate : wilson(estimate.value * images, images));
  return {
    lower: lower.value,
    upper: upper.value,
    low: Math.min(ends(lower).low, lower.value),
    high: Math.max(ends(upper).high, upper.value),
  };
}

/** Bounds of A_sa over all attacks, from bounds of each margin and what is known of the image. */
function boundSampledAccuracy({ lowest, highest, certified, broken }, alpha) {
  const heavy = exponentialLogWeights(lowest, alpha);
  const light = exponentialLogWeights(highest, alpha);
  const robust = exponentialLogWeights(
    lowest.map((margin) => Math.max(margin, 0)),
    alpha,
  );
  const lower = weightedAccuracy(
    heavy.map((weight, i) => (certified[i] ? light[i] : weight)),
    certified,
  );
  const upper = weightedAccuracy(
    robust.map((weight, i) => (broken[i] ? light[i] : weight)),
    broken.map((is) => 1 - is),
  );
  return lower && upper && boundAccuracy(lower, upper, certified.length);
}

// --- paired comparison of models --------------------------------------------------------------------------------------

/**
 * What each image adds to a weighted accuracy, and its influence function, for the delta method.
 *
 * `fit` holds the slopes of the log-weights by log(1/T), where T minimises the cross-entropy on the same images, and
 * the derivatives of the cross-entropy: an image also moves the accuracy through T.
 */
function contributionsOf(logWeights, correct, fit = null) {
  const weights = relativeWeights(logWeights);
  const total = sum(weights);
  const added = weights.map((weight, i) => (correct[i] ? weight / total : 0));
  const accuracy = sum(added);
  const influence = weights.map((weight, i) => (weight * (correct[i] - accuracy)) / total);
  if (!fit) return { added, influence };
  const slope = sum(influence.map((one, i) => one * fit.slopes[i])) / sum(fit.curvatures);
  return { added, influence: influence.map((one, i) => one - slope * fit.scores[i]) };
}

/**
 * Whether a candidate is significantly larger, as `is_worse` in reporting/comparison.py, by the delta method.
 *
 * A candidate has its `estimate`, the values of its seeds, and the `parts` of its images. Where these are known the test
 * is paired, and neither the images nor the training seeds may explain the difference; else intervals must not overlap.
 */
function isBetter({ estimate: one, bySeed, parts }, { estimate: other, bySeed: otherSeeds, parts: otherParts }) {
  if (one.value <= other.value) return false;
  const isPaired = parts && otherParts && parts.added.length === otherParts.added.length;
  if (!isPaired) return hasWidth(one) && hasWidth(other) && one.low > other.high;
  const overSeeds = seedsInterval(bySeed, otherSeeds);
  if (overSeeds && overSeeds[0] <= 0 && overSeeds[1] >= 0) return false;
  let variance = 0;
  let difference = 0;
  let squares = 0;
  for (let i = 0; i < parts.added.length; i += 1) {
    const added = Math.abs(parts.added[i] - otherParts.added[i]);
    variance += (parts.influence[i] - otherParts.influence[i]) ** 2;
    difference += added;
    squares += added ** 2;
  }
  // the effective number of images that make the difference, with a tolerance for rounding
  const hasEnoughImages = difference ** 2 >= MIN_DIFFERING_IMAGES * squares * (1 - 1e-9);
  return hasEnoughImages && one.value - other.value > Z95 * Math.sqrt(variance);
}

/** With all images correct, or none, the interval has no width and is not informative. */
function hasWidth(estimate) {
  return estimate.low < estimate.high;
}

/** The positions of the best candidate and of all that are not worse; none if this would be all. Null is no candidate. */
function findBest(candidates) {
  const present = [...candidates.keys()].filter((i) => candidates[i]);
  if (!present.length) return new Set();
  const valueAt = (i) => candidates[i].estimate.value;
  const best = present.reduce((one, other) => (valueAt(other) > valueAt(one) ? other : one));
  const kept = present.filter((i) => i === best || !isBetter(candidates[best], candidates[i]));
  return new Set(kept.length < present.length ? kept : []);
}

// --- training seeds ---------------------------------------------------------------------------------------------------

function meanValue(values) {
  return sum(values) / values.length;
}

/** The sample variance. */
function varianceOf(values) {
  const mean = meanValue(values);
  return sum(values.map((value) => (value - mean) ** 2)) / (values.length - 1);
}

/** The mean of value and interval over seeds, with the smallest ESS and the standard deviation `sd`. */
function meanEstimate(estimates) {
  if (estimates.length === 1) return estimates[0];
  const [value, low, high] = ["value", "low", "high"].map((name) => meanValue(estimates.map((one) => one[name])));
  const sizes = estimates.map((one) => one.ess).filter((ess) => ess !== undefined && ess !== null);
  const sd = Math.sqrt(varianceOf(estimates.map((one) => one.value)));
  return { value, low, high, sd, ...(sizes.length ? { ess: Math.min(...sizes) } : {}) };
}

/** The mean of what images add to an accuracy, over seeds on the same images; null if the images differ. */
function meanContributions(parts) {
  const size = parts[0].added.length;
  if (parts.some((one) => one.added.length !== size)) return null;
  const mean = (name) => parts[0][name].map((_, i) => meanValue(parts.map((one) => one[name][i])));
  return parts.length === 1 ? parts[0] : { added: mean("added"), influence: mean("influence") };
}

/** The 95 % interval of a difference of means over seeds; null if both have one seed. As in measures/intervals.py. */
function seedsInterval(these, others) {
  if (these.size + others.size < 3) return null;
  const [own, other] = [[...these.values()], [...others.values()]];
  const difference = meanValue(own) - meanValue(other);
  const around = (variance, degrees) => {
    const half = T95[Math.min(Math.max(degrees, 1), T95.length) - 1] * Math.sqrt(variance);
    return [difference - half, difference + half];
  };
  if (own.length < 2 || other.length < 2) {
    const several = own.length > other.length ? own : other;
    return around(varianceOf(several) * (1 + 1 / several.length), several.length - 1);
  }
  if (own.length === other.length && [...these.keys()].every((seed) => others.has(seed))) {
    const differences = [...these].map(([seed, value]) => value - others.get(seed));
    return around(varianceOf(differences) / differences.length, differences.length - 1);
  }
  const [ownVariance, otherVariance] = [varianceOf(own) / own.length, varianceOf(other) / other.length];
  const variance = ownVariance + otherVariance;
  const denominator = ownVariance ** 2 / (own.length - 1) + otherVariance ** 2 / (other.length - 1);
  return around(variance, denominator ? Math.floor(variance ** 2 / denominator) : 1);
}

// --- accuracies and intervals ----------------------------------------------------------------------------------------

/** A_nat or A_rob: the unweighted accuracy. */
function plainAccuracy(correct) {
  return correct.length ? wilson(count(correct), correct.length) : null;
}

/** Wilson's score interval of an unweighted accuracy. */
function wilson(hits, total) {
  const value = hits / total;
  const z2 = Z95 ** 2 / total;
  const centre = (value + z2 / 2) / (1 + z2);
  const half = (Z95 * Math.sqrt((value * (1 - value)) / total + z2 / (4 * total))) / (1 + z2);
  return {
    value,
    low: hits === 0 ? 0 : Math.max(0, centre - half),
    high: hits === total ? 1 : Math.min(1, centre + half),
  };
}

/** The delta-method interval of a weighted accuracy, on the logit scale. */
function logitDelta(value, variance, ess) {
  if (!(variance > 0 && value > 0 && value < 1)) return { value, low: 0, high: 1, ess };
  const centre = Math.log(value) - Math.log1p(-value);
  const half = (Z95 * Math.sqrt(variance)) / (value * (1 - value));
  return { value, low: logistic(centre - half), high: logistic(centre + half), ess };
}

function logistic(x) {
  return x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x));
}

/** Probability of the label minus the largest other one, with logits / `temperature`; (N * classes) to (N). */
function probabilityMargins(logits, classes, labels, temperature) {
  const margins = new Float64Array(labels.length);
  const exponentials = new Float64Array(classes);
  for (let i = 0; i < labels.length; i += 1) {
    const row = logits.subarray(i * classes, (i + 1) * classes);
    let largest = -Infinity;
    let other = -Infinity;
    let total = 0;
    for (let k = 0; k < classes; k += 1) largest = Math.max(largest, row[k] / temperature);
    for (let k = 0; k < classes; k += 1) {
      exponentials[k] = Math.exp(row[k] / temperature - largest);
      total += exponentials[k];
    }
    for (let k = 0; k < classes; k += 1) if (k !== labels[i]) other = Math.max(other, exponentials[k]);
    margins[i] = (exponentials[labels[i]] - other) / total;
  }
  return margins;
}

/** Derivatives by log(1/T) at `temperature`: of margins (`slopes`), and of the cross-entropy; (N * classes) to (N). */
function fitDerivatives(logits, classes, labels, temperature) {
  const make = () => new Float64Array(labels.length);
  const [slopes, scores, curvatures] = [make(), make(), make()];
  for (let i = 0; i < labels.length; i += 1) {
    const values = Float64Array.from(logits.subarray(i * classes, (i + 1) * classes), (value) => value / temperature);
    const probabilities = relativeWeights(values);
    const total = sum(probabilities);
    const mean = sum(probabilities.map((one, k) => one * values[k])) / total;
    const changes = probabilities.map((one, k) => (one / total) * (values[k] - mean));
    const others = [...values.keys()].filter((k) => k !== labels[i]);
    const rival = others.reduce((best, k) => (values[k] > values[best] ? k : best));
    slopes[i] = changes[labels[i]] - changes[rival];
    scores[i] = mean - values[labels[i]];
    curvatures[i] = sum(changes.map((one, k) => one * (values[k] - mean)));
  }
  return { slopes, scores, curvatures };
}

// --- the worst case over all weights in a chi-squared ball ------------------------------------------------------------

/** Sort losses in decreasing order, minus the largest and divided by their range; once for all radii. */
function sortLosses(losses) {
  const order = Uint32Array.from(losses, (_, i) => i).sort((i, j) => losses[j] - losses[i] || i - j);
  const [largest, least] = [losses[order[0]], losses[order[order.length - 1]]];
  const halfRange = largest / 2 - least / 2;
  const x = Float64Array.from(order, (i) => {
    const at = (losses[i] / 2 - largest / 2) / (halfRange || 1);
    return at > -TIE_TOLERANCE ? 0 : at;
  });
  const tied = x.findIndex((at) => at !== 0);
  return { order, x, largest, halfRange, tied: tied < 0 ? x.length : tied, reach: reachOf(x) };
}

/**
 * The second moment of the weights whose support is the k largest losses, k = 1 … N.
 *
 * It decreases to 1, and is infinite while those k losses are tied at the top.
 */
function reachOf(x) {
  const size = x.length;
  const reach = new Float64Array(size).fill(Infinity);
  let [above, squares] = [0, 0];
  for (let k = 1; k < size; k += 1) {
    const gap = x[k - 1] - x[k];
    squares += 2 * gap * above + k * gap ** 2;
    above += k * gap;
    if (above ** 2 > 0) reach[k - 1] = (size * squares) / above ** 2;
  }
  reach[size - 1] = 1;
  return reach;
}

/** The largest weighted loss in the χ² ball of radius `rho`, with its weights in the order of `ranking.order`. */
function worstCase(ranking, rho) {
  const { x, tied, largest, halfRange } = ranking;
  const size = x.length;
  const binds = 1 + 2 * rho <= size / tied;
  let weights;
  if (rho === 0) weights = new Float64Array(size).fill(1 / size);
  else if (!binds || 1 + 2 * rho === size / tied) weights = x.map((at) => (at === 0 ? 1 / tied : 0));
  else weights = interiorWeights(ranking, rho);
  return {
    value: 2 * (largest / 2 + halfRange * sum(weights.map((weight, i) => weight * x[i]))),
    weights,
    zeroWeights: size - weights.filter((weight) => weight !== 0).length,
    ess: binds ? size / (1 + 2 * rho) : tied,
  };
}

/** The weights if the ball's boundary is reached before all weight is on the largest losses: affine in the loss. */
function interiorWeights({ x, tied, reach }, rho) {
  const size = x.length;
  const total = Math.max(tied, firstAtMost(reach, 1 + 2 * rho)) + 1;
  const mean = sum(x.subarray(0, total)) / total;
  const deviations = x.subarray(0, total).map((at) => at - mean);
  const excess = (total - size + 2 * rho * total) / size;
  const scale = Math.sqrt(Math.max(0, excess) / (sum(deviations.map((one) => one ** 2)) / total));
  const weights = new Float64Array(size);
  deviations.forEach((one, i) => {
    weights[i] = Math.max(0, 1 + scale * one);
  });
  const weightSum = sum(weights);
  return weights.map((weight) => weight / weightSum);
}

/** The first position at which decreasing values are at most `bound`. */
function firstAtMost(values, bound) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > bound) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The accuracy under the weights of a worst case. */
function accuracyUnder(ranking, worst, correct) {
  return Math.min(1, sum(worst.weights.map((weight, i) => (correct[ranking.order[i]] ? weight : 0))));
}

/** The lowest accuracy in the ball: one minus the worst case of the zero-one loss, in closed form. */
function worstAccuracy(correct, rho) {
  const accuracy = count(correct) / correct.length;
  return Math.max(0, accuracy - Math.sqrt(2 * rho * accuracy * (1 - accuracy)));
}

// --- formatting, digit for digit as in Python -------------------------------------------------------------------------

/** A number with this many decimals. Exact ties are rounded to even, as in Python and unlike toFixed. */
function formatFixed(value, digits) {
  const doubled = Math.abs(value) * 2 ** (digits + 1);
  if (Number.isInteger(doubled) && doubled % 2 === 1 && doubled < 2 ** 40) {
    const lower = (doubled * 5 ** digits - 1) / 2;
    const even = (lower % 2 === 0 ? lower : lower + 1) / 10 ** digits;
    return (value < 0 ? "-" : "") + even.toFixed(digits);
  }
  return value.toFixed(digits);
}

/** A fraction in percent. 0.6175 may arrive as 0.61749999999, and must not be rounded down because of it. */
function formatPercent(fraction, digits = 1) {
  return formatFixed(100 * Number(fraction.toFixed(12)), digits);
}

/** `57.2 [53.1, 61.1]`, or `57.2 ± 0.4 [53.1, 61.1]` over seeds, with no more digits than the interval supports. */
function formatEstimate(estimate) {
  const text = formatInterval(estimate);
  if (!estimate || estimate.sd === undefined || (estimate.low === estimate.high && !estimate.sd)) return text;
  const [value, ...interval] = text.split(" ");
  const digits = (value.split(".")[1] ?? "").length;
  const deviation = formatFixed(100 * estimate.sd, digits);
  // ± 0.0 would claim that the seeds agree exactly
  const shown = estimate.sd > 0 && Number(deviation) === 0 ? formatOneDigit(100 * estimate.sd) : deviation;
  return `${value} ± ${shown} ${interval.join(" ")}`;
}

/** A number below 1 with one significant digit, as `.1g` in Python. */
function formatOneDigit(value) {
  const [digit, exponent] = value.toExponential(0).split("e-");
  return exponent > 4 ? `${digit}e-${exponent.padStart(2, "0")}` : `0.${"0".repeat(exponent - 1)}${digit}`;
}

function formatInterval(estimate) {
  if (!estimate) return "-";
  if (estimate.low === estimate.high) {
    if (estimate.value === 1) return "100 (all correct)";
    return estimate.value === 0 ? "0 (none correct)" : `${formatPercent(estimate.value)} (no interval)`;
  }
  const half = 50 * (estimate.high - estimate.low);
  const digits = Math.min(3, Math.max(0, 1 - Math.floor(Math.log10(half))));
  const [value, low, high] = [estimate.value, estimate.low, estimate.high].map((number) => formatPercent(number, digits));
  return `${value} [${low}, ${high}]`;
}

/** `81.0–87.0 [75.0, 91.0]`: lower and upper bound, and the interval that covers both. */
function formatBounds(bounds) {
  if (!bounds) return "-";
  const [lower, upper, low, high] = [bounds.lower, bounds.upper, bounds.low, bounds.high].map((value) => formatPercent(value));
  return `${lower}–${upper} [${low}, ${high}]`;
}

/** Whether the weights, not the size of the test set, make the effective sample small. */
function hasLowEss(ess, images) {
  return ess < 0.1 * images || (ess < 100 && images >= 200);
}
