"""Hook of wmr-medmnist: one dataset name per 2D dataset of MedMNIST.

`wmr list` imports this module, so it imports nothing heavy.
"""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl

from .catalog import DATASETS


@hookimpl
def wmr_datasets() -> Iterable[Entry]:
    return [
        Entry(
            name,
            "wmr_medmnist.dataset:medmnist",
            info.summary,
            params={"name": name},
            files=(info.relative_path(28),),
        )
        for name, info in DATASETS.items()
    ]
