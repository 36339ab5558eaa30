"""What a study is: which runs, how each is evaluated, what the report shows. No torch."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..config import SPECS, Count, CountOrZero, EvaluateConfig, Seed, Size, Struct, TrainConfig
from ..spec import MAX_DEVICES, MAX_MINUTES, MAX_THREADS, Spec
from .trials import cores

Texts = Annotated[tuple[str, ...], Meta(min_length=1)]
Sizes = Annotated[tuple[Size, ...], Meta(min_length=1)]
REPEATED = ("attack", "eps")
"""Flags of `wmr evaluate` that are given once for each value; other lists are joined by commas."""


class Evaluation(Struct, frozen=True, kw_only=True):
    """One `wmr evaluate` of every run, or of those that `only` names; what is not said is as the checkpoint says."""

    checkpoint: Literal["last", "best", "ema"] = "last"
    only: dict[str, Any] = msgspec.field(default_factory=dict)
    """settings of training, each with the value or values that a run must have"""
    dataset: str | None = None
    split: str | None = None
    attack: Texts | None = None
    eps: Sizes | None = None
    steps: CountOrZero | None = None
    step_size: Size | None = None
    restarts: Count | None = None
    repeats: Count | None = None
    alpha_test: Sizes | None = None
    kernel: str | None = None
    metrics: tuple[Literal["nat", "rob", "sa", "tr", "dro"], ...] | None = None
    rho: Sizes | None = None
    dro_loss: Literal["ce", "margin", "zero-one"] | None = None
    per_class: bool | None = None
    ci: Literal["delta", "bootstrap"] | None = None
    checks: bool | None = None
    limit: Count | None = None
    batch_size: Count | None = None
    seed: Seed | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """What is said of the evaluation itself."""
        names = (name for name in self.__struct_fields__ if name not in ("checkpoint", "only"))
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def key(self) -> str:
        """What tells it from every other evaluation of a run."""
        return json.dumps([self.checkpoint, self.asked], sort_keys=True)

    def words(self) -> list[str]:
        """The flags of `wmr evaluate`."""
        return [word for name, value in self.asked.items() for word in _flag(name, value)]

    def config(self) -> EvaluateConfig:
        """The same as `wmr evaluate` takes it."""
        asked = dict(self.asked)
        asked["attacks"] = asked.pop("attack", ())
        metrics = asked.get("metrics", EvaluateConfig().metrics)
        wants_dro = "rho" in asked or "dro_loss" in asked
        asked["metrics"] = (*metrics, "dro") if wants_dro and "dro" not in metrics else metrics
        return msgspec.convert(asked, EvaluateConfig)


class Report(Struct, frozen=True, kw_only=True):
    """What `wmr report` is asked for; files lie in the study's folder."""

    out: Texts = ("report.md", "report.html", "report.json")
    figures: str = "figures"
    """a folder; nothing for none"""
    alpha_test: Sizes | None = None
    rho: Sizes | None = None
    compare: bool = True
    paper: Literal["auto", "mnist", "cifar10", "tiny-imagenet", "all"] | None = None


class Machine(Struct, frozen=True, kw_only=True):
    """Where runs take place. Several devices are dealt among runs at the same time.

    The number of threads changes the last bits of a sum, so it belongs to the study and not to a machine.
    """

    device: Texts = ("auto",)
    devices: Annotated[int, Meta(ge=1, le=MAX_DEVICES)] | None = None
    threads: Annotated[int, Meta(ge=1, le=MAX_THREADS)] = 1
    compile: bool = False
    save_minutes: Annotated[float, Meta(ge=0, le=MAX_MINUTES)] | None = None

    @property
    def jobs(self) -> int:
        """Runs at the same time, where nobody says: one for each device, on the processor as many as its cores carry."""
        if self.device == ("cpu",):
            return max(1, cores() // (self.threads * (self.devices or 1)))
        return len(self.device)


@dataclass(frozen=True)
class Run:
    """One training run of a study, as far as it is settled without torch."""

    name: str
    config: TrainConfig


@dataclass(frozen=True)
class Study:
    """What a study file says."""

    file: Path
    summary: str
    folder: Path
    keep: Path | None
    """where small records of finished runs are kept, to travel with the study"""
    runs: tuple[Run, ...]
    evaluations: tuple[Evaluation, ...]
    report: Report
    machine: Machine
    slurm: Mapping[str, Any]

    def path(self, run: Run) -> Path:
        """The folder of a run."""
        return self.folder / run.name

    def asked_of(self, run: Run) -> list[Evaluation]:
        """The evaluations of a run."""
        return [evaluation for evaluation in self.evaluations if _covers(evaluation.only, run.config)]

    def asked_of_nobody(self) -> list[int]:
        """The evaluations, counted from 1, whose `only` no run fulfils."""
        asked = [evaluation for run in self.runs for evaluation in self.asked_of(run)]
        return [number for number, evaluation in enumerate(self.evaluations, 1) if evaluation not in asked]


def _covers(only: Mapping[str, list[Any]], config: TrainConfig) -> bool:
    """Whether a run has one of the values that are named; a component is named with or without its parameters."""

    def names(key: str) -> list[Any]:
        value = getattr(config, key)
        return [value, Spec.parse(value).name] if key in SPECS else [value]

    return all(any(name in values for name in names(key)) for key, values in only.items())


def _flag(name: str, value: Any) -> Iterator[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        yield flag
    elif name in REPEATED:
        yield from (word for one in value for word in (flag, _word(one)))
    elif value is not False:
        yield from (flag, ",".join(map(_word, value)) if isinstance(value, tuple) else _word(value))


def _word(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)
