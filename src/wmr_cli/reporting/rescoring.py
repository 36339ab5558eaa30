"""Rescore stored records from their rows: other alphas and radii, and A_cal."""

from collections.abc import Sequence
from pathlib import Path

from ..storage import records
from ..storage.records import Record
from . import scoring
from .scoring import add_calibrated


def rescore_file(
    file: Path,
    record: Record,
    alphas: Sequence[float] | None,
    rhos: Sequence[float] | None,
    *,
    calibrated: bool = False,
) -> Record:
    """Return the record at other alphas and radii, computed from its rows.

    A_tr stays available only at alphas for which its attack was run.
    """
    adds_calibrated = calibrated and not record.calibration
    if alphas is None and rhos is None and not adds_calibrated:
        return record
    rows = records.load_record_rows(file, record)
    config = scoring.stored_config(file, record)
    rescored = scoring.rescore(record, rows, config, alphas, rhos)
    if adds_calibrated or (record.calibration and alphas is not None):
        rescored = add_calibrated(rescored, rows, config, stored=record)
    return rescored
