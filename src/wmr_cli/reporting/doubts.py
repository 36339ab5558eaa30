"""What a reader should know before trusting a number."""

from collections.abc import Iterator

from ..storage.records import Record

FEW, SMALL_SHARE = 100, 0.1
"""An effective sample size below this many images, or below this share of them, is said."""


def doubts(record: Record) -> Iterator[str]:
    """Numbers that rest on few images, or on images that are all right or all wrong."""
    few: dict[str, float] = {}
    for row in record.by_alpha:
        for name, share in (("A_sa", row.a_sa), ("A_tr", row.a_tr)):
            at = name if row.alpha_test is None else f"{name}({row.alpha_test:g})"
            if share is None or share.ess is None:
                continue
            if share.degenerate:
                yield f"{at}: all images are {'right' if share.value else 'wrong'}, so its interval says nothing"
            elif share.ess < FEW or share.ess < SMALL_SHARE * record.dataset.n:
                few[at] = share.ess
    if few:
        least = min(few.values())
        yield f"{', '.join(few)}: as few as {least:.0f} of {record.dataset.n} images behind it (effective sample size)"
