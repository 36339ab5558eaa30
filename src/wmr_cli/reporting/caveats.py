"""What a reader should know before trusting a number."""

from collections.abc import Iterator

from ..measures import Estimate
from ..storage.records import Record

FEW, SMALL_SHARE = 100, 0.1
"""An effective sample size below this share of the images is said; below this many, too, where there were twice as many."""


def list_caveats(record: Record) -> Iterator[str]:
    """Numbers that rest on few images, or on images that are all right or all wrong."""
    few: dict[str, float] = {}
    for name, share in _shares(record):
        if share.degenerate:
            yield f"{name}: all images are {'right' if share.value else 'wrong'}, so its interval says nothing"
        elif share.ess is not None and rests_on_few(share.ess, record.dataset.n):
            few[name] = share.ess
    if "dro" in record.config.get("metrics", ()) and not record.dro:
        yield f"{_why(record)}: there is no worst case in a ball but that of --dro-loss zero-one"
    if few:
        least = min(few.values())
        yield f"{', '.join(few)}: as few as {least:.0f} of {record.dataset.n} images behind it (effective sample size)"


def _why(record: Record) -> str:
    if record.attack.of is None:
        return "the attack left no losses, or one without bounds"
    return "of several attacks the image of lowest margin is kept, which need not be that of largest loss"


def rests_on_few(ess: float, images: int) -> bool:
    """Whether the weights, and not the size of the test set, leave a number on few images."""
    return ess < SMALL_SHARE * images or (ess < FEW and images >= 2 * FEW)


def _shares(record: Record) -> Iterator[tuple[str, Estimate]]:
    """Every measured share with the name a reader knows it by."""
    for name, share in (("A_nat", record.a_nat), ("A_rob", record.a_rob)):
        if share is not None:
            yield name, share
    for row in record.by_alpha:
        for name, share in (("A_sa", row.a_sa), ("A_tr", row.a_tr)):
            if share is not None:
                yield name if row.alpha_test is None else f"{name}({row.alpha_test:g})", share
