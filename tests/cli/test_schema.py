"""`wmr schema` describes every setting, accepts the files of this project, and rejects mistakes."""

import functools
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cli_runner import wmr
from support.json_schema import Json, JsonSchema, find_errors
from wmr_cli import presets
from wmr_cli.config import list_settings, resolve
from wmr_cli.config.structs import EvaluateConfig, TrainConfig
from wmr_cli.plugins import load_plugins
from wmr_cli.sweeps.study import read_study

STUDIES = Path(__file__).parents[2] / "studies"
KINDS = ("train", "study", "record")


@functools.cache
def load_schema(kind: str) -> JsonSchema:
    found: JsonSchema = json.loads(wmr("schema", kind).stdout)
    return found


def iterate_properties(part: Json) -> Iterator[tuple[str, JsonSchema]]:
    """Yield the name and schema of every property, at any depth."""
    if isinstance(part, dict):
        yield from part.get("properties", {}).items()
        for inner in part.values():
            yield from iterate_properties(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from iterate_properties(inner)


@pytest.mark.parametrize("kind", KINDS)
def test_every_property_has_a_description(kind: str) -> None:
    whole = load_schema(kind)
    missing = []
    for name, schema in iterate_properties(whole):
        alternatives = [schema, *schema.get("anyOf", [])]
        is_table = any("$ref" in each for each in alternatives)
        if not is_table and not any("description" in each for each in alternatives):
            missing.append(name)
    assert missing == []


def test_the_schema_of_a_config_has_the_help_text_of_every_setting() -> None:
    properties = load_schema("train")["$defs"]["TrainConfig"]["properties"]
    for key, declared in list_settings(TrainConfig).items():
        assert properties[key]["description"] == declared.description


def test_the_schema_of_a_study_has_the_settings_of_evaluate() -> None:
    properties = load_schema("study")["$defs"]["Evaluation"]["properties"]
    expected = set(list_settings(EvaluateConfig)) - {"model", "layout", "fold"}
    assert set(properties) == expected | {"checkpoint", "only"}


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_valid(name: str) -> None:
    schema = load_schema("train")
    settings = presets.load(name)
    del settings["summary"]  # only presets have it
    defenses = settings.pop("defenses", {})
    assert find_errors(settings, schema) == []
    for defense, table in defenses.items():
        assert find_errors(table, schema) == []
        resolved = resolve({"preset": name, "defense": defense})
        assert find_errors(json.loads(resolved.to_json()), schema) == []


@pytest.mark.parametrize("file", sorted(STUDIES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_study_is_valid(file: Path) -> None:
    assert find_errors(tomllib.loads(file.read_text()), load_schema("study")) == []


def test_stored_records_are_valid() -> None:
    files = sorted(STUDIES.glob("records/*/*/evaluations/*.json"))[::20]
    assert files
    for file in files:
        assert find_errors(json.loads(file.read_text()), load_schema("record")) == []


def test_stored_configs_are_valid() -> None:
    files = sorted(STUDIES.glob("records/*/*/config.json"))[::20]
    assert files
    for file in files:
        assert find_errors(json.loads(file.read_text()), load_schema("train")) == []


@pytest.mark.parametrize(
    ("kind", "content", "place"),
    [
        ("train", {"epoch": 1}, "epoch"),
        ("train", {"epochs": 0}, "epochs"),
        ("train", {"epochs": 1.5}, "epochs"),
        ("train", {"optimizer": "sdg"}, "optimizer"),
        ("train", {"evaluate": {"alpha_test": []}}, "alpha_test"),
        ("study", {"x": 1}, "x"),
        ("study", {"train": {"epoch": 1}}, "epoch"),
        ("study", {"grid": [{"alfa": [1, 2]}]}, "alfa"),
        ("study", {"evaluate": {"esp": 0.1}}, "esp"),
        ("study", {"evaluate": [{"only": {"sed": 1}}]}, "sed"),
        ("study", {"machine": {"threads": 0}}, "threads"),
    ],
)
def test_a_mistake_is_rejected_with_its_place(
    kind: str, content: dict[str, Any], place: str
) -> None:
    errors = find_errors(content, load_schema(kind))
    assert any(place in error for error in errors)


def test_numbers_may_be_fractions_in_settings_but_not_in_records() -> None:
    for text in ("8/255", " 0.3 ", "-1e-3", ".5 / 2"):
        assert find_errors({"eps": text}, load_schema("train")) == []
    for text in ("eight", "1/2/3", "", "8/"):
        assert find_errors({"eps": text}, load_schema("train")) != []
    assert load_schema("record")["$defs"]["Threat"]["properties"]["eps"]["type"] == "number"


def test_a_config_may_name_its_schema(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    content = {"$schema": "wmr-train.schema.json", "epochs": 3, "eps": "8/255"}
    file.write_text(json.dumps(content))
    resolved = resolve({}, file)
    assert (resolved.epochs, resolved.eps) == (3, 8 / 255)
    assert find_errors(content, load_schema("train")) == []
    other = tmp_path / "config.toml"
    other.write_text("#:schema wmr-train.schema.json\nepochs = 3\n")
    assert resolve({}, other).epochs == 3
    other.write_text('"$schema" = "wmr-train.schema.json"\nepochs = 3\n')
    assert resolve({}, other).epochs == 3


def test_printed_records_are_valid() -> None:
    printed = json.loads(wmr("report", STUDIES / "records/cifar10-cpu", "--format", "json").stdout)
    # these runs differ in their seeds, too
    assert any("over_seeds" in record for record in printed)
    for record in printed:
        assert find_errors(record, load_schema("record")) == []


def test_a_study_may_name_its_schema(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text("#:schema wmr-study.schema.json\n[train]\nepochs = 3\n")
    (run,) = read_study(file, load_plugins().registry).runs
    assert run.config.epochs == 3


def test_an_unknown_schema_is_an_error() -> None:
    assert "'trian'" in wmr("schema", "trian", status=2).stderr
