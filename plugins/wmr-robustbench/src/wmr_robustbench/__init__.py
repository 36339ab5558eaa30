"""Hook of wmr-robustbench: the model zoo of RobustBench.

`wmr list` imports this module, so it imports nothing heavy.
"""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl


@hookimpl
def wmr_models() -> Iterable[Entry]:
    return [
        Entry(
            "robustbench",
            "wmr_robustbench.models:robustbench",
            "RobustBench model with its weights: robustbench:NAME; "
            "`python -m wmr_robustbench` lists the names",
        )
    ]
