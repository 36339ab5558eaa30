"""Records with rows, made up without training or attacking anything."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from wmr_cli.config import EvaluateConfig, TrainConfig
from wmr_cli.storage import records
from wmr_cli.storage.records import AttackFacts, CheckpointFacts, DatasetFacts, Record, Rows, Threat
from wmr_cli.workflows import scoring

SETTINGS = msgspec.to_builtins(TrainConfig())


def rows(
    size: int = 400, *, skill: float = 0.0, seed: int = 0, alphas: tuple[float, ...] = (1.0, 2.0), logits: bool = False
) -> Rows:
    """A network of some skill on images that are hard or easy for all networks alike."""
    difficulty, own = np.random.default_rng(99).normal(0.3, 1.0, size), np.random.default_rng(seed)
    label = np.arange(size) % 10
    made: Rows = {"index": np.arange(size), "label": label}
    shifts = {"clean": 1.5, "uniform": 0.0, **{f"weighted@{alpha!r}": -0.1 * alpha for alpha in alphas}}
    for prefix, shift in shifts.items():
        margin = np.tanh(difficulty + skill + shift + own.normal(0, 0.2, size))
        made[f"{prefix}/prediction"] = np.where(margin > 0, label, (label + 1) % 10)
        made[f"{prefix}/margin"] = margin
        made[f"{prefix}/logit_margin"] = (5 * margin).astype(np.float32)
        made[f"{prefix}/loss"] = (1 - margin).astype(np.float32)
        if logits:
            made[f"{prefix}/logits"] = own.normal(size=(size, 10)).astype(np.float32)
    return made


def record(
    given: Rows,
    name: str = "digits-trades-a2-s0",
    *,
    alphas: tuple[float, ...] = (1.0, 2.0),
    seed: int = 0,
    dataset: str = "digits",
    eps: float = 0.15,
    norm: str = "linf",
    attack: str = "pgd:steps=20,step=0.015",
    weights: str = "last.safetensors",
    training: dict[str, Any] | None = None,
    **facts: Any,
) -> Record:
    """The record of these rows; `training` are settings that differ from the usual, `facts` those of the checkpoint."""
    scores = scoring.scores(given, EvaluateConfig(), list(alphas), {})
    settings = {**SETTINGS, "seed": seed, "alpha": facts.get("alpha_train", 2.0), **(training or {})}
    usual = {
        "model": "small-cnn",
        "defense": "trades:beta=6",
        "kernel": "exp",
        "alpha_train": 2.0,
        "epoch": 30,
        "config": settings,
    }
    path = f"runs/{name}/{weights}"
    determining = [path, seed, dataset, eps, norm, attack, list(alphas), str(facts), str(training), len(given["index"])]
    return Record(
        id=records.record_id({"made": determining}), created="2026-01-01T00:00:00+00:00", wmr="0.1.0", kernel="exp", device="cpu",
        checkpoint=CheckpointFacts(path=path, seed=seed, **{**usual, "sha256": records.record_id({"path": path}), **facts}),
        dataset=DatasetFacts(name=dataset, split="test", n=len(given["index"]), sha256=dataset),
        threat=Threat(norm=norm, eps=eps), attack=AttackFacts(spec=attack, seed=0, restarts=1), precision="32",
        a_nat=scores.a_nat, a_rob=scores.a_rob, by_alpha=scores.by_alpha, config={}, versions={}, plugins={},
        seconds=1.0, images_per_second=4.0,
    )  # fmt: skip


def saved(folder: Path, given: Rows, name: str = "digits-trades-a2-s0", **facts: Any) -> Record:
    """The record of these rows, saved with them in its run below `folder`."""
    made = record(given, name, **facts)
    records.save(folder / name / "evaluations" / f"{made.id}.json", made, given)
    return made
