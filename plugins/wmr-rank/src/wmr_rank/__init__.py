"""Hook of wmr-rank. `wmr list` imports this module, so it imports nothing heavy."""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl


@hookimpl
def wmr_kernels() -> Iterable[Entry]:
    return [
        Entry(
            "rank",
            "wmr_rank.kernel:Rank",
            "exp(-alpha * rank of the logit margin), for any scale of the logits",
        )
    ]
