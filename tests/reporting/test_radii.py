"""Several radii of one attack: series, critical eps, the table, CSV, figures and the page."""

import csv
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from support import synthetic
from support.cli_runner import wmr
from wmr_cli import BadInput, Result
from wmr_cli.measures import worst_rows
from wmr_cli.reporting.figures import draw_figures, render_svgs
from wmr_cli.reporting.figures.data import load_figure_data
from wmr_cli.reporting.figures.radii import count_by_radius, list_panels, radius_curve
from wmr_cli.reporting.html.report import render_report
from wmr_cli.reporting.radii import group_radii, load_critical_radii
from wmr_cli.reporting.report import gather_records
from wmr_cli.storage import records

RADII = (1 / 255, 2 / 255, 4 / 255)
NAMES = ("digits-trades-a0-s0", "digits-trades-a2-s0")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two models at three radii; the step size grows with the radius."""
    for number, name in enumerate(NAMES):
        for eps in RADII:
            rows = synthetic.make_rows(skill=0.5 - 30 * eps + 0.2 * number, seed=number)
            facts = {"alpha_train": 2.0 * number, "attack": f"pgd:steps=20,step={eps / 4}"}
            synthetic.save_run_record(tmp_path / "runs", rows, name, eps=eps, **facts)
    return tmp_path / "runs"


def test_records_that_differ_in_eps_and_step_size_are_a_series(runs: Path) -> None:
    found = gather_records([runs]).found
    # neither another attack, nor another kernel, nor clean accuracy alone is part of it
    rows = synthetic.make_rows()
    synthetic.save_run_record(runs, rows, NAMES[0], eps=8 / 255, attack="pgd:steps=40")
    synthetic.save_run_record(runs, rows, NAMES[0], eps=8 / 255, norm="l2")
    clean = synthetic.make_record(rows, NAMES[0], eps=0.5, attack="pgd:steps=20")
    synthetic.save_record(runs, msgspec.structs.replace(clean, a_rob=None), rows)
    series = group_radii(gather_records([runs]).found)
    assert series == group_radii(found)
    assert [(one.attack, tuple(one.radii)) for one in series] == [("pgd:steps=20", RADII)] * 2


def test_worst_cases_are_a_series_if_their_attacks_agree(tmp_path: Path) -> None:
    found = []
    for eps in RADII:
        parts = [
            synthetic.make_record(rows, eps=eps, attack=attack)
            for attack, rows in (
                (f"pgd:step={eps}", synthetic.make_rows()),
                ("apgd-dlr", synthetic.make_rows(seed=1)),
            )
        ]
        rows = worst_rows([synthetic.make_rows(), synthetic.make_rows(seed=1)])
        worst = synthetic.make_worst_record(NAMES[0], parts, rows, eps=eps)
        found += [(tmp_path / f"{record.id}.json", record) for record in (*parts, worst)]
    names = [(one.attack, len(one.radii)) for one in group_radii(found)]
    assert sorted(names) == [("apgd-dlr", 3), ("pgd", 3), ("worst of apgd-dlr + pgd", 3)]


def test_the_csv_file_has_a_row_per_image(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "critical.csv"
    shown = wmr("report", runs, "--critical-eps", file, "-q").stdout
    assert "critical ε" in shown
    with file.open(encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == 2 * 400
    for one in load_critical_radii(gather_records([runs]).found)[0]:
        name = Path(one.series.record.checkpoint.path).parent.name
        own = [line["critical_eps"] for line in lines if line["run"] == name]
        # an image without a critical eps has an empty cell
        assert [float(text or "inf") for text in own] == one.critical.tolist()
        results = [Result.load(path) for path, _ in one.series.found]
        assert results[0].critical_eps(*results[:0:-1]).tolist() == one.critical.tolist()
        # by hand: correct at all radii
        masks = [result.rows["uniform/prediction"] == result.rows["label"] for result in results]
        clean = results[0].rows["clean/prediction"] == results[0].rows["label"]
        robust = np.logical_and.reduce([*masks, clean])
        assert (np.isinf(one.critical) == robust).all()


def test_one_radius_has_no_critical_eps(tmp_path: Path) -> None:
    synthetic.save_run_record(tmp_path / "runs", synthetic.make_rows())
    assert "critical ε" not in wmr("report", tmp_path / "runs").stdout
    file = tmp_path / "critical.csv"
    result = wmr("report", tmp_path / "runs", "--critical-eps", file, status=2)
    assert "--eps" in result.stderr or "eps=" in result.stderr
    assert not file.exists()


def test_missing_rows_are_reported_where_they_are_needed(runs: Path, tmp_path: Path) -> None:
    path, _ = gather_records([runs]).found[0]
    records.rows_path(path).unlink()
    wmr("report", runs)
    result = wmr("report", runs, "--critical-eps", tmp_path / "critical.csv", status=1)
    assert records.rows_path(path).name in result.stderr
    assert (tmp_path / "critical.csv").exists()


def test_results_of_other_images_have_no_common_critical_eps(runs: Path) -> None:
    (path, _), *_ = gather_records([runs]).found
    result = Result.load(path)
    other = Result(result.record, {**result.rows, "index": result.rows["index"] + 1})
    with pytest.raises(BadInput):
        result.critical_eps(other)


def test_figures_show_the_accuracies_of_the_records(runs: Path, tmp_path: Path) -> None:
    found = gather_records([runs]).found
    data = load_figure_data(found)
    (panel,) = list_panels(data.groups, data)
    assert (tuple(panel.radii), len(panel.models), panel.alpha) == (RADII, 2, 2.0)
    for model in panel.models:
        own = [one for _, one in found if one.checkpoint.path == model.record.checkpoint.path]
        curve = radius_curve(panel, model, lambda seed: seed.weighted_outcome(2.0))
        assert dict(curve) == {one.threat.eps: one.by_alpha[1].a_sa for one in own}
    drawn = list(draw_figures(found, tmp_path / "figures", ("radii", "critical-eps")))
    assert len(drawn) == 2
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {
        f"{name}-digits.{suffix}"
        for name in ("radii", "critical-eps")
        for suffix in ("png", "svg", "pdf")
    }


def test_bars_count_every_image_once() -> None:
    critical = np.array([0.0, 0.1, 0.1, 0.3, np.inf])
    counts = count_by_radius([0.1, 0.2, 0.3], critical)
    assert counts == {"clean": 20, "0.1": 40, "0.2": 0, "0.3": 20, "> 0.3": 20}


def test_the_page_has_the_figures_only_with_several_radii(runs: Path) -> None:
    found = gather_records([runs]).found
    page, _ = render_report(found)
    images = re.findall(r'<img class="figure" alt="[^"]+" src="data:image/svg', page)
    assert len(images) == len(render_svgs(found, ("radii", "critical-eps"))) == 2
    # equal records give equal bytes
    assert render_report(found)[0] == page
    single, _ = render_report(found[:1])
    assert "data:image/svg" not in single
