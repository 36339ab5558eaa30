"""Kernels train with all defenses or are refused, and kernels serve as metrics."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from support.builtin_names import list_builtins
from support.training import train
from support.typed import not_none, stop
from wmr_cli.config import EvaluateConfig, TrainConfig, resolve
from wmr_cli.core.protocols import Batch, Evidence
from wmr_cli.errors import BadInput, BrokenContract, RunFolderError
from wmr_cli.evaluation.run import evaluate
from wmr_cli.evaluation.tasks import plan_tasks
from wmr_cli.events import EpochDone, EvaluationDone, StepDone
from wmr_cli.registry import Registry
from wmr_cli.runtime import components
from wmr_cli.runtime.distributed import Ranks
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.storage import checkpoints, records
from wmr_cli.storage.records import Record
from wmr_cli.storage.runs import RunFolder
from wmr_cli.testing import RecordingLearner, tiny_batch, tiny_model
from wmr_cli.training import compatibility
from wmr_cli.training.checkpointing import PerRankState
from wmr_cli.training.loop import train_step
from wmr_cli.training.optimization import StepSettings
from wmr_cli.training.setup import TrainingSetup, set_up_training
from wmr_cli.training.validation import evaluate_validation_set

MODEL = "digits-cnn:width=2,hidden=8"
DEFENSE_SPECS = {
    "free": "free:m=2",
    "iaat": "iaat:warmup=0,steps=2",
    "yopo": "yopo:m=2,n=1",
}
"""Defenses with fewer steps than their defaults, or without warm-up. Others need no parameters."""
KERNEL_SPECS = {
    "gairat": "gairat:start-epoch=0",
    "mail": "mail:start-epoch=0",
    "table": "table:path={table}",
}
"""Kernels without burn-in, or with a parameter that they require. Others need no parameters."""


def make_patterns(
    count: int, classes: int = 3, seed: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Make images of 8x8 pixels with similar classes, and their labels."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0.3, 0.7, (classes, 8, 8))
    labels = np.arange(count) % classes
    images = np.clip(centres[labels] + rng.normal(0, 0.25, (count, 8, 8)), 0, 1)
    return (255 * images).astype(np.uint8), labels


def save_splits(
    path: Path,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    splits: dict[str, slice],
) -> None:
    """Write the images and labels of each split as the dataset `arrays` reads them."""
    arrays: dict[str, Any] = {}
    for name, rows in splits.items():
        arrays[f"{name}_images"] = images[rows]
        arrays[f"{name}_labels"] = labels[rows]
    np.savez(path, **arrays)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Write 12 training, 6 validation and 6 test images, and weights of 3 training images."""
    folder = tmp_path_factory.mktemp("few")
    images, labels = make_patterns(24)
    splits = {"train": slice(0, 12), "val": slice(12, 18), "test": slice(18, 24)}
    save_splits(folder / "few.npz", images, labels, splits)
    (folder / "table.csv").write_text("index,weight\n0,1\n1,2\n5,0.5\n")
    return f"arrays:path={folder / 'few.npz'}", folder / "table.csv"


def make_config(few: tuple[str, Path], defense: str, kernel: str, **more: Any) -> TrainConfig:
    dataset, table = few
    settings: dict[str, Any] = {
        "dataset": dataset,
        "model": MODEL,
        "defense": DEFENSE_SPECS.get(defense, defense),
        "kernel": KERNEL_SPECS.get(kernel, kernel).format(table=table),
        "epochs": 1,
        "batch_size": 12,
        "eps": 0.05,
        "steps": 2,
        "optimizer": "sgd",
        "lr": 0.1,
        "validate_every": 0,
    }
    return TrainConfig(**{**settings, **more})


def run(config: TrainConfig, path: Path, registry: Registry, **more: Any) -> list[Any]:
    return list(train(config, path, registry, data_dir=Path(), device="cpu", **more))


def set_up(config: TrainConfig, registry: Registry) -> TrainingSetup:
    return set_up_training(config, registry, Path(), launch(Hardware("cpu")))


def begin_step(setup: TrainingSetup, epoch: int = 0, step: int = 0) -> Batch:
    count = len(setup.split)
    setup.learner.begin_step(epoch, step, StepSettings(0.1), count)
    return setup.split.batch(torch.arange(count))


def refusal_of(config: TrainConfig, registry: Registry, tmp_path: Path) -> str:
    """Return the reason why a run is refused, after checking that it wrote nothing."""
    with pytest.raises(BadInput) as problem:
        run(config, tmp_path / "run", registry)
    assert not (tmp_path / "run").exists()
    assert problem.value.hint
    assert "\n" not in str(problem.value)
    return str(problem.value)


WITHOUT_STEPS = {"natural", "free", "yopo", "fgsm-rs"}
"""Defenses without an attack of several steps."""
COUNTS_STEPS = {"gairat"}
"""Kernels that need `steps_survived`: they are refused with the defenses above."""
PAIRS = [
    pytest.param(defense, kernel, id=f"{defense} and {kernel}")
    for defense, kernel in itertools.product(list_builtins("defense"), list_builtins("kernel"))
    if not (kernel in COUNTS_STEPS and defense in WITHOUT_STEPS)
]


@pytest.mark.parametrize(("defense", "kernel"), PAIRS)
def test_a_defense_and_a_kernel_train_together(
    defense: str, kernel: str, few: tuple[str, Path], registry: Registry
) -> None:
    setup = set_up(make_config(few, defense, kernel), registry)
    before = [parameter.detach().clone() for parameter in setup.model.parameters()]
    for step in range(2):
        ((_, loss),) = train_step(setup, begin_step(setup, step=step))
        assert math.isfinite(loss)
    after = list(setup.model.parameters())
    assert all(parameter.isfinite().all() for parameter in after)
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in after), (
        "no gradient is left over"
    )


@pytest.mark.parametrize("kernel", ["chi2", "exp", "tilt"])
@pytest.mark.parametrize("defense", ["free", "natural", "yopo"])
def test_a_diverging_training_is_reported_with_its_place(
    defense: str, kernel: str, few: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    config = make_config(few, defense, kernel, lr=1e30, epochs=2, batch_size=6)
    with pytest.raises(BrokenContract, match=r"epoch 1, step \d: .* not finite") as problem:
        run(config, tmp_path / "run", registry)
    assert "lr" in problem.value.hint


@pytest.mark.parametrize("defense", sorted(WITHOUT_STEPS))
def test_a_kernel_is_refused_if_the_defense_does_not_provide_its_evidence(
    defense: str, few: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    reason = refusal_of(make_config(few, defense, "gairat"), registry, tmp_path)
    assert "steps survived" in reason
    assert defense in reason


@pytest.mark.parametrize("weight_grad", ["outer", "attack"])
@pytest.mark.parametrize("defense", ["free", "yopo"])
def test_a_shared_gradient_refuses_weight_grads_that_need_two(
    defense: str, weight_grad: str, few: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    config = make_config(few, defense, "exp", weight_grad=weight_grad)
    reason = refusal_of(config, registry, tmp_path)
    assert f"`weight_grad={weight_grad}`" in reason
    for allowed in ("both", "none"):
        set_up(make_config(few, defense, "exp", weight_grad=allowed), registry)


@pytest.mark.parametrize(
    ("kernel", "begins"), [("mail", 75), ("gairat", 60), ("mail:start-epoch=4", 4)]
)
def test_a_kernel_that_starts_after_the_run_is_refused(
    kernel: str, begins: int, few: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    config = make_config(few, "pgd", "none", epochs=min(begins, 7))
    config = msgspec.structs.replace(config, kernel=kernel)
    reason = refusal_of(config, registry, tmp_path)
    assert f"after {begins} epochs, and the run has {config.epochs}" in reason
    set_up(msgspec.structs.replace(config, epochs=begins + 1), registry)


def test_the_start_epoch_is_compared_with_the_epochs_of_free_training(
    few: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    config = make_config(few, "free:m=4", "mail:start-epoch=3", epochs=12)
    assert "after 3 epochs, and the run has 3" in refusal_of(config, registry, tmp_path)
    set_up(msgspec.structs.replace(config, epochs=13), registry)


def test_a_kernel_that_observes_validation_needs_a_validation_set(
    registry: Registry, tmp_path: Path, few: tuple[str, Path]
) -> None:
    images, labels = make_patterns(30)
    np.savez(tmp_path / "none.npz", images=images, labels=labels)
    dataset = f"arrays:path={tmp_path / 'none.npz'},holdout=0"
    config = make_config(few, "trades", "wat", dataset=dataset)
    assert "validation set" in refusal_of(config, registry, tmp_path)


def test_an_unreadable_table_creates_no_run(
    few: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    config = make_config(few, "pgd", f"table:path={tmp_path / 'nowhere.csv'}")
    with pytest.raises(Exception, match="cannot read"):
        run(config, tmp_path / "run", registry)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("replays", "epochs", "milestones", "expected"),
    [
        (4, 8, (4, 6, 8), (2, (1, 2, 2))),
        (4, 6, (1, 3, 5), (2, (1, 1, 2))),
        (8, 3, (1, 2), (1, (1, 1))),
        (8, 1, (), (1, ())),
        (1, 5, (2, 3), (5, (2, 3))),
        (8, 100, (75, 90, 100), (13, (10, 12, 13))),
    ],
)
def test_epochs_and_milestones_of_free_training_are_divided_and_rounded_up(
    replays: int,
    epochs: int,
    milestones: tuple[int, ...],
    expected: tuple[int, tuple[int, ...]],
    registry: Registry,
) -> None:
    config = TrainConfig(defense=f"free:m={replays}", epochs=epochs, milestones=milestones)
    defense = components.build_defense(registry, config.defense)
    divided = compatibility.divide_by_replays(config, defense)
    assert (divided.epochs, divided.milestones) == expected
    # no other setting changes
    assert msgspec.structs.replace(divided, epochs=epochs, milestones=milestones) == config


def test_other_defenses_keep_their_epochs(registry: Registry) -> None:
    config = TrainConfig(epochs=7, milestones=(3, 5))
    for name in list_builtins("defense"):
        defense = components.build_defense(registry, name)
        if defense.traits.replays == 1:
            assert compatibility.divide_by_replays(config, defense) == config


def test_free_training_runs_its_divided_epochs(
    few: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    settings = {
        "epochs": 7,
        "batch_size": 6,
        "schedule": "multistep",
        "milestones": (1, 5),
        "gamma": 0.1,
    }
    events = run(make_config(few, "free:m=3", "none", **settings), tmp_path / "run", registry)
    done = [event for event in events if isinstance(event, EpochDone)]
    assert [(event.epoch, event.epochs) for event in done] == [(1, 3), (2, 3), (3, 3)]
    assert len([event for event in events if isinstance(event, StepDone)]) == 3 * 2
    rates = [entry["lr"] for entry in RunFolder(tmp_path / "run").read_log()]
    assert rates == pytest.approx([0.1, 0.01, 0.001])  # milestones 1 and 2
    assert checkpoints.load(tmp_path / "run").epoch == 3
    assert TrainConfig.from_json((tmp_path / "run" / "config.json").read_bytes()).epochs == 7, (
        "the run is stored with its settings"
    )


@pytest.mark.parametrize(
    "kernel", ["mail:start-epoch=1", "gairat:start-epoch=1", "mail:start-epoch=1,scale=mean1"]
)
def test_weights_are_one_before_the_start_epoch(
    kernel: str, few: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    run(make_config(few, "pgd", kernel, epochs=2, lr=1.0), tmp_path / "run", registry)
    first, second = RunFolder(tmp_path / "run").read_log()
    assert (first["weight_mean"], first["weight_max"], first["weight_ess"]) == (1.0, 1.0, 1.0)
    assert second["weight_ess"] < 1
    if kernel != "mail:start-epoch=1":
        assert second["weight_mean"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("steps", [1, 4])
def test_gairat_counts_the_steps_of_the_training_attack(
    steps: int, few: tuple[str, Path], registry: Registry
) -> None:
    setup = set_up(make_config(few, "pgd", "gairat", steps=steps), registry)
    assert vars(setup.kernel)["steps"] == steps


def test_gairat_counts_the_steps_of_the_defenses_own_attack(
    few: tuple[str, Path], registry: Registry
) -> None:
    setup = set_up(make_config(few, "iaat:steps=3,warmup=0", "gairat", steps=7), registry)
    assert vars(setup.kernel)["steps"] == 3


@pytest.mark.parametrize("attack", [{"steps": 0}, {"attack": "fgsm", "steps": None}], ids=str)
def test_gairat_is_refused_without_attack_steps(
    attack: dict[str, int | str | None], few: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    assert "gairat" in refusal_of(make_config(few, "pgd", "gairat", **attack), registry, tmp_path)


def test_wat_observes_the_validation_set_after_every_epoch(
    few: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    config = make_config(few, "trades:terms=both", "wat", epochs=3, lr=0.01)
    run(config, tmp_path / "run", registry)
    log = RunFolder(tmp_path / "run").read_log()
    assert log[0]["weight_max"] == pytest.approx(2 * 3 / 4)  # three classes, equal weights
    assert log[1]["weight_max"] > log[0]["weight_max"] + 1e-6
    assert not any(name.startswith("val_") for entry in log for name in entry), (
        "the validation set is not used"
    )


@pytest.mark.parametrize(
    ("kernel", "prefixes"), [("exp", set()), ("wat", {"clean/logits", "uniform/logits"})]
)
def test_validation_gathers_logits_only_for_kernels_that_observe_them(
    kernel: str, prefixes: set[str], few: tuple[str, Path], registry: Registry
) -> None:
    config = make_config(few, "pgd", kernel)
    parts = set_up_training(config, registry, Path(), launch(Hardware("cpu")))
    rows = evaluate_validation_set(parts, parts.model)
    assert {name for name in rows if name.endswith("/logits")} == prefixes


def test_the_log_has_beta_times_the_mean_weight_of_a_divergence(
    few: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    cases = (("trades", True), ("trades:terms=nat", False), ("iaat", False), ("pgd", False))
    for defense, is_logged in cases:
        run(make_config(few, defense, "exp"), tmp_path / "run", registry, overwrite=True)
        (entry,) = RunFolder(tmp_path / "run").read_log()
        assert ("beta_weight_mean" in entry) == is_logged


STATEFUL = [
    ("free:m=2", "none"),
    ("iaat:warmup=1,steps=2", "none"),
    ("trades", "wat"),
    ("pgd", "mail:start-epoch=1"),
    ("yopo", "exp"),
]


@pytest.mark.parametrize(("defense", "kernel"), STATEFUL)
def test_a_resumed_run_ends_with_bit_identical_weights(
    defense: str, kernel: str, few: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    # two replays per batch divide the epochs of free training
    epochs = 6 if "free" in defense else 3
    config = make_config(few, defense, kernel, epochs=epochs, batch_size=6)
    run(config, tmp_path / "straight", registry)
    events = train(config, tmp_path / "run", registry, data_dir=Path(), device="cpu")
    while not (isinstance(event := next(events), EpochDone) and event.epoch == 2):
        pass
    stop(events)
    resumed_events = run(config, tmp_path / "run", registry, resume=True)
    assert any(isinstance(event, StepDone) for event in resumed_events)
    straight = checkpoints.load(tmp_path / "straight").tensors
    resumed = checkpoints.load(tmp_path / "run").tensors
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


class StatefulPart:
    def __init__(self, **tensors: Any) -> None:
        self.tensors = tensors

    def state(self) -> dict[str, Tensor]:
        return self.tensors

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.tensors = state


def test_each_rank_restores_its_own_state() -> None:
    alone = Ranks()
    stored = PerRankState(StatefulPart(perturbation=torch.ones(2)), alone).state()
    assert stored.keys() == {"0/perturbation"}
    part = StatefulPart()
    PerRankState(part, alone).load_state(stored)
    assert torch.equal(part.tensors["perturbation"], torch.ones(2))
    two = {"0/perturbation": torch.zeros(3), "1/perturbation": torch.ones(3)}
    for rank in (0, 1):
        PerRankState(part, Ranks(index=rank, count=2)).load_state(two)
        assert torch.equal(part.tensors["perturbation"], torch.full((3,), float(rank)))
    with pytest.raises(RunFolderError, match="2 processes") as problem:
        PerRankState(part, alone).load_state(two)
    assert "`devices=2`" in problem.value.hint


# as a metric

Rows = dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, registry: Registry) -> Path:
    """Train a model that classifies some of 150 test images correctly."""
    folder = tmp_path_factory.mktemp("trained")
    images, labels = make_patterns(250)
    splits = {"train": slice(0, 100), "test": slice(100, 250)}
    save_splits(folder / "some.npz", images, labels, splits)
    config = TrainConfig(
        dataset=f"arrays:path={folder / 'some.npz'}",
        model="digits-cnn:width=4,hidden=16",
        defense="natural",
        kernel="none",
        epochs=4,
        batch_size=25,
        eps=0.02,
        lr=0.01,
        steps=1,
        validate_every=0,
    )
    run(config, folder / "run", registry)
    return folder / "run"


def evaluate_kernel(
    trained: Path, registry: Registry, out: Path, kernel: str, **more: Any
) -> tuple[Record, Rows]:
    config = EvaluateConfig(**{"kernel": kernel, "steps": 2, **more})
    events = evaluate(trained, config, registry, data_dir=Path(), hardware=Hardware("cpu"), out=out)
    (done,) = [event for event in events if isinstance(event, EvaluationDone)]
    return done.record, records.load_rows(done.rows)


def softmax(rows: Rows, prefix: str = "uniform") -> NDArray[np.float64]:
    logits = rows[f"{prefix}/logits"].astype(np.float64)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return result


def true_and_best_other(
    values: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    places = np.arange(len(labels))
    others = values.copy()
    others[places, labels] = -np.inf
    return values[places, labels], others.max(axis=1)


def weighted_accuracy(rows: Rows, weights: NDArray[np.float64], prefix: str = "uniform") -> float:
    """Return the accuracy over images that are sampled by these weights."""
    correct = rows[f"{prefix}/prediction"] == rows["label"]
    return float((weights * correct).sum() / weights.sum())


def worst_fraction_weights(losses: NDArray[np.float64], fraction: float) -> NDArray[np.float64]:
    """Return weights of the worst fraction, image by image from the largest loss."""
    weights = np.zeros(len(losses))
    remaining = fraction * len(losses)
    for place in np.argsort(-losses):
        weights[place] = min(1.0, remaining)
        remaining -= weights[place]
    return weights


def reference_weights(name: str, rows: Rows) -> NDArray[np.float64]:
    """Compute the weights of a metric from the stored logits."""
    labels = rows["label"].astype(np.int64)
    p, p_other = true_and_best_other(softmax(rows), labels)
    z, z_other = true_and_best_other(rows["uniform/logits"].astype(np.float64), labels)
    weights: dict[str, Callable[[], NDArray[np.float64]]] = {
        "exp-logit": lambda: np.exp(-2.0 * np.clip(z - z_other, -1, 1)),
        "mail": lambda: 1 / (1 + np.exp(-10 * (-0.5 - (p - p_other)))),
        "tilt": lambda: p**-1.5,
        "focal": lambda: (1 - p) ** 2,
        "cvar": lambda: worst_fraction_weights(-np.log(p), 0.3),
        "none": lambda: np.ones(len(p)),
    }
    return weights[name]()


METRICS = {
    "exp-logit": "exp-logit:alpha=2,clip=1",
    "mail": "mail",
    "tilt": "tilt:t=1.5",
    "focal": "focal",
    "cvar": "cvar:share=0.3",
    "none": "none",
}


@pytest.mark.parametrize("name", METRICS)
def test_a_kernel_as_metric_matches_reference_weights(
    name: str, trained: Path, registry: Registry, tmp_path: Path
) -> None:
    record, rows = evaluate_kernel(trained, registry, tmp_path, METRICS[name])
    (row,) = record.by_alpha
    assert row.alpha_test is None
    assert not_none(row.a_sa).value == pytest.approx(
        weighted_accuracy(rows, reference_weights(name, rows)), abs=1e-6
    )
    assert 0.2 < not_none(record.a_rob).value < 0.95, "neither 0 nor 1, where all weights agree"
    assert (not_none(row.a_sa).value < not_none(record.a_rob).value - 0.01) == (name != "none")
    if name in ("exp-logit", "focal"):
        assert row.a_tr is not None
    else:
        assert row.a_tr == row.a_sa, "a weight without gradient cannot be maximised"
        assert np.array_equal(rows["weighted/logits"], rows["uniform/logits"])


def test_a_kernel_with_alpha_is_a_metric_for_each_alpha(
    trained: Path, registry: Registry, tmp_path: Path
) -> None:
    record, rows = evaluate_kernel(
        trained, registry, tmp_path, "exp-logit", alpha_test=(0.0, 1.0, 3.0)
    )
    z, other = true_and_best_other(
        rows["uniform/logits"].astype(np.float64), rows["label"].astype(np.int64)
    )
    assert [row.alpha_test for row in record.by_alpha] == [0.0, 1.0, 3.0]
    for row in record.by_alpha:
        expected = weighted_accuracy(
            rows, np.exp(-not_none(row.alpha_test) * np.clip(z - other, -10, 10))
        )
        assert not_none(row.a_sa).value == pytest.approx(expected, abs=1e-6)


def test_the_chi2_metric_is_the_accuracy_in_the_chi2_ball_of_equal_radius(
    trained: Path, registry: Registry, tmp_path: Path
) -> None:
    radii = (0.05, 0.3, 2.0)
    metrics: dict[str, Any] = {"metrics": ("nat", "rob", "sa", "tr", "dro"), "rho": radii}
    for rho in radii:
        record, rows = evaluate_kernel(trained, registry, tmp_path, f"chi2:rho={rho}", **metrics)
        (row,) = record.by_alpha
        in_ball = next(entry for entry in record.dro if entry.rho == rho)
        assert not_none(row.a_sa).value == pytest.approx(in_ball.accuracy, abs=1e-12)
        assert not_none(row.a_sa).ess == pytest.approx(in_ball.ess, rel=1e-9)
        assert row.a_tr == row.a_sa
        assert (rows["uniform/log_weight"] == -np.inf).sum() == in_ball.zero_weights
        assert np.exp(rows["uniform/log_weight"]).mean() == pytest.approx(1)


@pytest.mark.parametrize("kernel", ["cvar:share=0.1", "chi2:rho=0.5", "tilt", "mail"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_weights_that_compare_images_do_not_depend_on_batches(
    kernel: str, repeats: int, trained: Path, registry: Registry, tmp_path: Path
) -> None:
    """150 images in four chunks, in batches of 7 and of 512."""
    small, small_rows = evaluate_kernel(
        trained, registry, tmp_path / "7", kernel, batch_size=7, repeats=repeats
    )
    large, large_rows = evaluate_kernel(
        trained, registry, tmp_path / "512", kernel, batch_size=512, repeats=repeats
    )
    for small_alpha, large_alpha in zip(small.by_alpha, large.by_alpha, strict=True):
        small_a_sa = not_none(small_alpha.a_sa)
        large_a_sa = not_none(large_alpha.a_sa)
        assert small_a_sa.value == pytest.approx(large_a_sa.value, abs=1e-5)
        assert small_a_sa.ess == pytest.approx(large_a_sa.ess, rel=1e-5)
    for small_repeat, large_repeat in zip(small.repeats, large.repeats, strict=True):
        small_value = small_repeat.by_alpha[0].a_sa
        assert small_value == pytest.approx(large_repeat.by_alpha[0].a_sa, abs=1e-5)
    assert small.id == large.id
    log_weights = small_rows["uniform/log_weight"]
    np.testing.assert_allclose(log_weights, large_rows["uniform/log_weight"], atol=1e-4)
    if kernel.startswith("cvar"):
        assert (np.exp(log_weights) > 1e-9).sum() == 15, "a tenth of 150"
    if repeats > 1:
        other, _ = evaluate_kernel(
            trained, registry, tmp_path / "other seed", kernel, batch_size=7, seed=1
        )
        values = [repeat.by_alpha[0].a_sa for repeat in small.repeats]
        # each repeat equals a single evaluation with its seed
        assert values == [not_none(record.by_alpha[0].a_sa).value for record in (small, other)]


def test_the_worst_case_over_attacks_is_weighted_again(
    trained: Path, registry: Registry, tmp_path: Path
) -> None:
    config = EvaluateConfig(kernel="cvar:share=0.3", attacks=("pgd", "pgd-margin"), steps=2)
    events = evaluate(
        trained, config, registry, data_dir=Path(), hardware=Hardware("cpu"), out=tmp_path
    )
    *_, last = [event for event in events if isinstance(event, EvaluationDone)]
    rows = records.load_rows(last.rows)
    assert last.record.attack.spec == "worst"
    losses = -np.log(true_and_best_other(softmax(rows), rows["label"])[0])
    assert not_none(last.record.by_alpha[0].a_sa).value == pytest.approx(
        weighted_accuracy(rows, worst_fraction_weights(losses, 0.3)), abs=1e-6
    )


@pytest.mark.parametrize("kernel", ["gairat", "wat"])
def test_a_kernel_that_needs_training_is_refused_as_metric(
    kernel: str, trained: Path, registry: Registry, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=kernel) as problem:
        evaluate_kernel(trained, registry, tmp_path / "out", kernel)
    assert "kernel=exp" in problem.value.hint
    assert not (tmp_path / "out").exists()


def write_table(path: Path, weights: dict[int, float]) -> str:
    path.write_text(
        "index,weight\n" + "".join(f"{image},{weight}\n" for image, weight in weights.items())
    )
    return f"table:path={path}"


def test_a_table_weights_the_images_that_it_lists(
    trained: Path, registry: Registry, tmp_path: Path
) -> None:
    # image 3 is in the training split, and not tested
    chosen = {100: 1.0, 117: 4.0, 200: 0.5, 249: 2.0, 203: 0.0, 3: 50.0}
    record, rows = evaluate_kernel(
        trained, registry, tmp_path, write_table(tmp_path / "w.csv", chosen), per_class=True
    )
    weights = np.array([chosen.get(image, 0.0) for image in rows["index"].tolist()])
    (row,) = record.by_alpha
    assert not_none(row.a_sa).value == pytest.approx(weighted_accuracy(rows, weights), abs=1e-12)
    assert not_none(row.a_sa).ess == pytest.approx(7.5**2 / (1 + 16 + 0.25 + 4))
    assert np.array_equal(np.exp(rows["uniform/log_weight"]) > 0, weights > 0)
    # 100 and 249 are of the classes 1 and 0, 117 of 0, 200 of 2
    assert [entry.by_alpha[0].share for entry in record.per_class] == pytest.approx(
        [6 / 7.5, 1 / 7.5, 0.5 / 7.5]
    )


def test_images_outside_a_table_have_its_default_weight(
    trained: Path, registry: Registry, tmp_path: Path
) -> None:
    spec = write_table(tmp_path / "w.csv", {100: 30.0})
    record, rows = evaluate_kernel(trained, registry, tmp_path, f"{spec},rest=0.5", ci="bootstrap")
    weights = np.where(rows["index"] == 100, 30.0, 0.5)
    row = record.by_alpha[0]
    a_sa = not_none(row.a_sa)
    assert a_sa.value == pytest.approx(weighted_accuracy(rows, weights), abs=1e-12)
    assert 0 <= a_sa.low <= a_sa.value <= a_sa.high <= 1


def test_a_class_without_weight_has_no_accuracy(
    trained: Path, registry: Registry, tmp_path: Path
) -> None:
    spec = write_table(tmp_path / "w.csv", {102: 1.0, 105: 3.0})  # both of class 0
    record, _ = evaluate_kernel(trained, registry, tmp_path, spec, per_class=True, ci="bootstrap")
    by_class = [entry.by_alpha[0] for entry in record.per_class]
    assert [row.share for row in by_class] == [1.0, 0.0, 0.0]
    assert [row.a_sa is None for row in by_class] == [False, True, True]


def test_a_table_without_an_image_of_the_split_is_refused_in_evaluation(
    trained: Path, registry: Registry, tmp_path: Path
) -> None:
    for weights in ({3: 1.0, 9999: 2.0}, {100: 0.0}):
        spec = write_table(tmp_path / "w.csv", weights)
        with pytest.raises(BadInput, match="gives no weight to any image") as problem:
            evaluate_kernel(trained, registry, tmp_path / "out", spec)
        assert "\n" not in str(problem.value)
        assert "indices" in problem.value.hint
        assert not list((tmp_path / "out").glob("*.json"))


def test_the_id_of_a_record_depends_on_the_content_of_a_table(
    trained: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record_id(spec: str) -> str:
        config = EvaluateConfig(kernel=spec)
        return next(plan_tasks(checkpoints.load(trained), config, registry, Path())).id

    monkeypatch.chdir(tmp_path)
    spec = write_table(tmp_path / "w.csv", {100: 1.0})
    before = record_id(spec)
    # independent of how the path is written
    assert record_id("table:w.csv") == record_id("table:path=w.csv") == before
    assert record_id(f"{spec},rest=1") != before
    write_table(tmp_path / "w.csv", {100: 2.0})
    assert record_id(spec) != before
    write_table(tmp_path / "w.csv", {100: 1.0})
    assert record_id(spec) == before


def test_a_table_without_an_image_of_the_split_is_refused_in_training(
    tmp_path: Path, registry: Registry
) -> None:
    (tmp_path / "none.csv").write_text("index,weight\n999999,1\n", encoding="utf-8")
    config = resolve(
        {"defense": "pgd", "kernel": f"table:path={tmp_path / 'none.csv'}", "epochs": 1}
    )
    with pytest.raises(BadInput, match="no weight to any image"):
        list(train(config, tmp_path / "run", registry, data_dir=Path(), device="cpu"))
    assert not (tmp_path / "run").exists()


def test_a_warm_up_of_the_whole_run_is_refused(registry: Registry) -> None:
    config = resolve({"defense": "iaat:warmup=10", "epochs": 10})
    defense = components.build_defense(registry, config.defense)
    kernel = components.build_kernel(registry, "exp", 0.0)
    with pytest.raises(BadInput, match="warms up for 10 epochs"):
        compatibility.check_kernel_and_defense(defense, kernel, config)


@pytest.mark.parametrize("defense", ["trades:terms=nat", "trades:terms=both", "mart:terms=kl"])
def test_cvar_weights_the_images_with_the_largest_weighted_loss(
    defense: str, registry: Registry
) -> None:
    """With all weight on the worst quarter the mean loss is that of the worst quarter."""
    torch.manual_seed(0)
    losses_of_evidence = []

    class LossRecorder(RecordingLearner):
        def weights(self, evidence: Evidence) -> Tensor:
            losses_of_evidence.append(not_none(evidence.loss).detach())
            return super().weights(evidence)

    learner = LossRecorder(tiny_model(), registry.create("kernel", "cvar:share=1/4"))
    report = registry.create("defense", defense).step(learner, tiny_batch())
    losses = losses_of_evidence[-1]
    worst_quarter = losses.topk(len(losses) // 4).values
    assert float((report.weights * losses).mean()) == pytest.approx(
        float(worst_quarter.mean()), rel=1e-5
    )
