"""Unusual input: huge and tiny numbers, wrong types, text that looks like something else."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from wmr_cli import __version__
from wmr_cli.cli import app
from wmr_cli.config import resolve
from wmr_cli.errors import BadInput, PluginError, WmrError
from wmr_cli.registry import Entry, Registry
from wmr_cli.spec import Spec, format_number, parse_number, read_value


def wmr(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="wmr")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert wmr("train", "--epochs", 1, "--validate-every", 0, "--out", folder, "-q").exit_code == 0
    return folder


def test_version() -> None:
    assert wmr("--version").stdout == f"wmr {__version__}\n"


def test_no_arguments_has_no_empty_error() -> None:
    assert "error: \n" not in wmr().stderr


@settings(deadline=None)
@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_exact_over_all_floats(value: float) -> None:
    assert parse_number(format_number(value)) == value


def test_a_fraction_of_a_tiny_number_does_not_hang() -> None:
    code = (
        "from wmr_cli.spec import parse_number\n"
        "try: parse_number('1e-400000000/3')\n"
        "except Exception: pass"
    )
    subprocess.run([sys.executable, "-c", code], timeout=10, check=True)


@pytest.mark.parametrize(
    "spec",
    [
        Spec("awp", None, {"base": Spec("a/b.py:Class", None, {"k": "v"})}),
        Spec("folder", None, {"path": "x.py:Cls"}),
        Spec("folder", "x.py:Cls"),
    ],
)
def test_spec_with_a_py_path_inside_round_trips(spec: Spec) -> None:
    assert Spec.parse(str(spec)) == spec


def test_a_space_after_the_colon_is_not_a_positional_value() -> None:
    assert Spec.parse("pgd: steps=3").value is None


def test_fixed_tuple_has_its_length() -> None:
    with pytest.raises(BadInput):
        read_value("1:2:3", tuple[int, int])


def test_bare_list_is_a_list() -> None:
    assert read_value("1:2", list) == [1, 2]


FILES = [
    ("toml", text)
    for text in (
        "defense = 3",
        "dataset = 3",
        "attack = 3",
        "kernel = 3",
        "preset = 3",
        "eps = [1]",
        "eps = true",
        "eps = {}",
        "step_size = true",
        "eps = 1" + "0" * 400,
    )
]
FILES += [("json", '{"kernel": null}'), ("json", '{"eps": null}')]


@pytest.mark.parametrize(("suffix", "text"), FILES)
def test_a_value_of_the_wrong_type_is_refused(tmp_path: Path, suffix: str, text: str) -> None:
    file = tmp_path / f"c.{suffix}"
    file.write_text(text)
    with pytest.raises(WmrError):
        resolve({"eps": 0.3} if "step" in text else {}, file)


def test_a_new_eps_keeps_the_ratio_in_evaluation() -> None:
    assert resolve({"eps": 0.3}).evaluate.step_size == pytest.approx(0.03)


def test_another_evaluation_attack_drops_steps(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[evaluate]\nattack = 'fgsm'")
    assert resolve({}, tmp_path / "c.toml").evaluate.steps is None


def test_positional_value_over_the_presets_parameter() -> None:
    assert Spec.parse(resolve({"defense": "trades:3"}).defense).params == {}


def test_emoji_codes_are_text() -> None:
    assert (
        "50:100:150" in wmr("train", "--defense", "trades:beta=50:100:150").stderr.splitlines()[-2]
    )


def test_newline_in_a_path_is_one_line() -> None:
    assert len(wmr("evaluate", "no\nfile").stderr.splitlines()) == 2


BAD = [
    "evaluate {run} --attack pgd:norm=l3 --eps 0.1",
    "evaluate {run} --limit 5 --eps 1e300",
    "evaluate {run} --limit 5 --eps 1e308",
    "evaluate {run} --limit 5 --alpha-test 1e308 --out {tmp}",
    "attack {run} --limit 5 --grid {tmp}/a.txt",
    "train --model digits-cnn:num_classes=3 --out {tmp}/a",
    "train --model digits-cnn:input_shape=1:4:4 --out {tmp}/b",
    "train --lr 1e300 --epochs 1 --out {tmp}/c",
    "train --alpha 1e308",
]


@pytest.mark.parametrize("line", BAD)
def test_refused_without_a_traceback(line: str, run: Path, tmp_path: Path) -> None:
    result = wmr(*line.format(run=run, tmp=tmp_path).split())
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


def test_a_local_class_that_prints_leaves_stdout_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "print('hello')\nfrom wmr_cli.builtins.attacks.pgd import Pgd\n"
    )
    result = wmr(
        "attack",
        run,
        "--attack",
        f"{tmp_path}/noisy.py:Pgd",
        "--limit",
        5,
        "--steps",
        1,
        "--format",
        "json",
        "-q",
    )
    assert result.stdout.startswith("{")


def test_doctor_with_a_file_as_data_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert wmr("doctor", "--data-dir", tmp_path / "file").exit_code == 1


def test_a_target_that_fails_on_import_is_a_plugin_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bad_mod_x.py").write_text("raise RuntimeError('boom')")
    registry = Registry()
    registry.add(
        [
            ("attack", Entry("bad", "bad_mod_x:X", "")),
            ("attack", Entry("nosig", "builtins:dict", "")),
        ],
        "p",
        "1",
    )
    with pytest.raises(PluginError):
        registry.create("attack", "bad")
    with pytest.raises(PluginError):
        registry.create("attack", "nosig")
