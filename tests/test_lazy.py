"""Commands that need no tensors import none of the heavy packages, so that help is there at once."""

import functools
import json
import subprocess
import sys
import time

import pytest

import made
from wmr_cli.config import EvaluateConfig, resolve
from wmr_cli.plugins import installed
from wmr_cli.storage import ledgers
from wmr_cli.workflows.study_file import read_study

HEAVY = {"torch", "torchvision", "timm", "lightning_fabric", "sklearn", "matplotlib"}
PROBE = """
import json, sys
from wmr_cli.cli import main
sys.argv = ["wmr", *json.loads(sys.argv[1])]
status = 0
try:
    main()
except SystemExit as stop:
    status = stop.code
print(json.dumps([status, sorted(sys.modules)]), file=sys.stderr)
"""


@functools.cache
def imported(*args: str, status: int = 0) -> set[str]:
    """Every module that `wmr` with these arguments imports."""
    done = subprocess.run([sys.executable, "-c", PROBE, json.dumps(args)], capture_output=True, text=True, check=True)
    left_with, modules = json.loads(done.stderr.splitlines()[-1])
    assert left_with == status, done.stderr
    return set(modules)


@pytest.fixture
def record(tmp_path):
    """A folder with one record and its rows."""
    rows = made.rows(20)
    made.stored(tmp_path / "evaluations", made.record(rows, asked=made.WITH_BALLS), rows)
    return tmp_path / "evaluations"


@pytest.mark.parametrize(
    "args",
    [
        ["--help"], ["train", "--help"], ["evaluate", "--help"], ["import", "--help"], ["sweep", "--help"],
        ["list", "attacks"], ["list"], ["plugins"], ["plugins", "new", "mine", "--kind", "attack"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_nothing_heavy_is_imported(args):
    assert imported(*args) & HEAVY == set()


@pytest.mark.parametrize(
    "flags",
    [
        [], ["--format", "json"], ["--format", "csv"], ["--format", "markdown"], ["--format", "latex"], ["--format", "html"],
        ["--rho", "0.1"],
        ["--alpha-test", "1"], ["--compare"], ["--paper", "auto"], ["--paper", "all"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_report_imports_nothing_heavy(record, flags):
    modules = imported("report", str(record), *flags)
    assert modules & HEAVY == set()
    assert "wmr_cli.workflows.report" in modules  # it did run


def test_figures_are_drawn_without_torch(tmp_path):
    rows = {name: values for name, values in made.rows(20).items() if name in ("index", "label", "clean/prediction")}
    made.stored(tmp_path / "evaluations", made.record(rows, alphas=(), asked=EvaluateConfig(metrics=("nat",))), rows)
    modules = imported("report", str(tmp_path), "--figures", str(tmp_path / "figures"))
    assert modules & HEAVY == {"matplotlib"}
    assert "matplotlib.pyplot" not in modules  # no screen, no global state
    assert "wmr_cli.reporting.figures.curves" in modules  # it did run


def test_a_sweep_imports_no_torch_itself(tmp_path):
    rows, run = made.rows(20), tmp_path / "runs" / "digits-trades-a2-s0"
    made.stored(run / "evaluations", kept := made.record(rows), rows)
    study = tmp_path / "study.toml"
    study.write_text(f"folder = '{tmp_path / 'runs'}'\n[report]\nfigures = ''\n")
    (evaluation,) = read_study(study, installed().registry).evaluations
    ledgers.save(run, ledgers.Ledger(settings=resolve({}), weights="", evaluations={evaluation.key: [kept.id]}))
    for flags in ([], ["--dry-run"]):
        modules = imported("sweep", str(study), *flags)
        assert modules & HEAVY == set()
        assert "wmr_cli.workflows.sweep" in modules  # it did run
    assert (tmp_path / "runs" / "report.html").exists()


def test_a_mistake_is_refused_before_anything_heavy_is_imported():
    assert imported("train", "--eps", "8/0", status=2) & HEAVY == set()
    assert imported("train", "--epochs", "0", status=2) & HEAVY == set()


def test_help_imports_neither_plugins_nor_numpy():
    modules = imported("--help")
    assert modules & {"numpy", "wmr_cli.plugins", "wmr_cli.builtins", "pluggy"} == set()
    assert "wmr_cli.cli.train" in modules  # the probe sees what is imported


def test_listing_names_imports_no_target():
    modules = imported("list", "attacks")
    assert "wmr_cli.builtins" in modules
    assert {name for name in modules if name.startswith("wmr_cli.builtins.")} == set()


def test_the_package_itself_imports_next_to_nothing():
    code = "import sys; before = set(sys.modules); import wmr_cli; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if name.startswith("wmr_cli")} == {"wmr_cli"}


def test_the_measures_are_there_without_torch():
    code = "import sys, wmr_cli as wmr; wmr.measures.plain_accuracy([True]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & HEAVY == set()


def test_help_is_there_in_a_moment():
    seconds = []
    for _ in range(3):  # the first may have to compile
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "wmr_cli", "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 2
