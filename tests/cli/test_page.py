"""`wmr report --format html` as a user meets it, from a real run with saved images."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors import safe_open

from support.cli_runner import wmr
from support.typed import not_none
from wmr_cli.cli import report as report_module
from wmr_cli.reporting.tables.formatting import format_estimate
from wmr_cli.storage import records


@pytest.fixture(scope="module")
def run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with one record and the images of the same attack; it is read-only."""
    folder = Path(shutil.copytree(tiny_run, tmp_path_factory.mktemp("page") / "tiny"))
    flags = (folder, "--limit", 40, "--steps", 2, "-q")
    wmr("evaluate", *flags)
    wmr("attack", *flags, "--save", folder / "attacked.safetensors")
    wmr("attack", *flags, "--alpha", 2, "--save", folder / "a-weighted.safetensors")
    return folder


def data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    payload: dict[str, Any] = json.loads(not_none(found)[1])
    return payload


def test_a_page_is_written_to_out(run: Path, tmp_path: Path) -> None:
    done = wmr("report", run, "--format", "html", "--out", tmp_path / "made" / "report.html")
    assert done.stdout == ""
    assert "report.html" in " ".join(done.stderr.split())
    text = (tmp_path / "made" / "report.html").read_text(encoding="utf-8")
    (file,) = records.find_records(run)
    assert all(
        format_estimate(row.a_sa).partition(" ")[0] in text for row in records.load(file).by_alpha
    )
    assert wmr("report", run, "--format", "html", "-q").stdout == text


def test_the_page_has_the_images_of_its_attack_only(run: Path) -> None:
    with safe_open(run / "a-weighted.safetensors", framework="numpy") as file:
        assert file.metadata()["alpha"] == "2.0"
    (panel,) = data(wmr("report", run, "--format", "html", "-q").stdout)["panels"]
    tiles = panel["models"][0]["tiles"]
    assert sorted(tiles["positions"]) == list(range(40))
    assert (tiles["width"], tiles["height"]) == (8, 8)


def test_the_page_has_the_given_alphas_and_radii(run: Path) -> None:
    (panel,) = data(
        wmr("report", run, "--format", "html", "--alpha-test", "0,3", "--rho", "0.5", "-q").stdout
    )["panels"]
    (model,) = panel["models"]
    assert [row["alpha_test"] for row in model["by_alpha"]] == [0.0, 3.0]
    assert [row["rho"] for row in model["dro"]] == [0.5]


def test_the_comparison_is_on_the_page(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    (file,) = records.find_records(other)
    record = records.load(file)
    checkpoint = msgspec.structs.replace(
        record.checkpoint, path="runs/o<b>ther/last.safetensors", sha256="other"
    )
    changed = msgspec.structs.replace(record, id="0" * 16, checkpoint=checkpoint)
    records.save(file.with_name("other.json"), changed, records.load_rows(records.rows_path(file)))
    file.unlink()
    text = wmr("report", run, other, "--compare", "--format", "html", "-q").stdout
    comparison = text.partition('<section id="comparison"')[2]
    assert "o&lt;b&gt;ther" in comparison
    assert '<section id="comparison"' not in wmr("report", run, "--format", "html", "-q").stdout


def test_the_papers_tables_are_a_page_by_themselves() -> None:
    text = wmr("report", "--paper", "all", "--format", "html", "-q").stdout
    assert '<section id="recorded"' not in text
    assert all(f"<summary>T{number}: " in text for number in range(1, 13))


def test_damaged_rows_are_reported_and_the_rest_is_shown(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "tiny"))
    (file,) = records.find_records(folder)
    rows = records.rows_path(file)
    rows.write_bytes(rows.read_bytes()[:-8] + b"damaged!")
    done = wmr("report", folder, "--format", "html", "--out", tmp_path / "report.html", status=1)
    assert rows.name in " ".join(done.stderr.split())
    (panel,) = data((tmp_path / "report.html").read_text(encoding="utf-8"))["panels"]
    assert rows.name in panel["models"][0]["problem"]


def test_a_page_is_not_printed_to_a_terminal(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "width", lambda: 80)
    done = wmr("report", run, "--format", "html", status=2)
    assert "--out report.html" in done.stderr
