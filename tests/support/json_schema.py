"""Validate values against a JSON Schema, with `jsonschema` if it is installed."""

import importlib.util
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

Json: TypeAlias = Any
JsonSchema: TypeAlias = dict[str, Any]

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def find_errors(value: Json, schema: JsonSchema) -> list[str]:
    """Return one line per violation, with its place in the value."""
    if importlib.util.find_spec("jsonschema"):
        validators = importlib.import_module("jsonschema.validators")
        found = validators.Draft202012Validator(schema).iter_errors(value)
        return [f"{error.json_path}: {error.message}" for error in found]
    return list(_check(value, schema, schema, "$"))


def _check(value: Json, part: JsonSchema, whole: JsonSchema, place: str) -> Iterator[str]:
    """Check the keywords that msgspec and `wmr` write."""
    if "$ref" in part:
        definition = whole["$defs"][part["$ref"].removeprefix("#/$defs/")]
        yield from _check(value, definition, whole, place)
    if "anyOf" in part:
        alternatives = [list(_check(value, each, whole, place)) for each in part["anyOf"]]
        if all(alternatives):
            # the alternative that fails deepest explains most
            yield from max(alternatives, key=lambda errors: max(map(len, errors)))
    if "enum" in part and value not in part["enum"]:
        yield f"{place}: {value!r} is not in {part['enum']}"
    if "type" in part and not _has_type(value, part["type"]):
        yield f"{place}: {value!r} is not of type {part['type']}"
    elif isinstance(value, dict):
        yield from _check_object(value, part, whole, place)
    elif isinstance(value, list):
        if len(value) < part.get("minItems", 0):
            yield f"{place}: too few items"
        for number, item in enumerate(value):
            yield from _check(item, part.get("items", {}), whole, f"{place}[{number}]")
    elif isinstance(value, str):
        if not re.search(part.get("pattern", ""), value):
            yield f"{place}: {value!r} does not match {part['pattern']!r}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _check_bounds(value, part, place)


def _has_type(value: Json, expected: str | list[str]) -> bool:
    names = [expected] if isinstance(expected, str) else expected
    # in Python, but not in JSON, true is also a number
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, TYPES[name]) for name in names)


def _check_object(
    value: dict[str, Json], part: JsonSchema, whole: JsonSchema, place: str
) -> Iterator[str]:
    properties = part.get("properties", {})
    allowed_names = part.get("propertyNames", {}).get("enum")
    for name in part.get("required", ()):
        if name not in value:
            yield f"{place}: {name!r} is missing"
    for name, item in value.items():
        if allowed_names is not None and name not in allowed_names:
            yield f"{place}.{name}: unknown name"
        if name in properties:
            yield from _check(item, properties[name], whole, f"{place}.{name}")
            continue
        additional = part.get("additionalProperties", True)
        if additional is False:
            yield f"{place}.{name}: unknown name"
        elif isinstance(additional, dict):
            yield from _check(item, additional, whole, f"{place}.{name}")


def _check_bounds(value: float, part: JsonSchema, place: str) -> Iterator[str]:
    is_outside = (
        value < part.get("minimum", value)
        or value > part.get("maximum", value)
        or value <= part.get("exclusiveMinimum", value - 1)
        or value >= part.get("exclusiveMaximum", value + 1)
    )
    if is_outside:
        yield f"{place}: {value} is out of bounds"
