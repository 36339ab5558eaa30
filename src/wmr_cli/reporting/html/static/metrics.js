// The measures' arithmetic once more, for the browser: rows in, numbers out. No page, no plots.
// It follows wmr_cli.measures line by line, and tests hold the two together.

const Z95 = 1.959963984540054;
const TIED = 1e-150;
const FEWEST = 6; // images that must make a difference

/** A sum that keeps what rounding would lose (Neumaier), so that the order of the images is of no account. */
class Sum {
  total = 0;
  lost = 0;

  add(value) {
    const next = this.total + value;
    this.lost += Math.abs(this.total) >= Math.abs(value) ? this.total - next + value : value - next + this.total;
    this.total = next;
  }

  get value() {
    return this.total + this.lost;
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

/** Weights scaled so that the largest is 1: none overflows. */
function scaledWeights(logWeights) {
  let peak = -Infinity;
  for (let i = 0; i < logWeights.length; i += 1) peak = Math.max(peak, logWeights[i]);
  const weights = new Float64Array(logWeights.length);
  for (let i = 0; i < weights.length; i += 1) weights[i] = Math.exp(logWeights[i] - peak);
  return weights;
}

/** A_sa: the accuracy when the attacker samples images by these weights, its interval and the effective sample size. */
function weightedAccuracy(logWeights, right) {
  if (!logWeights.length) return null;
  const weights = scaledWeights(logWeights);
  const [total, totalSquared, rightTotal, rightSquared] = [new Sum(), new Sum(), new Sum(), new Sum()];
  for (let i = 0; i < weights.length; i += 1) {
    const weight = weights[i];
    total.add(weight);
    totalSquared.add(weight * weight);
    if (right[i]) {
      rightTotal.add(weight);
      rightSquared.add(weight * weight);
    }
  }
  const ess = total.value ** 2 / totalSquared.value;
  const hits = count(right);
  if (hits === 0 || hits === right.length) {
    const value = hits > 0 ? 1 : 0;
    return { value, low: value, high: value, ess };
  }
  const value = rightTotal.value / total.value;
  const wrongSquared = totalSquared.value - rightSquared.value;
  const spread = rightSquared.value * (1 - value) ** 2 + wrongSquared * value ** 2;
  return logitDelta(value, Math.max(0, spread) / total.value ** 2, ess);
}

// --- which models can be told apart -----------------------------------------------------------------------------------

/** What each image adds to a weighted share, and its influence: by how much more of it would move the share. */
function partsOf(logWeights, right) {
  const weights = scaledWeights(logWeights);
  const total = sum(weights);
  const added = weights.map((weight, i) => (right[i] ? weight / total : 0));
  const share = sum(added);
  return { added, influence: weights.map((weight, i) => (weight * (right[i] - share)) / total) };
}

/** Whether one share exceeds another beyond the draw of images: of both together where their parts are there, else by intervals. */
function isAbove(one, other, parts, otherParts) {
  if (one.value <= other.value) return false;
  const isPaired = parts && otherParts && parts.added.length === otherParts.added.length;
  if (!isPaired) return isWide(one) && isWide(other) && one.low > other.high;
  let [spread, made, squares] = [0, 0, 0];
  for (let i = 0; i < parts.added.length; i += 1) {
    const apart = Math.abs(parts.added[i] - otherParts.added[i]);
    spread += (parts.influence[i] - otherParts.influence[i]) ** 2;
    made += apart;
    squares += apart ** 2;
  }
  return one.value - other.value > Z95 * Math.sqrt(spread) && made ** 2 >= FEWEST * squares * (1 - 1e-9);
}

/** All right or all wrong leaves no interval to go by. */
function isWide(share) {
  return share.low < share.high;
}

/** The best and the worst place that each share may have; null where there is no share. */
function rankRanges(shares, parts) {
  const there = [...shares.keys()].filter((i) => shares[i]);
  const beaten = shares.map((share, i) => new Set(share && there.filter((k) => isAbove(share, shares[k], parts[i], parts[k]))));
  return shares.map((share, i) => share && [1 + there.filter((k) => beaten[k].has(i)).length, there.length - beaten[i].size]);
}

// --- plain shares and intervals ---------------------------------------------------------------------------------------

/** A_nat or A_rob: every image counts the same. */
function plainAccuracy(right) {
  return right.length ? wilson(count(right), right.length) : null;
}

/** Wilson's score interval of a plain share. */
function wilson(hits, total) {
  const [share, z2] = [hits / total, Z95 ** 2 / total];
  const centre = (share + z2 / 2) / (1 + z2);
  const half = (Z95 * Math.sqrt((share * (1 - share)) / total + z2 / (4 * total))) / (1 + z2);
  return {
    value: share,
    low: hits === 0 ? 0 : Math.max(0, centre - half),
    high: hits === total ? 1 : Math.min(1, centre + half),
  };
}

/** The delta-method interval of a weighted share, taken on the logit scale. */
function logitDelta(value, variance, ess) {
  if (!(variance > 0 && value > 0 && value < 1)) return { value, low: 0, high: 1, ess };
  const centre = Math.log(value) - Math.log1p(-value);
  const half = (Z95 * Math.sqrt(variance)) / (value * (1 - value));
  return { value, low: logistic(centre - half), high: logistic(centre + half), ess };
}

function logistic(x) {
  return x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x));
}

/** True probability minus the best other, with all logits divided by `temperature`; logits are rows of `classes` values. */
function probabilityMargins(logits, classes, labels, temperature) {
  const margins = new Float64Array(labels.length);
  const shares = new Float64Array(classes);
  for (let i = 0; i < labels.length; i += 1) {
    const row = logits.subarray(i * classes, (i + 1) * classes);
    let [largest, total, other] = [-Infinity, 0, -Infinity];
    for (let k = 0; k < classes; k += 1) largest = Math.max(largest, row[k] / temperature);
    for (let k = 0; k < classes; k += 1) {
      shares[k] = Math.exp(row[k] / temperature - largest);
      total += shares[k];
    }
    for (let k = 0; k < classes; k += 1) if (k !== labels[i]) other = Math.max(other, shares[k]);
    margins[i] = (shares[labels[i]] - other) / total;
  }
  return margins;
}

// --- the worst case over all weights in a chi-squared ball ------------------------------------------------------------

/** Losses from the largest down, centred on it and divided by their range. Sorted once, for any radius. */
function ranked(losses) {
  const order = Uint32Array.from(losses, (_, i) => i).sort((i, j) => losses[j] - losses[i] || i - j);
  const [largest, least] = [losses[order[0]], losses[order[order.length - 1]]];
  const halfRange = largest / 2 - least / 2;
  const x = Float64Array.from(order, (i) => {
    const at = (losses[i] / 2 - largest / 2) / (halfRange || 1);
    return at > -TIED ? 0 : at;
  });
  const tied = x.findIndex((at) => at !== 0);
  return { order, x, largest, halfRange, tied: tied < 0 ? x.length : tied, reach: reached(x) };
}

/** g at the loss below the k largest, k = 1 … N, falling to 1; infinite while those k are tied at the top. */
function reached(x) {
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

/** The largest weighted loss in the ball of radius `rho`, and the weights that reach it, in the order of `ranking.order`. */
function worstCase(ranking, rho) {
  const { x, tied, largest, halfRange } = ranking;
  const size = x.length;
  const binds = 1 + 2 * rho <= size / tied;
  let shares;
  if (rho === 0) shares = new Float64Array(size).fill(1 / size);
  else if (!binds || 1 + 2 * rho === size / tied) shares = x.map((at) => (at === 0 ? 1 / tied : 0));
  else shares = inside(ranking, rho);
  return {
    value: 2 * (largest / 2 + halfRange * sum(shares.map((share, i) => share * x[i]))),
    shares,
    zeroWeights: size - shares.filter((share) => share !== 0).length,
    ess: binds ? size / (1 + 2 * rho) : tied,
  };
}

/** Weights where the ball's boundary is met before all weight lies on the largest losses. */
function inside({ x, tied, reach }, rho) {
  const size = x.length;
  const total = Math.max(tied, firstAtMost(reach, 1 + 2 * rho)) + 1;
  const mean = sum(x.subarray(0, total)) / total;
  const deviations = x.subarray(0, total).map((at) => at - mean);
  const excess = (total - size + 2 * rho * total) / size;
  const slope = Math.sqrt(Math.max(0, excess) / (sum(deviations.map((one) => one ** 2)) / total));
  const shares = new Float64Array(size);
  deviations.forEach((one, i) => {
    shares[i] = Math.max(0, 1 + slope * one);
  });
  const whole = sum(shares);
  return shares.map((share) => share / whole);
}

/** The first position at which falling values are at most `bound`. */
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
function ballAccuracy(ranking, worst, right) {
  return Math.min(1, sum(worst.shares.map((share, i) => (right[ranking.order[i]] ? share : 0))));
}

/** The least accuracy in the ball: one minus the worst case of the zero-one loss, in closed form. */
function worstAccuracy(right, rho) {
  const share = count(right) / right.length;
  return Math.max(0, share - Math.sqrt(2 * rho * share * (1 - share)));
}

// --- numbers as texts, digit for digit as Python writes them ----------------------------------------------------------

/** A number with so many decimals. Exact ties go to the even digit, as in Python and unlike in toFixed. */
function fixed(value, digits) {
  const doubled = Math.abs(value) * 2 ** (digits + 1);
  if (Number.isInteger(doubled) && doubled % 2 === 1 && doubled < 2 ** 40) {
    const lower = (doubled * 5 ** digits - 1) / 2;
    const even = (lower % 2 === 0 ? lower : lower + 1) / 10 ** digits;
    return (value < 0 ? "-" : "") + even.toFixed(digits);
  }
  return value.toFixed(digits);
}

/** A share without its interval. What rounding left of a sum, 0.61749999999 for 0.6175, does not show. */
function inPercent(share, digits = 1) {
  return fixed(100 * Number(share.toFixed(12)), digits);
}

/** `57.2 [53.1, 61.1]`, with no more digits than the interval supports. */
function percent(share) {
  if (!share) return "-";
  if (share.low === share.high) {
    if (share.value === 1) return "100 (all correct)";
    return share.value === 0 ? "0 (none correct)" : `${inPercent(share.value)} (no interval)`;
  }
  const half = 50 * (share.high - share.low);
  const digits = Math.min(3, Math.max(0, 1 - Math.floor(Math.log10(half))));
  const [value, low, high] = [share.value, share.low, share.high].map((number) => inPercent(number, digits));
  return `${value} [${low}, ${high}]`;
}

/** Whether the weights, and not the size of the test set, leave a number on few images. */
function restsOnFew(ess, images) {
  return ess < 0.1 * images || (ess < 100 && images >= 200);
}
