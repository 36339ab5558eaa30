"""The files of a run show how far it is; a kept copy of it is small and gives the same report."""

from pathlib import Path

import numpy as np
import pytest

from support import synthetic
from support.fake_sweep import write_study
from wmr_cli.config import TrainConfig
from wmr_cli.errors import BadFile
from wmr_cli.registry import Registry
from wmr_cli.storage import records
from wmr_cli.storage.runs import RunFolder
from wmr_cli.sweeps.ledger import (
    LEDGER_NAME,
    Ledger,
    compact_rows,
    count_remaining_parts,
    find_leftover_runs,
    find_records,
    find_runs_known_from_records,
    list_records,
    load_ledger,
    read_status,
    read_weights_hash,
    save_ledger,
)
from wmr_cli.sweeps.runner import run_study
from wmr_cli.sweeps.study import read_study

STUDIES = Path(__file__).parents[2] / "studies"
RUN = Path("run")
STORED_BY_0_1 = """{
 "settings": {"preset": "digits", "dataset": "digits", "epochs": 2, "alpha": 2.0},
 "weights": "5f3a",
 "evaluations": {"[\\"last\\", {\\"limit\\": 20}]": ["0123456789abcdef"]}
}
"""


def test_a_ledger_survives_the_disk() -> None:
    ledger = Ledger(
        settings=TrainConfig(epochs=3), weights="5f3a", evaluations={"key": ["0123456789abcdef"]}
    )
    save_ledger(RUN, ledger)
    assert load_ledger(RUN) == ledger


def test_a_ledger_of_version_0_1_is_read_and_its_evaluations_are_found(registry: Registry) -> None:
    RUN.mkdir()
    (RUN / LEDGER_NAME).write_text(STORED_BY_0_1)
    ledger = load_ledger(RUN)
    assert ledger is not None
    assert ledger.settings.epochs == 2
    first = write_study(registry).evaluations[0]
    assert ledger.evaluations[first.key] == ["0123456789abcdef"]


@pytest.mark.parametrize("name", ["digits", "mnist-cpu", "cifar10-cpu"])
def test_evaluations_have_the_keys_that_version_0_1_has_stored(
    registry: Registry, name: str
) -> None:
    study = read_study(STUDIES / f"{name}.toml", registry)
    assert study.keep is not None
    checked = 0
    for run in study.runs:
        ledger = load_ledger(study.keep / run.name)
        if ledger is not None:
            assert ledger.settings == run.config
            assert set(ledger.evaluations) == {each.key for each in study.evaluations_of(run)}
            checked += 1
    assert checked


def test_a_folder_without_ledger_has_none() -> None:
    assert load_ledger(RUN) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"settings": {}, "evaluations": {"": ["../x"]}}'])
def test_other_content_is_refused(text: str) -> None:
    RUN.mkdir()
    (RUN / LEDGER_NAME).write_text(text)
    with pytest.raises(BadFile) as refused:
        load_ledger(RUN)
    assert refused.value.hint


def test_an_evaluation_has_records_if_all_of_them_and_their_rows_exist() -> None:
    rows = synthetic.make_rows(20)
    file, record = synthetic.save_record(RUN / "evaluations", synthetic.make_record(rows), rows)
    ledger = Ledger(settings=TrainConfig(), evaluations={"key": [record.id]})
    assert find_records(RUN, ledger, "key") == [file]
    assert find_records(RUN, ledger, "other") is None
    records.rows_path(file).unlink()
    assert find_records(RUN, ledger, "key") is None


def test_damaged_weights_count_as_missing() -> None:
    folder = RunFolder(RUN)
    synthetic.save_weights(folder.last)
    assert read_weights_hash(RUN) is not None
    folder.last.write_bytes(b"damaged")
    assert read_weights_hash(RUN) is None


def test_an_interrupted_run_has_its_remaining_epochs_and_evaluations_to_do(
    registry: Registry,
) -> None:
    study = write_study(registry, epochs=5)
    run = study.runs[1]
    assert str(read_status(study, run)) == "to do"
    assert count_remaining_parts(study, run) == 5 + 2
    RunFolder(study.path(run)).write_log([{"epoch": 1}, {"epoch": 2}])
    assert str(read_status(study, run)) == "interrupted after epoch 2"
    assert count_remaining_parts(study, run) == 3 + 2


@pytest.mark.usefixtures("fake")
def test_runs_that_left_the_study_are_found_and_not_reported(registry: Registry) -> None:
    list(run_study(write_study(registry), jobs=1))
    smaller = write_study(registry, alphas="[0]")
    assert find_leftover_runs(smaller) == ["digits-trades-a2-s0"]
    assert Path("runs/small/digits-trades-a2-s0/last.safetensors").exists()
    assert sum(len(list_records(smaller, run)) for run in smaller.runs) == 1


@pytest.mark.usefixtures("fake")
def test_runs_without_folder_are_known_from_their_kept_records(registry: Registry) -> None:
    study = write_study(registry, keep='keep = "kept"')
    list(run_study(study, jobs=1))
    assert find_runs_known_from_records(study) == []
    study.path(study.runs[0]).rename("elsewhere")
    assert find_runs_known_from_records(study) == [study.runs[0]]


@pytest.mark.usefixtures("fake")
def test_kept_records_have_the_rows_that_a_report_needs(registry: Registry) -> None:
    study = write_study(registry, keep='keep = "kept"')
    list(run_study(study, jobs=1))
    whole = synthetic.make_rows(20, logits=True)
    for file in list_records(study, study.runs[1]):
        kept = records.load_record_rows(file, records.load(file))
        np.testing.assert_array_equal(kept["uniform/margin"], whole["uniform/margin"])
        assert {name for name in kept if name.endswith("logits")} == {"uniform/logits"}


def test_integers_are_stored_in_the_smallest_type_and_floats_are_unchanged() -> None:
    rows = {"label": np.arange(300), "uniform/margin": np.linspace(0, 1, 300)}
    compact = compact_rows(rows)
    assert compact["label"].dtype == np.uint16
    np.testing.assert_array_equal(compact["label"], rows["label"])
    assert compact["uniform/margin"] is rows["uniform/margin"]
