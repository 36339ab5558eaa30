"""Printed and measured errors, and the completeness of attacks, for `generate.py` and `draw.py`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wmr_cli.measures import Estimate
from wmr_cli.spec import Spec
from wmr_cli.storage import records
from wmr_cli.storage.records import Record

STUDIES = Path(__file__).parents[1] / "studies"
COMPLETENESS = STUDIES / "attack_completeness.json"
SHOWN_ATTACKS = (
    "pgd:steps=40,restarts=1",
    "pgd:steps=40,restarts=10",
    "pgd-margin:steps=40,restarts=1",
    "pgd-margin:steps=40,restarts=10",
    "apgd-ce:steps=100",
    "apgd-dlr:steps=100",
    "apgd-dlr:restarts=10",
    "apgd-t:steps=20",
    "apgd-t:steps=100",
    "fab-t:steps=100",
    "square:queries=500,stops_early=true",
    "square:queries=5000,stops_early=true",
    "autoattack:steps=20,queries=500",
    "autoattack",
)
"""Attacks of the table; the figure has all."""
RECORDS = STUDIES / "records" / "published-numbers"


def list_networks() -> list[dict[str, Any]]:
    """Return the networks with the errors that others printed, in percent."""
    text = (STUDIES / "published_numbers.json").read_text(encoding="utf-8")
    networks: list[dict[str, Any]] = json.loads(text)
    return networks


def load_network_records(network: str) -> list[Record]:
    """Return the records of a network, one per attack."""
    return list(map(records.load, records.find_records(RECORDS / network)))


def list_comparisons() -> Iterator[tuple[dict[str, Any], str, str | None, float]]:
    """Yield network, attack, printed error and measured error; the first has no attack."""
    for network in list_networks():
        found = load_network_records(network["name"])
        yield network, "", network["clean"], error(found[0].a_nat)
        for attack, printed in network["attacks"].items():
            # specs are equal in any order of their parameters
            spec = Spec.parse(attack)
            (record,) = (one for one in found if Spec.parse(one.attack.spec) == spec)
            assert record.a_rob is not None
            yield network, attack, printed, error(record.a_rob)


def error(accuracy: Estimate) -> float:
    """Return the error in percent, without the rounding of the subtraction."""
    return round(100 * (1 - accuracy.value), 6)


def list_published_rows() -> Iterator[tuple[str, ...]]:
    """Yield network, ε, proved error, and the printed and measured error of each attack."""
    networks = {network["name"]: network for network in list_networks()}
    errors: dict[str, dict[str, str]] = {}
    for network, attack, printed, here in list_comparisons():
        text = f"{printed} / {here:.2f}" if printed else f"{here:.2f}"
        errors.setdefault(attack, {})[network["name"]] = text
    yield ("network", "ε", "proved", *(f"`{name}`" if name else "clean" for name in errors))
    for name, network in networks.items():
        cells = (by_network.get(name, "") for by_network in errors.values())
        yield (
            f"`{network['file']}`",
            format_eps(network["eps"]),
            format_proved(network),
            *cells,
        )


def format_eps(eps: float | None) -> str:
    """Return a radius, or a dash."""
    return "-" if eps is None else f"{eps:g}"


def format_proved(network: dict[str, Any]) -> str:
    """Return what is proved about the error under any attack."""
    low, high = network["proved"]
    if high is None:
        return "-"
    if low is None:
        return f"at most {high}"
    return low if low == high else f"{low} to {high}"


def load_completeness() -> dict[str, Any]:
    """Return the results of `studies/attack_completeness.py` by network."""
    results: dict[str, Any] = json.loads(COMPLETENESS.read_text(encoding="utf-8"))
    # the digits first, then by eps
    return dict(sorted(results.items(), key=lambda item: (item[0] != "digits", item[0])))


def list_completeness_rows() -> Iterator[tuple[str, ...]]:
    """Yield attack, cost on the first network that has it, and the fractions that it finds."""
    results = load_completeness()
    yield ("attack", "cost", *(f"`{name}`" for name in results))
    for attack in SHOWN_ATTACKS:
        found = [result["attacks"].get(attack) for result in results.values()]
        cost = next((one["cost"] for one in found if one), None)
        if cost is None:
            continue
        fractions = (
            f"{100 * one['found'] / result['vulnerable']:.1f}" if one else ""
            for one, result in zip(found, results.values(), strict=True)
        )
        yield (f"`{attack}`", f"{cost:.0f}" if cost >= 10 else f"{cost:.1f}", *fractions)
