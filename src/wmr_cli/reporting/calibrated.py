"""Score A_cal, which is A_sa at the temperature that fits the attacked images best."""

from collections.abc import Sequence

import msgspec

from .. import measures
from ..config import EvaluateConfig
from ..measures import Outcome
from ..storage.records import CalibrationFacts, Record, RepeatRow, Rows
from .scoring import estimate_outcomes


def add_calibrated(
    record: Record, rows: Rows, config: EvaluateConfig, stored: Record | None = None
) -> Record:
    """Return the record with A_cal at its alphas.

    Rows without logits allow only the numbers that `stored` has, from the evaluation.
    """
    calibration = measures.calibrate(rows, config.kernel)
    facts = CalibrationFacts(temperature=calibration.temperature, problem=calibration.problem)
    alphas = [row.alpha_test for row in record.by_alpha]
    outcomes = list_calibrated(calibration, alphas)
    estimates = estimate_outcomes(outcomes, config.ci, config.seed)
    if calibration.problem == measures.NO_LOGITS and stored is not None and stored.calibration:
        facts = stored.calibration
        estimates = {row.alpha_test: row.a_cal for row in stored.by_alpha}
    by_alpha = [
        msgspec.structs.replace(row, a_cal=estimates.get(row.alpha_test)) for row in record.by_alpha
    ]
    return msgspec.structs.replace(record, by_alpha=by_alpha, calibration=facts)


def add_calibrated_repeat(repeat: RepeatRow, rows: Rows, kernel: str) -> RepeatRow:
    """Return one seed of the attack with A_cal, at the temperature of this seed."""
    calibration = measures.calibrate(rows, kernel)
    outcomes = list_calibrated(calibration, [row.alpha_test for row in repeat.by_alpha])
    by_alpha = [
        msgspec.structs.replace(row, a_cal=None if outcome is None else outcome.estimate().value)
        for row, outcome in zip(repeat.by_alpha, outcomes.values(), strict=True)
    ]
    return msgspec.structs.replace(repeat, by_alpha=by_alpha)


def list_calibrated(
    calibration: measures.Calibration, alphas: Sequence[float | None]
) -> dict[float | None, Outcome | None]:
    """Return the outcome of A_cal at every alpha; None if it is not available."""
    # a kernel without alpha has weights that do not follow from margins
    return {alpha: None if alpha is None else calibration.outcome(alpha) for alpha in alphas}
