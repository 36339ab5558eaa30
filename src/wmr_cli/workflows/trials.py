"""What a bench found: rates, other settings beside those asked for, and the commands to recommend."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

import msgspec

WORTH = 1.05
"""From so many times the speed on, a setting is worth recommending."""
THREADS = "OMP_NUM_THREADS"
ANY_ATTACK = (THREADS, "--devices")
"""Settings that evaluation has, too. How many images it takes at a time is settled by how many there are."""


class Rate(msgspec.Struct, frozen=True):
    """Images per second: the median of several rounds, between its quartiles."""

    images_per_second: float
    low: float
    high: float


class Trial(msgspec.Struct, frozen=True):
    """A setting as one writes it, and how many times as fast as without it images are attacked and trained on.

    Both are null where it does not fit into memory, or cannot be run.
    """

    setting: str
    attack: float | None
    training: float | None

    @property
    def name(self) -> str:
        """What is set."""
        return self.setting.replace("=", " ").split()[0]

    @property
    def value(self) -> str:
        """To what; nothing for a switch."""
        return " ".join(self.setting.replace("=", " ").split()[1:])


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of a training and its attack. The limit is the attack without anything but its passes through the network.

    `layout` is the one in which these are fastest, `share_of_peak` what they make of a matrix product's operations per second.
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
    tried: list[Trial] = []
    recommended: list[str] = []


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes(alone: Sequence[Bench], asked: Mapping[str, str]) -> Iterator[Trial]:
    """Two processes, and one per core, beside one, which was measured before and after: each is this command once more."""
    attack, training = (fmean(rate.images_per_second for rate in rates) for rates in zip(*_rates(alone), strict=True))
    for count in sorted({2, cores()}) if cores() > 1 else ():
        flags = [*_flags(asked), "--devices", str(count), "--only", "--format", "json", "--quiet"]
        done = subprocess.run([sys.executable, "-m", "wmr_cli", "bench", *flags], capture_output=True, text=True, check=False)
        if done.returncode:  # its share of a batch may be too small, or its memory
            yield Trial(f"--devices {count}", attack=None, training=None)
            continue
        found = msgspec.convert(json.loads(done.stdout), Bench)
        shares = found.attack.images_per_second / attack, found.training.images_per_second / training
        yield Trial(f"--devices {count}", *shares)


def _rates(found: Iterable[Bench]) -> Iterator[tuple[Rate, Rate]]:
    return ((each.attack, each.training) for each in found)


def recommended(asked: Mapping[str, str], tried: Sequence[Trial]) -> list[str]:
    """The commands to train and to evaluate with, each with the settings that make it faster."""
    train = {name: value for name, value in asked.items() if name != "--seconds"} | best(tried, "training")
    attacking = {name: value for name, value in best(tried, "attack").items() if name in ANY_ATTACK}
    return [_command(["train"], train), _command(["evaluate", "RUN"], attacking)]


def _command(words: Sequence[str], settings: Mapping[str, str]) -> str:
    threads = f"{THREADS}={settings[THREADS]} " if THREADS in settings else ""
    return threads + shlex.join(["wmr", *words, *_flags({name: settings[name] for name in settings if name != THREADS})])


def best(tried: Sequence[Trial], what: str) -> dict[str, str]:
    """Of each setting the value that is fastest, where that is worth it. Processes bring their own threads: one of the two."""
    found: dict[str, tuple[float, str]] = {}
    for trial in tried:
        speed = getattr(trial, what) or 0.0
        if speed >= WORTH and speed > found.get(trial.name, (0.0, ""))[0]:
            found[trial.name] = speed, trial.value
    if THREADS in found and "--devices" in found:
        del found[min((THREADS, "--devices"), key=lambda name: found[name][0])]
    return {name: value for name, (_, value) in found.items()}


def _flags(asked: Mapping[str, str]) -> list[str]:
    """Flags with their values; a switch has none."""
    return [word for name, value in asked.items() for word in (name, value) if word]
