"""Records and their rows out of thin air: margins drawn at random, numbers by the program's own arithmetic."""

from pathlib import Path

import msgspec
import numpy as np

from wmr_cli.config import EvaluateConfig
from wmr_cli.storage import records
from wmr_cli.storage.records import AttackFacts, CheckpointFacts, DatasetFacts, Record, Rows, Threat
from wmr_cli.workflows import scoring

ALPHAS = (1.0, 1.5, 2.0)
METRICS = ("nat", "rob", "sa", "tr", "dro")


def made_rows(n=200, seed=0, shift=0.2, clean=0.6, classes=4, alphas=ALPHAS) -> Rows:
    """Clean images are nearer to right than attacked ones; the weighted attacks do a little more harm."""
    rng = np.random.default_rng(seed)
    label = np.arange(n) % classes
    rows: Rows = {"index": np.arange(n), "label": label}
    noise = rng.normal(size=n)
    weighted = {f"weighted@{alpha!r}": shift - 0.05 for alpha in alphas}
    for prefix, centre in {"clean": clean, "uniform": shift, **weighted}.items():
        margin = np.tanh(centre + 0.5 * noise)
        rows[f"{prefix}/prediction"] = np.where(margin > 0, label, (label + 1) % classes)
        rows[f"{prefix}/margin"] = margin
        rows[f"{prefix}/logit_margin"] = np.arctanh(margin).astype(np.float32)
        rows[f"{prefix}/loss"] = (1 - margin).astype(np.float32)
    return rows


def made_record(rows: Rows, run="x", *, alphas=ALPHAS, metrics=METRICS, per_class=False, **changes) -> Record:
    """What an evaluation would have recorded of these rows."""
    config = EvaluateConfig(metrics=metrics, per_class=per_class, kernel=changes.get("kernel", "exp"))
    found = scoring.scores(rows, config, alphas, {})
    n = len(rows["label"])
    record = Record(
        id=records.record_id({"run": run, **{name: repr(value) for name, value in changes.items()}}),
        created="2026-01-01T00:00:00+00:00", wmr="0.1.0", kernel="exp", device="cpu", precision="32",
        checkpoint=CheckpointFacts(
            path=f"runs/{run}/last.safetensors", sha256=run, model="m", defense="trades", kernel="exp", alpha_train=2.0, seed=0
        ),
        dataset=DatasetFacts(name="digits", split="test", n=n, sha256="0"),
        threat=Threat(norm="linf", eps=0.1), attack=AttackFacts(spec="pgd:steps=2", seed=0, restarts=1),
        a_nat=found.a_nat, a_rob=found.a_rob, by_alpha=found.by_alpha, dro=found.dro, per_class=found.per_class,
        seconds=1.0, images_per_second=4.0, versions={}, plugins={}, config=msgspec.to_builtins(config),
    )  # fmt: skip
    return msgspec.structs.replace(record, **changes)


def stored(folder: Path, record: Record, rows: Rows) -> tuple[Path, Record]:
    """The record as `gather` finds it."""
    path = folder / f"{record.id}.json"
    records.save(path, record, rows)
    return path, record
