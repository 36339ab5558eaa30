"""Results of a benchmark: rates, other settings in comparison, and recommended commands."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from ..events import Event
from ..runtime.processes import count_usable_cores

MIN_SPEEDUP = 1.05
"""A setting is recommended from this speed-up on. Smaller ones are within the noise."""
THREADS_VARIABLE = "OMP_NUM_THREADS"
EVALUATION_SETTINGS = (THREADS_VARIABLE, "--devices")
"""Settings that `wmr evaluate` shares. Its batch size depends on the number of images."""


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
        """The flag or environment variable."""
        # "--batch-size 64" and "OMP_NUM_THREADS=1" have different separators
        return self.setting.replace("=", " ").split()[0]

    @property
    def value(self) -> str:
        """The value of the flag; empty for a switch."""
        return " ".join(self.setting.replace("=", " ").split()[1:])


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of a training and of its attack.

    `limit` is the rate of the attack's bare passes, in the memory format `layout` that is fastest.
    `share_of_peak` is their operations per second, divided by those of a matrix product.
    Launches, waits of the host, and the fraction of the roofline are null on a CPU.
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
    """Return commands for training and evaluation, with the settings that make them faster."""
    # `seconds` belongs to `wmr bench` only
    train = {name: value for name, value in flags.items() if name != "--seconds"}
    train |= pick_fastest(trials, lambda trial: trial.training)
    attack = pick_fastest(trials, lambda trial: trial.attack)
    evaluate = {name: value for name, value in attack.items() if name in EVALUATION_SETTINGS}
    return [_format_command(["train"], train), _format_command(["evaluate", "RUN"], evaluate)]


def _format_command(words: Sequence[str], settings: Mapping[str, str]) -> str:
    flags = {name: value for name, value in settings.items() if name != THREADS_VARIABLE}
    command = shlex.join(["wmr", *words, *_to_words(flags)])
    if THREADS_VARIABLE in settings:
        return f"{THREADS_VARIABLE}={settings[THREADS_VARIABLE]} {command}"
    return command


def pick_fastest(
    trials: Sequence[Trial], speedup: Callable[[Trial], float | None]
) -> dict[str, str]:
    """Return the fastest value of each setting that is faster than the current one."""
    speeds: dict[str, float] = {}
    values: dict[str, str] = {}
    for trial in trials:
        # null: the setting could not be run
        speed = speedup(trial) or 0.0
        if speed >= MIN_SPEEDUP and speed > speeds.get(trial.name, 0.0):
            speeds[trial.name] = speed
            values[trial.name] = trial.value
    # processes set their own number of threads, so only one of the two settings can be used
    if THREADS_VARIABLE in values and "--devices" in values:
        slower = min((THREADS_VARIABLE, "--devices"), key=lambda name: speeds[name])
        del values[slower]
    return values


def _to_words(flags: Mapping[str, str]) -> list[str]:
    """Return flags with their values; a switch has an empty value."""
    return [word for name, value in flags.items() for word in (name, value) if word]
