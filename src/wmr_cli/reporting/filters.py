"""Keep those records of a report that its filters name."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from ..config import RecordFilter
from ..errors import BadInput, did_you_mean
from ..spec import Spec, format_number
from ..storage.records import Record
from .rows import attack_name

RecordFiles = Sequence[tuple[Path, Record]]
# texts of eps are parsed and records store the nearest float: only rounding may differ
RELATIVE_TOLERANCE = 1e-12


def filter_records(found: RecordFiles, wanted: RecordFilter) -> list[tuple[Path, Record]]:
    """Return the records with one of the values of every filter, in their order.

    A value that no record has raises `BadInput` with those that the records have.
    """
    kept = _keep_spec(found, "attack", wanted.attack, _attack_text)
    kept &= _keep_spec(found, "defense", wanted.defense, lambda record: record.checkpoint.defense)
    kept &= _keep_eps(found, wanted.eps)
    if found and not kept:
        raise BadInput("no record has the values of all filters", hint="leave out a filter")
    return [pair for number, pair in enumerate(found) if number in kept]


def _attack_text(record: Record) -> str:
    """Return the attack as tables show it, with restarts and draws; `worst` for a worst case."""
    return record.attack.spec if record.attack.of is not None else attack_name(record)


def _keep_spec(
    found: RecordFiles, setting: str, values: Sequence[str], text_of: Callable[[Record], str]
) -> set[int]:
    """Return the numbers of records whose spec has the name and all parameters of a value."""
    specs = [Spec.parse(text_of(record)) for _, record in found]
    if not values:
        return set(range(len(found)))
    kept: set[int] = set()
    for value in values:
        wanted = Spec.parse(value)
        matching = {number for number, spec in enumerate(specs) if _has_parts(spec, wanted)}
        if not matching:
            # of a known name, the parameters are unknown
            same_name = [spec for spec in specs if wanted.name in (spec.name, spec.short)]
            known = {str(spec) for spec in same_name} or {spec.short for spec in specs}
            raise _unknown_value(setting, value, sorted(known))
        kept |= matching
    return kept


def _has_parts(spec: Spec, wanted: Spec) -> bool:
    has_params = all(spec.params.get(key) == value for key, value in wanted.params.items())
    has_value = wanted.value in (None, spec.value)
    return wanted.name in (spec.name, spec.short) and has_value and has_params


def _keep_eps(found: RecordFiles, values: Sequence[float]) -> set[int]:
    """Return the numbers of records at one of these radii."""
    if not values:
        return set(range(len(found)))
    kept: set[int] = set()
    for value in values:
        matching = {
            number
            for number, (_, record) in enumerate(found)
            if math.isclose(record.threat.eps, value, rel_tol=RELATIVE_TOLERANCE)
        }
        if not matching:
            known = sorted({record.threat.eps for _, record in found})
            raise _unknown_value("eps", format_number(value), list(map(format_number, known)))
        kept |= matching
    return kept


def _unknown_value(setting: str, value: str, known: Sequence[str]) -> BadInput:
    listed = f"available: {', '.join(known)}"
    hint = did_you_mean(value, known)
    return BadInput(
        f"`{setting}`: no record has {value!r}",
        hint=f"{hint} {listed}" if hint.startswith("did you mean") else listed,
    )
