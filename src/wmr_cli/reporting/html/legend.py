"""The legend of the HTML page: the metrics and symbols that it shows, in one clause each."""

from collections.abc import Iterable, Iterator, Sequence

from ...measures import MARGIN_KERNEL
from ...storage.records import Record
from .payload import Payload, ReportPanel


def list_terms(panels: Sequence[ReportPanel], payload: Payload) -> dict[str, str]:
    """Return the meaning of each term that is on the page, in the order of the columns."""
    return dict(_define_terms(panels, payload))


def _define_terms(panels: Sequence[ReportPanel], payload: Payload) -> Iterator[tuple[str, str]]:
    records = [record for panel in panels for record in panel.records]
    rows = set(_list_row_names(payload))
    yield "A_nat", "accuracy on clean images"
    yield "A_rob", "accuracy on the images that the attack changed within the ε-ball"
    yield "A_sa", f"A_rob with image weights {_weight(records)}"
    yield "A_tr", "A_sa under an attack that maximises the weighted loss"
    if any(record.calibration for record in records) or "logits" in rows:
        yield (
            "A_cal",
            "A_sa with logits divided by T, the temperature that fits a model's attacked images "
            "best; its interval includes the fit",
        )
    if any(record.by_alpha for record in records):
        yield "margin", "probability of the label minus the largest other probability"
        yield "ESS", "effective sample size behind A_sa: fewer, the more unequal the weights are"
    if any(record.bounds for record in records):
        yield (
            "bounds",
            "of an accuracy over all attacks in the ε-ball: a verifier certifies the lower one, "
            "the attack shows the upper one",
        )
    yield (
        "ε-ball",
        "the threat model: all images within distance ε of an image, in the norm of the heading",
    )
    if "prediction" in rows or any(record.dro for record in records):
        yield (
            "χ² ball (ρ)",
            "the weights of images within χ² divergence ρ of equal weights; DRO: the accuracy "
            "under those of largest mean loss; lowest: the least accuracy under any of them",
        )
    yield "57.2 [53.1, 61.1]", "percent, with the 95 % interval over test images"
    if any(panel.has_several_seeds for panel in panels):
        yield (
            "57.2 ± 0.4",
            "mean and standard deviation over the seeds of one training, with the mean interval",
        )
    if any(len(panel.methods) > 1 for panel in panels):
        yield (
            "bold",
            "the best of its column and all values that are statistically indistinguishable from "
            "it, over test images and training seeds, at equal α; none if this would be all",
        )


def _weight(records: Iterable[Record]) -> str:
    kernels = {record.kernel for record in records}
    formula = "exp(−α · margin)"
    if kernels == {MARGIN_KERNEL}:
        return formula
    return "of the kernel" if MARGIN_KERNEL not in kernels else f"{formula} or of the kernel"


def _list_row_names(payload: Payload) -> Iterator[str]:
    for panel in payload.panels:
        for model in panel["models"]:
            yield from model["rows"] or ()
