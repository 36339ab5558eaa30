"""Flags override the file, the file the preset, the preset the defaults; errors name places."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from wmr_cli import presets
from wmr_cli.config import (
    EvaluationSettings,
    TrainConfig,
    describe_config,
    layers,
    read_config_file,
    resolve,
)
from wmr_cli.errors import BadFile, BadInput, UnknownName, WmrError
from wmr_cli.plugins import load_plugins
from wmr_cli.registry import OWN_DISTRIBUTION, Registry
from wmr_cli.runtime import components
from wmr_cli.spec import Spec
from wmr_cli.training import compatibility
from wmr_cli.training.setup import build_training_attack, build_training_kernel

DEFENSES = [
    owned.entry.name
    for kind, owned in load_plugins().registry
    if kind == "defense" and owned.owner == OWN_DISTRIBUTION
]

PRESET = """
summary = "for tests"
dataset = "digits"
model = "digits-cnn"
defense = "trades:beta=3"
attack = "pgd:start=uniform"
eps = 0.2
steps = 5
step_size = 0.05
epochs = 7
lr = 0.5
alpha = 1.0

[defenses.trades]
defense = "trades:beta=9"
alpha = 4.0

[defenses.pgd]
epochs = 8

[evaluate]
steps = 40
alpha_test = [3.0]
"""


@pytest.fixture(autouse=True)
def _no_preset_of_another_test() -> Iterator[None]:
    """Presets are cached by name, and some tests replace them."""
    layers._preset_layers.cache_clear()
    yield
    layers._preset_layers.cache_clear()


@pytest.fixture
def preset(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a preset, so that the tests do not depend on the numbers of a real one."""
    monkeypatch.setattr(presets, "load", lambda name: tomllib.loads(PRESET))
    return "mine"


class WriteFile(Protocol):
    """Write a config file and return its path."""

    def __call__(self, text: str, name: str = "study.toml") -> Path: ...


@pytest.fixture
def file(tmp_path: Path) -> WriteFile:
    def write(text: str, name: str = "study.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def refusal(flags: Mapping[str, object], file: Path | None = None) -> WmrError:
    with pytest.raises(WmrError) as refused:
        resolve(flags, file)
    return refused.value


def test_each_layer_wins_over_the_one_below(preset: str, file: WriteFile) -> None:
    defaults = TrainConfig()
    plain = resolve({"preset": preset, "defense": "natural"})
    assert (plain.batch_size, plain.epochs, plain.alpha) == (defaults.batch_size, 7, 1.0)
    by_defense = resolve({"preset": preset})
    assert (by_defense.epochs, by_defense.alpha, by_defense.defense) == (7, 4.0, "trades:beta=9")
    from_file = resolve(
        {"preset": preset}, file("epochs = 11\nalpha = 5.0\ndefense = 'trades:beta=1'")
    )
    assert (from_file.epochs, from_file.alpha, from_file.defense) == (11, 5.0, "trades:beta=1")
    flags = {"preset": preset, "epochs": 12, "alpha": 6.0, "defense": "trades:beta=2"}
    from_flags = resolve(
        flags, file("epochs = 11\nalpha = 5.0\nlr = 0.25\ndefense = 'trades:beta=1'")
    )
    assert (from_flags.epochs, from_flags.alpha, from_flags.defense, from_flags.lr) == (
        12,
        6.0,
        "trades:beta=2",
        0.25,
    )


def test_a_flag_that_is_not_given_wins_over_nothing(preset: str) -> None:
    assert resolve({"preset": preset, "epochs": None}).epochs == 7


def test_a_defense_takes_its_own_table_from_every_source(preset: str, file: WriteFile) -> None:
    assert resolve({"preset": preset, "defense": "pgd"}).epochs == 8
    assert resolve({"preset": preset}, file("defense = 'pgd'")).epochs == 8
    assert resolve({"preset": preset, "defense": "trades:beta=1"}).alpha == 4.0


def test_the_file_may_name_the_preset_and_a_flag_another(preset: str, file: WriteFile) -> None:
    assert resolve({}, file("preset = 'mine'")).epochs == 7
    assert resolve({"preset": "mine"}, file("preset = 'never-loaded'")).preset == "mine"


def test_the_evaluate_table_is_laid_over_key_by_key(preset: str, file: WriteFile) -> None:
    resolved = resolve({"preset": preset}, file("[evaluate]\nalpha_test = [0, 1]"))
    assert resolved.evaluate == EvaluationSettings(steps=40, alpha_test=(0.0, 1.0))


def test_a_spec_of_the_same_name_keeps_the_parameters_it_had(preset: str) -> None:
    resolved = resolve({"preset": preset, "attack": "pgd:keep=best"})
    assert Spec.parse(resolved.attack) == Spec.parse("pgd:start=uniform,keep=best")


def test_parameters_that_are_settings_move_out_of_the_spec(preset: str) -> None:
    resolved = resolve(
        {
            "preset": preset,
            "attack": "pgd:eps=8/255,steps=3,step=2/255,norm=l2",
            "kernel": "exp:alpha=3",
        }
    )
    assert (resolved.eps, resolved.steps, resolved.step_size, resolved.norm, resolved.alpha) == (
        8 / 255,
        3,
        2 / 255,
        "l2",
        3.0,
    )
    assert (resolved.attack, resolved.kernel) == ("pgd:start=uniform", "exp")


def test_a_new_eps_keeps_the_ratio_of_step_to_eps(preset: str, file: WriteFile) -> None:
    assert resolve({"preset": preset, "eps": 0.4}).step_size == pytest.approx(0.1)
    assert resolve({"preset": preset}, file("eps = 0.1")).step_size == pytest.approx(0.025)
    assert resolve(
        {"preset": preset, "eps": 0.4}, file("step_size = 0.02")
    ).step_size == pytest.approx(0.04)


def test_a_new_eps_with_a_step_size_takes_it(preset: str, file: WriteFile) -> None:
    assert resolve({"preset": preset, "eps": 0.4, "step_size": 0.3}).step_size == 0.3
    assert resolve({"preset": preset}, file("eps = 0.1\nstep_size = 0.3")).step_size == 0.3
    assert resolve({"preset": preset, "eps": 0.4, "attack": "pgd:step=0.3"}).step_size == 0.3


@pytest.mark.parametrize(
    "flags",
    [
        {"alpha": 2.0, "kernel": "exp:alpha=1"},
        {"steps": 3, "attack": "pgd:steps=3"},
        {"eps": 0.1, "attack": "pgd:eps=0.1"},
        {"step_size": 0.1, "attack": "pgd:step=0.1"},
    ],
)
def test_a_setting_given_twice_in_one_place_is_refused(
    preset: str, flags: dict[str, object]
) -> None:
    problem = refusal({"preset": preset, **flags})
    setting = next(iter(flags)).replace("_", "-").partition("-")[0]
    assert setting in str(problem)
    assert problem.hint


def test_a_setting_may_be_given_in_two_places(preset: str, file: WriteFile) -> None:
    assert resolve({"preset": preset, "alpha": 2.0}, file("kernel = 'exp:alpha=1'")).alpha == 2.0
    assert resolve({"preset": preset, "kernel": "exp:alpha=1"}, file("alpha = 2.0")).alpha == 1.0


def test_another_kernel_drops_the_alpha_of_the_old_one(preset: str) -> None:
    assert resolve({"preset": preset, "kernel": "none"}).alpha is None
    assert resolve({"preset": preset, "kernel": "none", "alpha": 2.0}).alpha == 2.0
    assert resolve({"preset": preset, "kernel": "exp"}).alpha == 4.0


def test_another_attack_drops_the_steps_of_the_old_one(preset: str) -> None:
    fgsm = resolve({"preset": preset, "attack": "fgsm"})
    assert (fgsm.attack, fgsm.steps, fgsm.step_size) == ("fgsm", None, None)
    margin = resolve({"preset": preset, "attack": "pgd-margin", "steps": 3})
    assert (margin.attack, margin.steps, margin.step_size) == ("pgd-margin", 3, None)


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("epoch = 3", "'epoch'", "'epochs'"),
        (
            "[evaluate]\nstps = 3",
            "'stps'",
            "'steps'",
        ),
        (
            "[evalute]\nsteps = 3",
            "'evalute'",
            "'evaluate'",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_its_place(
    file: WriteFile, text: str, place: str, hint: str
) -> None:
    problem = refusal({}, file(text))
    assert isinstance(problem, UnknownName)
    assert place in str(problem)
    assert "study.toml" in str(problem)
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("eps = nan", "study.toml: eps: nan"),
        ("eps = inf", "study.toml: eps: inf"),
        ("alpha = -inf", "study.toml: alpha: -inf"),
        ("eps = 'nan'", "'nan'"),
        (
            "[evaluate]\nalpha_test = [1.0, nan]",
            "study.toml, [evaluate]: alpha_test: nan",
        ),
        ("eps = -0.1", "study.toml: eps: "),
        ("eps = '8/0'", "'8/0'"),
        ("epochs = 0", "study.toml: epochs: "),
        ("epochs = 1.5", "study.toml: epochs: "),
        ("lr = 0.0", "study.toml: lr: "),
        ("weight_grad = 'sometimes'", "study.toml: weight_grad: "),
        ("model = 3", "study.toml: model: "),
        ("milestones = [1, 0]", "study.toml: milestones[1]: "),
        ("evaluate = 3", "study.toml: evaluate: "),
        ("[evaluate]\nsteps = 0", "study.toml, [evaluate]: steps: "),
        ("defense = 'trades:beta=('", "trades"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_its_place(
    file: WriteFile, text: str, problem: str
) -> None:
    assert problem in str(refusal({}, file(text)))


def test_nan_and_infinity_in_json_are_refused(file: WriteFile) -> None:
    assert "eps: nan" in str(refusal({}, file('{"eps": NaN}', "study.json")))
    assert "eps: inf" in str(refusal({}, file('{"eps": 1e999}', "study.json")))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_flag_that_cannot_be_used_is_refused_by_its_name(value: float) -> None:
    problem = refusal({"step_size": value})
    assert isinstance(problem, BadInput)
    assert "step" in str(problem)


def test_fractions_are_text_in_a_file_and_exact(file: WriteFile) -> None:
    resolved = resolve({}, file("eps = '8/255'\nstep_size = '2/255'\nlr = '1/3'"))
    assert (resolved.eps, resolved.step_size, resolved.lr) == (8 / 255, 2 / 255, 1 / 3)


def test_toml_and_json_say_the_same(file: WriteFile) -> None:
    toml = file("epochs = 3\neps = '8/255'\n[evaluate]\nsteps = 7")
    json_file = file('{"epochs": 3, "eps": "8/255", "evaluate": {"steps": 7}}', "study.json")
    assert resolve({}, toml) == resolve({}, json_file)
    assert resolve({}, toml).evaluate.steps == 7


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("study.toml", b"epochs = "),
        ("study.toml", b"\xff\xfe\x00"),
        ("study.json", b'{"epochs": 3'),
        ("study.json", b""),
        ("study.json", b"[1, 2]"),
        ("study.json", b"null"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadFile) as refused:
        read_config_file(path)
    assert str(path) in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"none\.toml"):
        resolve({}, tmp_path / "none.toml")
    with pytest.raises(BadFile, match=re.escape(str(tmp_path))):
        resolve({}, tmp_path)


CHOICES = [
    {},
    {"defense": "natural"},
    {"defense": "pgd", "alpha": 0.0},
    {"kernel": "none"},
    {"attack": "fgsm"},
    {"attack": "pgd-margin:start=none", "steps": 3},
    {"eps": 8 / 255},
    {"eps": 0.3, "step_size": 0.1, "seed": 2**63 - 1, "precision": "bf16"},
    {"dataset": "nowhere", "model": "nets/mine.py:Net,width=3"},
]


@pytest.mark.parametrize("flags", CHOICES, ids=str)
def test_a_config_survives_being_written(flags: Mapping[str, object]) -> None:
    config = resolve(flags)
    assert TrainConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize("flags", CHOICES, ids=str)
def test_a_stored_config_given_back_is_the_same_config(
    flags: Mapping[str, object], file: WriteFile
) -> None:
    config = resolve(flags)
    assert resolve({}, file(config.to_json(), "config.json")) == config


def test_a_stored_config_is_plain_json_without_unknown_keys() -> None:
    config = resolve({})
    stored = json.loads(config.to_json())
    assert set(stored) == set(TrainConfig.__struct_fields__)
    with pytest.raises(ValueError, match="surprise"):
        TrainConfig.from_json(json.dumps({**stored, "surprise": 1}))


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_resolves_for_every_defense_it_names(name: str) -> None:
    settings = presets.load(name)
    assert settings["summary"]
    for defense in [None, *settings.get("defenses", {})]:
        resolved = resolve({"preset": name, "defense": defense})
        assert resolved.preset == name
        assert resolved.dataset == settings["dataset"]
        assert defense is None or Spec.parse(resolved.defense).name == defense


@pytest.mark.parametrize(
    "name", [name for name in presets.names() if not name.startswith("authors/")]
)
def test_every_preset_has_settings_for_every_defense(name: str) -> None:
    assert set(presets.load(name)["defenses"]) == set(DEFENSES)


@pytest.mark.parametrize("defense", DEFENSES)
@pytest.mark.parametrize("name", presets.names())
def test_every_preset_can_train_every_defense(name: str, defense: str, registry: Registry) -> None:
    config = resolve({"preset": name, "defense": defense})
    assert Spec.parse(config.defense).name == defense
    attack, chosen = (
        build_training_attack(registry, config),
        components.build_defense(registry, config.defense),
    )
    kernel = build_training_kernel(registry, config, attack, chosen)
    timetable = compatibility.divide_by_replays(config, chosen)
    compatibility.check_ramps(attack, kernel, config)
    compatibility.check_kernel_and_defense(chosen, kernel, timetable)
    assert chosen.traits.warmup_epochs < timetable.epochs
    if config.schedule == "multistep" and not name.startswith(
        "authors/"
    ):  # whose last milestones no run of theirs reaches
        assert all(milestone < timetable.epochs for milestone in timetable.milestones)


@pytest.mark.parametrize(
    "defense", [name for name in DEFENSES if name not in ("natural", "pgd", "trades")]
)
@pytest.mark.parametrize(
    "name", [name for name in presets.names() if not name.startswith("authors/")]
)
def test_a_defense_is_that_of_its_paper_until_alpha_is_set(name: str, defense: str) -> None:
    assert resolve({"preset": name, "defense": defense}).alpha == 0
    assert resolve({"preset": name, "defense": defense, "alpha": 2.0}).alpha == 2


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    problem = refusal({"preset": "digit"})
    assert "'digit'" in str(problem)
    assert "'digits'" in problem.hint


def test_a_mistake_in_a_preset_is_refused_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "load", lambda name: {"defenses": {"trades": {"betta": 6}}})
    assert "'betta'" in str(refusal({}))


def test_without_a_preset_the_dataset_chooses_it() -> None:
    assert resolve({}).preset == "digits"
    assert resolve({"dataset": "nowhere"}).preset is None
    assert presets.for_dataset("digits") == "digits"


def test_the_summary_names_what_matters_in_one_line() -> None:
    line = describe_config(
        resolve({"eps": 8 / 255, "steps": 3, "step_size": 0.01, "epochs": 4, "seed": 5})
    )
    assert "\n" not in line
    for fact in (
        "trades:beta=6",
        "exp, alpha 2",
        "digits",
        "8/255",
        "3 steps of 0.01",
        "4 epochs",
        "seed 5",
    ):
        assert fact in line
