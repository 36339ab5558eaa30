"""Synthetic records and rows: random margins, scored by `wmr`, without training or attacks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy

from support.typed import not_none
from wmr_cli.config import METRICS, EvaluateConfig, TrainConfig
from wmr_cli.reporting import scoring
from wmr_cli.reporting.scoring import add_calibrated
from wmr_cli.storage import records
from wmr_cli.storage.records import AttackFacts, CheckpointFacts, DatasetFacts, Record, Rows, Threat

ALPHAS = (1.0, 2.0)
SETTINGS = msgspec.to_builtins(TrainConfig())
WITH_DRO = EvaluateConfig(metrics=(*METRICS, "dro"))
"""A config with all metrics of the figures."""


def make_rows(
    size: int = 400,
    *,
    skill: float = 0.0,
    seed: int = 0,
    classes: int = 10,
    alphas: tuple[float, ...] = ALPHAS,
    logits: bool = False,
) -> Rows:
    """Rows of a model of a given skill. The difficulty of the images is the same for every seed."""
    difficulty, own = np.random.default_rng(99).normal(0.3, 1.0, size), np.random.default_rng(seed)
    label = np.arange(size) % classes
    made: Rows = {"index": np.arange(size), "label": label}
    shifts = {
        "clean": 1.5,
        "uniform": 0.0,
        **{f"weighted@{alpha!r}": -0.1 * alpha for alpha in alphas},
    }
    for prefix, shift in shifts.items():
        margin = np.tanh(difficulty + skill + shift + own.normal(0, 0.2, size))
        made[f"{prefix}/prediction"] = np.where(margin > 0, label, (label + 1) % classes)
        made[f"{prefix}/margin"] = margin
        made[f"{prefix}/logit_margin"] = (5 * margin).astype(np.float32)
        made[f"{prefix}/loss"] = (1 - margin).astype(np.float32)
        if logits:
            made[f"{prefix}/logits"] = own.normal(size=(size, classes)).astype(np.float32)
    return made


# a test may set each fact
def make_record(  # noqa: PLR0913
    rows: Rows,
    name: str = "digits-trades-a2-s0",
    *,
    evaluation: EvaluateConfig | None = None,
    alphas: Sequence[float | None] = ALPHAS,
    class_names: Mapping[int, str] | None = None,
    seed: int = 0,
    dataset: str = "digits",
    eps: float = 0.15,
    norm: str = "linf",
    attack: str = "pgd:steps=20,step=0.015",
    weights: str = "last.safetensors",
    training: dict[str, Any] | None = None,
    **facts: Any,
) -> Record:
    """Make the record that an evaluation of these rows would store.

    `evaluation` is its config. `training` overrides settings of the training run, `facts`
    override those of the checkpoint.
    """
    evaluation = evaluation or EvaluateConfig()
    scores = scoring.compute_scores(rows, evaluation, list(alphas), class_names or {})
    settings = {
        **SETTINGS,
        "seed": seed,
        "alpha": facts.get("alpha_train", 2.0),
        **(training or {}),
    }
    usual = {
        "model": "small-cnn",
        "defense": "trades:beta=6",
        "kernel": "exp",
        "alpha_train": 2.0,
        "epoch": 30,
        "config": settings,
    }
    path = f"runs/{name}/{weights}"
    determining = [
        path,
        seed,
        dataset,
        eps,
        norm,
        attack,
        list(alphas),
        str(facts),
        str(training),
        str(evaluation),
        len(rows["label"]),
    ]
    checkpoint = {**usual, "sha256": records.record_id({"path": path}), **facts}
    record = Record(
        id=records.record_id({"made": determining}),
        created="2026-01-01T00:00:00+00:00",
        wmr="0.1.0",
        kernel=evaluation.kernel,
        checkpoint=CheckpointFacts(path=path, seed=seed, **checkpoint),
        dataset=DatasetFacts(name=dataset, split="test", n=len(rows["label"]), sha256=dataset),
        threat=Threat(norm=norm, eps=eps),
        attack=AttackFacts(spec=attack, seed=0, restarts=1),
        precision="32",
        device="cpu",
        a_nat=not_none(scores.a_nat),
        a_rob=scores.a_rob,
        by_alpha=scores.by_alpha,
        dro=scores.dro,
        per_class=scores.per_class,
        config=msgspec.json.decode(msgspec.json.encode(evaluation)),
        versions={},
        plugins={},
        seconds=1.0,
        images_per_second=4.0,
    )
    return add_calibrated(record, rows, evaluation) if "cal" in evaluation.metrics else record


def make_worst_record(name: str, parts: Sequence[Record], rows: Rows, **facts: Any) -> Record:
    """Make the record of the worst case over the attacks of these records."""
    attack = AttackFacts(spec="worst", seed=0, restarts=1, of=[part.id for part in parts])
    return msgspec.structs.replace(
        make_record(rows, name, **facts),
        id=records.record_id({"worst": sorted(part.id for part in parts)}),
        attack=attack,
        dro=[],
    )


def save_record(folder: Path, record: Record, rows: Rows) -> tuple[Path, Record]:
    """Save a record with its rows, and return its path and the record."""
    path = folder / f"{record.id}.json"
    records.save(path, record, rows)
    return path, record


def save_run_record(
    folder: Path, rows: Rows, name: str = "digits-trades-a2-s0", **facts: Any
) -> Record:
    """Save the record of these rows in its run folder below `folder`."""
    record = make_record(rows, name, **facts)
    save_record(folder / name / "evaluations", record, rows)
    return record


def save_weights(path: Path, value: float = 0.0) -> None:
    """Write a weights file whose header has a content hash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"content_sha256": records.record_id({"value": value})}
    safetensors.numpy.save_file({"weight": np.array([value])}, path, metadata=header)
