"""Synthetic records and rows: random margins, scored by `wmr` itself, without training or attacks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy

from support.typed import not_none
from wmr_cli.config import METRICS, EvaluateConfig, TrainConfig
from wmr_cli.reporting import scoring
from wmr_cli.storage import records
from wmr_cli.storage.records import AttackFacts, CheckpointFacts, DatasetFacts, Record, Rows, Threat

ALPHAS = (1.0, 2.0)
SETTINGS = msgspec.to_builtins(TrainConfig())
WITH_BALLS = EvaluateConfig(metrics=(*METRICS, "dro"))
"""Everything that figures show."""


def rows(
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


def record(
    given: Rows,
    name: str = "digits-trades-a2-s0",
    *,
    asked: EvaluateConfig | None = None,
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
    """The record that an evaluation of these rows would store.

    `asked` is the evaluation's config. `training` overrides settings of the training run, `facts`
    override those of the checkpoint.
    """
    asked = asked or EvaluateConfig()
    scores = scoring.compute_scores(given, asked, list(alphas), class_names or {})
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
        str(asked),
        len(given["label"]),
    ]
    return Record(
        id=records.record_id({"made": determining}), created="2026-01-01T00:00:00+00:00", wmr="0.1.0", kernel=asked.kernel,
        checkpoint=CheckpointFacts(path=path, seed=seed, **{**usual, "sha256": records.record_id({"path": path}), **facts}),
        dataset=DatasetFacts(name=dataset, split="test", n=len(given["label"]), sha256=dataset),
        threat=Threat(norm=norm, eps=eps), attack=AttackFacts(spec=attack, seed=0, restarts=1), precision="32", device="cpu",
        a_nat=not_none(scores.a_nat), a_rob=scores.a_rob, by_alpha=scores.by_alpha, dro=scores.dro, per_class=scores.per_class,
        config=msgspec.json.decode(msgspec.json.encode(asked)), versions={}, plugins={}, seconds=1.0, images_per_second=4.0,
    )  # fmt: skip


def worst(name: str, parts: Sequence[Record], given: Rows, **facts: Any) -> Record:
    """The record of the worst case over the attacks of these records."""
    attack = AttackFacts(spec="worst", seed=0, restarts=1, of=[part.id for part in parts])
    return msgspec.structs.replace(
        record(given, name, **facts),
        id=records.record_id({"worst": sorted(part.id for part in parts)}),
        attack=attack,
        dro=[],
    )


def stored(folder: Path, made: Record, given: Rows) -> tuple[Path, Record]:
    """Save a record with its rows, and return its path and the record."""
    path = folder / f"{made.id}.json"
    records.save(path, made, given)
    return path, made


def saved(folder: Path, given: Rows, name: str = "digits-trades-a2-s0", **facts: Any) -> Record:
    """Save the record of these rows in its run folder below `folder`."""
    return stored(folder / name / "evaluations", record(given, name, **facts), given)[1]


def stored_weights(path: Path, value: float = 0.0) -> None:
    """Write a weights file whose header has a content hash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"content_sha256": records.record_id({"value": value})}
    safetensors.numpy.save_file({"weight": np.array([value])}, path, metadata=header)
