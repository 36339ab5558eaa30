"""Study files: which runs, how each is evaluated, what the report shows. No torch.

Every key, type and name is checked before anything starts, and each error names its place in the
file.
"""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from .. import local_code
from ..config import (
    SCHEMA_DIALECT,
    SCHEMA_KEY,
    SPECS,
    Compile,
    DeviceCount,
    EvaluateConfig,
    ReportContent,
    SaveMinutes,
    Struct,
    TrainConfig,
    allow_fractions,
    check_settings,
    check_value,
    is_list,
    list_settings,
    resolve,
)
from ..errors import BadFile, BadInput, UnknownName, WmrError, did_you_mean
from ..reading import parse_toml, read_text
from ..registry import Registry
from ..runtime.processes import count_usable_cores
from ..spec import MAX_THREADS, Spec, check_path, format_number
from ..storage.runs import default_run_name

Texts = Annotated[tuple[str, ...], Meta(min_length=1)]
CheckpointName = Literal["last", "best", "ema"]
UNAVAILABLE_SETTINGS = ("model", "layout", "fold")
"""Settings of `wmr evaluate` that a study does not have: the run determines them."""
STUDY_KEYS = (
    "summary", "folder", "keep", "train", "grid", "evaluate", "report", "machine", "slurm",
)  # fmt: skip
NAMED_SETTINGS = ("dataset", "defense", "kernel", "alpha", "seed")
"""Settings that the default name of a run contains, components without their parameters."""
MAX_RUNS = 10_000
"""Runs of a study. Reading this many takes seconds, and a list of them is still of use."""
MAX_NAME_BYTES = 200
"""Length of a run's name. File systems allow 255, and files beside the run folder add an ending."""

Settings = TypeVar("Settings", bound=Struct)
Table = Mapping[str, Any]
"""A table of a TOML file, before its values are checked."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One `wmr evaluate` of every run, or of those that match `only`.

    The checkpoint supplies missing settings.
    """

    checkpoint: CheckpointName = "last"
    only: Mapping[str, list[Any]] = field(default_factory=dict)
    """training settings, each with the values of which a run must have one"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """settings of `wmr evaluate` that the study file gives"""

    @property
    def key(self) -> str:
        """Identity among the evaluations of a run; ledgers store it."""
        # ledgers of 0.1 contain this text, so its format must not change
        return json.dumps([self.checkpoint, self.settings], sort_keys=True)

    def flags(self) -> list[str]:
        """Return the flags of `wmr evaluate`."""
        return [word for name, value in self.settings.items() for word in _flag(name, value)]

    def config(self) -> EvaluateConfig:
        """Return the settings as `wmr evaluate` reads them from its flags."""
        return EvaluateConfig.from_settings(self.settings)


class ReportSettings(ReportContent, frozen=True, kw_only=True):
    """Settings of `wmr report`; files are in the study's folder."""

    out: Annotated[Texts, Meta(description="Files, each with the ending of its format.")] = (
        "report.md",
        "report.html",
        "report.json",
    )
    figures: Annotated[str, Meta(description="Folder of the figures; empty for none.")] = "figures"
    compare: Annotated[bool, Meta(description="Paired differences between models.")] = True


class Machine(Struct, frozen=True, kw_only=True):
    """Where runs take place. Runs at the same time are distributed over the devices.

    The number of threads changes the last bits of a sum, so it belongs to the study and not to a
    machine.
    """

    device: Annotated[Texts, Meta(description="Devices of parallel runs.")] = ("auto",)
    devices: DeviceCount = None
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_THREADS)], Meta(description="Threads of each process.")
    ] = 1
    compile: Compile = False
    save_minutes: SaveMinutes | None = None

    @property
    def default_jobs(self) -> int:
        """Default number of parallel runs: one per device, on a CPU as many as its cores carry."""
        if self.device == ("cpu",):
            return max(1, count_usable_cores() // (self.threads * (self.devices or 1)))
        return len(self.device)


@dataclass(frozen=True)
class Run:
    """One training run of a study."""

    name: str
    config: TrainConfig


@dataclass(frozen=True, kw_only=True)
class Study:
    """The content of a study file."""

    file: Path
    summary: str
    folder: Path
    keep: Path | None
    """where small copies of finished runs are kept, to be published with the study"""
    runs: tuple[Run, ...]
    evaluations: tuple[Evaluation, ...]
    report: ReportSettings
    machine: Machine
    slurm: Table

    def path(self, run: Run) -> Path:
        """Return the folder of a run."""
        return self.folder / run.name

    def evaluations_of(self, run: Run) -> list[Evaluation]:
        """Return the evaluations of a run."""
        return [each for each in self.evaluations if _matches(run.config, each.only)]

    def unused_evaluations(self) -> list[int]:
        """Return the numbers, from 1, of the evaluations whose `only` matches no run."""
        used = [evaluation for run in self.runs for evaluation in self.evaluations_of(run)]
        numbered = enumerate(self.evaluations, 1)
        return [number for number, evaluation in numbered if evaluation not in used]


def _matches(config: TrainConfig, only: Mapping[str, list[Any]]) -> bool:
    """Return whether each setting has one of its values.

    A component may be given without its parameters.
    """
    for key, values in only.items():
        value = getattr(config, key)
        names = [value, Spec.parse(value).name] if key in SPECS else [value]
        if not any(name in values for name in names):
            return False
    return True


def _flag(name: str, value: object) -> Iterator[str]:
    """Yield a setting of `wmr evaluate` as words of a command line."""
    declared = list_settings(EvaluateConfig)[name].flag
    is_repeated = declared is not None and declared.is_repeated
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        yield flag
    elif value is False:
        # all switches of `wmr evaluate` that a study has are off by default
        return
    elif not isinstance(value, tuple):
        yield from (flag, _flag_value(value))
    elif is_repeated:
        for item in value:
            yield from (flag, _flag_value(item))
    else:
        yield from (flag, ",".join(map(_flag_value, value)))


def _flag_value(value: object) -> str:
    # repr of a float reads back as the same number
    return repr(value) if isinstance(value, float) else str(value)


def read_study(file: Path, registry: Registry) -> Study:
    """Read a study file and check every key and every component name."""
    tables = _read_tables(file)
    texts = {
        key: check_value(tables[key], str, f"{file}: {key}")
        for key in ("summary", "folder", "keep")
        if key in tables
    }
    for key in ("folder", "keep"):
        if key in texts:
            _check_path(texts[key], f"{file}: {key}")
    report = _convert_table(tables.get("report", {}), ReportSettings, f"{file}, [report]")
    _check_report(report, f"{file}, [report]")
    runs = _make_runs(file, tables, registry)
    evaluations = tuple(
        _make_evaluation(table, place, registry)
        for place, table in _list_tables(tables.get("evaluate", [{}]), f"{file}: evaluate")
    )
    return Study(
        file=file,
        summary=texts.get("summary", ""),
        folder=Path(texts.get("folder", f"runs/{file.stem}")),
        # relative to the file, because both are published together
        keep=file.parent / texts["keep"] if "keep" in texts else None,
        runs=runs,
        evaluations=evaluations,
        report=report,
        machine=_convert_table(tables.get("machine", {}), Machine, f"{file}, [machine]"),
        slurm=dict(_check_table(tables.get("slurm", {}), f"{file}, [slurm]")),
    )


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of a study file."""
    structs = (TrainConfig, EvaluateConfig, ReportSettings, Machine)
    (train, _, report, machine), definitions = msgspec.json.schema_components(structs)
    definitions = allow_fractions(definitions)
    train_settings = definitions["TrainConfig"]["properties"]
    definitions["Evaluation"] = _make_evaluation_schema(
        definitions.pop("EvaluateConfig"), list(train_settings)
    )
    for name in ("Evaluation", "ReportSettings", "Machine"):
        properties = definitions[name]["properties"]
        for key, schema in properties.items():
            properties[key] = _allow_single(schema)
    varied = {key: _allow_list(schema) for key, schema in train_settings.items()}
    definitions["Grid"] = {
        "description": "Training settings, each with one value or several.",
        "type": "object",
        "properties": varied,
        "additionalProperties": False,
    }
    properties = {
        "summary": {"type": "string", "description": "Title of the study."},
        "folder": {"type": "string", "description": "Folder of runs and report."},
        "keep": {"type": "string", "description": "Folder of small copies of finished runs."},
        "train": train,
        "grid": _allow_list({"$ref": "#/$defs/Grid"}),
        "evaluate": _allow_list({"$ref": "#/$defs/Evaluation"}),
        "report": report,
        "machine": machine,
        "slurm": {"type": "object", "description": "Settings of Slurm jobs, as for submitit."},
    }
    return {
        SCHEMA_KEY: SCHEMA_DIALECT,
        "title": "Study",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": definitions,
    }


def _make_evaluation_schema(config: dict[str, Any], train_keys: list[str]) -> dict[str, Any]:
    """Return the schema of `[[evaluate]]` from that of `EvaluateConfig`."""
    properties: dict[str, Any] = {
        "checkpoint": {
            "description": "Checkpoint of each run.",
            "enum": list(get_args(CheckpointName)),
            "default": Evaluation.checkpoint,
        },
        "only": {
            "description": "Training settings, each with the value or values a run must have.",
            "type": "object",
            "propertyNames": {"enum": train_keys},
        },
    }
    for key, declared in list_settings(EvaluateConfig).items():
        if key not in UNAVAILABLE_SETTINGS:
            properties[key] = config["properties"][declared.name]
    return {**config, "title": "Evaluation", "properties": properties}


def _allow_single(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a setting, with one item allowed in place of a list."""
    choices = schema.get("anyOf", [schema])
    items = [choice["items"] for choice in choices if choice.get("type") == "array"]
    if not items:
        return schema
    kept: dict[str, Any] = {key: schema[key] for key in ("description", "default") if key in schema}
    choices = [{key: choice[key] for key in choice if key not in kept} for choice in choices]
    return {"anyOf": [*choices, *items], **kept}


def _allow_list(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}


def _read_tables(file: Path) -> Table:
    try:
        tables = parse_toml(read_text(file))
    except OSError as error:
        raise BadFile(
            f"cannot read {file}: {error.strerror}", hint="a study is a TOML file"
        ) from None
    except ValueError as error:  # not UTF-8, not TOML
        raise BadFile(f"{file} is not a study: {error}", hint="a study is a TOML file") from None
    for key in tables:
        if key not in STUDY_KEYS:
            raise UnknownName(
                f"{file}: a study has no key {key!r}", hint=did_you_mean(key, STUDY_KEYS)
            )
    return tables


def _check_report(report: ReportSettings, place: str) -> None:
    for name in report.out:
        _check_inside(name, f"{place}: out")
        if not Path(name).suffix:
            raise BadInput(
                f"{place}: out: {name!r} has no ending",
                hint="write report.md, or another format",
            )
    if report.figures:
        _check_inside(report.figures, f"{place}: figures")


def _check_path(text: str, place: str) -> None:
    """Raise BadInput for a text that cannot be a path."""
    try:
        check_path(text)
    except BadInput as error:
        raise BadInput(f"{place}: {error}", hint=error.hint) from None


def _check_inside(text: str, place: str) -> None:
    """Raise BadInput for a path that leaves the study's folder."""
    # a study from elsewhere must not overwrite other files of the user
    _check_path(text, place)
    path = Path(text)
    if path.is_absolute() or any(part.startswith(".") for part in path.parts):
        raise BadInput(
            f"{place}: {text!r} leaves the folder of the study or is hidden",
            hint="name a file inside it",
        )


def _make_runs(file: Path, tables: Table, registry: Registry) -> tuple[Run, ...]:
    """Combine every grid with [train]; return the runs in order of their seeds."""
    shared = _check_table(tables.get("train", {}), f"{file}, [train]")
    # checked alone first, so that a mistake in [train] is not reported as one of a grid
    resolve(shared, place=f"{file}, [train]")
    grids = _read_grids(file, tables)
    runs = [
        _make_run(shared, combination, place, registry)
        for place, grid in grids
        for combination in _combine(grid)
    ]
    counts = Counter(run.name for run in runs)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise BadInput(
            f"{file}: several runs are called {repeated[0]}",
            hint="let the grids differ in settings that are part of the name",
        )
    # all settings with their first seed come before any second seed, so that an interrupted study
    # can be compared
    return tuple(sorted(runs, key=lambda run: run.config.seed))


Grid = dict[str, list[Any]]


def _read_grids(file: Path, tables: Table) -> list[tuple[str, Grid]]:
    """Return each grid with its place, after a check that they make neither no run nor too many."""
    grids: list[tuple[str, Grid]] = []
    for place, table in _list_tables(tables.get("grid", [{}]), f"{file}: grid"):
        grid = {key: value if isinstance(value, list) else [value] for key, value in table.items()}
        grids.append((place, grid))
    if not grids:
        raise BadInput(
            f"{file}: grid is empty, so the study has no runs",
            hint="leave it out for the one run of [train]",
        )
    # before any combination is made, because memory may not hold all of them
    total = sum(math.prod(map(len, grid.values())) for _, grid in grids)
    if total > MAX_RUNS:
        raise BadInput(
            f"{file}: the grids make {total:,} runs, and a study has at most {MAX_RUNS:,}",
            hint="leave out values, or split the study into several files with a folder each",
        )
    for place, grid in grids:
        for key, values in grid.items():
            if not values:
                raise BadInput(
                    f"{place}: {key} has no value", hint="a list of a grid has at least one value"
                )
    return grids


def _combine(grid: Grid) -> Iterator[dict[str, Any]]:
    """Yield every combination of the values of a grid."""
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _make_run(shared: Table, varied: Table, place: str, registry: Registry) -> Run:
    config = resolve({**shared, **varied}, place=place)
    for kind in SPECS:
        _check_component(kind, getattr(config, kind), place, registry)
    if config.extra is not None:
        _check_component("dataset", config.extra, place, registry)
    name = _run_name(config, varied)
    length = len(name.encode())
    if length > MAX_NAME_BYTES:
        raise BadInput(
            f"{place}: the name of a run has {length:,} bytes: {name[:40]}…",
            hint=f"a name has at most {MAX_NAME_BYTES}; move long values of the grid to [train]",
        )
    return Run(name, config)


def _check_component(kind: str, text: str, place: str, registry: Registry) -> None:
    """Raise for an unknown component. Its parameters are checked when it is built."""
    try:
        spec = Spec.parse(text)
        local_code.check(spec)
        if not spec.is_local:
            registry.find(kind, spec.name)
    except WmrError as error:
        raise type(error)(f"{place}: {error}", hint=error.hint) from None


def _run_name(config: TrainConfig, varied: Table) -> str:
    """Return `digits-trades-a2-s0` and the settings of the grid that are not in it.

    Other runs do not matter.
    """
    suffix = "".join(_name_suffix(key, value) for key, value in varied.items())
    # the name of one folder: a slash, as in names of presets, would make a folder inside
    return re.sub(r"[^\w.+-]+", "_", default_run_name(config) + suffix)


def _name_suffix(key: str, value: object) -> str:
    """Return `-lr0.1`.

    For a component whose name is there already, its parameters: `-beta3` for `trades:beta=3`.
    """
    if key not in NAMED_SETTINGS:
        return f"-{key}{_short_text(value)}"
    if key not in SPECS:
        return ""
    spec = Spec.parse(str(value))
    named = (*SPECS[key], "path")
    parts = [] if spec.value is None else [f"-{spec.value}"]
    for name, parameter in spec.params.items():
        if name not in named:
            parts.append(f"-{name}{_short_text(parameter)}")
    return "".join(parts)


def _short_text(value: object) -> str:
    return format_number(value) if isinstance(value, float) else str(value)


def _make_evaluation(table: Table, place: str, registry: Registry) -> Evaluation:
    settings = dict(table)
    checkpoint: CheckpointName = check_value(
        settings.pop("checkpoint", Evaluation.checkpoint), CheckpointName, f"{place}: checkpoint"
    )
    only = _check_only(settings.pop("only", {}), place, registry)
    for key in UNAVAILABLE_SETTINGS:
        if key in settings:
            raise UnknownName(f"{place}: unknown setting {key!r}", hint="the run determines it")
    settings = _check_settings(settings, EvaluateConfig, place)
    # an empty list would be no flag at all, and so mean the default
    for key, value in settings.items():
        if value == ():
            raise BadInput(f"{place}: {key} is empty", hint="leave it out for the default")
    for kind in ("attack", "kernel", "dataset", "verifier"):
        specs = settings.get("certify" if kind == "verifier" else kind, ())
        for spec in specs if isinstance(specs, tuple) else [specs]:
            _check_component(kind, spec, place, registry)
    return Evaluation(checkpoint=checkpoint, only=only, settings=settings)


def _check_only(table: object, place: str, registry: Registry) -> dict[str, list[Any]]:
    """Check the training settings that select runs; return each with a list of values."""
    settings = list_settings(TrainConfig)
    only: dict[str, list[Any]] = {}
    for key, value in _check_table(table, f"{place}: only").items():
        if key not in settings:
            raise UnknownName(
                f"{place}, only: unknown setting {key!r}", hint=did_you_mean(key, settings)
            )
        values = value if isinstance(value, list) else [value]
        hint = settings[key].hint
        only[key] = [check_value(item, hint, f"{place}, only: {key}") for item in values]
        if key in SPECS:
            for name in only[key]:
                _check_component(key, name, f"{place}, only", registry)
    return only


def _check_settings(table: object, struct: type[Struct], place: str) -> dict[str, Any]:
    """Check a table of settings. A single value may stand for a list of one."""
    settings = list_settings(struct)
    values: dict[str, Any] = {}
    for key, value in _check_table(table, place).items():
        expects_list = key in settings and is_list(settings[key].hint)
        values[key] = [value] if expects_list and not isinstance(value, list) else value
    return check_settings(values, struct, place)


def _convert_table(table: object, struct: type[Settings], place: str) -> Settings:
    return struct.from_settings(_check_settings(table, struct, place))


def _check_table(value: object, place: str) -> Table:
    if not isinstance(value, dict):
        raise BadInput(
            f"{place} is not a table of settings",
            hint="docs/sweeps.md explains study files",
        )
    return value


def _list_tables(value: object, place: str) -> Iterable[tuple[str, Table]]:
    """Return one table or several, each with its place."""
    if not isinstance(value, list):
        return [(place, _check_table(value, place))]
    places = [f"{place} {number}" for number in range(1, len(value) + 1)]
    return [(each, _check_table(table, each)) for each, table in zip(places, value, strict=True)]
