"""What a user can set. Flags win over the file, the file over the preset, the preset over the defaults.

A layer is a plain mapping with the names of `TrainConfig`. Layers are laid over each other from the bottom up,
remembering who set what so that an error can name the place; msgspec then checks the types once.
"""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from . import presets
from .errors import BadFile, BadInput, UnknownName, did_you_mean
from .spec import Spec, exact, in_proportion, number, read_value

Size = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A set of settings; unknown keys are refused."""


class EvaluationSettings(Struct, frozen=True, kw_only=True):
    """How checkpoints of a run are evaluated unless the user says otherwise."""

    attack: str = "pgd"
    steps: Count | None = 20
    step_size: Size | None = None
    alpha_test: tuple[Size, ...] = (1.0, 1.5, 2.0)


class TrainConfig(Struct, frozen=True, kw_only=True):
    """Everything that determines a training run."""

    preset: str | None = None
    dataset: str = "digits"
    model: str = "small-cnn"
    defense: str = "trades"
    kernel: str = "exp"
    alpha: Size | None = None
    norm: Literal["linf", "l2"] = "linf"
    eps: Size = 8 / 255
    attack: str = "pgd:start=gauss:0.001"
    steps: Annotated[int, Meta(ge=0)] | None = 10
    step_size: Size | None = None
    attack_mode: Literal["eval", "train"] = "eval"
    weight_grad: Literal["both", "outer", "attack", "none"] = "both"
    normalize: Literal["none", "batch"] = "none"
    epochs: Count = 30
    batch_size: Count = 128
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Annotated[float, Meta(gt=0)] = 0.05
    momentum: Share = 0.9
    weight_decay: Size = 2e-4
    schedule: Literal["constant", "multistep", "cosine", "one-cycle"] = "cosine"
    milestones: tuple[Count, ...] = ()
    gamma: Share = 0.1
    validate_every: Annotated[int, Meta(ge=0)] = 1
    select: Literal["rob", "sa", "tr", "nat", "none"] = "rob"
    precision: Literal["32", "bf16", "16"] = "32"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    evaluate: EvaluationSettings = EvaluationSettings()

    def to_json(self) -> str:
        """The stored form; give it back with --config."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "TrainConfig":
        """What `to_json` wrote, checked."""
        return msgspec.json.decode(text, type=cls)


COMMAND_LINE = "the command line"


class EvaluateConfig(Struct, frozen=True, kw_only=True):
    """What to measure. What is not said here is as the checkpoint says."""

    dataset: str | None = None
    split: str = "test"
    attacks: tuple[str, ...] = ()
    eps: tuple[float, ...] = ()
    steps: int | None = None
    step_size: float | None = None
    restarts: int | None = None
    alpha_test: tuple[float, ...] | None = None
    kernel: str = "exp"
    metrics: tuple[str, ...] = ("nat", "rob", "sa", "tr")
    limit: int | None = None
    batch_size: int = 256
    seed: int = 0


@dataclass
class Layers:
    """Settings laid over each other, each with the place that set it."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def lay(self, layer: Mapping[str, Any], place: str) -> None:
        """Put a layer on top of what is there."""
        layer = _tidy(layer, place)
        below = dict(self.values)
        if "eps" in layer and "step_size" not in layer and below.get("step_size") and below.get("eps"):
            # a new radius keeps the ratio of step to radius
            self.values["step_size"] = in_proportion(below["step_size"], layer["eps"], below["eps"])
        for key, dependents in {"kernel": ("alpha",), "attack": ("steps", "step_size")}.items():
            if key in layer and key in below and Spec.parse(layer[key]).name != Spec.parse(below[key]).name:
                # the settings of another kernel or attack say nothing about this one
                for dependent in dependents:
                    self.values[dependent] = None
        for key, value in layer.items():
            self.values[key] = _over(value, below.get(key))
            self.places[key] = place


SPECS: Mapping[str, Mapping[str, str]] = {
    "dataset": {},
    "model": {},
    "defense": {},
    "kernel": {"alpha": "alpha"},
    "attack": {"eps": "eps", "norm": "norm", "steps": "steps", "step": "step_size"},
}
"""Settings that are component specs, and which of their parameters are settings of their own."""


def resolve(flags: Mapping[str, Any], file: Path | None = None) -> TrainConfig:
    """The configuration of a training run from flags, a config file, a preset and the defaults."""
    asked = {key: value for key, value in flags.items() if value is not None}
    from_file = read_file(file) if file else {}
    dataset = asked.get("dataset") or from_file.get("dataset") or "digits"
    preset = asked.get("preset") or from_file.get("preset") or presets.for_dataset(Spec.parse(dataset).name)

    layers = Layers()
    layers.lay({name: getattr(TrainConfig(), name) for name in ("kernel", "attack", "steps", "eps")}, "the defaults")
    if preset:
        settings = presets.load(preset)
        settings.pop("summary", None)
        by_defense = settings.pop("defenses", {})
        defense = Spec.parse(asked.get("defense") or from_file.get("defense") or settings.get("defense", "trades")).name
        layers.lay({"preset": preset, **settings}, f"preset {preset}")
        layers.lay(by_defense.get(defense, {}), f"preset {preset}, [defenses.{defense}]")
    layers.lay(from_file, str(file))
    layers.lay(asked, COMMAND_LINE)
    return _convert(layers)


def read_file(path: Path) -> dict[str, Any]:
    """A config file in TOML or JSON as plain values."""
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, not JSON, not TOML
        raise BadFile(f"{path} is not a config file: {error}", hint="a config is TOML, or JSON with the ending .json") from None
    if not isinstance(values, dict):
        raise BadFile(f"{path} holds no settings", hint="a config is a table of settings")
    return values


def summary(config: TrainConfig) -> str:
    """The resolved configuration in one short line."""
    alpha = "" if config.alpha is None else f", alpha {exact(config.alpha)}"
    attack = Spec.parse(config.attack).name
    if config.steps:
        attack += f", {config.steps} steps" + (f" of {exact(config.step_size)}" if config.step_size else "")
    parts = (
        f"{config.defense} with kernel {config.kernel}{alpha} on {config.dataset}, {config.model}",
        f"{config.norm} eps {exact(config.eps)}, {attack}",
        f"{config.epochs} epochs, batch {config.batch_size}, {config.optimizer} lr {config.lr:g} {config.schedule}",
        f"seed {config.seed}",
    )
    return "; ".join(parts)


def _tidy(layer: Mapping[str, Any], place: str, struct: type[Struct] = TrainConfig) -> dict[str, Any]:
    """A layer with known keys only, fractions read, and parameters that are settings moved out of the specs."""
    hints = get_type_hints(struct)
    tidy: dict[str, Any] = {}
    for key, value in layer.items():
        if key not in hints:
            raise UnknownName(f"{place}: there is no setting {key!r}", hint=did_you_mean(key, hints))
        if isinstance(value, Mapping) and hints[key] is EvaluationSettings:
            tidy[key] = _tidy(value, f"{place}, [{key}]", EvaluationSettings)
        else:
            tidy[key] = _read_number(value, hints[key], _where(place, key))
    for key in SPECS:
        if isinstance(tidy.get(key), str):
            _move_out(tidy, key, {name: setting for name, setting in SPECS[key].items() if setting in hints}, place)
    return tidy


def _move_out(layer: dict[str, Any], key: str, settings: Mapping[str, str], place: str) -> None:
    """`attack = "pgd:steps=20"` is `attack = "pgd"` and `steps = 20`; both at once is a contradiction."""
    spec = Spec.parse(layer[key]).absolute()
    for parameter, setting in settings.items():
        if parameter in spec.params:
            if setting in layer:
                name = setting.replace("_", "-")
                raise BadInput(f"{place} sets {name} twice: in {layer[key]!r} and by itself", hint="keep one of the two")
            layer[setting] = read_value(spec.params[parameter], {"norm": str, "steps": int}.get(setting, float))
    layer[key] = str(spec.without(*settings))


def _over(upper: Any, below: Any) -> Any:
    """A table lies over a table key by key; a spec of the same name keeps the parameters it had below."""
    if isinstance(upper, dict) and isinstance(below, dict):
        return {**below, **upper}
    if isinstance(upper, str) and isinstance(below, str) and ":" in below:
        spec, lower = Spec.parse(upper), Spec.parse(below)
        if spec.name == lower.name:
            value = lower.value if spec.value is None else spec.value
            return str(Spec(spec.name, value, {**lower.params, **spec.params}))
    return upper


def _read_number(value: Any, hint: Any, where: str) -> Any:
    """Numbers may be written as text, fractions among them (eps = "8/255"), and are finite."""
    if isinstance(value, list | tuple):
        return [_read_number(item, hint, where) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise BadInput(f"{where} is {value}", hint="write a finite number")
    takes_numbers = any(float in (kind, *get_args(kind)) for kind in (hint, *get_args(hint)))
    if not (isinstance(value, str) and takes_numbers):
        return value
    try:
        return number(value)
    except BadInput as problem:
        raise BadInput(f"{where}: {problem}", hint=problem.hint) from None


def _where(place: str, key: str) -> str:
    return f"--{key.replace('_', '-')}" if place == COMMAND_LINE else f"{place}: {key}"


def _convert(layers: Layers) -> TrainConfig:
    try:
        return msgspec.convert(layers.values, TrainConfig)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$.")
        key = where.rstrip("`")
        setting = re.split(r"[.\[]", key)[0]
        place = layers.places.get(setting, "the settings")
        choices = get_args(get_type_hints(TrainConfig)[setting]) if "enum" in problem else ()
        text = problem.replace("`float`", "a number").replace("`int`", "a whole number").replace("`str`", "text")
        raise BadInput(
            f"{_where(place, setting if place == COMMAND_LINE else key)}: {text[0].lower()}{text[1:]}",
            hint=f"it is one of {', '.join(choices)}" if choices else "`wmr train --help` explains the settings",
        ) from None
