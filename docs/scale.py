"""What depends on the scale of the logits, as no decision does: A_sa and the worst case in a ball, as they are and calibrated."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from judging import (
    Finding,
    Found,
    Members,
    Sign,
    by_alpha,
    leaves_out_zero,
    over_seeds,
    points,
    under,
    verdict_of,
    weighted,
)

from wmr_cli import measures
from wmr_cli.spec import format_number
from wmr_cli.storage import records
from wmr_cli.storage.records import Record, Rows

ALPHA = 2.0
"""At which A_sa is put to the test."""
WEIGHED_BY = {"ce": "cross-entropy", "margin": "margin"}
CALIBRATED = "loss, calibrated,"
BALLS = {"loss": -1, CALIBRATED: -1, "accuracy": 1}
"""What is asked of the worst case in a ball, and whether more of it is better."""


def worst_cases(found: Found, loss: str, defense: str) -> Iterator[Finding]:
    """Whether the worst case in a ball is better with weights, at every radius."""
    with_it = [one for one in found if one[1].dro and one[1].dro[0].attack_loss == loss]
    trained = by_alpha(under(with_it, "pgd" if loss == "ce" else "pgd-margin"))
    alphas = weighted(trained)
    for what, sign in BALLS.items() if alphas else ():
        curves = {
            alpha: {seed: curve(*one, what) for seed, one in members.items()}
            for alpha, members in trained.items()
        }
        told = {
            alpha: [_better(curves[alpha], curves[0.0], rho, sign) for rho in _radii(trained)]
            for alpha in alphas
        }
        claim = f"DRO: {what} of the worst case by {WEIGHED_BY[loss]}"
        text = "; ".join(
            f"α {format_number(alpha)}: {_at_radii(signs)}" for alpha, signs in told.items()
        )
        yield Finding(
            claim, defense, text, verdict_of([sign for signs in told.values() for sign in signs])
        )


def curve(file: Path, record: Record, what: str) -> dict[float, float]:
    """The worst case by radius: as the record has it, or of the calibrated network."""
    if what != CALIBRATED:
        return {row.rho: getattr(row, what) for row in record.dro}
    losses = measures.calibrated_losses(
        records.load_record_rows(file, record), record.dro[0].attack_loss
    )
    return {
        case.rho: case.value
        for case in measures.worst_cases(losses, [row.rho for row in record.dro])
    }


def _radii(trained: Mapping[float, Members]) -> list[float]:
    """Those that every record has."""
    asked = [
        [row.rho for row in record.dro]
        for members in trained.values()
        for _, record in members.values()
    ]
    return [rho for rho in asked[0] if all(rho in radii for radii in asked)]


def _better(
    these: Mapping[int, dict[float, float]],
    others: Mapping[int, dict[float, float]],
    rho: float,
    sign: int,
) -> Sign:
    """Whether a difference at this radius is more than the spread of seeds, and whether it is for the better."""
    mine, base = ({seed: values[rho] for seed, values in side.items()} for side in (these, others))
    is_better = sign * (fmean(mine.values()) - fmean(base.values())) > 0
    return leaves_out_zero(measures.seeds_interval(mine, base)), is_better


def _at_radii(signs: Sequence[Sign]) -> str:
    """`better at 7 of 8 radii, at 6 beyond the spread of seeds; not better at 1, at 1 beyond it`."""
    better, others = (
        [is_told for is_told, is_better in signs if is_better is side] for side in (True, False)
    )
    text = f"better at {len(better)} of {len(signs)} radii, at {sum(better)} beyond the spread of seeds"
    return text + (f"; not better at {len(others)}, at {sum(others)} beyond it" if others else "")


def scale(found: Found, attack: str, defense: str) -> Iterator[Finding]:
    """Whether a gain in A_sa is more than another scale of the logits, and whether that scale is part of it."""
    trained = by_alpha(under(found, attack))
    rows = {
        alpha: {seed: records.load_record_rows(*one) for seed, one in members.items()}
        for alpha, members in trained.items()
    }
    alphas, where = weighted(trained), "" if attack == "pgd" else " under PGD-margin"
    kept, taken = (
        {alpha: made(rows[alpha], rows[0.0]) for alpha in alphas} for made in (_kept, _taken)
    )
    claims = {
        f"the gain in A_sa{where} is more than a change of scale": kept,
        f"part of the gain in A_sa{where} is scale": taken,
    }
    for claim, told in claims.items() if alphas else ():
        text = "; ".join(f"α {format_number(alpha)}: {said}" for alpha, (said, _) in told.items())
        yield Finding(claim, defense, text, verdict_of([sign for _, sign in told.values()]))


def _kept(these: Mapping[int, Rows], others: Mapping[int, Rows]) -> tuple[str, Sign]:
    """What is left of a gain when all are calibrated."""
    plain, calibrated = (
        [_each(measured, side) for side in (these, others)] for measured in (_plain, _calibrated)
    )
    gained, kept = (
        fmean(mine.values()) - fmean(base.values()) for mine, base in (plain, calibrated)
    )
    ends = measures.seeds_interval(*calibrated)
    said = f"A_sa(2) {points(gained)} as it is, {points(kept)} calibrated{over_seeds(ends)}"
    return said, (leaves_out_zero(ends), kept > 0)


def _taken(these: Mapping[int, Rows], others: Mapping[int, Rows]) -> tuple[str, Sign]:
    """What is gone of A_sa with weights when its logits have the scale that those without weights have."""
    scales, reference = _each(_scale, these), fmean(_each(_scale, others).values())
    lost = {
        seed: _plain(rows) - _tempered(rows, _relative(scales[seed], reference))
        for seed, rows in these.items()
    }
    taken, ends = fmean(lost.values()), measures.seeds_interval(lost, dict.fromkeys(lost, 0.0))
    fits = f"the logits fit best divided by {fmean(scales.values()):.2f}, without weights by {reference:.2f}"
    return f"{points(taken)} of A_sa(2){over_seeds(ends)}; {fits}", (
        leaves_out_zero(ends),
        taken > 0,
    )


def _relative(scale: float, reference: float) -> float:
    """How many times a scale is another; 1 where the logits of one fit at no temperature."""
    return scale / reference if math.isfinite(scale) and math.isfinite(reference) else 1.0


def _each(measured: Callable[[Rows], float], side: Mapping[int, Rows]) -> dict[int, float]:
    return {seed: measured(rows) for seed, rows in side.items()}


def _plain(rows: Rows) -> float:
    return _tempered(rows, 1.0)


def _tempered(rows: Rows, temperature: float) -> float:
    return measures.tempered_accuracy(rows, ALPHA, temperature).value


def _calibrated(rows: Rows) -> float:
    return measures.calibrated_accuracy(rows, ALPHA).value


def _scale(rows: Rows) -> float:
    return measures.calibrating_temperature(rows["uniform/logits"], rows["label"])
