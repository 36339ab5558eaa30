"""Commands × bad values: invalid input gives one error and one hint, and changes no file.

The table is sampled: not every flag is tested with every bad value. See `pairs`.
"""

import faulthandler
import os
import shutil
import signal
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypeVar

import matplotlib
import pytest
import safetensors.torch
from typer.testing import CliRunner, Result

from support import bad_values as bad
from support import synthetic
from support.bad_values import RECORDS, RUN, STUDY, WEIGHTS, Maker, nothing
from support.typed import not_none
from wmr_cli.cli import app

SECONDS = 20.0
"""The longest that any case may take."""
LONGEST = 3_000
"""Characters of the longest line on stderr."""

CODE = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes, input_shape):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
"""


@dataclass(frozen=True)
class Case:
    """A command, and what is in its folder: `make` gets the path of a file there, `at`."""

    words: tuple[str, ...]
    make: Maker = nothing
    at: str = "x"


class TookTooLong(BaseException):
    """Not an Exception: nothing in the program may catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLong in the block; end the process if a library call does not return."""

    def stop(*_: object) -> None:
        raise TookTooLong(f"still busy after {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    faulthandler.dump_traceback_later(2 * seconds, exit=True, file=not_none(sys.__stderr__))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Entry:
    """What is at a path: type and permissions, size, time of change and content."""

    mode: int
    size: int = 0
    changed: int = 0
    content: bytes | str = b""


def entry(path: Path) -> Entry:
    status = path.lstat()
    if stat.S_ISDIR(status.st_mode):
        # temporary files and locks change the time of the folder that a command writes to only
        return Entry(
            status.st_mode, changed=0 if path.is_relative_to(Path.cwd()) else status.st_mtime_ns
        )
    content: bytes | str = b""
    if stat.S_ISREG(status.st_mode):
        content = path.read_bytes()
    elif stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    return Entry(status.st_mode, status.st_size, status.st_mtime_ns, content)


def snapshot(folder: Path) -> dict[str, Entry]:
    """Everything below a folder, by its path; links are not followed."""
    paths = (
        Path(place, name)
        for place, folders, files in os.walk(folder)
        for name in (*folders, *files)
    )
    return {str(path.relative_to(folder)): entry(path) for path in paths}


@pytest.fixture(scope="session")
def valid(tmp_path_factory: pytest.TempPathFactory, tiny_run: Path) -> Path:
    """Return a folder with valid input for every command, and files of a user."""
    (
        matplotlib.get_cachedir(),
        matplotlib.get_configdir(),
    )  # found once per process; a test changes HOME
    folder = tmp_path_factory.mktemp("valid")
    shutil.copytree(tiny_run, folder / RUN.name)
    synthetic.save_run_record(folder / RECORDS.name, synthetic.make_rows(bad.IMAGES, logits=True))
    safetensors.torch.save_file(
        safetensors.torch.load_file(tiny_run / "last.safetensors"), folder / WEIGHTS.name
    )
    (folder / STUDY.name).write_text(bad.TINY_STUDY)
    (folder / bad.CODE.name).write_text(CODE)
    (folder / "home").mkdir()
    (folder / "precious.txt").write_text("of the user")
    (folder / "target.txt").write_text("where a link leads")
    return folder


@pytest.fixture
def sandbox(tmp_path: Path, valid: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a copy of the valid input; work in a folder inside it, without network."""
    folder = shutil.copytree(valid, tmp_path / "sandbox")
    here = folder / "case"
    here.mkdir()
    for name in ("precious.txt", "out.md.probe", ".out.md.tmp", "new.probe", ".new.tmp"):
        (here / name).write_text(f"{name} of the user")
    (here / "link.md").symlink_to("../target.txt")
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setenv("WMR_DATA_DIR", str(folder / "home" / "data"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    yield folder
    shutil.rmtree(folder)  # pytest would keep a megabyte per case


@dataclass(frozen=True)
class Outcome:
    """The result of a command, and the files before and after it."""

    result: Result
    before: Mapping[str, Entry]
    after: Mapping[str, Entry]

    @property
    def changed(self) -> list[str]:
        """Files and folders that the command changed or removed."""
        return [path for path, entry in self.before.items() if self.after.get(path) != entry]

    @property
    def added(self) -> list[str]:
        """Files that the command added, except empty folders and locks in its own folder."""
        new = [
            path
            for path in self.after
            if path not in self.before and not stat.S_ISDIR(self.after[path].mode)
        ]
        return [path for path in new if not (path.startswith("case/") and path.endswith("/.lock"))]

    def __str__(self) -> str:
        status = f"status {self.result.exit_code}, {self.result.exception!r}"
        return f"{status}\n{self.result.stderr[-LONGEST:]}"


def carried_out(case: Case, sandbox: Path) -> Outcome:
    case.make(Path(case.at))
    before = snapshot(sandbox)
    with time_limit(SECONDS):
        result = CliRunner().invoke(app, list(case.words), prog_name="wmr")
    return Outcome(result, before, snapshot(sandbox))


def check_complaint(outcome: Outcome) -> None:
    """Check for one error and one hint, each a short line of printable text, and no traceback."""
    result, lines = outcome.result, outcome.result.stderr.splitlines()
    assert isinstance(result.exception, SystemExit), str(outcome)
    assert result.exit_code in (1, 2), str(outcome)
    assert [sum(line.startswith(word) for line in lines) for word in ("error: ", "hint: ")] == [
        1,
        1,
    ], str(outcome)
    assert "Traceback" not in result.output
    assert not any(char in result.stderr for char in "\x1b\a\b\r\0\u202e"), str(outcome)
    assert max(map(len, lines)) <= LONGEST


# ---- the table ----

TRAIN = ("train", "--model", "digits-cnn", "--epochs", "1", "--validate-every", "0", "--out", "new")
DRY = (*TRAIN, "--dry-run")
RESUME = ("train", "--config", str(RUN / "config.json"), "--out", "x", "--resume")
EVALUATE = ("evaluate", str(RUN), "--limit", "10", "--out", "new")
ATTACK = ("attack", str(RUN), "--limit", "10")
IMPORT = (
    "import",
    str(WEIGHTS),
    "--model",
    "digits-cnn",
    "--dataset",
    "digits",
    "--out",
    "new.safetensors",
)
REPORT = ("report", str(RECORDS))
SWEEP = ("sweep", str(STUDY))
BENCH = ("bench", "--only", "--seconds", "0", "--model", "digits-cnn")
PLUGIN = ("plugins", "new", "mine", "--kind", "attack")
"""Short commands that are valid alone. If a flag is given twice, the last value counts."""

Table = dict[str, Case]
A = TypeVar("A")
B = TypeVar("B")


def pairs(first: Iterable[A], second: Iterable[B], every: int) -> Iterator[tuple[A, B]]:
    """Return one in `every` pairs, evenly distributed over the values of both sides."""
    numbered = product(enumerate(first), enumerate(second))
    return ((a, b) for (i, a), (j, b) in numbered if (i + j) % every == 0)


def flags(
    command: tuple[str, ...], names: tuple[str, ...], values: Mapping[str, str], every: int = 7
) -> Table:
    """Return cases of a command with these flags and values."""
    chosen = pairs(names, values.items(), every)
    return {
        f"{named(command)} {flag} {name}": Case((*command, flag, value))
        for flag, (name, value) in chosen
    }


def named(command: tuple[str, ...]) -> str:
    """`train`, `train --dry-run` or `plugins new`."""
    return (
        command[0] + " new" * (command[1:2] == ("new",)) + " --dry-run" * ("--dry-run" in command)
    )


def filled(template: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Return the words of a template with a text in place of {x}."""
    return tuple(word.replace("{x}", text) for word in template)


NUMBERS = {
    **flags(
        TRAIN,
        ("--seed", "--split-seed", "--steps", "--epochs", "--batch-size", "--validate-every"),
        bad.NOT_COUNTS,
    ),
    **flags(
        TRAIN,
        ("--devices", "--nodes"),
        bad.NOT_COUNTS | {"zero": "0", "million": "1000000"},
        every=2,
    ),
    **flags(
        TRAIN,
        (
            "--eps",
            "--step-size",
            "--alpha",
            "--lr",
            "--max-weight",
            "--weight-decay",
            "--clip-grad",
        ),
        bad.NOT_SIZES,
    ),
    **flags(
        TRAIN,
        ("--eps-ramp", "--alpha-ramp", "--warmup", "--label-smoothing", "--ema"),
        bad.NOT_SIZES | {"two": "2"},
    ),
    **flags(TRAIN, ("--save-minutes",), bad.NOT_NUMBERS, every=2),
    **flags(TRAIN, ("--milestones",), bad.NOT_LISTS | {"zero": "0", "fraction": "1.5"}, every=1),
    **flags(
        TRAIN,
        ("--epochs", "--batch-size", "--lr", "--max-weight", "--clip-grad"),
        {"zero": "0"},
        every=1,
    ),
    **flags(DRY, ("--seed", "--batch-size", "--devices", "--eps"), bad.NOT_NUMBERS),
    **flags(EVALUATE, ("--steps", "--seed"), bad.NOT_COUNTS),
    **flags(
        EVALUATE,
        ("--restarts", "--repeats", "--limit", "--batch-size"),
        bad.NOT_COUNTS | {"zero": "0"},
        every=3,
    ),
    **flags(
        EVALUATE, ("--devices", "--nodes"), bad.NOT_COUNTS | {"zero": "0", "million": "1000000"}
    ),
    **flags(EVALUATE, ("--eps", "--step-size"), bad.NOT_SIZES, every=2),
    **flags(EVALUATE, ("--alpha-test", "--rho"), bad.NOT_LISTS, every=2),
    **flags(ATTACK, ("--steps", "--restarts", "--limit", "--batch-size", "--seed"), bad.NOT_COUNTS),
    **flags(ATTACK, ("--eps", "--step-size", "--alpha"), bad.NOT_SIZES, every=3),
    **flags(IMPORT, ("--eps",), bad.NOT_SIZES, every=2),
    **flags(REPORT, ("--alpha-test", "--rho"), bad.NOT_LISTS, every=3),
    **flags(SWEEP, ("--jobs",), bad.NOT_COUNTS | {"zero": "0"}, every=2),
    **flags(BENCH, ("--steps", "--batch-size", "--devices"), bad.NOT_COUNTS | {"zero": "0"}),
    **flags(BENCH, ("--seconds",), bad.NOT_NUMBERS, every=2),
}

SPECS = {
    **flags(
        TRAIN,
        ("--dataset", "--model", "--defense", "--attack", "--kernel", "--preset"),
        bad.NOT_NAMES,
        every=4,
    ),
    **flags(
        TRAIN,
        ("--augment", "--device", "--optimizer", "--schedule", "--logger", "--trust-code"),
        bad.NOT_NAMES,
        every=6,
    ),
    **flags(
        EVALUATE,
        ("--dataset", "--model", "--attack", "--kernel", "--split", "--metrics"),
        bad.NOT_NAMES,
    ),
    **flags(
        EVALUATE, ("--ci", "--dro-loss", "--format", "--device", "--trust-code"), bad.NOT_NAMES
    ),
    **flags(
        ATTACK,
        ("--dataset", "--model", "--attack", "--split", "--device", "--format"),
        bad.NOT_NAMES,
    ),
    **flags(IMPORT, ("--dataset", "--model", "--match"), bad.NOT_NAMES, every=3),
    **flags(
        BENCH,
        ("--dataset", "--model", "--defense", "--attack", "--preset", "--device"),
        bad.NOT_NAMES,
        every=6,
    ),
    **flags(REPORT, ("--format", "--paper"), bad.NOT_NAMES),
    **flags(SWEEP, ("--run",), bad.NOT_NAMES, every=4),
    **flags(PLUGIN, ("--kind",), bad.NOT_NAMES, every=4),
    **{f"list {name}": Case(("list", text)) for name, text in bad.NOT_NAMES.items()},
    **{
        f"list attacks {name}": Case(("list", "attacks", text))
        for name, text in bad.NOT_PATTERNS.items()
    },
    **{
        f"plugins new {name}": Case(("plugins", "new", "--kind", "attack", "--", text))
        for name, text in bad.NOT_PLUGINS.items()
    },
    **{
        f"{named(command)} --attack pgd {name}": Case((*command, "--attack", text))
        for command, (name, text) in pairs(
            (DRY, EVALUATE, ATTACK, BENCH), bad.NOT_PGD.items(), every=3
        )
    },
    **{
        f"train --dry-run {name}": Case((*DRY, *words))
        for name, words in bad.NOT_COMPONENTS.items()
    },
}

CODE_OF = {
    "train --model FILE": (*DRY, "--model", "{x}:B"),
    "train --defense FILE": (*DRY, "--defense", "{x}:B"),
    "train --dataset FILE": (*DRY, "--dataset", "{x}:B"),
    "evaluate --kernel FILE": (*EVALUATE, "--kernel", "{x}:B"),
    "attack --attack FILE": (*ATTACK, "--attack", "{x}:B"),
}
LOCAL_CODE = {
    **{
        f"{what} {name}": Case(filled(template, "b.py"), make, "b.py")
        for (what, template), (name, make) in pairs(CODE_OF.items(), bad.NOT_CODE.items(), every=2)
    },
    **{
        f"{named(command)} with an attack that {name}": Case(
            (*command, "--attack", "b.py:B"), make, "b.py"
        )
        for command, (name, make) in pairs(
            (EVALUATE, ATTACK, DRY), bad.NOT_ATTACKS.items(), every=1
        )
    },
    **{
        f"{named(command)} with a model that {name}": Case(
            (*command, "--model", "b.py:B"), make, "b.py"
        )
        for command, (name, make) in pairs((TRAIN, IMPORT), bad.NOT_MODELS.items(), every=1)
    },
    **{
        f"{named(command)} with a dataset that is {name}": Case(
            (*command, "--dataset", "b.py:B"), make, "b.py"
        )
        for command, (name, make) in pairs((TRAIN, EVALUATE), bad.NOT_SOURCES.items(), every=1)
    },
}

INPUTS = {
    "evaluate CHECKPOINT": ("evaluate", "{x}", "--limit", "10"),
    "evaluate WEIGHTS --model": (
        "evaluate",
        "{x}",
        "--limit",
        "10",
        "--model",
        "digits-cnn",
        "--dataset",
        "digits",
    ),
    "attack CHECKPOINT": ("attack", "{x}", "--limit", "10"),
    "import WEIGHTS": (
        "import",
        "{x}",
        "--model",
        "digits-cnn",
        "--dataset",
        "digits",
        "--out",
        "new.safetensors",
    ),
    "report PATH": ("report", "{x}"),
    "sweep STUDY": ("sweep", "{x}"),
    "sweep STUDY --dry-run": ("sweep", "{x}", "--dry-run"),
    "train --config": (*TRAIN, "--config", "{x}"),
}
INPUTS_IN_SPECS = {
    "arrays:path": (*DRY, "--dataset", "arrays:path={x}"),
    "folder:path": (*DRY, "--dataset", "folder:path={x}"),
    "table:path": (*EVALUATE, "--kernel", "table:path={x}"),
}
FOLDERS = {
    "train --out": (*TRAIN, "--out", "{x}"),
    "evaluate --out": (*EVALUATE, "--steps", "1", "--out", "{x}"),
    "plugins new --out": (*PLUGIN, "--out", "{x}"),
    "report --figures": (*REPORT, "--figures", "{x}"),
    "train --dataset mnist --data-dir": (*DRY, "--dataset", "mnist", "--data-dir", "{x}"),
}
FILES = {
    "report --out": (*REPORT, "--out", "{x}"),
    "report --format html --out": (*REPORT, "--format", "html", "--out", "{x}"),
    "import --out": (*IMPORT, "--out", "{x}.safetensors"),
    "attack --save": (*ATTACK, "--steps", "1", "--save", "{x}.safetensors"),
    "attack --grid": (*ATTACK, "--steps", "1", "--grid", "{x}.png"),
}
VALID = (
    "report PATH root",
    "sweep STUDY empty-file",
    "sweep STUDY --dry-run empty-file",
    "train --config empty-file",
)
"""Valid cases: reports search all subfolders, and an empty file leaves the defaults."""
PATHS = {
    **{
        f"{what} {name}": Case(filled(template, text))
        for (what, template), (name, text) in pairs(INPUTS.items(), bad.NOT_INPUTS.items(), every=2)
    },
    **{
        f"{what} {name}": Case(filled(template, "x"), make)
        for (what, template), (name, make) in pairs(
            (INPUTS | INPUTS_IN_SPECS).items(), bad.IRREGULAR.items(), every=2
        )
    },
    **{
        f"{what} {name}": Case(filled(template, text))
        for (what, template), (name, text) in pairs(
            FOLDERS.items(), bad.NOT_FOLDERS.items(), every=2
        )
    },
    **{
        f"{what} {name}": Case(filled(template, "x"), bad.IRREGULAR[name])
        for (what, template), name in pairs(
            FOLDERS.items(),
            ("fifo", "socket", "link-to-zero", "link-loop", "dangling-link"),
            every=1,
        )
    },
    **{
        f"{what} {name}": Case(filled(template, text))
        for (what, template), (name, text) in pairs(FILES.items(), bad.NOT_FILES.items(), every=2)
    },
    **{
        f"{what} {name}": Case(
            filled(template, "x"), bad.IRREGULAR[name], template[-1].replace("{x}", "x")
        )
        for (what, template), name in pairs(
            FILES.items(), ("fifo", "folder", "socket", "link-loop"), every=1
        )
    },
    **{f"{what} empty": Case((*template[:-1], "")) for what, template in FILES.items()},
    **{
        f"{what} /dev/full": Case((*template[:-1], "/dev/full")) for what, template in FILES.items()
    },
    **{
        f"doctor --data-dir {name}": Case(("doctor", "--data-dir", text))
        for name, text in (bad.NOT_PATHS | bad.NOT_FILES).items()
    },
    **{
        f"doctor --data-dir {name}": Case(("doctor", "--data-dir", "x"), make)
        for name, make in bad.IRREGULAR.items()
        if name != "folder"
    },
    **{
        f"list --data-dir {name}": Case(("list", "--data-dir", text))
        for name, text in bad.NOT_PATHS.items()
    },
}

CONTENTS = {
    **{
        f"{named(command)} --config {name}": Case(
            (*command, "--config", file), bad.file_with(text), file
        )
        for command, every in ((TRAIN, 1), (DRY, 9))
        for _, (name, (file, text)) in pairs([command], bad.CONFIGS.items(), every)
    },
    **{
        f"{named(command)} {name}": Case(command, bad.file_with(text), "s.toml")
        for command, every in ((("sweep", "s.toml"), 1), (("sweep", "s.toml", "--dry-run"), 6))
        for _, (name, text) in pairs([command], bad.NOT_STUDIES.items(), every)
    },
    **{
        f"{command} {name}": Case(
            (command, "x.safetensors", "--limit", "10"), make, "x.safetensors"
        )
        for command, every in (("evaluate", 1), ("attack", 8))
        for _, (name, make) in pairs([command], bad.NOT_CHECKPOINTS.items(), every)
    },
    **{
        f"{what} {name}": Case(filled(INPUTS[what], file), make, file)
        for what, (name, (file, make)) in pairs(
            ("import WEIGHTS", "evaluate WEIGHTS --model"), bad.NOT_WEIGHTS.items(), every=2
        )
    },
    **{
        f"report record {name}": Case(("report", "x", "--format", "json"), make)
        for name, make in bad.NOT_RECORDS.items()
    },
    **{
        f"report {flag} rows {name}": Case(("report", "x", flag, value), make)
        for (flag, value), (name, make) in pairs(
            (("--alpha-test", "3"), ("--rho", "0.1"), ("--figures", "new")),
            bad.NOT_ROWS.items(),
            every=2,
        )
    },
    **{
        f"{named(command)} --dataset arrays {name}": Case(
            (*command, "--dataset", "arrays:path=x.npz"), make, "x.npz"
        )
        for command, every in ((DRY, 1), (EVALUATE, 8))
        for _, (name, make) in pairs([command], bad.NOT_ARRAYS.items(), every)
    },
    **{f"train --resume {name}": Case(RESUME, make) for name, make in bad.NOT_RUNS.items()},
    **{
        f"sweep over a run {name}": Case(
            (*SWEEP, "--dry-run"), make, "runs/study/digits-trades-a2-s0"
        )
        for name, make in bad.NOT_RUNS.items()
        if name.startswith("log-of")
    },
}

PREFIXES = (
    TRAIN,
    EVALUATE,
    ATTACK,
    IMPORT,
    REPORT,
    SWEEP,
    BENCH,
    PLUGIN,
    ("list",),
    ("plugins",),
    ("doctor",),
)
COMMANDS = {
    **{
        f"{named(command)} {flag!a}": Case((*command, flag))
        for command, flag in pairs(PREFIXES, bad.NOT_FLAGS, every=3)
    },
    **{
        f"{named(command)} too many": Case((*command, "a", "b", "c"))
        for command in PREFIXES
        if command != EVALUATE
    },
    **{f"command {name}": Case((text,)) for name, text in bad.NOT_NAMES.items()},
    **{f"plugins {name}": Case(("plugins", text)) for name, text in bad.NOT_NAMES.items()},
    **{f"{name} of nothing": Case((name,)) for name in ("attack", "import", "sweep", "evaluate")},
    "plugins new of nothing": Case(("plugins", "new")),
    "flag without value": Case(("train", "--eps")),
    "switch with a value": Case(("train", "--quiet=yes")),
}

TABLES = (NUMBERS, SPECS, LOCAL_CODE, PATHS, CONTENTS, COMMANDS)
CASES = {name: case for table in TABLES for name, case in table.items() if name not in VALID}
PARTLY_BAD = {
    "evaluate": Case(("evaluate", "x", str(RUN), "--limit", "10", "--steps", "1", "--out", "new")),
    "report": Case(
        ("report", "x", str(RECORDS), "--out", "new.md"), bad.record_with("dataset/n", 0)
    ),
}
"""One input of two is bad: the other one is processed."""
ACCEPTED = {
    "nothing after the colon": Case((*DRY, "--attack", "pgd:")),
    "spaces around a count": Case((*DRY, "--batch-size", " 64 ")),
    "spaces around a fraction": Case((*DRY, "--eps", " 8/255 ")),
    "zero steps": Case((*EVALUATE, "--steps", "0")),
    "zeros in a list": Case((*REPORT, "--alpha-test", "1,000")),
    "more images than there are": Case((*ATTACK, "--limit", "2147483647", "--steps", "0")),
    "an empty config": Case((*DRY, "--config", "x.toml"), bad.file_with(""), "x.toml"),
    "a report through a dangling link": Case((*REPORT, "--out", "x"), bad.dangling_link),
    "a report to /dev/null": Case((*REPORT, "--out", "/dev/null")),
}
"""Odd input that is valid."""


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_in_two_lines_and_changes_no_file(name: str, sandbox: Path) -> None:
    outcome = carried_out(CASES[name], sandbox)
    check_complaint(outcome)
    assert outcome.changed == []
    assert outcome.added == []


@pytest.mark.parametrize("name", PARTLY_BAD)
def test_one_bad_input_does_not_keep_others_from_being_processed(name: str, sandbox: Path) -> None:
    outcome = carried_out(PARTLY_BAD[name], sandbox)
    check_complaint(outcome)
    assert outcome.result.exit_code == 1
    assert outcome.changed == []
    assert all(path.startswith("case/new") for path in outcome.added)


@pytest.mark.parametrize("name", ACCEPTED)
def test_odd_input_that_is_valid_is_accepted(name: str, sandbox: Path) -> None:
    outcome = carried_out(ACCEPTED[name], sandbox)
    assert outcome.result.exit_code == 0, str(outcome)
    assert outcome.changed == []
    assert all(path.startswith("case/") for path in outcome.added)


def test_resuming_keeps_a_folder_that_is_named_like_a_temporary_file(sandbox: Path) -> None:
    outcome = carried_out(Case(RESUME, bad.run_with(bad.folder, ".x.tmp")), sandbox)
    assert outcome.result.exit_code == 0, str(outcome)
    assert Path("x", ".x.tmp", "inside.txt").read_text() == "of the user"


@pytest.mark.parametrize("command", PREFIXES, ids=" ".join)
def test_init_is_not_taken_for_a_misspelt_quiet(command: tuple[str, ...], sandbox: Path) -> None:
    assert "--quiet" not in carried_out(Case((*command, "--init", "x")), sandbox).result.stderr


def test_the_table_is_large_and_no_case_replaces_another() -> None:
    assert len(CASES) >= 300
    assert len({name for table in TABLES for name in table}) == sum(map(len, TABLES))
