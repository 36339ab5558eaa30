"""One declaration gives a setting its type, its bounds, its errors and its descriptions."""

import inspect
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from wmr_cli import config
from wmr_cli.config import (
    METRICS,
    AttackConfig,
    Count,
    EvaluateConfig,
    NonNegative,
    NonNegatives,
    Struct,
    TrainConfig,
    allow_fractions,
    check_settings,
    check_value,
    is_list,
    list_choices,
    list_settings,
    setting,
    value_type,
)
from wmr_cli.config.setting import TypeHint
from wmr_cli.errors import BadInput, UnknownName

STRUCTS = [
    item
    for item in vars(config).values()
    if inspect.isclass(item) and issubclass(item, Struct) and item is not Struct
]
Color = Literal["red", "green"]


class Toy(Struct, frozen=True, kw_only=True):
    count: Annotated[Count, setting("A count.", config.PANELS[0], "N")] = 1
    colors: Annotated[
        tuple[Color, ...], setting("Colors.", config.PANELS[0], names=("--color",))
    ] = ()
    plain: Annotated[NonNegative | None, Meta(description="Without a flag.")] = None
    required: str


def test_a_declaration_is_read_from_the_struct() -> None:
    settings = list_settings(Toy)
    assert list(settings) == ["count", "color", "plain", "required"]
    assert settings["count"].description == "A count."
    assert settings["count"].default == 1
    assert settings["color"].name == "colors"
    assert settings["color"].choices == ("red", "green")
    assert settings["plain"].flag is None
    assert [declared.key for declared in settings.values() if declared.is_required] == ["required"]


def test_a_struct_is_built_from_keys() -> None:
    built = Toy.from_settings({"color": ("red",), "required": "x"})
    assert built == Toy(colors=("red",), required="x")


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_setting_has_a_description(struct: type[Struct]) -> None:
    missing = [key for key, declared in list_settings(struct).items() if not declared.description]
    assert missing == []


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_defaults_are_valid(struct: type[Struct]) -> None:
    for key, declared in list_settings(struct).items():
        if not declared.is_required and value_type(declared.hint) is not Path:
            plain = msgspec.to_builtins(declared.default)
            assert check_value(plain, declared.hint, key) == declared.default


@pytest.mark.parametrize(
    ("hint", "kind", "is_several"),
    [
        (Count, int, False),
        (Annotated[NonNegative | None, Meta(description="x")], float, False),
        (NonNegatives | None, float, True),
        (tuple[str, ...], str, True),
        (Path | None, Path, False),
    ],
)
def test_the_type_of_one_value_is_found(hint: Any, kind: type, is_several: bool) -> None:  # noqa: ANN401
    assert value_type(hint) is kind
    assert is_list(hint) == is_several


def test_choices_are_the_words_of_a_literal() -> None:
    assert list_choices(Annotated[tuple[Color, ...] | None, Meta(min_length=1)]) == ("red", "green")
    assert list_choices(str) == ()


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (3, Count, 3),
        ("8/255", NonNegative, 8 / 255),
        (1, NonNegative, 1.0),
        (["1/2", 2], NonNegatives, (0.5, 2.0)),
        (None, NonNegative | None, None),
        ("red", Color, "red"),
        (["green"], tuple[Color, ...], ("green",)),
    ],
)
def test_a_valid_value_has_the_type_of_its_setting(
    value: object, hint: object, expected: object
) -> None:
    assert check_value(value, hint, "x") == expected


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (0, Count),
        (2.5, Count),
        ("3", Count),
        (True, Count),
        (2**31, Count),
        (10**400, Count),
        (-1, NonNegative),
        (math.nan, NonNegative),
        ("inf", NonNegative),
        (2e9, NonNegative),
        ([], NonNegatives),
        ([1, -1], NonNegatives),
        ("rde", Color),
        (["red", "blue"], tuple[Color, ...]),
        ("\ud800", str),
    ],
)
def test_an_invalid_value_is_an_error_at_its_place(value: object, hint: object) -> None:
    with pytest.raises(BadInput) as caught:
        check_value(value, hint, "place")
    assert str(caught.value).startswith("place")
    assert caught.value.hint


def test_a_misspelt_word_gives_the_nearest() -> None:
    with pytest.raises(BadInput) as caught:
        check_value("gren", Color, "x")
    assert "'green'" in caught.value.hint


def test_an_unknown_key_gives_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        check_settings({"cuont": 1}, Toy, "some file")
    assert "some file" in str(caught.value)
    assert "'count'" in caught.value.hint


@pytest.mark.parametrize("implying", [{"rho": (0.1,)}, {"dro_loss": "margin"}])
def test_settings_of_dro_add_its_metric(implying: dict[str, Any]) -> None:
    assert EvaluateConfig.from_settings(implying).metrics == (*METRICS, "dro")
    given = EvaluateConfig.from_settings({**implying, "metrics": ("dro", "nat")})
    assert given.metrics == ("dro", "nat")
    assert EvaluateConfig.from_settings({}).metrics == METRICS


def test_an_attack_is_an_evaluation_with_one_value_each() -> None:
    attack = AttackConfig(attack="fgsm", eps=0.1, alpha=0.0, limit=5, split="val")
    evaluation = attack.to_evaluate_config()
    assert evaluation == EvaluateConfig(
        attacks=("fgsm",), eps=(0.1,), alpha_test=(0.0,), limit=5, split="val"
    )
    assert AttackConfig().to_evaluate_config() == EvaluateConfig()


def test_a_config_reads_back_equal() -> None:
    config_with_lists = TrainConfig(milestones=(5, 9), eps=8 / 255, alpha=2.0)
    assert TrainConfig.from_json(config_with_lists.to_json()) == config_with_lists


@pytest.mark.parametrize(
    ("value", "hint", "error", "suggestion"),
    [
        (0, Count, "`x`: expected a whole number >= 1, got 0", "write 1 or more"),
        ([0.5, -1], NonNegatives, "`x`: expected a number >= 0, got -1", "write 0 or more"),
        (0, Annotated[float, Meta(gt=0)], "`x`: expected a number > 0, got 0", "more than 0"),
        (2, Annotated[float, Meta(ge=0, le=1)], "<= 1, got 2", "from 0 to 1"),
        (9, Annotated[int, Meta(le=5)] | None, "<= 5, got 9", "write 5 or less"),
        ([], NonNegatives, "a list of length >= 1", "at least one value"),
        (True, NonNegative | None, "expected a number, got true or false", "8/255"),
        ("x", Count, "expected a whole number, got text", "whole number"),
        (1, bool, "`x`", "true or false"),
        (1, Color, "`x`", "red, green"),
    ],
)
def test_a_hint_names_the_values_that_a_setting_can_have(
    value: object, hint: TypeHint, error: str, suggestion: str
) -> None:
    with pytest.raises(BadInput) as caught:
        check_value(value, hint, "`x`")
    assert error in str(caught.value)
    assert suggestion in caught.value.hint


def test_a_file_keeps_the_position_of_a_wrong_value() -> None:
    with pytest.raises(BadInput, match=r"^config.toml: eps\[1\]: "):
        check_value([0.5, -1], NonNegatives, "config.toml: eps")


def test_a_list_of_radii_may_have_ranges() -> None:
    given = {"eps": ["1/255..3/255", "0.5", 2 / 255, "0..1:3"]}
    checked = check_settings(given, EvaluateConfig, "file")
    # each number once, in the order of the user
    assert checked["eps"] == (1 / 255, 2 / 255, 3 / 255, 0.5, 0.0, 1.0)
    with pytest.raises(BadInput, match="file: eps") as refused:
        check_settings({"eps": ["1/255..2"]}, EvaluateConfig, "file")
    assert refused.value.hint
    # a setting of one number has none
    with pytest.raises(BadInput):
        check_settings({"eps": "1/255..3/255"}, AttackConfig, "file")


def test_the_schema_of_radii_allows_ranges() -> None:
    schema = allow_fractions(msgspec.json.schema(EvaluateConfig))
    items = schema["$defs"]["EvaluateConfig"]["properties"]["eps"]["items"]
    assert items["type"] == ["number", "string"]
    for text in ("0.5", "8/255", "1/255..8/255", "0..0.3:7"):
        assert re.search(items["pattern"], text)
    for text in ("", "..", "1/255..", "0..0.3:x", "1..2..3"):
        assert not re.search(items["pattern"], text)
