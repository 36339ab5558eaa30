"""Read a study file: every key, type and name is checked before anything starts, and a mistake has its place. No torch."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from .. import local_code
from ..config import SPECS, TrainConfig, resolve, typed
from ..errors import BadFile, BadInput, UnknownName, WmrError, did_you_mean
from ..reading import parse_toml, read_text
from ..registry import Registry
from ..spec import Spec, check_path, exact
from ..storage.runs import default_name
from .study import Evaluation, Machine, Report, Run, Study

TOP = ("summary", "folder", "keep", "train", "grid", "evaluate", "report", "machine", "slurm")
IN_A_NAME = ("dataset", "defense", "kernel", "alpha", "seed")
"""Settings that the name of a run tells anyway, components without their parameters."""
MAX_RUNS = 10_000
"""Runs of a study. Reading this many takes seconds, and listing them is still of use."""
MAX_NAME = 200
"""Bytes of a run's name. File systems allow 255, and files beside the run folder add an ending."""


def read_study(file: Path, registry: Registry) -> Study:
    """A study file with every key and every name checked; a mistake is told with its place."""
    try:
        written = parse_toml(read_text(file))
    except OSError as error:
        raise BadFile(f"cannot read {file}: {error.strerror}", hint="a study is a TOML file") from None
    except ValueError as error:  # not UTF-8, not TOML
        raise BadFile(f"{file} is not a study: {error}", hint="a study is a TOML file") from None
    for key in written:
        if key not in TOP:
            raise UnknownName(f"{file}: there is no {key!r} in a study", hint=did_you_mean(key, TOP))
    texts = {key: typed(written[key], str, f"{file}: {key}") for key in ("summary", "folder", "keep") if key in written}
    report = _struct(Report, written.get("report", {}), f"{file}, [report]")
    for key in ("folder", "keep"):
        _check_paths(f"{file}: {key}", [texts[key]] if key in texts else [])
    _check_inside(f"{file}, [report]: out", report.out)
    for name in report.out:
        if not Path(name).suffix:
            raise BadInput(f"{file}, [report]: out: {name!r} has no ending", hint="write report.md, or another format")
    _check_inside(f"{file}, [report]: figures", [report.figures] if report.figures else [])
    runs = tuple(_runs(file, written, registry))
    tables = _tables(written.get("evaluate", [{}]), f"{file}: evaluate")
    evaluations = tuple(_evaluation(table, place, registry) for place, table in tables)
    return Study(
        file=file,
        summary=texts.get("summary", ""),
        folder=Path(texts.get("folder", f"runs/{file.stem}")),
        keep=file.parent / texts["keep"] if "keep" in texts else None,
        runs=runs,
        evaluations=evaluations,
        report=report,
        machine=_struct(Machine, written.get("machine", {}), f"{file}, [machine]"),
        slurm=dict(_table(written.get("slurm", {}), f"{file}, [slurm]")),
    )


def _runs(file: Path, written: Mapping[str, Any], registry: Registry) -> Iterator[Run]:
    """Every combination of every grid over what all runs share, each under its own name."""
    shared = _table(written.get("train", {}), f"{file}, [train]")
    resolve(shared, place=f"{file}, [train]")  # its mistakes are its own, and no grid's
    grids = list(_tables(written.get("grid", [{}]), f"{file}: grid"))
    if not grids:
        raise BadInput(f"{file}: grid is empty, so there are no runs", hint="leave it out for the one run of [train]")
    lists = [{key: value if isinstance(value, list) else [value] for key, value in grid.items()} for _, grid in grids]
    # before any combination is made, as there may be more than memory holds
    total = sum(math.prod(map(len, names.values())) for names in lists)
    if total > MAX_RUNS:
        hint = "leave out values, or split the study into several files with a folder each"
        raise BadInput(f"{file}: the grids make {total:,} runs, and a study has at most {MAX_RUNS:,}", hint=hint)
    found: list[Run] = []
    for (place, _), names in zip(grids, lists, strict=True):
        empty = next((key for key, values in names.items() if not values), None)
        if empty is not None:
            raise BadInput(f"{place}: {empty} has no value", hint="a list of a grid holds one value at least")
        for values in itertools.product(*names.values()):
            varied = dict(zip(names, values, strict=True))
            config = _resolved({**shared, **varied}, place, registry)
            name = _name(config, varied)
            if len(name.encode()) > MAX_NAME:
                problem = f"{place}: the name of a run has {len(name.encode()):,} bytes: {name[:40]}…"
                raise BadInput(problem, hint=f"a name has at most {MAX_NAME}; move long values of the grid to [train]")
            found.append(Run(name, config))
    twice = [name for name, times in Counter(run.name for run in found).items() if times > 1]
    if twice:
        raise BadInput(f"{file}: several runs are called {twice[0]}", hint="let the grids differ in what they name")
    # each setting with its first seed before any has its second: a study that is cut off can still compare
    yield from sorted(found, key=lambda run: run.config.seed)


def _check_paths(place: str, texts: Iterable[str]) -> None:
    """Raise BadInput for a text that cannot be a path."""
    for text in texts:
        try:
            check_path(text)
        except BadInput as problem:
            raise BadInput(f"{place}: {problem}", hint=problem.hint) from None


def _check_inside(place: str, texts: Iterable[str]) -> None:
    """Raise BadInput for a path that leaves the folder of the study: a study must not overwrite other files of the user."""
    texts = list(texts)
    _check_paths(place, texts)
    for text in texts:
        if Path(text).is_absolute() or any(part.startswith(".") for part in Path(text).parts):
            raise BadInput(f"{place}: {text!r} leaves the folder of the study or is hidden", hint="name a file inside it")


def _resolved(settings: Mapping[str, Any], place: str, registry: Registry) -> TrainConfig:
    config = resolve(settings, place=place)
    for kind in SPECS:
        _check_name(kind, getattr(config, kind), place, registry)
    return config


def _check_name(kind: str, text: str, place: str, registry: Registry) -> None:
    """A component that nobody offers is refused now; its parameters are checked by whoever builds it."""
    try:
        spec = Spec.parse(text)
        local_code.check(spec)
        if not spec.is_local:
            registry.find(kind, spec.name)
    except WmrError as problem:
        raise type(problem)(f"{place}: {problem}", hint=problem.hint) from None


def _name(config: TrainConfig, varied: Mapping[str, Any]) -> str:
    """`digits-trades-a2-s0`, with what its grid sets and this does not tell. It depends on no other run."""
    others = "".join(_told(key, value) for key, value in varied.items())
    return re.sub(r"[^\w.+-]+", "_", default_name(config) + others)


def _told(key: str, value: Any) -> str:
    """`-lr0.1`; of a component whose name is told already, its parameters: `-beta3` of the defense `trades:beta=3`."""
    if key not in IN_A_NAME:
        return f"-{key}{_short(value)}"
    if key not in SPECS:
        return ""
    spec, told = Spec.parse(value), (*SPECS[key], "path")
    named = (f"-{name}{_short(given)}" for name, given in spec.params.items() if name not in told)
    return "".join([*([] if spec.value is None else [f"-{spec.value}"]), *named])


def _short(value: Any) -> str:
    return exact(value) if isinstance(value, float) else str(value)


def _evaluation(table: Mapping[str, Any], place: str, registry: Registry) -> Evaluation:
    made: Evaluation = _struct(Evaluation, table, place)
    hints = get_type_hints(TrainConfig, include_extras=True)
    only: dict[str, list[Any]] = {}
    for key, value in made.only.items():
        if key not in hints:
            raise UnknownName(f"{place}, only: there is no setting {key!r}", hint=did_you_mean(key, hints))
        values = value if isinstance(value, list) else [value]
        only[key] = [typed(one, hints[key], f"{place}, only: {key}") for one in values]
        for name in only[key] if key in SPECS else ():
            _check_name(key, name, f"{place}, only", registry)
    for attack in made.attack or ():
        _check_name("attack", attack, place, registry)
    for kind in ("kernel", "dataset"):
        if getattr(made, kind) is not None:
            _check_name(kind, getattr(made, kind), place, registry)
    return msgspec.structs.replace(made, only=only)


def _struct(struct: type[Any], table: Any, place: str) -> Any:
    """A table as settings of their types, with a single value where a list is meant; unknown keys have their place."""
    hints = get_type_hints(struct, include_extras=True)
    values: dict[str, Any] = {}
    for key, value in _table(table, place).items():
        if key not in hints:
            raise UnknownName(f"{place}: there is no setting {key!r}", hint=did_you_mean(key, hints))
        wants_list = "tuple" in str(hints[key]) and not isinstance(value, list)
        values[key] = typed([value] if wants_list else value, hints[key], f"{place}: {key}")
    return struct(**values)


def _table(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(f"{place} is not a table of settings", hint="`wmr sweep --help` names a page with examples")
    return value


def _tables(value: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """One table or several, each with its place."""
    if isinstance(value, list):
        yield from ((f"{place} {number}", _table(one, f"{place} {number}")) for number, one in enumerate(value, 1))
    else:
        yield place, _table(value, place)
