"""Attacks that gather images get those of several batches, however the work is divided."""

from pathlib import Path

import numpy as np
import pytest
import torch

import wmr_cli
from support.typed import stop
from wmr_cli.builtins.attacks.autoattack import AutoAttack
from wmr_cli.config import EvaluateConfig
from wmr_cli.core.protocols import AttackResult, Batch, Objective
from wmr_cli.evaluation.evaluator import (
    BATCHES_PER_GROUP,
    CHUNK_SIZE,
    batch_images,
    group_batches,
    plan_chunks,
)
from wmr_cli.evaluation.run import evaluate, make_jobs
from wmr_cli.evaluation.tasks import plan_tasks
from wmr_cli.events import EvaluationDone, ImagesDone
from wmr_cli.registry import Registry
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import checkpoints, records
from wmr_cli.storage.records import Rows

SPEC = "autoattack:attacks=apgd-ce:apgd-t:square,queries=50"
CONFIG = EvaluateConfig(
    attacks=(SPEC,), eps=(0.1,), steps=5, metrics=("nat", "rob"), batch_size=32, limit=200
)


def run_to_rows(path: Path, registry: Registry, out: Path, config: EvaluateConfig = CONFIG) -> Rows:
    events = evaluate(
        path,
        config,
        registry,
        data_dir=Path(),
        hardware=Hardware("cpu"),
        out=out,
        resume=True,
    )
    (done,) = [event for event in events if isinstance(event, EvaluationDone)]
    return records.load_rows(done.rows)


def are_equal(first: Rows, second: Rows) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


@pytest.mark.parametrize("batch_size", [32, 128, 1000])
@pytest.mark.parametrize("images", [1, 100, 257, 1000, 2048, 3000])
def test_groups_hold_whole_batches_of_enough_images(images: int, batch_size: int) -> None:
    positions = torch.arange(images)
    alone = plan_chunks(positions, batch_size, CHUNK_SIZE, gathers=False)
    groups = plan_chunks(positions, batch_size, CHUNK_SIZE, gathers=True)
    batches = [batch for chunk in alone for batch in chunk]
    gathered = [batch for group in groups for batch in group]
    assert [batch.tolist() for batch in gathered] == [batch.tolist() for batch in batches]
    wanted = BATCHES_PER_GROUP * min(batch_size, CHUNK_SIZE)
    sizes = [sum(map(len, group)) for group in groups]
    assert all(size >= wanted for size in sizes[:-1])
    assert max(sizes) < wanted + CHUNK_SIZE + 1


def test_the_attack_gets_the_images_of_several_batches(
    tiny_run: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    attack = AutoAttack.__call__

    def count_images(
        self: AutoAttack,
        model: torch.nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        sizes.append(len(batch.labels))
        return attack(self, model, batch, objective, seed=seed, need_logits=need_logits)

    monkeypatch.setattr(AutoAttack, "__call__", count_images)
    run_to_rows(tiny_run, registry, tmp_path)
    assert sum(sizes) == 200
    assert min(sizes[:-1]) >= 2 * CONFIG.batch_size


def test_rows_are_the_same_after_a_resume_and_for_every_rank(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    whole = run_to_rows(tiny_run, registry, tmp_path / "whole")
    predictions = whole["uniform/prediction"]
    assert 0 < (predictions == whole["label"]).mean() < 1
    folder = tmp_path / "resumed"
    hardware = Hardware("cpu")
    events = evaluate(tiny_run, CONFIG, registry, data_dir=Path(), hardware=hardware, out=folder)
    while not (
        isinstance(event := next(events), ImagesDone) and list(folder.rglob("*.safetensors"))
    ):
        pass
    assert 0 < event.done < 200
    stop(events)
    assert are_equal(run_to_rows(tiny_run, registry, folder), whole)
    # a rank takes every n-th job: the jobs are those of one process, in another order
    task = next(plan_tasks(checkpoints.load(tiny_run), CONFIG, registry, Path()))
    jobs = make_jobs(task, tmp_path, CHUNK_SIZE)
    assert len(jobs) > 2
    assert sum(map(len, jobs)) == 200


def test_a_stream_has_the_rows_of_a_split(registry: Registry, tiny_run: Path) -> None:
    model = wmr_cli.load(tiny_run)
    split = wmr_cli.create("dataset", "digits").splits["test"]
    batch = split.batch(torch.arange(150))
    stream = zip(batch.images.split(13), batch.labels.split(13), batch.index.split(13), strict=True)
    whole, streamed = (
        wmr_cli.evaluate(
            model,
            data,
            attack=AutoAttack("linf", 0.1, 5, 50),
            metrics=("nat", "rob"),
            alphas=(),
            batch_size=32,
        ).rows
        for data in ([(batch.images, batch.labels, batch.index)], stream)
    )
    assert are_equal(whole, streamed)


def test_clean_rows_are_those_under_another_attack(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    import msgspec

    config = msgspec.structs.replace(CONFIG, attacks=("pgd",))
    gathered = run_to_rows(tiny_run, registry, tmp_path)
    alone = run_to_rows(tiny_run, registry, tmp_path, config)
    assert np.array_equal(gathered["clean/margin"], alone["clean/margin"])


def test_groups_of_a_stream_are_those_of_a_split() -> None:
    images = torch.zeros(300, 1, 1, 1)
    labels = torch.zeros(300, dtype=torch.int64)
    from wmr_cli.core.data.loaders import as_split_or_stream

    stream = as_split_or_stream(iter(zip(images.split(7), labels.split(7), strict=True)), 40)
    found = group_batches(batch_images(stream, 40, CHUNK_SIZE), 40)
    planned = plan_chunks(torch.arange(300), 40, CHUNK_SIZE, gathers=True)
    assert [[len(part.labels) for part in group] for group in found] == [
        [len(part) for part in group] for group in planned
    ]
