"""What held-out images say of a run: its best weights, its last ones, and their average."""

from typing import Any

from ..measures import Estimate
from .percents import percent
from .sheets import Sheet

CAPTION = (
    "percent of held-out images, with 95 % intervals, under a short attack. The best was chosen by these very images,"
    " so its numbers flatter it; `wmr evaluate` measures on test images"
)
SHARES = {"val_a_nat": "A_nat", "val_a_rob": "A_rob", "val_a_sa": "A_sa", "val_a_tr": "A_tr"}


def held_out_sheet(entries: list[dict[str, Any]], best: int | None, select: str) -> Sheet | None:
    """A row for the best and one for the last epoch that looked at held-out images; None where none did."""
    looked = {entry["epoch"]: entry for entry in entries if "val_a_nat" in entry}
    if not looked:
        return None
    last = looked[max(looked)]
    rows = [(f"best by {SHARES[f'val_a_{select}']}", looked[best], "")] if best is not None else []
    rows += [("last", last, ""), *([("average of weights", last, "ema_")] if "ema_val_a_nat" in last else [])]
    shown = {key: name for key, name in SHARES.items() if key in last}
    cells = [
        (name, str(entry["epoch"]), *(percent(_estimate(entry, prefix + key)) for key in shown)) for name, entry, prefix in rows
    ]
    return Sheet(("weights", "epoch", *shown.values()), cells, CAPTION, texts=("weights",), shares=tuple(shown.values()))


def _estimate(entry: dict[str, Any], key: str) -> Estimate:
    return Estimate(entry[key], entry[f"{key}_low"], entry[f"{key}_high"])
