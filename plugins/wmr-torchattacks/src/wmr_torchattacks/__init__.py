"""Hook of wmr-torchattacks. `wmr list` imports this module, so it imports nothing heavy."""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl


@hookimpl
def wmr_attacks() -> Iterable[Entry]:
    target = "wmr_torchattacks.attack:from_torchattacks"
    return [
        Entry("torchattacks", target, "any attack of torchattacks by its name: torchattacks:NAME")
    ]
