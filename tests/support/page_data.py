"""Synthetic evaluations for the HTML page: random logits, scored by `wmr` itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy

from support import synthetic
from wmr_cli import measures
from wmr_cli.config import EvaluateConfig
from wmr_cli.measures import Resampled
from wmr_cli.reporting.comparison import AccuracyKey, resample_groups
from wmr_cli.reporting.grouping import group_by_setting
from wmr_cli.storage import records
from wmr_cli.storage.records import Record, Rows


def make_logit_rows(
    seed: int,
    images: int = 300,
    classes: int = 10,
    skill: float = 2.0,
    *,
    stops_early: bool = False,
) -> Rows:
    """Rows of an evaluation. Labels are the same for every seed."""
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


# a test may set each fact, as in `make_record`
def save_evaluation(  # noqa: PLR0913
    folder: Path,
    run: str,
    rows: Rows,
    evaluation: EvaluateConfig | None = None,
    *,
    of: list[str] | None = None,
    data: str = "0",
    indices: list[int] | None = None,
    seed: int = 0,
    train_seed: int = 0,
    **facts: Any,
) -> tuple[Path, Record]:
    """Save these rows and their record as `wmr evaluate` does. `seed` is that of the attack."""
    evaluation = evaluation or EvaluateConfig(
        metrics=("nat", "rob", "sa", "dro"), rho=(0.01, 0.1, 1.0)
    )
    usual = {"eps": 0.1, "attack": "pgd:steps=20", "defense": "trades", "alphas": (1.0, 1.5, 2.0)}
    plain = synthetic.make_record(
        rows, run, evaluation=evaluation, seed=train_seed, **{**usual, **facts}
    )
    record = msgspec.structs.replace(
        plain,
        id=records.record_id({"of": [plain.id, of, data, indices, seed]}),
        dataset=msgspec.structs.replace(plain.dataset, sha256=data, indices=indices),
        attack=msgspec.structs.replace(plain.attack, seed=seed, of=of),
    )
    return synthetic.save_record(
        folder / run.replace("/", "-").replace("\n", " ") / "evaluations", record, rows
    )


def save_seeds(
    folder: Path, name: str, skills: Sequence[float], **facts: Any
) -> list[tuple[Path, Record]]:
    """Save an evaluation for each training seed, with its skill."""
    return [
        save_evaluation(
            folder,
            f"{name}-s{seed}",
            make_logit_rows(100 * seed + len(name), skill=skill),
            train_seed=seed,
            **facts,
        )
        for seed, skill in enumerate(skills)
    ]


def resample(found: Sequence[tuple[Path, Record]]) -> dict[AccuracyKey, Resampled]:
    """Resample the images of these records, as a report does for its ranks."""
    files = {record.id: file for file, record in found}
    groups = group_by_setting([record for _, record in found])
    return resample_groups(groups, files, compare=False).accuracies


def save_images(
    path: Path,
    record: Record,
    rows: Rows,
    count: int,
    shape: tuple[int, ...] = (3, 8, 8),
    **header: str,
) -> None:
    """Write a file as `wmr attack --save` does, with the first images of the rows."""
    images = np.random.default_rng(1).random((count, *shape), dtype=np.float32)
    tensors = {
        "images": images,
        "index": rows["index"][:count],
        "label": rows["label"][:count],
        "prediction": rows["uniform/prediction"][:count],
        "prediction_clean": rows["clean/prediction"][:count],
    }
    metadata = {
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
    safetensors.numpy.save_file(
        {name: np.ascontiguousarray(values) for name, values in tensors.items()},
        path,
        metadata=metadata,
    )
