"""metrics.js, run by node, gives the numbers and texts of Python."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.page_data import make_logit_rows, resample, save_evaluation
from wmr_cli import measures
from wmr_cli.config import EvaluateConfig
from wmr_cli.measures import Estimate
from wmr_cli.reporting.comparison import find_bold_cells
from wmr_cli.reporting.figures import dro, style
from wmr_cli.reporting.grouping import group_by_setting
from wmr_cli.reporting.html import report as page_module
from wmr_cli.reporting.html.payload import to_half_logits
from wmr_cli.reporting.scoring import has_low_ess
from wmr_cli.reporting.tables.formatting import (
    format_bounds,
    format_estimate,
    format_percent,
    format_training_spread,
)
from wmr_cli.storage.records import Rows

NODE = shutil.which("node") or ""
STATIC = Path(page_module.__file__).parent / "static"
pytestmark = pytest.mark.skipif(not NODE, reason="node is not installed")

RNG = np.random.default_rng(0)
MARGINS = {
    "usual": RNG.uniform(-1, 1, 10_000),
    "all correct": RNG.uniform(0.1, 1, 50),
    "none correct": RNG.uniform(-1, -0.1, 50),
    "one": np.array([0.25]),
    "two": np.array([0.25, -0.5]),
    "ties": np.repeat([-1.0, 0.5, 1.0], 20),
}
LOSSES = {
    "usual": RNG.exponential(1, 10_000),
    "float32": RNG.exponential(1, 500).astype(np.float32).astype(np.float64),
    "ties": RNG.integers(0, 4, 60).astype(np.float64),
    "zero-one": RNG.integers(0, 2, 101).astype(np.float64),
    "equal": np.full(7, 0.3),
    "one": np.array([2.0]),
    "far": 1e6 + RNG.exponential(1, 200),
    "signed": RNG.normal(0, 3, 300),
    "tied at the top": np.array([3.0, 3.0, 1.0, 0.0]),
}
ROUNDED = [
    0.6175,
    0.6175 - 1e-14,
    0.61749999999996,
    0.6174999,
    0.1 + 0.2,
    1 / 3,
    0.5,
    1 - 1e-13,
    1 - 1e-9,
    1e-13,
    3 / 8192,
    0.0125,
]
"""Fractions with and without rounding errors."""
RHOS = [0.0, 1e-14, 1e-3, 0.01, 0.0321, 0.1, 0.32, 0.5, 0.64, 1.0, 1.5, 3.0, 24.5, 200.0]


def run(code: str, given: object, *scripts: str, before: str = "") -> Any:  # noqa: ANN401
    """Return the result of the function `code` for `given`, after running our scripts."""
    text = "\n".join(
        (STATIC / name).read_text(encoding="utf-8") for name in ("metrics.js", *scripts)
    )
    call = f"console.log(JSON.stringify(({code})(given)));"
    whole = f"{before}{text}\nconst given = {json.dumps(given)};\n{call}"
    done = subprocess.run([NODE, "-"], input=whole, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MARGINS)
def test_weighted_accuracy_agrees_to_twelve_digits(name: str) -> None:
    margins = MARGINS[name]
    alphas = [0, 0.1, 1, 1.5, 2, 7.3, 50, 1000]
    correct = margins > 0
    code = """({margins, correct, alphas}) => alphas.map((alpha) => {
      const found = weightedAccuracy(exponentialLogWeights(margins, alpha), correct);
      return {...found, text: formatEstimate(found)};
    })"""
    computed = run(
        code,
        {"margins": margins.tolist(), "correct": correct.astype(int).tolist(), "alphas": alphas},
    )
    for alpha, found in zip(alphas, computed, strict=True):
        ours = measures.weighted_accuracy(measures.exponential_log_weights(margins, alpha), correct)
        assert found["value"] == pytest.approx(ours.value, rel=1e-12, abs=1e-300)
        assert [found["low"], found["high"]] == pytest.approx(
            [ours.low, ours.high], rel=1e-9, abs=1e-12
        )
        assert found["ess"] == pytest.approx(ours.ess, rel=1e-12)
        assert found["text"] == format_estimate(ours)


@pytest.mark.parametrize("name", LOSSES)
def test_worst_case_agrees(name: str) -> None:
    losses = LOSSES[name]
    correct = losses < np.median(losses)
    code = """({losses, correct, rhos}) => {
      const ranking = sortLosses(losses);
      return rhos.map((rho) => {
        const worst = worstCase(ranking, rho);
        const accuracy = accuracyUnder(ranking, worst, correct);
        return [worst.value, worst.ess, worst.zeroWeights, accuracy, worstAccuracy(correct, rho)];
      });
    }"""
    computed = run(
        code, {"losses": losses.tolist(), "correct": correct.astype(int).tolist(), "rhos": RHOS}
    )
    for ours, (value, ess, zeros, accuracy, least) in zip(
        measures.worst_cases(losses, RHOS), computed, strict=True
    ):
        assert value == pytest.approx(ours.value, rel=1e-12)
        assert (ess, zeros) == (pytest.approx(ours.ess), ours.zero_weights)
        assert accuracy == pytest.approx(ours.accuracy(correct), abs=1e-9)
        assert least == pytest.approx(measures.worst_accuracy(correct, ours.rho), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alpha", [0.0, 1.0, 7.3])
def test_bounds_over_all_attacks_agree(seed: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    size = 300
    # the last two have images of one status only
    status = rng.integers(3, size=size) if seed < 2 else np.full(size, seed - 2)
    lowest = np.where(status == 0, rng.uniform(0, 0.5, size), rng.uniform(-1, -0.5, size))
    highest = np.where(status == 1, rng.uniform(-0.5, 0, size), rng.uniform(0.5, 1, size))
    margins = measures.VerifiedMargins(lowest, highest, status == 0, status == 1, None)
    lower, upper = (outcome.estimate() for outcome in margins.sampled_outcomes(alpha))
    ours = measures.bound_accuracy(lower, upper, size)
    given = {
        "lowest": lowest.tolist(),
        "highest": highest.tolist(),
        "certified": (status == 0).astype(int).tolist(),
        "broken": (status == 1).astype(int).tolist(),
    }
    code = f"""(rows) => {{
      for (const name of Object.keys(rows)) rows[name] = Float64Array.from(rows[name]);
      const found = boundSampledAccuracy(rows, {alpha});
      return {{...found, text: formatBounds(found)}};
    }}"""
    found = run(code, given)
    for name in ("lower", "upper", "low", "high"):
        assert found[name] == pytest.approx(getattr(ours, name), rel=1e-9, abs=1e-12)
    assert found["text"] == format_bounds(ours)


def test_wilson_interval_agrees() -> None:
    pairs = [
        (hits, total)
        for total in (1, 2, 7, 100, 10_000)
        for hits in sorted({0, 1, total // 3, total - 1, total})
    ]
    computed = run("(pairs) => pairs.map(([hits, total]) => wilson(hits, total))", pairs)
    for (hits, total), found in zip(pairs, computed, strict=True):
        ours = measures.wilson(hits, total)
        assert [found["value"], found["low"], found["high"]] == pytest.approx(
            [ours.value, ours.low, ours.high], abs=1e-15
        )


@pytest.mark.parametrize("temperature", [0.25, 0.5, 1, 1.7, 4])
def test_margins_at_a_temperature_agree(temperature: float) -> None:
    rows = make_logit_rows(3, images=200)
    code = (
        "({logits, labels, t}) => [...probabilityMargins(Float64Array.from(logits), 10, labels, t)]"
    )
    given = {
        "logits": rows["uniform/logits"].astype(float).ravel().tolist(),
        "labels": rows["label"].tolist(),
        "t": temperature,
    }
    ours = measures.probability_margins(rows["uniform/logits"], rows["label"], temperature)
    np.testing.assert_allclose(run(code, given), ours, atol=1e-14)


@pytest.mark.parametrize("alpha", [0, 1, 5])
def test_calibrated_accuracy_agrees(alpha: float) -> None:
    rows = make_logit_rows(3)
    calibration = measures.calibrate(rows)
    code = """({logits, labels, correct, t, alpha}) => {
      const values = Float64Array.from(logits);
      const derivatives = fitDerivatives(values, 10, labels, t);
      const fit = {...derivatives, slopes: derivatives.slopes.map((slope) => -alpha * slope)};
      const margins = probabilityMargins(values, 10, labels, t);
      return weightedAccuracy(exponentialLogWeights(margins, alpha), correct, fit);
    }"""
    given = {
        "logits": rows["uniform/logits"].astype(float).ravel().tolist(),
        "labels": rows["label"].tolist(),
        "correct": (rows["uniform/prediction"] == rows["label"]).astype(int).tolist(),
        "t": calibration.temperature,
        "alpha": alpha,
    }
    ours = measures.calibrated_accuracy(rows, alpha)
    found = run(code, given)
    assert [found[name] for name in ("value", "low", "high", "ess")] == pytest.approx(
        [ours.value, ours.low, ours.high, ours.ess], rel=1e-9
    )


@pytest.mark.parametrize("temperature", [0.25, 0.5, 2, 4])
def test_half_precision_logits_change_a_sa_by_at_most_a_hundredth_of_a_point(
    temperature: float,
) -> None:
    rows = make_logit_rows(4, images=2000)
    halves = {**rows, "uniform/logits": to_half_logits(rows["uniform/logits"])}
    exact, near = (measures.tempered_accuracy(some, 2.0, temperature) for some in (rows, halves))
    assert near.value == pytest.approx(exact.value, abs=1e-4)


def test_half_precision_is_decoded_as_in_numpy() -> None:
    bits = np.arange(0x7C00, dtype=np.uint16)  # every finite half that is not negative
    both = np.concatenate([bits, bits | 0x8000])
    computed = run("(bits) => bits.map(halfToFloat)", both.tolist(), "data.js")
    np.testing.assert_array_equal(computed, both.view(np.float16).astype(np.float64))


def test_decimals_are_rounded_as_in_python() -> None:
    values = [
        0.5,
        1.5,
        2.5,
        0.125,
        0.375,
        56.25,
        56.75,
        0.0625,
        12.35,
        12.345,
        1e-9,
        0.0,
        99.95,
        99.9995,
        100.0,
        -0.125,
        33.3,
    ]
    values += [100 * hits / total for total in (16, 40, 64, 160, 1600) for hits in range(total)]
    computed = run(
        "(values) => [0, 1, 2, 3].map("
        "(digits) => values.map((value) => formatFixed(value, digits)))",
        values,
    )
    assert computed == [[f"{value:.{digits}f}" for value in values] for digits in range(4)]


def test_estimates_are_formatted_as_in_the_tables() -> None:
    estimates = [
        measures.wilson(hits, total)
        for total in (3, 10, 64, 550, 10_000)
        for hits in range(0, total + 1, max(1, total // 50))
    ]
    estimates += [
        Estimate(1.0, 1.0, 1.0),
        Estimate(0.0, 0.0, 0.0),
        Estimate(0.5, 0.0, 1.0),
        Estimate(0.5, 0.49999, 0.50001),
    ]
    # means over seeds that all have no interval
    estimates += [Estimate(value, value, value) for value in ROUNDED]
    estimates += [Estimate(value, low, 1.0) for value in ROUNDED for low in ROUNDED]
    given = [{"value": one.value, "low": one.low, "high": one.high} for one in estimates]
    assert run("(estimates) => [null, ...estimates].map(formatEstimate)", given) == [
        "-",
        *map(format_estimate, estimates),
    ]


def test_percentages_are_formatted_as_in_the_tables() -> None:
    assert run("(fractions) => fractions.map((one) => formatPercent(one))", ROUNDED) == [
        format_percent(fraction) for fraction in ROUNDED
    ]
    assert {format_estimate(Estimate(one, one, one)) for one in ROUNDED[:3]} == {
        "61.8 (no interval)"
    }


def test_low_effective_sample_size_is_marked_as_in_python() -> None:
    pairs = [
        (ess, images)
        for ess in (3.5, 35.0, 99.0, 100.0, 120.0, 150.0)
        for images in (36, 199, 200, 1000, 1500, 2000)
    ]
    assert run("(pairs) => pairs.map(([ess, n]) => hasLowEss(ess, n))", pairs) == [
        has_low_ess(*pair) for pair in pairs
    ]


BEST = """({methods, alpha}) => {
  const candidates = methods.map((seeds) => {
    const weights = seeds.map(({margins}) => exponentialLogWeights(margins, alpha));
    const estimates = seeds.map(({correct}, i) => weightedAccuracy(weights[i], correct));
    const parts = seeds.map(({correct}, i) => contributionsOf(weights[i], correct));
    const bySeed = new Map(seeds.map(({seed}, i) => [seed, estimates[i].value]));
    return {estimate: meanEstimate(estimates), bySeed, parts: meanContributions(parts)};
  });
  const unpaired = candidates.map((one) => ({...one, parts: null}));
  return [[...findBest(candidates)], [...findBest(unpaired)]];
}"""


def find_best(methods: list[dict[int, NDArray[np.float64]]], alpha: float) -> list[list[int]]:
    """Return the bold methods of the script, from margins by seed: paired, and by intervals."""
    given = [
        [
            {"seed": seed, "margins": one.tolist(), "correct": (one > 0).astype(int).tolist()}
            for seed, one in seeds.items()
        ]
        for seeds in methods
    ]
    found: list[list[int]] = run(BEST, {"methods": given, "alpha": alpha})
    return found


def bold_methods(folder: Path, methods: list[dict[int, NDArray[np.float64]]]) -> list[int]:
    """Return the methods with a bold A_sa at alpha 2, as in the tables."""
    found = []
    for number, seeds in enumerate(methods):
        for seed, margins in seeds.items():
            label = np.zeros(len(margins), np.int64)
            prediction = (margins <= 0).astype(np.int64)
            rows: Rows = {"index": np.arange(len(margins)), "label": label}
            for prefix in ("clean", "uniform"):
                rows |= {f"{prefix}/prediction": prediction, f"{prefix}/margin": margins}
            evaluation = EvaluateConfig(metrics=("nat", "rob", "sa"))
            name, alpha_train = f"m{number}-s{seed}", float(number)
            found.append(
                save_evaluation(
                    folder, name, rows, evaluation, train_seed=seed, alpha_train=alpha_train
                )
            )
    (group,) = group_by_setting([record for _, record in found])
    cells = find_bold_cells(group, resample(found))
    # a row per method and alpha, of which 2 is the third
    return [number for number in range(len(methods)) if (3 * number + 2, "a_sa") in cells]


BASE = np.random.default_rng(1).normal(0.2, 0.4, 2000)
METHODS = {
    "one seed each": [{0: BASE}, {0: BASE + 0.004}, {0: BASE + 0.1}, {0: BASE - 0.3}],
    "two that are alike": [{0: BASE}, {0: BASE + 0.1}, {0: BASE + 0.1001}],
    "all alike": [{0: BASE}, {0: BASE[::-1]}],
    "seeds agree": [{0: BASE, 1: BASE + 0.01}, {0: BASE + 0.1, 1: BASE + 0.112}],
    "seeds disagree": [{0: BASE, 1: BASE + 0.2}, {0: BASE + 0.1, 1: BASE + 0.11}],
    "three seeds disagree": [
        {0: BASE, 1: BASE + 0.2, 2: BASE},
        {0: BASE + 0.1, 1: BASE + 0.11, 2: BASE + 0.1},
        {0: BASE - 0.3, 1: BASE - 0.31, 2: BASE - 0.3},
    ],
    "other seeds": [{0: BASE, 1: BASE + 0.01}, {3: BASE + 0.1, 4: BASE + 0.11, 5: BASE + 0.1}],
    "one side has one seed": [{0: BASE, 1: BASE + 0.01, 2: BASE}, {0: BASE + 0.1}],
    "one side has one seed, close": [{0: BASE, 1: BASE + 0.1, 2: BASE}, {0: BASE + 0.1}],
}
BOLD_OF_METHODS = {
    "one seed each": [2],
    "two that are alike": [1, 2],
    "all alike": [],
    "seeds agree": [1],
    "seeds disagree": [],
    "three seeds disagree": [0, 1],
    "other seeds": [1],
    "one side has one seed": [1],
    "one side has one seed, close": [],
}


@pytest.mark.parametrize("name", METHODS)
def test_bold_methods_are_those_of_the_tables(name: str, tmp_path: Path) -> None:
    methods = [
        {seed: margins.clip(-1, 1) for seed, margins in seeds.items()} for seeds in METHODS[name]
    ]
    ours = bold_methods(tmp_path, methods)
    assert find_best(methods, 2.0)[0] == ours == BOLD_OF_METHODS[name]


def test_methods_without_rows_are_compared_by_intervals() -> None:
    # without rows a small paired difference is not known
    close = [{0: BASE.clip(-1, 1)}, {0: (BASE + 0.03).clip(-1, 1)}, {0: (BASE - 0.5).clip(-1, 1)}]
    assert find_best(close, 0.0) == [[1], [0, 1]]
    code = "(estimates) => [...findBest(estimates.map((one) => one && {estimate: one}))]"
    middle = {"value": 0.5, "low": 0.4, "high": 0.6}
    best = {"value": 0.8, "low": 0.7, "high": 0.9}
    assert run(code, [middle, None, best]) == [2]
    assert run(code, [None]) == run(code, [best]) == []
    # an interval of zero width is not informative
    assert run(code, [middle, {"value": 1, "low": 1, "high": 1}]) == []


def test_few_differing_images_do_not_make_a_method_better() -> None:
    margins = np.ones(100)
    few, enough = (margins * np.where(np.arange(100) < count, -1, 1) for count in (5, 6))
    assert find_best([{0: margins}, {0: few}], 0.0)[0] == []
    assert find_best([{0: margins}, {0: enough}], 0.0)[0] == [0]


@pytest.mark.parametrize(
    ("these", "others"),
    [
        ({0: 0.5, 1: 0.6}, {0: 0.55, 1: 0.7}),
        ({0: 0.5, 1: 0.6, 2: 0.5}, {0: 0.55, 1: 0.7, 2: 0.4}),
        ({0: 0.5, 1: 0.6}, {2: 0.55, 3: 0.7, 4: 0.71}),
        ({0: 0.5, 1: 0.5}, {2: 0.4, 3: 0.4, 4: 0.4}),
        ({0: 0.5}, {0: 0.4, 1: 0.45, 2: 0.41}),
        ({0: 0.4, 1: 0.45}, {5: 0.5}),
        (dict.fromkeys(range(30), 0.5) | {30: 0.6}, {0: 0.4, 1: 0.45}),
        ({0: 0.5}, {1: 0.4}),
    ],
)
def test_interval_over_seeds_agrees(these: dict[int, float], others: dict[int, float]) -> None:
    ours = measures.seeds_interval(these, others)
    code = "([one, other]) => seedsInterval(new Map(one), new Map(other))"
    found = run(code, [list(these.items()), list(others.items())])
    assert found == (ours if ours is None else pytest.approx(list(ours), abs=1e-12))


def test_means_over_seeds_are_formatted_as_in_the_tables() -> None:
    rng = np.random.default_rng(0)
    groups = [
        [measures.wilson(int(hits), 550) for hits in rng.integers(250, 300, count)]
        for count in (1, 2, 3, 5)
    ]
    groups += [
        [Estimate(1.0, 1.0, 1.0)] * 2,
        [Estimate(1.0, 1.0, 1.0), Estimate(0.9, 0.8, 1.0)],
        [Estimate(0.5, 0.4, 0.6)] * 3,
        # a deviation that would be rounded to 0
        *[[Estimate(0.5, 0.4, 0.6), Estimate(0.5 + x, 0.4, 0.6)] for x in (1e-4, 3e-6, 2e-7)],
    ]
    ours = [
        format_training_spread(
            measures.mean_estimate(group), measures.spread([one.value for one in group])
        )
        for group in groups
    ]
    given = [[{"value": x.value, "low": x.low, "high": x.high} for x in group] for group in groups]
    assert run("(groups) => groups.map((one) => formatEstimate(meanEstimate(one)))", given) == ours
    assert any("e-05 " in text for text in ours)


def test_models_have_the_styles_of_the_figures() -> None:
    code = "() => [LIGHT, DARK, DASHES, MARKS, MARKS.map((mark) => typeof OUTLINES[mark])]"
    before = "const matchMedia = () => ({ matches: false });\n"
    light, dark, dashes, marks, outlines = run(code, None, "drawing.js", before=before)
    assert tuple(light) == style.COLOURS
    assert dark[:-1] == light[:-1]
    assert (len(dashes), len(marks)) == (len(style.DASHES), len(style.MARKERS))
    names = {
        "circle": "o",
        "square": "s",
        "triangle-up": "^",
        "diamond": "D",
        "triangle-down": "v",
        "cross": "P",
        "x": "X",
    }
    assert tuple(({**names, "pentagon": "p"})[mark] for mark in marks) == style.MARKERS
    assert outlines == ["string"] * len(marks)


def test_losses_have_the_names_of_the_figures() -> None:
    assert run("() => LOSSES", None, "table.js") == dro.LOSS_NAMES


def test_sliders_offer_every_recorded_value() -> None:
    alphas = [0.1, 1 / 3, 2.0, 7.0, 1e4]
    rhos = [0.01, 0.0123, 5.0]
    code = "({alphas, rhos}) => [alphaValues(alphas), rhoValues(rhos), temperatureValues()]"
    offered = run(code, {"alphas": alphas, "rhos": rhos}, "controls.js")
    assert set(alphas) | {0.0} <= set(offered[0])
    assert set(rhos) | {0.0} <= set(offered[1])
    assert {0.25, 0.5, 1.0, 2.0, 4.0} <= set(offered[2])
    assert all(values == sorted(set(values)) and len(values) < 200 for values in offered)


@pytest.mark.parametrize("name", page_module.SCRIPTS)
def test_script_has_valid_syntax(name: str) -> None:
    subprocess.run([NODE, "--check", STATIC / name], check=True)
