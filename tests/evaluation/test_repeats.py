"""Repeats: the accuracies under several seeds of the attack, in one record."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.typed import not_none, stop
from wmr_cli.config import EvaluateConfig
from wmr_cli.core.protocols import Batch
from wmr_cli.errors import BadInput
from wmr_cli.evaluation.evaluator import Evaluator
from wmr_cli.evaluation.run import evaluate
from wmr_cli.evaluation.tasks import LATER_SETTINGS, plan_tasks
from wmr_cli.events import EvaluationDone, EvaluationStarted, ImagesDone
from wmr_cli.registry import Registry
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import checkpoints, records
from wmr_cli.storage.records import Record, Rows

SETTINGS: dict[str, Any] = {"alpha_test": (0.0, 2.0), "steps": 2, "limit": 100}


def start_evaluation(
    path: Path,
    registry: Registry,
    out: Path,
    resume: bool = False,
    **settings: Any,
) -> Iterator[Any]:
    config = EvaluateConfig(**(SETTINGS | settings))
    return evaluate(
        path, config, registry, data_dir=Path(), hardware=Hardware("cpu"), out=out, resume=resume
    )


def run_evaluation(path: Path, registry: Registry, out: Path, **settings: Any) -> Record:
    events = start_evaluation(path, registry, out, **settings)
    (done,) = [event for event in events if isinstance(event, EvaluationDone)]
    return done.record


def drop_times(record: Record) -> Record:
    return msgspec.structs.replace(record, created="", seconds=0, images_per_second=0)


def list_accuracies(record: Record) -> tuple[float, list[tuple[float | None, float, float]]]:
    return not_none(record.a_rob).value, [
        (row.alpha_test, not_none(row.a_sa).value, not_none(row.a_tr).value)
        for row in record.by_alpha
    ]


@pytest.fixture(scope="module")
def thrice(
    tiny_run: Path, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Record, Path]:
    folder = tmp_path_factory.mktemp("repeats")
    return run_evaluation(tiny_run, registry, folder, seed=5, repeats=3), folder


def test_every_repeat_equals_an_evaluation_with_its_seed(
    thrice: tuple[Record, Path], tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    record, folder = thrice
    assert [part.seed for part in record.repeats] == [5, 6, 7]
    for part in record.repeats:
        alone = run_evaluation(tiny_run, registry, tmp_path, seed=part.seed)
        assert (
            part.a_rob,
            [(row.alpha_test, row.a_sa, row.a_tr) for row in part.by_alpha],
        ) == list_accuracies(alone)
        assert alone.repeats == []
        if part.seed == 5:
            # the rest of the record is that of the first seed
            assert list_accuracies(record) == list_accuracies(alone)
            rows = records.load_rows(folder / f"{record.id}.safetensors")
            expected = records.load_rows(tmp_path / f"{alone.id}.safetensors")
            assert rows.keys() == expected.keys()
            assert all((rows[name] == expected[name]).all() for name in rows)
    # the seeds do make a difference
    assert len({str(part.by_alpha) for part in record.repeats}) == 3
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize("seen", [40, 140, 260])
def test_a_resumed_evaluation_has_the_same_record(
    seen: int,
    thrice: tuple[Record, Path],
    tiny_run: Path,
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = start_evaluation(tiny_run, registry, tmp_path, seed=5, repeats=3)
    saved = 0
    while saved < seen:
        event = next(events)
        # the second event of a chunk is yielded after it is stored
        if isinstance(event, ImagesDone) and list(tmp_path.rglob("*.safetensors")):
            saved = event.done
    next(events)
    stop(events)
    examined: list[int] = []
    evaluate_batch = Evaluator.evaluate_batch

    def count_and_evaluate(self: Evaluator, batch: Batch) -> Rows:
        examined.append(len(batch.labels))
        return evaluate_batch(self, batch)

    monkeypatch.setattr(Evaluator, "evaluate_batch", count_and_evaluate)
    resumed = run_evaluation(tiny_run, registry, tmp_path, resume=True, seed=5, repeats=3)
    assert 0 < sum(examined) <= 300 - seen
    assert drop_times(resumed) == drop_times(thrice[0])


def test_images_are_counted_once_per_seed(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    events = list(start_evaluation(tiny_run, registry, tmp_path, repeats=2))
    (started,) = [event for event in events if isinstance(event, EvaluationStarted)]
    assert started.total == 200
    assert "2 seeds" in started.label
    counts = [event.done for event in events if isinstance(event, ImagesDone)]
    assert counts == sorted(counts)
    assert counts[-1] == 200


def test_a_kernel_with_stored_weights_can_be_repeated(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    record = run_evaluation(tiny_run, registry, tmp_path, repeats=2, kernel="none", alpha_test=None)
    for part in record.repeats:
        assert [(row.alpha_test, row.a_sa) for row in part.by_alpha] == [(None, part.a_rob)]


def test_repeats_without_an_attack_are_refused(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="repeats"):
        run_evaluation(tiny_run, registry, tmp_path, repeats=2, metrics=("nat",))


def test_defaults_of_later_settings_are_not_part_of_the_id(
    tiny_run: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Mapping[str, Any]] = []

    def keep(facts: Mapping[str, Any]) -> str:
        hashed.append(facts)
        return "id"

    monkeypatch.setattr(records, "record_id", keep)
    task = next(plan_tasks(checkpoints.load(tiny_run), EvaluateConfig(), registry, Path()))
    assert task.id == "id"
    assert not hashed[0].keys() & set(LATER_SETTINGS)
