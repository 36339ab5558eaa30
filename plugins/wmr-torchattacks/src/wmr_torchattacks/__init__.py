"""Attacks of torchattacks by their name. This module is imported by `wmr list`, so it holds names and strings only."""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl


@hookimpl
def wmr_attacks() -> Iterable[Entry]:
    target = "wmr_torchattacks.attack:from_torchattacks"
    return [
        Entry("torchattacks", target, "any attack of torchattacks by its name: torchattacks:NAME")
    ]
