"""Evaluations do not depend on how work is divided, and records are complete."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from support.typed import not_none, stop
from wmr_cli import measures
from wmr_cli.config import EvaluateConfig, TrainConfig
from wmr_cli.core.contexts import prefer_determinism
from wmr_cli.core.protocols import Batch
from wmr_cli.errors import BadInput, RunFolderError
from wmr_cli.evaluation import evaluator, tasks
from wmr_cli.evaluation.evaluator import (
    CHUNK_SIZE,
    Evaluator,
    make_evaluator,
    split_into_batches,
    split_into_chunks,
    stack_rows,
)
from wmr_cli.evaluation.run import evaluate
from wmr_cli.evaluation.tasks import plan_tasks
from wmr_cli.events import EvaluationDone, ImagesDone, Message
from wmr_cli.registry import Registry
from wmr_cli.reporting.rows import attack_name
from wmr_cli.runtime.components import restore_model
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import checkpoints, records
from wmr_cli.storage.records import Record, Rows

pytestmark = pytest.mark.usefixtures("trusts_local_code")


def run_evaluation(
    path: Path,
    registry: Registry,
    out: Path | None,
    resume: bool = False,
    **settings: Any,
) -> list[EvaluationDone]:
    config = EvaluateConfig(**{"alpha_test": (0.0, 1.0, 2.0), "steps": 3, **settings})
    events = list(
        evaluate(
            path,
            config,
            registry,
            data_dir=Path(),
            hardware=Hardware("cpu"),
            out=out,
            resume=resume,
        )
    )
    return [event for event in events if isinstance(event, EvaluationDone)]


def drop_times(record: Record) -> Record:
    return msgspec.structs.replace(record, created="", seconds=0, images_per_second=0, config={})


@pytest.fixture(scope="module")
def done(
    tiny_run: Path, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> EvaluationDone:
    return run_evaluation(tiny_run, registry, tmp_path_factory.mktemp("whole"))[0]


def test_a_sa_equals_a_rob_at_alpha_zero_and_never_increases(done: EvaluationDone) -> None:
    accuracies = [not_none(row.a_sa).value for row in done.record.by_alpha]
    assert accuracies[0] == not_none(done.record.a_rob).value
    assert accuracies == sorted(accuracies, reverse=True)
    rows = records.load_rows(done.rows)
    curve = [
        not_none(measures.sampled_accuracy(rows, "exp", alpha)).value
        for alpha in np.linspace(0, 50, 101)
    ]
    assert curve == sorted(curve, reverse=True)


def test_the_weighted_attack_at_alpha_zero_is_the_unweighted_one(done: EvaluationDone) -> None:
    rows = records.load_rows(done.rows)
    assert np.array_equal(rows["weighted@0.0/logits"], rows["uniform/logits"])
    assert not np.array_equal(rows["weighted@2.0/logits"], rows["uniform/logits"])


def test_the_record_contains_the_training_config(
    done: EvaluationDone, tiny_config: TrainConfig
) -> None:
    facts = done.record.checkpoint
    assert msgspec.convert(facts.config, TrainConfig) == tiny_config
    assert facts.epoch == tiny_config.epochs


def test_rows_have_the_documented_names_types_and_order(done: EvaluationDone) -> None:
    rows = records.load_rows(done.rows)
    kinds = {
        "prediction": np.int64,
        "margin": np.float64,
        "logit_margin": np.float32,
        "loss": np.float32,
        "logits": np.float32,
    }
    prefixes = ("clean", "uniform", "weighted@0.0", "weighted@1.0", "weighted@2.0")
    assert rows.keys() == {"index", "label"} | {
        f"{prefix}/{name}" for prefix in prefixes for name in kinds
    }
    assert all(
        rows[f"{prefix}/{name}"].dtype == kind
        for prefix in prefixes
        for name, kind in kinds.items()
    )
    assert all(len(values) == 550 for values in rows.values())
    assert np.array_equal(np.sort(rows["index"]), rows["index"])
    assert rows["uniform/logits"].shape == (550, 10)


def test_compact_rows_are_the_full_ones_without_logits(
    done: EvaluationDone, tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    # resumed as well: chunks of compact rows are complete
    walk = evaluate(
        tiny_run,
        EvaluateConfig(alpha_test=(0.0, 1.0, 2.0), steps=3, rows="compact"),
        registry,
        data_dir=Path(),
        hardware=Hardware("cpu"),
        out=tmp_path,
    )
    while not (isinstance(next(walk), ImagesDone) and list(tmp_path.rglob("*.safetensors"))):
        pass
    stop(walk)
    (compact,) = run_evaluation(tiny_run, registry, tmp_path, resume=True, rows="compact")
    rows = records.load_record_rows(compact.rows.with_suffix(".json"), compact.record)
    full = records.load_rows(done.rows)
    assert rows.keys() == {name for name in full if not name.endswith("/logits")}
    for name, values in rows.items():
        assert np.array_equal(values, full[name])
    same = {"id": "", "created": "", "seconds": 0, "images_per_second": 0, "config": {}}
    assert msgspec.structs.replace(compact.record, **same) == msgspec.structs.replace(
        done.record, **same
    )
    # 50,000 images need less than 100 MB, whatever the number of classes
    assert sum(values.nbytes for values in rows.values()) / 550 * 50_000 < 10e6


def test_rows_of_many_classes_are_compact_by_default(
    tiny_run: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(**settings: Any) -> tuple[str, bool]:
        config = EvaluateConfig(limit=40, steps=1, **settings)
        task = next(plan_tasks(checkpoints.load(tiny_run), config, registry, Path()))
        return task.id, task.is_compact

    few = plan()
    assert few == plan(rows="full")
    requested = plan(rows="compact")
    monkeypatch.setattr(tasks, "MAX_CLASSES_IN_FULL_ROWS", 9)
    assert plan() == requested
    assert plan(rows="full") == few
    assert (few[1], requested[1]) == (False, True)
    # a kernel that compares images reads the logits of all of them
    assert plan(kernel="cvar")[1] is False
    with pytest.raises(BadInput, match="cvar") as refused:
        plan(kernel="cvar", rows="compact")
    assert "rows" in str(refused.value.hint)


def test_checks_repeats_and_the_worst_case_equal_those_of_full_rows(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "attacks": ("pgd", "fgsm"),
        "steps": None,
        "limit": 40,
        "checks": True,
        "repeats": 2,
        "per_class": True,
        "kernel": "focal",
        "alpha_test": None,
        "metrics": ("nat", "rob", "sa", "tr", "dro"),
    }
    for kernel in ({}, {"kernel": "exp", "alpha_test": (1.0,)}):
        full, compact = (
            run_evaluation(tiny_run, registry, tmp_path, rows=rows, **settings | kernel)
            for rows in ("full", "compact")
        )
        assert [attack_name(done.record) for done in full] == [
            attack_name(done.record) for done in compact
        ]
        assert len(full) == 3
        for one, other in zip(full, compact, strict=True):
            assert one.record.checks == other.record.checks
            assert one.record.repeats == other.record.repeats
            assert one.record.by_alpha == other.record.by_alpha
            assert one.record.dro == other.record.dro
            assert one.record.per_class == other.record.per_class
            assert not [name for name in records.load_rows(other.rows) if "logits" in name]


def test_margins_and_losses_follow_from_the_stored_logits(done: EvaluationDone) -> None:
    rows = records.load_rows(done.rows)
    logits, labels = rows["uniform/logits"].astype(np.float64), rows["label"]
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    true = scores[np.arange(550), labels]
    scores[np.arange(550), labels] = -1
    np.testing.assert_allclose(rows["uniform/margin"], true - scores.max(axis=1), atol=1e-12)
    np.testing.assert_allclose(rows["uniform/loss"], -np.log(true), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 7, 512])
def test_any_batch_size_gives_the_same_predictions_and_metrics(
    batch_size: int, done: EvaluationDone, tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"limit": 200, "steps": 3}
    reference = run_evaluation(tiny_run, registry, tmp_path / "a", **settings, batch_size=200)[0]
    other = run_evaluation(tiny_run, registry, tmp_path / "b", **settings, batch_size=batch_size)[0]
    expected = records.load_rows(reference.rows)
    found = records.load_rows(other.rows)
    for prefix in ("clean", "uniform", "weighted@2.0"):
        assert np.array_equal(found[f"{prefix}/prediction"], expected[f"{prefix}/prediction"])
    for first, second in zip(reference.record.by_alpha, other.record.by_alpha, strict=True):
        assert not_none(first.a_sa).value == pytest.approx(not_none(second.a_sa).value, abs=1e-5)
        assert not_none(first.a_tr).value == pytest.approx(not_none(second.a_tr).value, abs=1e-5)
    assert reference.record.id == other.record.id


def test_the_record_is_bit_identical_from_run_to_run(
    done: EvaluationDone, tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    again = run_evaluation(tiny_run, registry, tmp_path)[0]
    assert drop_times(again.record) == drop_times(done.record)
    expected = records.load_rows(done.rows)
    found = records.load_rows(again.rows)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_rows_do_not_depend_on_the_order_of_chunks(
    done: EvaluationDone, tiny_run: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EvaluateConfig(alpha_test=(0.0, 1.0, 2.0), steps=3)
    task = next(plan_tasks(checkpoints.load(tiny_run), config, registry, Path()))
    model = restore_model(registry, task.checkpoint)
    made = make_evaluator(task, model, task.images.first(8).images)
    parts = split_into_chunks(task.images.positions, CHUNK_SIZE)
    assert len(parts) == 8
    assert {len(part) for part in parts} == {69, 68}

    def rows_of(
        chunk: Tensor,
    ) -> Rows:
        return stack_rows(
            [
                made.evaluate_batch(task.images.split.batch(part))
                for part in split_into_batches(chunk, 550, config.batch_size)
            ]
        )

    backwards = [rows_of(chunk) for chunk in reversed(parts)]
    rows = stack_rows(backwards[::-1])
    stored = records.load_rows(done.rows)
    assert all(np.array_equal(rows[name], stored[name]) for name in stored)


def test_a_resumed_evaluation_measures_only_missing_chunks(
    done: EvaluationDone,
    tiny_run: Path,
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = EvaluateConfig(alpha_test=(0.0, 1.0, 2.0), steps=3)
    walk = evaluate(
        tiny_run, config, registry, data_dir=Path(), hardware=Hardware("cpu"), out=tmp_path
    )
    while not (
        isinstance(event := next(walk), ImagesDone) and list(tmp_path.rglob("*.safetensors"))
    ):
        pass
    assert event.done == 69
    stop(walk)
    examined: list[int] = []
    rows = Evaluator.evaluate_batch

    def count_images(self: Evaluator, batch: Batch) -> Rows:
        examined.append(len(batch.labels))
        return rows(self, batch)

    monkeypatch.setattr(Evaluator, "evaluate_batch", count_images)
    (resumed,) = run_evaluation(tiny_run, registry, tmp_path, resume=True)
    assert sum(examined) == 550 - 69
    assert drop_times(resumed.record) == drop_times(done.record)
    assert not list(tmp_path.rglob("*.partial"))


def test_an_evaluation_in_progress_cannot_be_started_again(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    config = EvaluateConfig(alpha_test=(1.0,), steps=1, limit=20)
    walk = evaluate(
        tiny_run, config, registry, data_dir=Path(), hardware=Hardware("cpu"), out=tmp_path
    )
    while not isinstance(next(walk), ImagesDone):
        pass
    with pytest.raises(RunFolderError, match="in use"):
        run_evaluation(tiny_run, registry, tmp_path, alpha_test=(1.0,), steps=1, limit=20)
    stop(walk)


@pytest.mark.parametrize(
    "change",
    [
        {"restarts": 2},
        {"seed": 1},
        {"steps": 4},
        {"alpha_test": (3.0,)},
        {"limit": 21},
        {"split": "val"},
        {"metrics": ("nat", "rob", "sa", "tr", "dro")},
        {"rho": (0.5,)},
        {"dro_loss": "margin"},
        {"per_class": True},
        {"repeats": 2},
        {"ci": "bootstrap"},
        {"fold": False},
        {"layout": "contiguous"},
        {"rows": "compact"},
    ],
)
def test_settings_that_change_the_result_change_the_id(
    change: dict[str, bool | int | str | tuple[float | str, ...]],
    tiny_run: Path,
    registry: Registry,
) -> None:
    settings = {"limit": 20, "steps": 3}
    first, second = (
        next(plan_tasks(checkpoints.load(tiny_run), EvaluateConfig(**with_these), registry, Path()))
        for with_these in (settings, settings | change)
    )
    assert first.id != second.id


def test_the_code_of_a_local_attack_and_its_settings_are_part_of_the_id(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    code = "from wmr_cli.core import AttackTraits\nclass Mine:\n    traits = AttackTraits()\n"
    code += "    def __init__(self, steps: int = 1): self.steps = steps\n"
    code += "    def __call__(self, model, batch, objective, *, seed, need_logits=True): ...\n"
    file.write_text(code)

    def identity(steps: int) -> str:
        config = EvaluateConfig(attacks=(f"{file}:Mine",), steps=steps)
        return next(plan_tasks(checkpoints.load(tiny_run), config, registry, Path())).id

    before = identity(1)
    assert identity(2) != before
    file.write_text(code + "    note = 'changed'\n")
    assert identity(1) != before


def test_an_evaluation_uses_float32_without_tf32(
    tiny_run: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def spy(self: Evaluator, batch: Batch) -> Rows:
        seen.add(
            (
                torch.get_float32_matmul_precision(),
                torch.backends.cudnn.allow_tf32,
                torch.backends.cudnn.deterministic,
            )
        )
        return rows(self, batch)

    rows = Evaluator.evaluate_batch
    monkeypatch.setattr(Evaluator, "evaluate_batch", spy)
    torch.set_float32_matmul_precision("medium")
    run_evaluation(tiny_run, registry, tmp_path, metrics=("nat",), limit=10)
    assert torch.get_float32_matmul_precision() == "medium"
    torch.set_float32_matmul_precision("highest")
    assert seen == {("highest", False, True)}


def test_a_record_without_its_rows_is_measured_again(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    first = run_evaluation(tiny_run, registry, tmp_path, limit=20)[0]
    first.rows.unlink()
    second = run_evaluation(tiny_run, registry, tmp_path, limit=20)[0]
    assert not second.stored
    assert second.rows.exists()
    assert drop_times(second.record) == drop_times(first.record)


def test_a_step_larger_than_the_eps_ball_gives_a_warning(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    config = EvaluateConfig(step_size=0.4, steps=1, limit=10)
    events = evaluate(
        tiny_run, config, registry, data_dir=Path(), hardware=Hardware("cpu"), out=tmp_path
    )
    assert any("diameter" in event.text for event in events if isinstance(event, Message))


def test_a_stored_record_is_not_measured_again(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    first = run_evaluation(tiny_run, registry, tmp_path, limit=20)[0]
    second = run_evaluation(tiny_run, registry, tmp_path, limit=20)[0]
    assert (first.stored, second.stored) == (False, True)
    assert first.record == second.record
    assert (
        run_evaluation(tiny_run, registry, tmp_path, limit=20, seed=1)[0].record.id
        != first.record.id
    )


def test_a_record_is_equal_after_decoding_its_json(done: EvaluationDone) -> None:
    assert Record.from_json(done.record.to_json()) == done.record
    stored = json.loads(done.rows.with_suffix(".json").read_text())
    assert "ess" not in stored["a_nat"]
    assert stored["schema"] == 1
    assert stored["attack"] == {"spec": "pgd:steps=3,step=0.015", "seed": 0, "restarts": 1}
    assert stored["threat"] == {"norm": "linf", "eps": 0.15}
    assert stored["versions"]["torch"] == torch.__version__


def test_the_metrics_follow_from_the_rows(done: EvaluationDone) -> None:
    rows = records.load_rows(done.rows)
    is_correct = rows["uniform/prediction"] == rows["label"]
    weights = np.exp(-2.0 * rows["uniform/margin"])
    row = done.record.by_alpha[2]
    assert not_none(row.a_sa).value == pytest.approx(
        (weights * is_correct).sum() / weights.sum(), abs=1e-12
    )
    assert not_none(row.a_sa).ess == pytest.approx(
        weights.sum() ** 2 / (weights**2).sum(), rel=1e-12
    )
    assert not_none(row.a_sa).low < not_none(row.a_sa).value < not_none(row.a_sa).high


def test_every_attack_and_eps_has_its_own_record(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    found = run_evaluation(
        tiny_run,
        registry,
        tmp_path,
        attacks=("pgd", "pgd-margin", "fgsm"),
        eps=(0.05, 0.15),
        steps=None,
        metrics=("rob",),
        limit=20,
    )
    facts = [(event.record.attack.spec, event.record.threat.eps) for event in found]
    assert facts[-2:] == [("worst", 0.05), ("worst", 0.15)]
    assert facts[:-2] == [
        ("pgd:steps=20,step=0.005", 0.05),
        ("pgd:steps=20,step=0.015", 0.15),
        ("pgd-margin:steps=20,step=0.005", 0.05),
        ("pgd-margin:steps=20,step=0.015", 0.15),
        ("fgsm", 0.05),
        ("fgsm", 0.15),
    ]
    assert all(
        row.a_sa is None and row.a_tr is None for event in found for row in event.record.by_alpha
    )


def test_metrics_decide_which_attacks_are_run(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    natural = run_evaluation(tiny_run, registry, tmp_path, metrics=("nat",), limit=20)[0]
    assert natural.record.a_rob is None
    assert not [
        name
        for name in records.load_rows(natural.rows)
        if not name.startswith(("clean/", "index", "label"))
    ]
    sampled = run_evaluation(tiny_run, registry, tmp_path, metrics=("nat", "rob", "sa"), limit=20)[
        0
    ]
    assert all(row.a_sa is not None and row.a_tr is None for row in sampled.record.by_alpha)


def test_a_subset_is_balanced_recorded_and_the_same_for_every_checkpoint(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    last = run_evaluation(tiny_run, registry, tmp_path, limit=50)[0].record
    best = run_evaluation(tiny_run / "best.safetensors", registry, tmp_path, limit=50)[0].record
    assert last.dataset.indices == best.dataset.indices
    rows = records.load_rows(tmp_path / f"{last.id}.safetensors")
    assert np.bincount(rows["label"]).tolist() == [5] * 10
    assert rows["index"].tolist() == last.dataset.indices


def test_a_kernel_without_alpha_has_one_entry(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    record = run_evaluation(tiny_run, registry, tmp_path, kernel="none", alpha_test=None, limit=50)[
        0
    ].record
    (row,) = record.by_alpha
    assert row.alpha_test is None
    assert not_none(row.a_sa).value == not_none(record.a_rob).value
    assert "uniform/log_weight" in records.load_rows(tmp_path / f"{record.id}.safetensors")
    with pytest.raises(BadInput, match="alpha"):
        run_evaluation(tiny_run, registry, tmp_path, kernel="none", alpha_test=(1.0,))


def test_a_small_effective_sample_size_gives_a_warning(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    def list_warnings(alpha: float) -> list[str]:
        config = EvaluateConfig(alpha_test=(alpha,), steps=1, limit=50, metrics=("rob", "sa"))
        events = evaluate(
            tiny_run, config, registry, data_dir=Path(), hardware=Hardware("cpu"), out=tmp_path
        )
        return [event.text for event in events if isinstance(event, Message) and event.is_warning]

    # a small test set alone gives no warning
    assert list_warnings(1.0) == []
    assert any("effective sample size" in text for text in list_warnings(1000.0))


def test_an_eps_near_a_fraction_of_255_gives_a_warning(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    config = EvaluateConfig(eps=(0.031,), steps=1, limit=10)
    events = evaluate(
        tiny_run, config, registry, data_dir=Path(), hardware=Hardware("cpu"), out=tmp_path
    )
    assert any("8/255" in event.text for event in events if isinstance(event, Message))


def test_evaluations_are_stored_in_the_run_or_beside_a_single_file(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    shutil.copy(tiny_run / "last.safetensors", tmp_path / "bare.safetensors")
    inside = run_evaluation(tmp_path / "run", registry, None, metrics=("nat",), limit=10)[0]
    beside = run_evaluation(
        tmp_path / "bare.safetensors", registry, None, metrics=("nat",), limit=10
    )[0]
    assert inside.rows.parent == tmp_path / "run" / "evaluations"
    assert beside.rows.parent == tmp_path / "bare.evaluations"


def test_an_attack_that_stops_early_gives_a_rob_only(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    (tmp_path / "early.py").write_text(
        "from wmr_cli.core.protocols import AttackResult\n"
        "from wmr_cli.core import AttackTraits\n"
        "class Early:\n"
        "    traits = AttackTraits(stops_early=True)\n"
        "    def __call__(self, model, batch, objective, *, seed, need_logits=True):\n"
        "        return AttackResult(batch.images, batch.labels, model(batch.images).detach())\n"
    )
    attack = f"{tmp_path / 'early.py'}:Early"
    early: dict[str, Any] = {
        "attacks": (attack,),
        "steps": None,
        "limit": 20,
        "metrics": ("rob", "dro"),
    }
    # losses of the attack are not meaningful, only its predictions
    assert run_evaluation(tiny_run, registry, tmp_path, **early)[0].record.dro == []
    (done,) = run_evaluation(tiny_run, registry, tmp_path, **early, dro_loss="zero-one")
    assert len(done.record.dro) == 8
    record = run_evaluation(tiny_run, registry, tmp_path, attacks=(attack,), steps=None, limit=20)[
        0
    ].record
    assert not_none(record.a_rob).value == record.a_nat.value
    assert [(row.a_sa, row.a_tr) for row in record.by_alpha] == [(None, None)] * 3


def test_authors_eval_takes_the_steps_of_the_preset_and_shows_restarts(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    (found,) = run_evaluation(
        tiny_run,
        registry,
        tmp_path,
        attacks=("authors-eval",),
        steps=None,
        metrics=("rob",),
        limit=5,
    )
    assert found.record.attack.spec == "authors-eval:steps=20,step=0.015"
    assert attack_name(found.record) == "authors-eval:steps=20,step=0.015,restarts=10"


@pytest.mark.parametrize("linked", ["evaluations", "evaluations/{id}.partial"])
def test_a_linked_folder_in_a_run_is_refused(
    linked: str, tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    path = shutil.copytree(tiny_run, tmp_path / "run")
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious.safetensors").write_text("weights")
    config = EvaluateConfig(limit=10, steps=1, alpha_test=(1.0,))
    identity = next(plan_tasks(checkpoints.load(path), config, registry, Path())).id
    link = path / linked.format(id=identity)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim)
    with pytest.raises(RunFolderError, match="symbolic link"):
        list(evaluate(path, config, registry, data_dir=Path(), hardware=Hardware("cpu")))
    assert [file.name for file in victim.iterdir()] == ["precious.safetensors"]


def need_unordered_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows need an operation that has no deterministic algorithm, on CPUs neither."""
    evaluate_batch = Evaluator.evaluate_batch

    def put_and_evaluate(self: Evaluator, batch: Batch) -> Rows:
        torch.zeros(4).put_(torch.tensor([0]), torch.ones(1))
        return evaluate_batch(self, batch)

    monkeypatch.setattr(Evaluator, "evaluate_batch", put_and_evaluate)


def test_the_mode_of_algorithms_is_restored_and_ignored_on_cpus(
    tiny_run: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_unordered_sums(monkeypatch)
    (done,) = run_evaluation(tiny_run, registry, tmp_path, limit=20, steps=1)
    assert done.record.deterministic
    assert not torch.are_deterministic_algorithms_enabled()


def test_records_of_an_accelerator_state_that_rows_are_not_deterministic(
    tiny_run: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "is_accelerator", lambda device: True)
    need_unordered_sums(monkeypatch)
    done = run_evaluation(
        tiny_run, registry, tmp_path, limit=20, steps=None, attacks=("pgd:steps=1", "fgsm")
    )
    # the third is their worst case
    assert [each.record.deterministic for each in done] == [False, False, False]
    assert not torch.are_deterministic_algorithms_enabled()


def test_records_of_an_accelerator_are_deterministic_without_such_operations(
    tiny_run: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "is_accelerator", lambda device: True)
    (done,) = run_evaluation(tiny_run, registry, tmp_path, limit=20, steps=1)
    assert done.record.deterministic


def test_rows_of_an_interrupted_evaluation_count_for_determinism(
    tiny_run: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "is_accelerator", lambda device: True)
    settings: dict[str, Any] = {"limit": 64, "steps": 1, "alpha_test": (1.0,)}
    config = EvaluateConfig(**settings)
    with monkeypatch.context() as patched:
        need_unordered_sums(patched)
        walk = evaluate(
            tiny_run, config, registry, data_dir=Path(), hardware=Hardware("cpu"), out=tmp_path
        )
        while not (isinstance(next(walk), ImagesDone) and list(tmp_path.rglob("*.safetensors"))):
            pass
        stop(walk)
    # the chunk of the first attempt is kept or measured again
    (resumed,) = run_evaluation(tiny_run, registry, tmp_path, resume=True, **settings)
    assert resumed.record.deterministic is False
    (again,) = run_evaluation(tiny_run, registry, tmp_path / "again", **settings)
    assert again.record.deterministic is True


def test_warnings_about_other_things_are_not_lost() -> None:
    found: set[str] = set()
    with pytest.warns(UserWarning, match="of a plugin"), prefer_determinism(found):
        warnings.warn("a warning of a plugin", stacklevel=1)
    assert found == set()
