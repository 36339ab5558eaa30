"""Hook of wmr-certify. `wmr list` imports this module, so it imports nothing heavy."""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl


@hookimpl
def wmr_verifiers() -> Iterable[Entry]:
    return [
        Entry(
            "crown",
            "wmr_certify.verifiers:Crown",
            "linear bounds of all layers with optimised slopes (alpha-CROWN)",
        ),
        Entry("ibp", "wmr_certify.verifiers:IntervalBounds", "interval bounds: fast and loose"),
    ]
