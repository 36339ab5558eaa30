"""Adversarial weight perturbation. This module is imported by `wmr list`, so it holds names and strings only."""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl


@hookimpl
def wmr_losses() -> Iterable[Entry]:
    return [
        Entry(
            "awp",
            "wmr_awp.defense:awp",
            "any other defense, its loss taken at the worst weights nearby",
        )
    ]
