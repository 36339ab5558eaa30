"""Commands that need no tensors import no heavy packages, so that they start fast."""

import functools
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import synthetic
from wmr_cli.config import EvaluateConfig, resolve
from wmr_cli.plugins import load_plugins
from wmr_cli.sweeps import ledger
from wmr_cli.sweeps.study import read_study

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
    """Return every module that `wmr` imports with these arguments."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(args)], capture_output=True, text=True, check=True
    )
    left_with, modules = json.loads(done.stderr.splitlines()[-1])
    assert left_with == status, done.stderr
    return set(modules)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Return a folder with one record and its rows."""
    rows = synthetic.make_rows(20)
    synthetic.save_record(
        tmp_path / "evaluations", synthetic.make_record(rows, evaluation=synthetic.WITH_DRO), rows
    )
    return tmp_path / "evaluations"


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "train --help",
        "evaluate --help",
        "import --help",
        "sweep --help",
        "list attacks",
        "list",
        "schema train",
        "schema study",
        "schema record",
        "plugins",
        "plugins new mine --kind attack",
    ],
)
def test_nothing_heavy_is_imported(command: str) -> None:
    assert imported(*command.split()) & HEAVY == set()


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--format", "json"],
        ["--format", "csv"],
        ["--format", "markdown"],
        ["--format", "latex"],
        ["--format", "html"],
        ["--rho", "0.1"],
        ["--alpha-test", "1"],
        ["--compare"],
        ["--paper", "auto"],
        ["--paper", "all"],
    ],
    ids=" ".join,
)
def test_a_report_imports_nothing_heavy(record: Path, flags: list[str]) -> None:
    modules = imported("report", str(record), *flags)
    assert modules & HEAVY == set()
    assert "wmr_cli.reporting.report" in modules  # it did run


def test_figures_are_drawn_without_torch(tmp_path: Path) -> None:
    rows = {
        name: values
        for name, values in synthetic.make_rows(20).items()
        if name in ("index", "label", "clean/prediction")
    }
    synthetic.save_record(
        tmp_path / "evaluations",
        synthetic.make_record(rows, alphas=(), evaluation=EvaluateConfig(metrics=("nat",))),
        rows,
    )
    modules = imported("report", str(tmp_path), "--figures", str(tmp_path / "figures"))
    assert modules & HEAVY == {"matplotlib"}
    assert "matplotlib.pyplot" not in modules  # no screen, no global state
    assert "wmr_cli.reporting.figures.alpha_curves" in modules  # it did run


def test_a_sweep_imports_no_torch_itself(tmp_path: Path) -> None:
    rows, run = synthetic.make_rows(20), tmp_path / "runs" / "digits-trades-a2-s0"
    synthetic.save_record(run / "evaluations", kept := synthetic.make_record(rows), rows)
    study = tmp_path / "study.toml"
    study.write_text(f"folder = '{tmp_path / 'runs'}'\n[report]\nfigures = ''\n")
    (evaluation,) = read_study(study, load_plugins().registry).evaluations
    ledger.save_ledger(
        run,
        ledger.Ledger(settings=resolve({}), weights="", evaluations={evaluation.key: [kept.id]}),
    )
    for flags in ([], ["--dry-run"]):
        modules = imported("sweep", str(study), *flags)
        assert modules & HEAVY == set()
        assert "wmr_cli.sweeps.ledger" in modules  # it did run
    assert (tmp_path / "runs" / "report.html").exists()


def test_a_mistake_is_reported_before_anything_heavy_is_imported() -> None:
    assert imported("train", "--eps", "8/0", status=2) & HEAVY == set()
    assert imported("train", "--epochs", "0", status=2) & HEAVY == set()


def test_help_imports_neither_plugins_nor_numpy() -> None:
    modules = imported("--help")
    assert modules & {"numpy", "wmr_cli.plugins", "wmr_cli.builtins", "pluggy"} == set()
    assert "wmr_cli.cli.train" in modules  # the probe sees what is imported


def test_listing_names_imports_no_target() -> None:
    modules = imported("list", "attacks")
    assert "wmr_cli.builtins" in modules
    assert {name for name in modules if name.startswith("wmr_cli.builtins.")} == set()


def test_the_package_itself_imports_next_to_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); import wmr_cli; print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if name.startswith("wmr_cli")} == {"wmr_cli"}


def test_the_measures_need_no_torch() -> None:
    code = "import sys, wmr_cli as wmr; wmr.measures.plain_accuracy([True]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & HEAVY == set()


def test_help_is_fast() -> None:
    seconds = []
    for _ in range(3):  # the first may have to compile
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "wmr_cli", "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 2
