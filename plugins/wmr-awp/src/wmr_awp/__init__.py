"""Hook of wmr-awp: adversarial weight perturbation.

`wmr list` imports this module, so it imports nothing heavy.
"""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl


@hookimpl
def wmr_defenses() -> Iterable[Entry]:
    return [
        Entry(
            "awp",
            "wmr_awp.defense:awp",
            "another defense, with its loss at perturbed weights (Wu et al. 2020)",
        )
    ]
