"""How settings combine: flags, then the config file, then the preset, then the defaults.

A layer is a mapping with keys of `TrainConfig`. Each layer is checked alone, so that an error names
its place, and then overrides the layer below.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from .. import presets
from ..errors import BadFile, BadInput
from ..reading import SETTINGS_LIMIT, parse_json, parse_toml, read_text
from ..spec import Spec, format_number, read_value, scale_exactly
from .setting import (
    COMMAND_LINE,
    SCHEMA_DIALECT,
    SCHEMA_KEY,
    Struct,
    Value,
    allow_fractions,
    check_settings,
    check_value,
    list_settings,
    value_type,
)
from .structs import EvaluationSettings, TrainConfig

SPECS: Mapping[str, Mapping[str, str]] = {
    "dataset": {},
    "model": {},
    "defense": {},
    "kernel": {"alpha": "alpha"},
    "attack": {"eps": "eps", "norm": "norm", "steps": "steps", "step": "step_size"},
}
"""Settings that are component specs, and which of their parameters are settings of their own."""
DEPENDENT_SETTINGS = {"kernel": ("alpha",), "attack": ("steps", "step_size")}
"""Settings that have no meaning for another kernel or attack."""

Layer = Mapping[str, Any]


def resolve(flags: Layer, file: Path | None = None, place: str = COMMAND_LINE) -> TrainConfig:
    """Return the configuration of a training run. `place` is where the flags are written."""
    given = {key: value for key, value in flags.items() if value is not None}
    from_flags = _check_layer(given, place)
    from_file = _check_layer(read_config_file(file), str(file)) if file else {}
    explicit = {**from_file, **from_flags}
    defaults = TrainConfig()
    preset = explicit.get("preset")
    if preset is None:
        preset = _default_preset(Spec.parse(explicit.get("dataset", defaults.dataset)).name)

    # presets scale or extend these defaults; all others are filled in by the struct
    values: dict[str, Any] = {
        name: getattr(defaults, name) for name in ("kernel", "attack", "steps", "eps")
    }
    if preset is not None:
        defense = explicit.get("defense")
        name = Spec.parse(defense).name if defense else None
        for layer in _preset_layers(preset, name):
            values = _override(values, layer)
    for layer in (from_file, from_flags):
        values = _override(values, layer)
    return msgspec.convert(values, TrainConfig)


# a study resolves up to 10,000 runs; without the caches each would parse its preset again
_default_preset = lru_cache(presets.for_dataset)


@lru_cache
def _preset_layers(preset: str, defense: str | None) -> tuple[Layer, Layer]:
    """Return the settings of a preset, and those for this defense or the preset's own one."""
    settings = presets.load(preset)
    settings.pop("summary", None)
    by_defense = settings.pop("defenses", {})
    # without a flag the preset selects the defense
    if defense is None:
        defense = Spec.parse(settings.get("defense", TrainConfig().defense)).name
    shared = _check_layer({**settings, "preset": preset}, f"preset {preset}")
    own = _check_layer(by_defense.get(defense, {}), f"preset {preset}, [defenses.{defense}]")
    return shared, own


def read_config_file(path: Path) -> dict[str, Any]:
    """Read a config file in TOML or JSON; return its plain values."""
    try:
        text = read_text(path, SETTINGS_LIMIT)
        values = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    except OSError as error:
        raise BadFile(
            f"cannot read {path}: {error.strerror}", hint="`config` is a TOML or JSON file"
        ) from None
    except ValueError as error:  # not UTF-8, not JSON, not TOML
        raise BadFile(
            f"{path} is not a config file: {error}",
            hint="a config is TOML, or JSON with the ending .json",
        ) from None
    if not isinstance(values, dict):
        raise BadFile(f"{path} contains no settings", hint="a config is a table of settings")
    # for editors; in TOML most of them read the comment `#:schema FILE` instead
    values.pop(SCHEMA_KEY, None)
    return values


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of a config file."""
    (root,), definitions = msgspec.json.schema_components([TrainConfig])
    definitions = allow_fractions(definitions)
    definitions["TrainConfig"]["properties"][SCHEMA_KEY] = {
        "description": "The schema of this file.",
        "type": "string",
    }
    return {SCHEMA_KEY: SCHEMA_DIALECT, **root, "$defs": definitions}


def describe_config(config: TrainConfig) -> str:
    """Return the resolved configuration in one short line."""
    alpha = "" if config.alpha is None else f", alpha {format_number(config.alpha)}"
    epochs = "1 epoch" if config.epochs == 1 else f"{config.epochs} epochs"
    attack = Spec.parse(config.attack).name
    if config.steps:
        attack += f", {config.steps} steps"
        if config.step_size:
            attack += f" of {format_number(config.step_size)}"
    optimizer = f"{config.optimizer} lr {config.lr:g} {config.schedule}"
    init = "" if config.init is None else f" from {config.init}"
    parts = (
        f"{config.defense} with kernel {config.kernel}{alpha} on {config.dataset}, "
        f"{config.model}{init}",
        f"{config.norm} eps {format_number(config.eps)}, {attack}",
        f"{epochs}, batch {config.batch_size}, {optimizer}",
        f"seed {config.seed}",
    )
    return "; ".join(parts)


def _override(below: Layer, layer: Layer) -> dict[str, Any]:
    """Return the values below, replaced by those of the layer."""
    values = dict(below)
    if "eps" in layer and "eps" in below:
        _rescale_steps(values, layer["eps"], below["eps"])
    for key, dependents in DEPENDENT_SETTINGS.items():
        is_replaced = key in layer and key in below
        if is_replaced and Spec.parse(layer[key]).name != Spec.parse(below[key]).name:
            values.update(dict.fromkeys(dependents))
    for key, value in layer.items():
        if isinstance(value, dict):
            values[key] = _override(values.get(key, {}), value)
        elif key in SPECS:
            values[key] = _merge_specs(value, below.get(key))
        else:
            values[key] = value
    return values


def _rescale_steps(values: dict[str, Any], eps: float, old_eps: float) -> None:
    """Keep the ratio of step size to eps, in training and in evaluation."""
    if "evaluate" in values:
        values["evaluate"] = dict(values["evaluate"])
        _rescale_steps(values["evaluate"], eps, old_eps)
    if values.get("step_size") is None:
        return
    if old_eps:
        values["step_size"] = scale_exactly(values["step_size"], eps, old_eps)
    else:
        # no ratio to keep: the attack chooses its own step size
        values["step_size"] = None


def _merge_specs(upper: Value, below: Value) -> Value:
    """Return a spec with the parameters of the one below if both have the same name.

    A spec with an unnamed value replaces the one below: `timm:resnet18` is another model than
    `timm:resnet50`.
    """
    # without a colon there is nothing to keep
    if not (isinstance(upper, str) and isinstance(below, str) and ":" in below):
        return upper
    spec = Spec.parse(upper)
    lower = Spec.parse(below)
    if spec.name != lower.name or spec.value is not None:
        return upper
    return str(Spec(spec.name, lower.value, {**lower.params, **spec.params}))


def _check_layer(layer: Layer, place: str, struct: type[Struct] = TrainConfig) -> dict[str, Any]:
    """Return a layer with checked values, and with settings moved out of its specs."""
    settings = list_settings(struct)
    nested: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for key, value in layer.items():
        # `[evaluate]` is a layer of its own; any other table is a wrong type
        is_table = isinstance(value, Mapping) and key in settings
        if is_table and value_type(settings[key].hint) is EvaluationSettings:
            nested[key] = _check_layer(value, f"{place}, [{key}]", EvaluationSettings)
        else:
            plain[key] = value
    checked = {**check_settings(plain, struct, place), **nested}
    # absolute, as the paths in specs
    if checked.get("extra") is not None:
        checked["extra"] = str(Spec.parse(checked["extra"]).absolute())
    if checked.get("extra_labels") is not None:
        checked["extra_labels"] = str(Path(checked["extra_labels"]).absolute())
    for key, parameters in SPECS.items():
        if key in checked:
            own = {name: key for name, key in parameters.items() if key in settings}
            _extract_settings(checked, key, own, place)
    return checked


def _extract_settings(
    layer: dict[str, Any], key: str, parameters: Mapping[str, str], place: str
) -> None:
    """Split `attack = "pgd:steps=20"` into `attack = "pgd"` and `steps = 20`, in place."""
    text = layer[key]
    # absolute: a stored config must find the file from any folder
    spec = Spec.parse(text).absolute()
    for parameter, setting in parameters.items():
        if parameter not in spec.params:
            continue
        if setting in layer:
            raise BadInput(
                f"{place} sets `{setting}` twice: in {text!r} and as a setting",
                hint="keep one of the two",
            )
        where = f"{parameter} of {text!r}"
        hint = list_settings(TrainConfig)[setting].hint
        kind = value_type(hint)
        try:
            # the words of a `Literal` are checked with the setting
            value = read_value(spec.params[parameter], kind if kind in (int, float) else str)
        except BadInput as problem:
            raise BadInput(f"{where}: {problem}", hint=problem.hint) from None
        layer[setting] = check_value(value, hint, where)
    layer[key] = str(spec.without(*parameters))
