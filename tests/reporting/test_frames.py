"""Rows as data frames: columns, weights, verified bounds, critical eps, and several records."""

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

import wmr_cli as wmr
from support import synthetic
from wmr_cli import BadFile, BadInput, Result
from wmr_cli.measures import worst_rows
from wmr_cli.reporting.frames import make_frame

RADII = (1 / 255, 2 / 255, 4 / 255)
NAMES = ("digits-trades-a0-s0", "digits-trades-a2-s0")


def make_result(alphas: tuple[float, ...] = (1.0, 2.0), *, logits: bool = False) -> Result:
    rows = synthetic.make_rows(alphas=alphas, logits=logits)
    # images of a subset are found by their index
    rows["index"] = rows["index"][::-1].copy()
    return Result(synthetic.make_record(rows, alphas=alphas), rows)


def test_a_frame_has_a_line_per_image_and_a_column_per_row() -> None:
    result = make_result(logits=True)
    frame = result.to_pandas()
    assert frame.index.name == "index"
    assert np.array_equal(frame.index, result.rows["index"])
    vectors = {name for name, values in result.rows.items() if values.ndim == 1} - {"index"}
    prefixes = ("clean", "uniform", "weighted@1.0", "weighted@2.0")
    assert set(frame) == vectors | {f"{prefix}/correct" for prefix in prefixes}
    for name in vectors:
        assert frame[name].dtype == result.rows[name].dtype
        assert np.array_equal(frame[name], result.rows[name])
    assert frame["clean/correct"].mean() == result.a_nat.value
    assert frame["uniform/correct"].mean() == result.a_rob.value


def test_columns_of_one_prefix_stand_together() -> None:
    prefixes = [name.rpartition("/")[0] for name in make_result().to_pandas(2.0)]
    assert [
        prefix for prefix, before in zip(prefixes[1:], prefixes, strict=False) if prefix != before
    ] == ["clean", "uniform", "weighted@1.0", "weighted@2.0"]


@pytest.mark.parametrize("alpha", [0, 0.7, 2])
def test_weights_give_a_sa_at_any_alpha(alpha: float) -> None:
    result = make_result()
    frame = result.to_pandas(alpha)
    weights = frame[f"uniform/weight@{float(alpha)}"]
    assert weights.sum() == pytest.approx(1)
    expected = pytest.approx(result.a_sa(alpha).value, rel=1e-12)
    assert weights[frame["uniform/correct"]].sum() == expected
    assert ("weighted@2.0/weight" in frame) == (alpha == 2)


def test_weights_of_the_weighted_attack_give_a_tr() -> None:
    result = make_result()
    frame = result.to_pandas(2)
    found = (frame["weighted@2.0/weight"] * frame["weighted@2.0/correct"]).sum()
    assert found == pytest.approx(result.a_tr(2).value, rel=1e-12)


def test_a_kernel_without_alpha_has_its_stored_weights() -> None:
    rows = synthetic.make_rows(alphas=())
    rows["uniform/log_weight"] = np.log(np.arange(400.0) + 1)
    record = msgspec.structs.replace(synthetic.make_record(rows, alphas=(None,)), kernel="rank")
    result = Result(record, rows)
    weights = result.to_pandas()["uniform/weight"]
    assert weights.to_numpy() == pytest.approx((np.arange(400) + 1) / (400 * 401 / 2))
    with pytest.raises(BadInput, match="alpha 2"):
        result.to_pandas(2.0)


def test_weights_need_margins() -> None:
    rows = {name: values for name, values in synthetic.make_rows().items() if "margin" not in name}
    result = Result(synthetic.make_record(rows, alphas=()), rows)
    assert "uniform/correct" in result.to_pandas()
    with pytest.raises(BadInput) as caught:
        result.to_pandas(alpha=1.0)
    assert caught.value.hint


def test_verified_images_have_a_status() -> None:
    rows = synthetic.make_rows()
    rows["certify/margin"] = np.full(400, -1.0)
    rows["certify/logit_margin"] = np.where(rows["uniform/margin"] > 0.3, 1.0, -1.0)
    result = Result(synthetic.make_record(rows), rows)
    assert result.to_pandas()["certify/status"].tolist() == result.statuses.tolist()
    assert len(set(result.statuses)) == 3


def test_rows_of_several_records_are_told_apart(tmp_path: Path) -> None:
    saved = {
        synthetic.save_run_record(tmp_path, synthetic.make_rows(seed=seed), name, eps=0.1).id: name
        for seed, name in enumerate(NAMES)
    }
    frame = wmr.read_rows(tmp_path, alpha=2)
    assert frame.index.names == ["record", "index"]
    assert set(frame.index.get_level_values("record")) == set(saved)
    assert "critical_eps" not in frame
    for record, name in saved.items():
        own = frame.loc[record]
        result = Result.load(tmp_path / name / "evaluations" / f"{record}.json")
        facts = own.drop_duplicates(["run", "dataset", "split", "norm", "attack", "eps"])
        assert facts.iloc[0].to_dict().items() >= {
            "run": name, "dataset": "digits", "split": "test", "norm": "linf", "eps": 0.1,
            "attack": "pgd:steps=20,step=0.015",
        }.items()  # fmt: skip
        assert len(facts) == 1
        expected = result.to_pandas(2)
        assert own[list(expected)].equals(expected)
    # the same file twice, and a copy, count once
    file = tmp_path / NAMES[0] / "evaluations" / f"{next(iter(saved))}.json"
    assert len(wmr.read_rows(str(file), tmp_path)) == len(frame)


def test_records_at_several_radii_have_critical_eps(tmp_path: Path) -> None:
    for eps in RADII:
        rows = synthetic.make_rows(skill=0.5 - 30 * eps)
        # clean images are the same at all radii
        rows["clean/prediction"] = synthetic.make_rows()["clean/prediction"]
        synthetic.save_run_record(tmp_path, rows, NAMES[0], eps=eps, attack="pgd:steps=20")
    alone = synthetic.save_run_record(tmp_path, synthetic.make_rows(), NAMES[1])
    frame = wmr.read_rows(tmp_path / NAMES[0], tmp_path / NAMES[1])
    results = [Result.load(file) for file in sorted((tmp_path / NAMES[0]).rglob("*.json"))]
    expected = results[0].critical_eps(*results[1:])
    for result in results:
        assert np.array_equal(frame.loc[result.record.id, "critical_eps"], expected)
    assert frame.loc[alone.id, "critical_eps"].isna().all()


def test_values_that_a_record_lacks_are_missing(tmp_path: Path) -> None:
    first = synthetic.make_rows(alphas=())
    early = worst_rows(
        [first, {name: values for name, values in first.items() if "margin" not in name}]
    )
    complete = synthetic.save_run_record(tmp_path, first, NAMES[0], alphas=())
    lacking = synthetic.save_run_record(tmp_path, early, NAMES[1], alphas=(), attack="square")
    weights = wmr.read_rows(tmp_path, alpha=1.0)["uniform/weight@1.0"]
    assert weights[complete.id].notna().all()
    assert weights[lacking.id].isna().all()


def test_a_folder_without_records_and_a_damaged_record_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no evaluations"):
        wmr.read_rows(tmp_path)
    record = synthetic.save_run_record(tmp_path, synthetic.make_rows(), NAMES[0])
    (tmp_path / NAMES[0] / "evaluations" / f"{record.id}.json").write_text("{}", encoding="utf-8")
    with pytest.raises(BadFile):
        wmr.read_rows(tmp_path)


def test_a_missing_pandas_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = make_result()
    with pytest.raises(BadInput) as caught:
        make_frame(result.record, result.rows)
    assert "'wmr-cli[pandas]'" in caught.value.hint
