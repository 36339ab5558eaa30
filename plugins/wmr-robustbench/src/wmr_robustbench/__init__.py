"""The model zoo of RobustBench. This module is imported by `wmr list`, so it holds names and strings only."""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl


@hookimpl
def wmr_models() -> Iterable[Entry]:
    summary = "a network of the RobustBench zoo with its weights: robustbench:NAME; names by `python -m wmr_robustbench`"
    return [Entry("robustbench", "wmr_robustbench.models:robustbench", summary)]
