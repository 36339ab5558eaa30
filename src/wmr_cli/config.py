"""What a user can set. Flags win over the file, the file over the preset, the preset over the defaults.

A layer is a plain mapping with the names of `TrainConfig`. Each is checked by itself, so that an error can name its
place, and then laid over the one below.
"""

import math
import os
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from . import presets
from .errors import BadFile, BadInput, UnknownName, did_you_mean
from .reading import SETTINGS_LIMIT, decode_json, parse_json, parse_toml, read_text
from .spec import (
    LARGEST_COUNT,
    LARGEST_SEED,
    Spec,
    check_text,
    format_number,
    parse_number,
    read_value,
    scale_exactly,
)

Size = Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=1, le=LARGEST_COUNT)]
CountOrZero = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
Seed = Annotated[int, Meta(ge=0, le=LARGEST_SEED)]
Layout = Literal["auto", "channels-last", "contiguous"]
Share = Annotated[float, Meta(ge=0, le=1)]


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A set of settings; unknown keys are refused."""


class EvaluationSettings(Struct, frozen=True, kw_only=True):
    """How checkpoints of a run are evaluated unless the user says otherwise."""

    attack: str = "pgd"
    steps: Count | None = 20
    step_size: Size | None = None
    alpha_test: Annotated[tuple[Size, ...], Meta(min_length=1)] = (1.0, 1.5, 2.0)


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
    steps: CountOrZero | None = 10
    step_size: Size | None = None
    attack_mode: Literal["eval", "train"] = "eval"
    weight_grad: Literal["both", "outer", "attack", "none"] = "both"
    normalize: Literal["none", "batch"] = "none"
    max_weight: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    epochs: Count = 30
    batch_size: Count = 64
    augment: str = "none"
    split_seed: Seed = 0
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    lr: Annotated[float, Meta(gt=0, le=1e9)] = 0.002
    momentum: Share = 0.9
    weight_decay: Size = 0.0
    decay: Literal["all", "weights"] = "all"
    clip_grad: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    label_smoothing: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    ema: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    schedule: Literal["constant", "multistep", "cosine", "one-cycle"] = "one-cycle"
    milestones: tuple[Count, ...] = ()
    gamma: Share = 0.1
    warmup: Share = 0.0
    eps_ramp: Share = 0.0
    alpha_ramp: Share = 0.0
    validate_every: CountOrZero = 1
    select: Literal["rob", "sa", "tr", "nat", "none"] = "rob"
    precision: Literal["32", "bf16", "16"] = "32"
    layout: Layout = "auto"
    fold: bool = True
    seed: Seed = 0
    evaluate: EvaluationSettings = EvaluationSettings()

    def to_json(self) -> str:
        """The stored form; give it back with --config."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "TrainConfig":
        """What `to_json` wrote, checked."""
        return decode_json(text, cls)


COMMAND_LINE = "the command line"
SCHEMA_KEY = "$schema"
SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
METRICS = ("nat", "rob", "sa", "tr")
"""What is measured unless the user says otherwise; `dro` is the fifth."""


def default_data_dir() -> Path:
    """Where data sets are unless the user says otherwise."""
    try:
        return Path(os.environ.get("WMR_DATA_DIR") or Path.home() / ".cache" / "wmr" / "data")
    except RuntimeError:
        raise BadInput(
            "the home folder is not known",
            hint="say where data are with --data-dir or WMR_DATA_DIR",
        ) from None


class EvaluateConfig(Struct, frozen=True, kw_only=True):
    """What to measure. What is not said here is as the checkpoint says."""

    dataset: str | None = None
    model: str | None = None
    split: str = "test"
    attacks: tuple[str, ...] = ()
    eps: tuple[float, ...] = ()
    steps: int | None = None
    step_size: float | None = None
    restarts: int | None = None
    alpha_test: tuple[float, ...] | None = None
    kernel: str = "exp"
    metrics: tuple[str, ...] = METRICS
    rho: tuple[float, ...] | None = None
    dro_loss: Literal["ce", "margin", "zero-one"] = "ce"
    per_class: bool = False
    repeats: int = 1
    ci: Literal["delta", "bootstrap"] = "delta"
    checks: bool = False
    limit: int | None = None
    batch_size: int = 256
    layout: Layout = "auto"
    fold: bool = True
    seed: int = 0


SPECS: Mapping[str, Mapping[str, str]] = {
    "dataset": {},
    "model": {},
    "defense": {},
    "kernel": {"alpha": "alpha"},
    "attack": {"eps": "eps", "norm": "norm", "steps": "steps", "step": "step_size"},
}
"""Settings that are component specs, and which of their parameters are settings of their own."""


def resolve(
    flags: Mapping[str, Any], file: Path | None = None, place: str = COMMAND_LINE
) -> TrainConfig:
    """The configuration of a training run from flags, a config file, a preset and the defaults; `place` has the flags."""
    asked = _tidy({key: value for key, value in flags.items() if value is not None}, place)
    from_file = _tidy(read_file(file), str(file)) if file else {}
    said = {**from_file, **asked}
    preset = said.get("preset")
    if preset is None:
        preset = _default_preset(Spec.parse(said.get("dataset", "digits")).name)

    values = {name: getattr(TrainConfig(), name) for name in ("kernel", "attack", "steps", "eps")}
    if preset is not None:
        for layer in _preset_layers(
            preset, Spec.parse(said["defense"]).name if said.get("defense") else None
        ):
            values = _lay(values, layer)
    return msgspec.convert(_lay(_lay(values, from_file), asked), TrainConfig)


# a study resolves up to 10,000 runs; without the caches each parses its preset and all annotations again
_default_preset = lru_cache(presets.for_dataset)


@cache
def _type_hints(struct: type[Struct]) -> Mapping[str, Any]:
    return get_type_hints(struct, include_extras=True)


@lru_cache
def _preset_layers(preset: str, defense: str | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the settings of a preset, and those that it gives this defense or its own default one."""
    settings = presets.load(preset)
    settings.pop("summary", None)
    by_defense = settings.pop("defenses", {})
    defense = defense or Spec.parse(settings.get("defense", "trades")).name
    own = _tidy(by_defense.get(defense, {}), f"preset {preset}, [defenses.{defense}]")
    return _tidy({**settings, "preset": preset}, f"preset {preset}"), own


def read_file(path: Path) -> dict[str, Any]:
    """A config file in TOML or JSON as plain values."""
    try:
        text = read_text(path, SETTINGS_LIMIT)
        values = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    except OSError as error:
        raise BadFile(
            f"cannot read {path}: {error.strerror}", hint="--config names a TOML or JSON file"
        ) from None
    except ValueError as error:  # not UTF-8, not JSON, not TOML
        raise BadFile(
            f"{path} is not a config file: {error}",
            hint="a config is TOML, or JSON with the ending .json",
        ) from None
    if not isinstance(values, dict):
        raise BadFile(f"{path} holds no settings", hint="a config is a table of settings")
    if path.suffix == ".json":
        # for editors; in TOML they read the comment `#:schema FILE` instead
        values.pop(SCHEMA_KEY, None)
    return values


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of a config file."""
    (root,), definitions = msgspec.json.schema_components([TrainConfig])
    definitions = allow_fractions(definitions)
    definitions["TrainConfig"]["properties"][SCHEMA_KEY] = {"type": "string"}
    return {SCHEMA_KEY: SCHEMA_DIALECT, **root, "$defs": definitions}


def allow_fractions(schema: Any) -> Any:
    """Return a schema whose numbers may also be text such as "8/255"."""
    if isinstance(schema, list):
        return [allow_fractions(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    allowed = {key: allow_fractions(part) for key, part in schema.items()}
    if allowed.get("type") == "number":
        # bounds stay: JSON Schema applies them to numbers only
        allowed["type"] = ["number", "string"]
    return allowed


def summary(config: TrainConfig) -> str:
    """The resolved configuration in one short line."""
    alpha = "" if config.alpha is None else f", alpha {format_number(config.alpha)}"
    epochs = "1 epoch" if config.epochs == 1 else f"{config.epochs} epochs"
    attack = Spec.parse(config.attack).name
    if config.steps:
        attack += f", {config.steps} steps" + (
            f" of {format_number(config.step_size)}" if config.step_size else ""
        )
    parts = (
        f"{config.defense} with kernel {config.kernel}{alpha} on {config.dataset}, {config.model}",
        f"{config.norm} eps {format_number(config.eps)}, {attack}",
        f"{epochs}, batch {config.batch_size}, {config.optimizer} lr {config.lr:g} {config.schedule}",
        f"seed {config.seed}",
    )
    return "; ".join(parts)


def _lay(below: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """A layer over what lies below it."""
    values = dict(below)
    if "eps" in layer and "eps" in below:
        _keep_ratio(values, layer["eps"], below["eps"])
    for key, dependents in {"kernel": ("alpha",), "attack": ("steps", "step_size")}.items():
        if (
            key in layer
            and key in below
            and Spec.parse(layer[key]).name != Spec.parse(below[key]).name
        ):
            # the settings of another kernel or attack say nothing about this one
            values.update(dict.fromkeys(dependents))
    for key, value in layer.items():
        if isinstance(value, dict):
            values[key] = _lay(values.get(key, {}), value)
        else:
            values[key] = _over(value, below.get(key)) if key in SPECS else value
    return values


def _keep_ratio(values: dict[str, Any], eps: float, old_eps: float) -> None:
    """A new radius keeps the ratio of step to radius, in training and in evaluation."""
    if "evaluate" in values:
        values["evaluate"] = dict(values["evaluate"])
        _keep_ratio(values["evaluate"], eps, old_eps)
    if values.get("step_size") is not None:
        values["step_size"] = scale_exactly(values["step_size"], eps, old_eps) if old_eps else None


def _over(upper: Any, below: Any) -> Any:
    """A spec of the same name keeps the parameters it had below, unless it is written with a bare value."""
    if not (isinstance(upper, str) and isinstance(below, str) and ":" in below):
        return upper
    spec, lower = Spec.parse(upper), Spec.parse(below)
    if spec.name != lower.name or spec.value is not None:
        return upper
    return str(Spec(spec.name, lower.value, {**lower.params, **spec.params}))


def _tidy(
    layer: Mapping[str, Any], place: str, struct: type[Struct] = TrainConfig
) -> dict[str, Any]:
    """A layer with known keys and values of their type, and parameters that are settings moved out of the specs."""
    hints = _type_hints(struct)
    tidy: dict[str, Any] = {}
    for key, value in layer.items():
        if key not in hints:
            raise UnknownName(
                f"{place}: there is no setting {key!r}", hint=did_you_mean(key, hints)
            )
        if isinstance(value, Mapping) and hints[key] is EvaluationSettings:
            tidy[key] = _tidy(value, f"{place}, [{key}]", EvaluationSettings)
        else:
            tidy[key] = typed(
                value,
                hints[key],
                f"--{key.replace('_', '-')}" if place == COMMAND_LINE else f"{place}: {key}",
            )
    for key in SPECS:
        if key in tidy:
            _move_out(
                tidy,
                key,
                {name: setting for name, setting in SPECS[key].items() if setting in hints},
                place,
            )
    return tidy


def _move_out(layer: dict[str, Any], key: str, settings: Mapping[str, str], place: str) -> None:
    """`attack = "pgd:steps=20"` is `attack = "pgd"` and `steps = 20`; both at once is a contradiction."""
    spec = Spec.parse(layer[key]).absolute()
    hints = _type_hints(TrainConfig)
    for parameter, setting in settings.items():
        if parameter in spec.params:
            if setting in layer:
                name = setting.replace("_", "-")
                raise BadInput(
                    f"{place} sets {name} twice: in {layer[key]!r} and by itself",
                    hint="keep one of the two",
                )
            where = f"{parameter} of {layer[key]!r}"
            try:
                read = read_value(
                    spec.params[parameter], {"norm": str, "steps": int}.get(setting, float)
                )
            except BadInput as problem:
                raise BadInput(f"{where}: {problem}", hint=problem.hint) from None
            layer[setting] = typed(read, hints[setting], where)
    layer[key] = str(spec.without(*settings))


def typed(value: Any, hint: Any, where: str) -> Any:
    """A value of its setting's type. Numbers may be written as text, fractions among them, and are finite."""
    try:
        return msgspec.convert(_finite(value, hint), hint)
    except BadInput as problem:
        raise BadInput(f"{where}: {problem}", hint=problem.hint) from None
    except OverflowError:
        raise BadInput(
            f"{where}: the number is too large", hint="numbers are at most 1e9, seeds 2**63 - 1"
        ) from None
    except msgspec.ValidationError as error:
        text, _, item = str(error).partition(" - at `$")
        for kind, word in {
            "`float`": "a number",
            "`int`": "a whole number",
            "`str`": "text",
        }.items():
            text = text.replace(kind, word)
        choices = list(_choices(hint)) if "enum" in text else []
        remedy = (
            f"it is one of {', '.join(choices)}"
            if choices
            else "`wmr train --help` explains the settings"
        )
        raise BadInput(f"{where}{item.rstrip('`')}: {text[0].lower()}{text[1:]}", remedy) from None


def _choices(hint: Any) -> Iterator[str]:
    """The words that a type allows, wherever in it they stand."""
    for part in get_args(hint):
        yield from [part] if isinstance(part, str) else _choices(part)


def _finite(value: Any, hint: Any) -> Any:
    """Numbers read and checked, wherever they stand."""
    if isinstance(value, list | tuple):
        return [_finite(item, hint) for item in value]
    if isinstance(value, str):
        check_text(value)
    if isinstance(value, str) and "float" in str(hint):
        return parse_number(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise BadInput(
            f"{value} is not a finite number",
            hint="write a number such as 0.3 or a fraction such as 8/255",
        )
    return value
