"""Results of a benchmark: rates, other settings in comparison, and recommended commands."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from ..events import Event
from ..runtime.processes import count_usable_cores

MIN_SPEEDUP = 1.05
"""A setting is recommended from this speed-up on. Smaller ones are within the noise."""
TRAINING_SETTINGS = ("--threads", "--compile")
"""Settings that change a training by rounding only. Processes divide the batch of batch-norm."""
EVALUATION_SETTINGS = ("--threads", "--devices")
"""Settings that do not change the result of `wmr evaluate`."""


class Rate(msgspec.Struct, frozen=True):
    """Images per second: the median of several rounds, and the quartiles."""

    images_per_second: float
    low: float
    high: float


class Trial(msgspec.Struct, frozen=True):
    """A setting as it is written on a command line, and its speed-up of attack and training.

    Both are null if it does not fit into memory or cannot be run.
    """

    setting: str
    attack: float | None
    training: float | None

    @property
    def name(self) -> str:
        """The flag."""
        return self.setting.split()[0]

    @property
    def value(self) -> str:
        """The value of the flag; empty for a switch."""
        return " ".join(self.setting.split()[1:])


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of a training and of its attack.

    `limit` is the rate of the attack's bare passes, in the memory format `layout` that is fastest.
    `share_of_peak` is their operations per second, divided by those of a matrix product.
    Launches, waits of the host, and the fraction of the roofline are null on a CPU. `recommended`
    has commands for the same training and evaluation. `other_trainings` has faster settings that
    change the training.
    """

    model: str
    dataset: str
    defense: str
    device: str
    devices: int
    threads: int
    precision: str
    batch_size: int
    steps: int
    attack: Rate
    training: Rate
    limit: Rate | None = None
    share_of_limit: float | None = None
    layout: str | None = None
    peak_gflops: float | None = None
    share_of_peak: float | None = None
    launches_per_attack_step: int | None = None
    launches_per_step: int | None = None
    waits_per_attack_step: int | None = None
    waits_per_step: int | None = None
    share_of_roofline: float | None = None
    tried: list[Trial] = []
    recommended: list[str] = []
    other_trainings: list[Trial] = []


@dataclass(frozen=True)
class BenchDone(Event):
    """The speed was measured."""

    found: Bench


def try_processes(single: Sequence[Bench], flags: Mapping[str, str]) -> Iterator[Trial]:
    """Compare two processes, and one per core, with measurements of a single process.

    Each trial runs this command again with other flags.
    """
    cores = count_usable_cores()
    if cores < 2:
        return
    # the mean of measurements before and after: a machine that warms up becomes slower
    attack = fmean(each.attack.images_per_second for each in single)
    training = fmean(each.training.images_per_second for each in single)
    for count in sorted({2, cores}):
        setting = f"--devices {count}"
        words = [*_to_words(flags), "--devices", str(count), "--only", "--format", "json"]
        done = subprocess.run(
            [sys.executable, "-m", "wmr_cli", "bench", *words, "--quiet"],
            capture_output=True,
            text=True,
            check=False,
        )
        # a rank's part of a batch may be too small, or the memory may not suffice for all ranks
        if done.returncode != 0:
            yield Trial(setting, attack=None, training=None)
            continue
        found = msgspec.json.decode(done.stdout, type=Bench)
        yield Trial(
            setting,
            attack=found.attack.images_per_second / attack,
            training=found.training.images_per_second / training,
        )


def recommend_commands(flags: Mapping[str, str], trials: Sequence[Trial]) -> list[str]:
    """Return commands for training and evaluation, with settings that change speed alone."""
    # `seconds` belongs to `wmr bench` only
    train = {name: value for name, value in flags.items() if name != "--seconds"}
    train |= _to_flags(pick_fastest(trials, TRAINING_SETTINGS, lambda trial: trial.training))
    fastest = pick_fastest(trials, EVALUATION_SETTINGS, lambda trial: trial.attack)
    # they were not tried together
    evaluate = _to_flags(sorted(fastest, key=lambda trial: trial.attack or 0.0)[-1:])
    return [
        shlex.join(["wmr", "train", *_to_words(train)]),
        shlex.join(["wmr", "evaluate", "RUN", *_to_words(evaluate)]),
    ]


def find_other_trainings(trials: Sequence[Trial]) -> list[Trial]:
    """Return the fastest value of each setting that makes training faster and changes it."""
    names = {trial.name for trial in trials} - set(TRAINING_SETTINGS)
    return pick_fastest(trials, names, lambda trial: trial.training)


def pick_fastest(
    trials: Sequence[Trial], names: Container[str], speedup: Callable[[Trial], float | None]
) -> list[Trial]:
    """Return the fastest trial of each of these settings, if it is faster than the current one."""
    fastest: dict[str, Trial] = {}
    # null: the setting could not be run
    for trial in sorted(trials, key=lambda trial: speedup(trial) or 0.0):
        if trial.name in names and (speedup(trial) or 0.0) >= MIN_SPEEDUP:
            fastest[trial.name] = trial
    return list(fastest.values())


def _to_flags(trials: Iterable[Trial]) -> dict[str, str]:
    return {trial.name: trial.value for trial in trials}


def _to_words(flags: Mapping[str, str]) -> list[str]:
    """Return flags with their values; a switch has an empty value."""
    return [word for name, value in flags.items() for word in (name, value) if word]
