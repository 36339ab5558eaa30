"""wmr schema knows every key that presets, studies and records use."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.cli_runner import wmr
from wmr_cli import presets
from wmr_cli.config import resolve

STUDIES = Path(__file__).parents[2] / "studies"


def schema(what: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(wmr("schema", what).stdout)
    return found


def unknown_keys(value: Any, part: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    """Return the keys inside a value that no alternative of its schema has."""
    if "$ref" in part:
        return unknown_keys(value, whole["$defs"][part["$ref"].rpartition("/")[2]], whole)
    if "anyOf" in part:
        # the alternative of the right shape comes first: another one knows nothing inside it
        of_each = [unknown_keys(value, each, whole) for each in part["anyOf"]]
        return min(of_each, key=lambda keys: ("a list" in keys, len(keys)))
    if isinstance(value, list):
        if part.get("type") != "array":
            return ["a list"]
        return [key for item in value for key in unknown_keys(item, part.get("items", {}), whole)]
    if not isinstance(value, dict):
        return []
    if part.get("type", "object") != "object":
        return list(value)
    found: list[str] = []
    for key, inner in value.items():
        if key in part.get("properties", {}):
            found += unknown_keys(inner, part["properties"][key], whole)
        elif part.get("additionalProperties") is False:
            found.append(key)
    return found


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_has_known_keys(name: str) -> None:
    whole = schema("train")
    settings = presets.load(name)
    del settings["summary"]  # presets only
    for table in (settings.pop("defenses", {})).values():
        assert unknown_keys(table, whole, whole) == []
    assert unknown_keys(settings, whole, whole) == []


@pytest.mark.parametrize("file", sorted(STUDIES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_study_has_known_keys(file: Path) -> None:
    whole = schema("study")
    assert unknown_keys(tomllib.loads(file.read_text()), whole, whole) == []


def test_a_stored_record_and_config_have_known_keys() -> None:
    whole = schema("record")
    record = next(STUDIES.glob("records/*/*/evaluations/*.json"))
    assert unknown_keys(json.loads(record.read_text()), whole, whole) == []
    whole = schema("train")
    config = next(STUDIES.glob("records/*/*/config.json"))
    assert unknown_keys(json.loads(config.read_text()), whole, whole) == []


def test_a_misspelt_key_is_unknown_at_any_depth() -> None:
    whole = schema("study")
    study = {"train": {"epoch": 1}, "grid": [{"alfa": [1, 2]}], "evaluate": {"esp": 0.1}, "x": 1}
    assert unknown_keys(study, whole, whole) == ["epoch", "alfa", "esp", "x"]


def test_numbers_may_be_fractions_in_settings_but_not_in_records() -> None:
    eps = schema("train")["$defs"]["TrainConfig"]["properties"]["eps"]
    assert eps["type"] == ["number", "string"]
    assert schema("record")["$defs"]["Threat"]["properties"]["eps"]["type"] == "number"


def test_a_config_may_name_its_schema(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"$schema": "wmr-train.schema.json", "epochs": 3, "eps": "8/255"}')
    resolved = resolve({}, file)
    assert (resolved.epochs, resolved.eps) == (3, 8 / 255)
    other = tmp_path / "config.toml"
    other.write_text("#:schema wmr-train.schema.json\nepochs = 3\n")
    assert resolve({}, other).epochs == 3


def test_an_unknown_schema_is_refused() -> None:
    assert "'trian'" in wmr("schema", "trian", status=2).stderr
