"""Check results that depend on the scale of the logits: A_sa and the DRO worst case.

Dividing all logits by a constant changes no decision, but changes margins and losses. So each
result is given as it is and for calibrated logits.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from verdicts import (
    Finding,
    RecordFiles,
    RunsBySeed,
    Sign,
    combine_signs,
    excludes_zero,
    format_points,
    format_seeds,
    group_by_alpha,
    select_attack,
    weighted_alphas,
)
from wmr_cli import measures
from wmr_cli.spec import format_number
from wmr_cli.storage import records
from wmr_cli.storage.records import Record, Rows

ALPHA_TEST = 2.0
"""Where A_sa is compared."""
LOSS_NAMES = {"ce": "cross-entropy", "margin": "margin"}
CALIBRATED_LOSS = "loss, calibrated,"
WORST_CASE_QUANTITIES = {"loss": -1, CALIBRATED_LOSS: -1, "accuracy": 1}
"""Quantities of the worst case over a χ² ball, with 1 if higher is better and -1 if lower is."""


def check_worst_cases(found: RecordFiles, loss: str, defense: str) -> Iterator[Finding]:
    """Check whether the worst case over χ² balls is better with weights, at each radius."""
    with_dro = [one for one in found if one[1].dro and one[1].dro[0].attack_loss == loss]
    groups = group_by_alpha(select_attack(with_dro, "pgd" if loss == "ce" else "pgd-margin"))
    alphas = weighted_alphas(groups)
    if not alphas:
        return
    for quantity, direction in WORST_CASE_QUANTITIES.items():
        curves = {
            alpha: {seed: worst_case_curve(*one, quantity) for seed, one in members.items()}
            for alpha, members in groups.items()
        }
        signs = {
            alpha: [
                _compare_at(curves[alpha], curves[0.0], rho, direction)
                for rho in _shared_radii(groups)
            ]
            for alpha in alphas
        }
        claim = f"DRO: {quantity} of the worst case by {LOSS_NAMES[loss]}"
        text = "; ".join(
            f"α {format_number(alpha)}: {_count_radii(at_radii)}"
            for alpha, at_radii in signs.items()
        )
        verdict = combine_signs([sign for at_radii in signs.values() for sign in at_radii])
        yield Finding(claim, defense, text, verdict)


def worst_case_curve(file: Path, record: Record, quantity: str) -> dict[float, float]:
    """Return the worst case by radius, as stored or recomputed from calibrated logits."""
    if quantity == "loss":
        return {row.rho: row.loss for row in record.dro}
    if quantity == "accuracy":
        return {row.rho: row.accuracy for row in record.dro}
    rows = records.load_record_rows(file, record)
    losses = measures.calibrated_losses(rows, record.dro[0].attack_loss)
    cases = measures.worst_cases(losses, [row.rho for row in record.dro])
    return {case.rho: case.value for case in cases}


def _shared_radii(groups: Mapping[float, RunsBySeed]) -> list[float]:
    """Return the radii that all records have."""
    radii = [
        [row.rho for row in record.dro]
        for members in groups.values()
        for _, record in members.values()
    ]
    return [rho for rho in radii[0] if all(rho in others for others in radii)]


def _compare_at(
    weighted: Mapping[int, dict[float, float]],
    unweighted: Mapping[int, dict[float, float]],
    rho: float,
    direction: int,
) -> Sign:
    """Compare two trainings at a radius, by the variation between seeds."""
    with_weights = {seed: curve[rho] for seed, curve in weighted.items()}
    without = {seed: curve[rho] for seed, curve in unweighted.items()}
    gain = direction * (fmean(with_weights.values()) - fmean(without.values()))
    return Sign(excludes_zero(measures.seeds_interval(with_weights, without)), gain > 0)


def _count_radii(signs: Sequence[Sign]) -> str:
    """Return text such as `better at 7 of 8 radii (6 significant); not better at 1 (0 …)`."""
    better = [sign.is_significant for sign in signs if sign.supports_claim]
    others = [sign.is_significant for sign in signs if not sign.supports_claim]
    text = f"better at {len(better)} of {len(signs)} radii ({sum(better)} significant)"
    if others:
        text += f"; not better at {len(others)} ({sum(others)} significant)"
    return text


def check_scale(found: RecordFiles, attack: str, defense: str) -> Iterator[Finding]:
    """Check whether a gain in A_sa exceeds a change of scale, and whether scale is part of it."""
    groups = group_by_alpha(select_attack(found, attack))
    alphas = weighted_alphas(groups)
    if not alphas:
        return
    rows = {
        alpha: {seed: records.load_record_rows(*one) for seed, one in members.items()}
        for alpha, members in groups.items()
    }
    attack_name = "" if attack == "pgd" else " under PGD-margin"
    claims = {
        f"the gain in A_sa{attack_name} is more than a change of scale": _calibrated_gain,
        f"part of the gain in A_sa{attack_name} is scale": _gain_from_scale,
    }
    for claim, measure in claims.items():
        results = {alpha: measure(rows[alpha], rows[0.0]) for alpha in alphas}
        text = "; ".join(
            f"α {format_number(alpha)}: {said}" for alpha, (said, _) in results.items()
        )
        verdict = combine_signs([sign for _, sign in results.values()])
        yield Finding(claim, defense, text, verdict)


def _calibrated_gain(
    weighted: Mapping[int, Rows], unweighted: Mapping[int, Rows]
) -> tuple[str, Sign]:
    """Measure the gain in A_sa that remains after calibration."""
    plain = _mean_by_seed(_accuracy, weighted) - _mean_by_seed(_accuracy, unweighted)
    with_weights = _by_seed(_calibrated_accuracy, weighted)
    without = _by_seed(_calibrated_accuracy, unweighted)
    kept = fmean(with_weights.values()) - fmean(without.values())
    interval = measures.seeds_interval(with_weights, without)
    text = (
        f"A_sa(2) {format_points(plain)} as it is,"
        f" {format_points(kept)} calibrated{format_seeds(interval)}"
    )
    return text, Sign(excludes_zero(interval), kept > 0)


def _gain_from_scale(
    weighted: Mapping[int, Rows], unweighted: Mapping[int, Rows]
) -> tuple[str, Sign]:
    """Measure how much A_sa falls if weighted logits get the scale of the unweighted ones."""
    temperatures = _by_seed(_calibrating_temperature, weighted)
    reference = _mean_by_seed(_calibrating_temperature, unweighted)
    lost = {}
    for seed, rows in weighted.items():
        ratio = _temperature_ratio(temperatures[seed], reference)
        lost[seed] = _accuracy(rows) - _accuracy(rows, ratio)
    mean_loss = fmean(lost.values())
    interval = measures.seeds_interval(lost, dict.fromkeys(lost, 0.0))
    text = (
        f"{format_points(mean_loss)} of A_sa(2){format_seeds(interval)}; calibrating temperature"
        f" {fmean(temperatures.values()):.2f}, without weights {reference:.2f}"
    )
    return text, Sign(excludes_zero(interval), mean_loss > 0)


def _temperature_ratio(temperature: float, reference: float) -> float:
    # the temperature is infinite if equal probabilities fit best: then keep the scale
    if math.isfinite(temperature) and math.isfinite(reference):
        return temperature / reference
    return 1.0


def _by_seed(measure: Callable[[Rows], float], side: Mapping[int, Rows]) -> dict[int, float]:
    return {seed: measure(rows) for seed, rows in side.items()}


def _mean_by_seed(measure: Callable[[Rows], float], side: Mapping[int, Rows]) -> float:
    return fmean(_by_seed(measure, side).values())


def _accuracy(rows: Rows, temperature: float = 1.0) -> float:
    return measures.tempered_accuracy(rows, ALPHA_TEST, temperature).value


def _calibrated_accuracy(rows: Rows) -> float:
    outcome = measures.calibrate(rows).outcome(ALPHA_TEST)
    # without a best temperature, A_cal has no interval, but its limit is enough for a mean
    return _accuracy(rows, math.inf) if outcome is None else outcome.estimate().value


def _calibrating_temperature(rows: Rows) -> float:
    return measures.calibrating_temperature(rows["uniform/logits"], rows["label"])
