"""A kernel on ranks. This module is imported by `wmr list`, so it holds names and strings only."""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl


@hookimpl
def wmr_kernels() -> Iterable[Entry]:
    return [
        Entry(
            "rank",
            "wmr_rank.kernel:Rank",
            "exp(-alpha * rank of the logit margin): no scale of the logits moves it",
        )
    ]
