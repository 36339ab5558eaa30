"""Evaluations made up for the page: logits by chance, everything that follows from them by the program itself."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy

from wmr_cli import measures
from wmr_cli.config import EvaluateConfig
from wmr_cli.storage import records
from wmr_cli.storage.records import AttackFacts, CheckpointFacts, DatasetFacts, Record, Rows, Threat
from wmr_cli.workflows import scoring


def made_rows(seed: int, images: int = 300, classes: int = 10, skill: float = 2.0, *, stops_early: bool = False) -> Rows:
    """Rows as an evaluation leaves them. Labels are the same for every seed."""
    rng = np.random.default_rng(seed)
    label = np.random.default_rng(0).integers(0, classes, images)
    rows: Rows = {"index": np.arange(images), "label": label}
    for prefix, reward in (("clean", skill + 2), ("uniform", skill)):
        logits = (2 * rng.standard_normal((images, classes))).astype(np.float32)
        logits[np.arange(images), label] += reward
        rows[f"{prefix}/prediction"] = logits.argmax(axis=1)
        if prefix == "clean" or stops_early:
            continue
        others = logits.astype(np.float64)
        true = others[np.arange(images), label].copy()
        total = np.log(np.exp(others).sum(axis=1))
        others[np.arange(images), label] = -np.inf
        rows[f"{prefix}/logits"] = logits
        rows[f"{prefix}/loss"] = (total - true).astype(np.float32)
        rows[f"{prefix}/logit_margin"] = (true - others.max(axis=1)).astype(np.float32)
        rows[f"{prefix}/margin"] = measures.probability_margins(logits, label)
    return rows


def evaluated(folder: Path, run: str, rows: Rows, asked: EvaluateConfig | None = None, **facts: Any) -> tuple[Path, Record]:
    """The record of these rows, saved with them as `wmr evaluate` would save it."""
    asked = asked or EvaluateConfig(metrics=("nat", "rob", "sa", "dro"), rho=(0.01, 0.1, 1.0))
    names = facts.pop("class_names", {})
    found = scoring.scores(rows, asked, facts.pop("alphas", [1.0, 1.5, 2.0]), names)
    settings = {"eps": 0.1, "norm": "linf", "attack": "pgd:steps=20", "of": None, "data": "0", "indices": None, **facts}
    record = Record(
        id=records.record_id({"run": run, **settings}),
        created="2026-01-01T00:00:00+00:00",
        wmr="0.1.0",
        checkpoint=CheckpointFacts(
            path=f"runs/{run}/last.safetensors",
            sha256=f"of {run}",
            model="m",
            defense="trades",
            kernel="exp",
            alpha_train=2.0,
            seed=0,
        ),
        dataset=DatasetFacts(
            name="digits", split="test", n=len(rows["index"]), sha256=settings["data"], indices=settings["indices"]
        ),
        threat=Threat(norm=settings["norm"], eps=settings["eps"]),
        attack=AttackFacts(spec=settings["attack"], seed=settings.get("seed", 0), restarts=1, of=settings["of"]),
        kernel=asked.kernel,
        device="cpu",
        precision="32",
        a_nat=found.a_nat,
        a_rob=found.a_rob,
        by_alpha=found.by_alpha,
        dro=found.dro,
        per_class=found.per_class,
        seconds=1.0,
        images_per_second=4.0,
        versions={},
        plugins={},
        config=msgspec.to_builtins(asked),
    )
    path = folder / run.replace("/", "-").replace("\n", " ") / "evaluations" / f"{record.id}.json"
    records.save(path, record, rows)
    return path, record


def save_pictures(path: Path, record: Record, rows: Rows, count: int, shape: tuple[int, ...] = (3, 8, 8), **header: str) -> None:
    """A file as `wmr attack --save` writes it, with the first images of the rows."""
    images = np.random.default_rng(1).random((count, *shape), dtype=np.float32)
    tensors = {
        "images": images,
        "index": rows["index"][:count],
        "label": rows["label"][:count],
        "prediction": rows["uniform/prediction"][:count],
        "prediction_clean": rows["clean/prediction"][:count],
    }
    said = {
        "attack": record.attack.spec,
        "norm": record.threat.norm,
        "eps": repr(record.threat.eps),
        "dataset": record.dataset.name,
        "split": record.dataset.split,
        "checkpoint_sha256": record.checkpoint.sha256,
        "seed": str(record.attack.seed),
        "content_sha256": "0",
        **header,
    }
    safetensors.numpy.save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, path, metadata=said)
