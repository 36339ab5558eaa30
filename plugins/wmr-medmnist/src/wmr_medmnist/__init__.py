"""The flat MedMNIST sets, one name each. This module is imported by `wmr list`, so it imports nothing heavy."""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl

from .facts import SETS


@hookimpl
def wmr_datasets() -> Iterable[Entry]:
    target = "wmr_medmnist.data:medmnist"
    return [Entry(name, target, facts.summary, {"name": name}, (facts.file(28),)) for name, facts in SETS.items()]
