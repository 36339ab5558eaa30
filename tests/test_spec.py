"""Specs are read as a user types them, and written so that they read back equal."""

import time
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmr_cli.errors import BadInput
from wmr_cli.spec import MAX_DEPTH, Spec, format_number, parse_number, parse_range, read_value

keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
names = st.from_regex(r"[a-z0-9]{1,6}(-[a-z0-9]{1,6}){0,2}", fullmatch=True)
paths = st.from_regex(r"([a-z][a-z ]{0,4}/){0,2}[a-z_]{1,8}\.py:[A-Za-z_]\w{0,6}", fullmatch=True)
awkward = st.text(
    alphabet=st.sampled_from(list(",()'\"\\=:/ \n\r\tαé漢🙂\u2028\x00ab1")), max_size=8
)
texts = (
    awkward
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from(["", "8/255", "0.1:0.2", "none"])
)


def specs(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Spec]:
    return st.builds(
        Spec, names, st.none() | texts, st.dictionaries(keys, texts | inner, max_size=3)
    )


any_spec = st.recursive(specs(st.nothing()), specs, max_leaves=6)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("pgd", Spec("pgd")),
        ("pgd:steps=20,eps=8/255", Spec("pgd", None, {"steps": "20", "eps": "8/255"})),
        ("timm:resnet18", Spec("timm", "resnet18")),
        ("torchattacks:MIFGSM,steps=10", Spec("torchattacks", "MIFGSM", {"steps": "10"})),
        ("folder:path=pics,size=32", Spec("folder", None, {"path": "pics", "size": "32"})),
        ("norm:mean=0.485:0.456:0.406", Spec("norm", None, {"mean": "0.485:0.456:0.406"})),
        ("folder:path='my pics, old'", Spec("folder", None, {"path": "my pics, old"})),
        ('folder:path="my \\"pics\\", old"', Spec("folder", None, {"path": 'my "pics", old'})),
        ("folder:'a=b'", Spec("folder", "a=b")),
        ("folder:path=''", Spec("folder", None, {"path": ""})),
        (
            "awp:base=(trades:beta=6)",
            Spec("awp", None, {"base": Spec("trades", None, {"beta": "6"})}),
        ),
        ("awp:base=(a:x=(b:y=1,z=2)),gamma=3", Spec("awp", None, {
            "base": Spec("a", None, {"x": Spec("b", None, {"y": "1", "z": "2"})}), "gamma": "3",
        })),
        ("path/to/file.py:Class,key=value", Spec("path/to/file.py:Class", None, {"key": "value"})),
        ("path/to/file.py:Class,3,key=value", Spec("path/to/file.py:Class", "3", {"key": "value"})),
        ("my files/net.py:Net", Spec("my files/net.py:Net")),
        ("pgd:random-start=no", Spec("pgd", None, {"random_start": "no"})),
    ],
)  # fmt: skip
def test_a_spec_has_name_value_and_parameters(text: str, spec: Spec) -> None:
    assert Spec.parse(text) == spec


@settings(deadline=None)
@given(any_spec)
def test_a_spec_survives_being_written(spec: Spec) -> None:
    assert Spec.parse(str(spec)) == spec


@settings(deadline=None)
@given(paths, st.none() | texts, st.dictionaries(keys, texts, max_size=3))
def test_a_spec_of_a_local_class_survives_being_written(
    name: str, value: str | None, params: dict[str, str | Spec]
) -> None:
    spec = Spec(name, value, params)
    assert spec.is_local
    assert Spec.parse(str(spec)) == spec


def test_only_a_class_in_a_file_is_local() -> None:
    assert Spec.parse("nets/mine.py:Net").is_local
    assert not Spec.parse("timm:resnet18").is_local


def test_the_order_of_parameters_makes_no_difference() -> None:
    assert Spec.parse("pgd:steps=1,eps=2") == Spec.parse("pgd:eps=2,steps=1")


def test_parameters_can_be_laid_over_and_taken_away() -> None:
    spec = Spec.parse("pgd:3,steps=1,eps=2")
    assert spec.with_params(steps="9") == Spec.parse("pgd:3,steps=9,eps=2")
    assert spec.without("eps", "absent") == Spec.parse("pgd:3,steps=1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":steps=3",
        "(pgd)",
        "two words",
        "pgd:steps=1,steps=2",
        "pgd:steps=1,20",
        "pgd:steps=1,",
        "pgd:steps=",
        "pgd:a,b",
        "pgd:(trades:beta=6)",
        "pgd:start='gauss",
        'pgd:start="gauss',
        "awp:base=(trades",
        "awp:base=trades)",
        "pgd:start=a'b'",
        'pgd:start="a"b',
        'pgd:"x',
    ],
)
def test_an_invalid_spec_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        Spec.parse(text)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8/255", Fraction(8, 255)),
        ("0.3", 0.3),
        ("1.5/2.5", Fraction(3, 5)),
        ("1e-3", 0.001),
        ("-2", -2.0),
        (" 8 / 255 ", 8 / 255),
    ],
)
def test_a_number_is_exact(text: str, value: float | Fraction) -> None:
    assert parse_number(text) == float(value)


@pytest.mark.parametrize(
    "text",
    [
        "8/0",
        "nan",
        "inf",
        "-inf",
        "nan/1",
        "1/inf",
        "1e999",
        "1e308/1e-308",
        "ten",
        "1_000",
        "",
        " ",
        "/",
        "1/",
        "/2",
        "1/2/3",
        "0x10",
        "__import__",
        "__import__('os').getcwd()",
        "2**3",
        "1" * 400,
    ],
)
def test_text_that_is_not_a_finite_number_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="number") as refused:
        parse_number(text)
    assert "8/255" in refused.value.hint


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8 / 255, "8/255"),
        (0.3, "0.3"),
        (2.0, "2"),
        (0.0, "0"),
        (1.5, "1.5"),
        (1e-30, "1e-30"),
        (-8 / 255, "-8/255"),
    ],
)
def test_a_number_is_written_as_people_write_it(value: float, text: str) -> None:
    assert format_number(value) == text


@settings(deadline=None)
@given(st.floats(min_value=0, max_value=1e12, allow_nan=False))
def test_a_number_survives_being_written(value: float) -> None:
    assert parse_number(format_number(value)) == value


def test_every_8_bit_level_survives_being_written() -> None:
    levels = [level / 255 for level in range(256)]
    assert [parse_number(format_number(level)) for level in levels] == levels


@pytest.mark.parametrize(
    ("value", "kind", "read"),
    [
        ("20", int, 20),
        ("2e3", int, 2000),
        ("8/255", float, 8 / 255),
        ("20", float, 20.0),
        ("true", bool, True),
        ("No", bool, False),
        ("1", bool, True),
        ("20", str, "20"),
        ("data", Path, Path("data")),
        ("l2", Literal["linf", "l2"], "l2"),
        ("none", float | None, None),
        ("0.5", Optional[float], 0.5),  # noqa: UP045 - plugins may write it so
        ("3", int | str, 3),
        ("three", str | int, "three"),
        ("0.485:0.456:1/4", tuple[float, ...], (0.485, 0.456, 0.25)),
        ("7", tuple[int, ...], (7,)),
        ("a:b", list[str], ["a", "b"]),
        ("trades:beta=6", Spec, Spec("trades", None, {"beta": "6"})),
        (Spec("trades"), Spec, Spec("trades")),
        (Spec("trades"), Spec | None, Spec("trades")),
        (Spec("trades"), Any, Spec("trades")),
        ("8/255", Any, 8 / 255),
        ("20", Any, 20),
        ("2.0", Any, 2.0),
        ("False", Any, False),
        ("resnet18", Any, "resnet18"),
        ("1_000", Any, "1_000"),
    ],
)
def test_the_type_of_a_parameter_determines_how_its_value_is_read(
    value: str | Spec, kind: object, read: object
) -> None:
    assert read_value(value, kind) == read
    assert type(read_value(value, kind)) is type(read)


def nested(depth: int) -> str:
    return "awp:base=(" * (depth - 1) + "pgd" + ")" * (depth - 1)


def test_specs_stand_inside_each_other_up_to_a_limit() -> None:
    spec = Spec.parse(nested(MAX_DEPTH))
    assert spec.depth == MAX_DEPTH
    assert Spec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    "text",
    [
        nested(MAX_DEPTH + 1),
        nested(800),
        "awp:base=" + "(" * 5000,
        "a" * 20_000,
        "a:" + "b=1," * 10**6,
    ],
)
def test_a_spec_that_is_too_deep_or_too_long_is_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(BadInput) as caught:
        Spec.parse(text)
    assert caught.value.hint
    assert time.process_time() - began < 2


def test_a_spec_that_is_put_together_has_the_same_limit() -> None:
    spec = Spec.parse(nested(MAX_DEPTH))
    with pytest.raises(BadInput):
        Spec("awp", None, {"base": spec})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2.5", int),
        ("ten", int),
        ("nan", float),
        ("ten", float | None),
        ("1:x", tuple[float, ...]),
        ("", tuple[float, ...]),
        (Spec("trades"), tuple[float, ...]),
        ("1e30", int),
        ("9" * 30, int),
        ("9" * 30, Any),
        ("maybe", bool),
        ("1:2:3", tuple[int, int]),
        ("middle", Literal["zero", "uniform"]),
        (Spec("pgd"), float),
        ("", Path),
        ("a\0b", Path),
        ("a" * 300, Path),
        ("\ud800", Path),
        ("~no-such-user-here/x", Path),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused_with_a_hint(text: str | Spec, kind: object) -> None:
    with pytest.raises(BadInput) as caught:
        read_value(text, kind)
    assert caught.value.hint


def test_a_large_whole_number_keeps_its_last_digits() -> None:
    assert read_value(str(2**62 + 1), int) == 2**62 + 1


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadInput, match="loop"):
        read_value(str(tmp_path / "loop"), Path)


RANGES = [
    ("1/255..8/255", [parse_number(f"{level}/255") for level in range(1, 9)]),
    ("2/255..8/255", [parse_number(f"{level}/255") for level in (2, 4, 6, 8)]),
    # decimals are exact, too: 3 * 0.1 is not 0.30000000000000004
    ("0.1..0.3", [0.1, 0.2, 0.3]),
    ("0..0.3:4", [0.0, 0.1, 0.2, 0.3]),
    ("1/255..8/255:2", [parse_number("1/255"), parse_number("8/255")]),
    (" 0.5 .. 1 ", [0.5, 1.0]),
]


@pytest.mark.parametrize(("text", "numbers"), RANGES)
def test_ranges_are_computed_exactly(text: str, numbers: list[float]) -> None:
    assert parse_range(text) == numbers


WRONG_RANGES = (
    "..", "0.1..", "..0.1", "0.1..0.25", "0..0.3", "0.3..0.1", "0.1..0.1", "0.1..0.3:1",
    "0.1..0.3:x", "0.1..0.3:", "0.1..0.3..0.5", "0.00001..1", "0..1:1001", "1/0..1", "nan..1",
    "-0.1..0.3",
)  # fmt: skip


@pytest.mark.parametrize("text", WRONG_RANGES)
def test_other_ranges_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_range(text)
    assert refused.value.hint
