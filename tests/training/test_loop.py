"""A run follows its configuration, writes its files, and resumes bit-identically."""

import json
import shutil
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor

from support.training import train
from support.typed import stop
from wmr_cli import load
from wmr_cli.config import TrainConfig, resolve
from wmr_cli.core.data.splits import MemorySplit
from wmr_cli.core.protocols import Batch
from wmr_cli.errors import BadFile, BadInput, BrokenContract, RunFolderError
from wmr_cli.events import EpochDone, StepDone, TrainingDone, TrainingStarted
from wmr_cli.registry import Registry
from wmr_cli.reporting.tables.details import make_validation_table
from wmr_cli.storage import checkpoints
from wmr_cli.storage.runs import RunFolder, open_run
from wmr_cli.training import loop
from wmr_cli.training.loop import make_batches
from wmr_cli.training.optimization import settings_at
from wmr_cli.training.setup import build_validation_attack

pytestmark = pytest.mark.usefixtures("trusts_local_code")


def run(config: TrainConfig, path: Path, registry: Registry, **more: Any) -> list[Any]:
    return list(train(config, path, registry, data_dir=Path(), device="cpu", **more))


def weights(path: Path) -> Mapping[str, Tensor]:
    return checkpoints.load(path).tensors


def assert_equal_weights(first: Path, second: Path) -> None:
    mine, theirs = weights(first), weights(second)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_ranks_wait_long_for_the_first_step_only(
    tiny_config: TrainConfig,
    tmp_path: Path,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[timedelta] = []
    monkeypatch.setattr(loop, "limit_waiting", limits.append)
    events = train(tiny_config, tmp_path / "run", registry)
    while not isinstance(next(events), TrainingStarted):
        pass
    assert limits == []
    while not isinstance(next(events), StepDone):
        pass
    assert limits == [loop.STEP_TIMEOUT]
    stop(events)


def test_a_run_has_every_step_of_every_epoch(
    tiny_config: TrainConfig, tmp_path: Path, registry: Registry
) -> None:
    events = run(tiny_config, tmp_path / "run", registry)
    steps = [event for event in events if isinstance(event, StepDone)]
    assert [event.step for event in steps] == list(range(2 * 9)), (
        "1,147 images in batches of at most 128, twice"
    )
    assert sum(event.images for event in steps) == 2 * 1147
    assert [event.epoch for event in events if isinstance(event, EpochDone)] == [1, 2]
    assert isinstance(events[-1], TrainingDone)


def test_the_run_folder_has_settings_log_and_weights(
    tiny_run: Path, tiny_config: TrainConfig
) -> None:
    folder = RunFolder(tiny_run)
    assert TrainConfig.from_json(folder.config.read_bytes()) == tiny_config
    assert resolve({}, folder.config) == tiny_config, "config.json can be given back with --config"
    entries = folder.read_log()
    assert [entry["epoch"] for entry in entries] == [1, 2]
    health = {
        "loss",
        "train_accuracy",
        "margin_mean",
        "weight_mean",
        "weight_max",
        "weight_ess",
        "weight_on_wrong",
        "images_per_second",
    }
    assert health | {"val_a_nat", "val_a_rob", "val_a_sa"} <= entries[0].keys()
    best = max(entries, key=lambda entry: entry["val_a_rob"])["epoch"]
    assert checkpoints.load(folder.best).epoch == best
    assert checkpoints.load(folder.last).epoch == 2


def test_a_checkpoint_describes_itself_and_is_loaded_equal(
    tiny_run: Path, tiny_config: TrainConfig
) -> None:
    checkpoint = checkpoints.load(tiny_run)
    facts = (
        checkpoint.model,
        checkpoint.dataset,
        checkpoint.defense,
        checkpoint.kernel,
        checkpoint.alpha_train,
    )
    assert facts == ("digits-cnn", "digits", "trades:beta=6", "exp", 2.0)
    assert (checkpoint.num_classes, checkpoint.input_shape, checkpoint.norm, checkpoint.eps) == (
        10,
        (1, 8, 8),
        "linf",
        0.15,
    )
    assert checkpoint.config == tiny_config
    model = load(tiny_run)
    assert not model.training
    assert all(
        torch.equal(tensor, checkpoint.tensors[name]) for name, tensor in model.state_dict().items()
    )


def test_unusual_tensors_are_loaded_equal(tmp_path: Path, tiny_config: TrainConfig) -> None:
    shared = torch.randn(4, 3, 2, 2)
    tensors = {
        "channels_last": shared.to(memory_format=torch.channels_last),
        "shared": shared,
        "view": shared[:2],
        "transposed": shared.transpose(0, 1),
        "scalar": torch.tensor(3),
        "half": shared.half(),
        "empty": torch.zeros(0, 2),
        "bool": shared > 0,
    }
    path = tmp_path / "file.safetensors"
    checkpoints.save_tensors(path, tensors, {"note": "ünïcode [/red]"})
    back, header = checkpoints.load_tensors(path)
    assert header["note"] == "ünïcode [/red]"
    assert all(
        torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype
        for name, tensor in tensors.items()
    )


def test_equal_seeds_give_bit_identical_weights_and_other_seeds_others(
    tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path, registry: Registry
) -> None:
    run(tiny_config, tmp_path / "again", registry)
    assert_equal_weights(tiny_run, tmp_path / "again")
    run(msgspec.structs.replace(tiny_config, seed=1), tmp_path / "other", registry)
    with pytest.raises(AssertionError):
        assert_equal_weights(tiny_run, tmp_path / "other")


def test_a_resumed_run_ends_with_bit_identical_weights(
    tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path, registry: Registry
) -> None:
    walk = train(tiny_config, tmp_path / "run", registry, data_dir=Path(), device="cpu")
    while not isinstance(event := next(walk), EpochDone):
        pass
    for _ in range(4):  # into the second epoch, which is lost
        next(walk)
    stop(walk)
    assert event.epoch == 1
    resumed = run(tiny_config, tmp_path / "run", registry, resume=True)
    assert [event.epoch for event in resumed if isinstance(event, EpochDone)] == [2]
    assert_equal_weights(tiny_run, tmp_path / "run")
    entries, uninterrupted = RunFolder(tmp_path / "run").read_log(), RunFolder(tiny_run).read_log()
    for entry in entries + uninterrupted:
        del entry["images_per_second"]
    assert entries == uninterrupted


def test_resuming_a_finished_run_does_nothing(
    tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path, registry: Registry
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    events = run(tiny_config, tmp_path / "run", registry, resume=True)
    assert not [event for event in events if isinstance(event, StepDone)]
    assert isinstance(events[-1], TrainingDone)


def test_removed_weights_are_written_again_from_the_state(
    tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path, registry: Registry
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    weights = RunFolder(tmp_path / "run").last
    before = checkpoints.load(weights)
    weights.unlink()
    run(tiny_config, tmp_path / "run", registry, resume=True)
    after = checkpoints.load(weights)
    assert (after.sha256, after.epoch, after.alpha_train) == (
        before.sha256,
        before.epoch,
        before.alpha_train,
    )


def test_resuming_with_other_settings_is_refused_with_the_differences(
    tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path, registry: Registry
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"lr was 0\.005, is 0\.1"):
        run(msgspec.structs.replace(tiny_config, lr=0.1), tmp_path / "run", registry, resume=True)


def test_a_damaged_resume_file_is_refused(
    tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path, registry: Registry
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    file = tmp_path / "run" / "resume.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(BadFile, match="hash"):
        run(tiny_config, tmp_path / "run", registry, resume=True)


def test_overwriting_removes_the_run_and_keeps_other_files(
    tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path, registry: Registry
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "run" / "evaluations").mkdir(exist_ok=True)
    (tmp_path / "run" / "evaluations" / "old.json").write_text("{}")
    run(tiny_config, tmp_path / "run", registry, overwrite=True)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "run" / "evaluations").exists()


def test_a_folder_in_use_is_refused(tiny_config: TrainConfig, tmp_path: Path) -> None:
    with (
        open_run(tmp_path / "run", tiny_config),
        pytest.raises(RunFolderError, match="in use"),
        open_run(tmp_path / "run", tiny_config, resume=True),
    ):
        pass


def test_an_invalid_model_creates_no_folder(
    tiny_config: TrainConfig, tmp_path: Path, registry: Registry
) -> None:
    walk = train(
        msgspec.structs.replace(tiny_config, model="digits-cnn:width=0"),
        tmp_path / "run",
        registry,
        data_dir=Path(),
    )
    with pytest.raises(BadInput, match="width=0"):
        list(walk)
    assert not (tmp_path / "run").exists()


def test_a_diverging_loss_stops_the_run_and_keeps_the_epoch_before(
    tiny_config: TrainConfig, tmp_path: Path, registry: Registry
) -> None:
    """The learning rate is too high from the second epoch on."""
    settings = {
        "optimizer": "sgd",
        "lr": 0.05,
        "schedule": "multistep",
        "milestones": (1,),
        "validate_every": 0,
    }
    config = msgspec.structs.replace(tiny_config, **settings, gamma=1.0)
    exploding = msgspec.structs.replace(config, gamma=1e30)
    with pytest.raises(BrokenContract, match=r"epoch 2, step \d+: .*finite"):
        run(exploding, tmp_path / "run", registry)
    tensors, header = checkpoints.load_tensors(tmp_path / "run" / "resume.safetensors")
    assert (
        header["epoch"]
        == checkpoints.load_tensors(tmp_path / "run" / "last.safetensors")[1]["epoch"]
        == "1"
    )
    assert all(tensor.isfinite().all() for tensor in tensors.values())


@pytest.mark.parametrize("defense", ["natural", "pgd", "trades"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_defense_and_optimizer_trains_and_resumes(
    defense: str, optimizer: str, tmp_path: Path, registry: Registry
) -> None:
    config = resolve(
        {"defense": defense, "optimizer": optimizer, "epochs": 2, "steps": 1, "validate_every": 0}
    )
    walk = train(config, tmp_path / "run", registry, data_dir=Path(), device="cpu")
    while not isinstance(next(walk), EpochDone):
        pass
    stop(walk)
    run(config, tmp_path / "run", registry, resume=True)
    run(config, tmp_path / "straight", registry)
    assert_equal_weights(tmp_path / "run", tmp_path / "straight")


def test_batches_contain_every_image_once_and_never_only_one(
    tiny_config: TrainConfig, registry: Registry
) -> None:
    split = registry.create("dataset", "digits", root=Path()).splits["train"]
    config = msgspec.structs.replace(tiny_config, batch_size=1146)
    parts = make_batches(split, config, epoch=0)
    assert sorted(torch.cat(parts).tolist()) == list(range(1147))
    assert [len(part) for part in parts] == [574, 573]
    assert not torch.equal(torch.cat(parts), torch.cat(make_batches(split, config, epoch=1)))


def test_learning_rates_follow_their_schedules() -> None:
    config = resolve(
        {"epochs": 10, "lr": 1.0, "schedule": "multistep", "milestones": [4, 8], "gamma": 0.1}
    )
    rates = [settings_at(config, 5 * epoch, 5).learning_rate for epoch in range(10)]
    assert rates == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01])
    cosine = msgspec.structs.replace(config, schedule="cosine")
    assert [settings_at(cosine, step, 5).learning_rate for step in (0, 25, 50)] == pytest.approx(
        [1, 0.5, 0]
    )
    cycle = msgspec.structs.replace(config, schedule="one-cycle")
    assert [settings_at(cycle, step, 5).learning_rate for step in (0, 15, 50)] == pytest.approx(
        [0.04, 1, 0]
    )
    assert (
        settings_at(msgspec.structs.replace(config, schedule="constant"), 49, 5).learning_rate == 1
    )


def test_the_log_is_one_json_object_per_line(tiny_run: Path) -> None:
    lines = (tiny_run / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]


def test_validation_and_training_read_no_test_image(
    tiny_config: TrainConfig, tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = registry.create("dataset", "digits", root=Path())
    test_images = set(source.splits["test"].index.tolist())
    seen = set()
    read = MemorySplit.stored_batch

    def watched(split: MemorySplit, positions: Tensor) -> Batch:
        batch = read(split, positions)
        seen.update(batch.index.tolist())
        return batch

    monkeypatch.setattr(MemorySplit, "stored_batch", watched)
    run(tiny_config, tmp_path / "run", registry)
    assert seen == {*source.splits["train"].index.tolist(), *source.splits["val"].index.tolist()}
    assert seen.isdisjoint(test_images)


def test_validation_uses_the_norm_and_eps_of_training(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "settings.toml").write_text('[evaluate]\nattack = "pgd:eps=0.05,norm=l2"\n')
    config = resolve({"epochs": 1, "steps": 1}, tmp_path / "settings.toml")
    assert isinstance(run(config, tmp_path / "run", registry)[-1], TrainingDone)


@pytest.mark.parametrize(
    ("body", "error", "problem"),
    [
        (
            "class Net(nn.Linear):\n"
            "    def __init__(self, num_classes, input_shape):\n"
            "        super().__init__(8, num_classes - 1)",
            BadInput,
            "shape",
        ),
        (
            "class Net(nn.Conv2d):\n    def __init__(self): super().__init__(3, 10, 8)",
            BadInput,
            "3 channels",
        ),
        (
            "class Net:\n    def __init__(self, num_classes, input_shape): pass",
            BrokenContract,
            "is a Net",
        ),
        (
            "class Net(nn.Sequential):\n    def __init__(self):\n"
            "        super().__init__(nn.Flatten(), nn.Linear(64, 10))\n"
            "        nn.init.constant_(self[1].bias, float('nan'))",
            BrokenContract,
            "logits are not finite",
        ),
    ],
    ids=["outputs", "channels", "no network", "not finite"],
)
def test_a_model_that_does_not_fit_is_refused_before_anything_is_written(
    body: str, error: type[Exception], problem: str, tmp_path: Path, registry: Registry
) -> None:
    (tmp_path / "net.py").write_text(f"from torch import nn\n{body}\n")
    config = resolve({"model": f"{tmp_path / 'net.py'}:Net"})
    with pytest.raises(error, match=problem):
        run(config, tmp_path / "run", registry)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_reported_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.safetensors"
    checkpoints.save_tensors(path, {"a": torch.ones(2)}, {})

    def full(*args: dict[str, Tensor] | Path, **kwargs: Any) -> None:
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(RunFolderError, match="No space left"):
        checkpoints.save_tensors(path, {"a": torch.zeros(2)}, {})
    assert torch.equal(checkpoints.load_tensors(path)[0]["a"], torch.ones(2))
    assert list(tmp_path.iterdir()) == [path]


def test_weights_without_state_are_neither_overwritten_nor_resumed(
    tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path, registry: Registry
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "run" / "resume.safetensors").unlink()
    before = (tmp_path / "run" / "last.safetensors").read_bytes()
    with pytest.raises(RunFolderError, match="already holds a run"):
        run(tiny_config, tmp_path / "run", registry)
    with pytest.raises(RunFolderError, match=r"not resume\.safetensors"):
        run(tiny_config, tmp_path / "run", registry, resume=True)
    assert (tmp_path / "run" / "last.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    "kept", ["best.safetensors", "ema.safetensors", "last.safetensors", "log.jsonl", "evaluations"]
)
@pytest.mark.parametrize("gone", ["config.json", "resume.safetensors"])
def test_resume_does_not_restart_a_folder_with_results(
    gone: str,
    kept: str,
    tiny_config: TrainConfig,
    tiny_run: Path,
    tmp_path: Path,
    registry: Registry,
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "run" / "evaluations").mkdir(exist_ok=True)
    (tmp_path / "run" / "ema.safetensors").touch()
    for file in (tmp_path / "run").iterdir():
        if file.name not in (kept, "config.json", "resume.safetensors") or file.name == gone:
            file.unlink() if file.is_file() else file.rmdir()
    before = sorted(file.name for file in (tmp_path / "run").iterdir())
    with pytest.raises(RunFolderError, match=gone) as refused:
        run(tiny_config, tmp_path / "run", registry, resume=True)
    assert kept in str(refused.value)
    assert "overwrite" in refused.value.hint
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == before
    with pytest.raises(RunFolderError, match="already holds a run"):
        run(tiny_config, tmp_path / "run", registry)


@pytest.mark.parametrize(
    "line", ["{}", "[]", '{"epoch": "1"}', '{"epoch": 0}', '{"epoch": true}', "[" * 100_000]
)
def test_a_log_line_that_is_not_an_epoch_is_refused(
    line: str, tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path, registry: Registry
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write(f"{line}\n")
    with pytest.raises(BadFile, match="cannot be read") as refused:
        run(tiny_config, tmp_path / "run", registry, resume=True)
    assert "overwrite" in refused.value.hint


def test_only_temporary_files_are_cleaned_up(
    tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path, registry: Registry
) -> None:
    path = shutil.copytree(tiny_run, tmp_path / "run")
    (path / ".last.safetensors.abcd_123.tmp").write_text("half")
    (path / ".notes.tmp").write_text("of the user")
    (path / ".log.jsonl.abcd_123.tmp").mkdir()
    (path / ".best.safetensors.abcd_123.tmp").symlink_to("nowhere")
    run(tiny_config, path, registry, resume=True)
    assert not (path / ".last.safetensors.abcd_123.tmp").exists()
    assert (path / ".notes.tmp").read_text() == "of the user"
    assert (path / ".log.jsonl.abcd_123.tmp").is_dir()
    assert (path / ".best.safetensors.abcd_123.tmp").is_symlink()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["config.json", "csv/data.csv", "tensorboard/events"])
def test_files_of_the_user_with_our_names_are_not_deleted(
    name: str, resume: bool, tiny_config: TrainConfig, tmp_path: Path, registry: Registry
) -> None:
    file = tmp_path / "project" / name
    file.parent.mkdir(parents=True)
    file.write_text("{}, of the user")
    with pytest.raises(RunFolderError, match="is not a run, but holds"):
        run(tiny_config, tmp_path / "project", registry, resume=resume, loggers=("csv",))
    assert file.read_text() == "{}, of the user"


@pytest.mark.parametrize("name", ["csv", "tensorboard"])
def test_a_linked_folder_for_a_logger_is_refused_unchanged(
    name: str, tiny_config: TrainConfig, tmp_path: Path, registry: Registry
) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "metrics.csv").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(tiny_config.to_json())
    (tmp_path / "run" / name).symlink_to(tmp_path / "victim")
    with pytest.raises(RunFolderError, match="is a symbolic link"):
        run(tiny_config, tmp_path / "run", registry, loggers=(name,))
    run(tiny_config, tmp_path / "run", registry, overwrite=True, loggers=(name,))
    assert not (tmp_path / "run" / name).is_symlink()
    assert [file.name for file in (tmp_path / "victim").iterdir()] == ["metrics.csv"]


def test_a_folder_with_the_name_of_a_run_file_is_not_removed(
    tiny_config: TrainConfig, tmp_path: Path, registry: Registry
) -> None:
    (tmp_path / "run" / "log.jsonl" / "mine").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"log\.jsonl"):
        run(tiny_config, tmp_path / "run", registry, overwrite=True)
    assert (tmp_path / "run" / "log.jsonl" / "mine").is_dir()


@pytest.mark.parametrize(
    "attack",
    ["autoattack", "apgd-ce:stops_early=true", "authors-eval", "square", "handing.py:handing"],
)
def test_the_validation_attack_is_short_and_gives_margins(attack: str, registry: Registry) -> None:
    # what hands options on accepts `steps`, and has none
    body = """
from wmr_cli.core import AttackTraits
def attack(*args, **kwargs): ...
attack.traits = AttackTraits()
def handing(eps=0.1, **options):
    assert 'steps' not in options
    return attack
"""
    Path("handing.py").write_text(body)
    config = resolve({"evaluate": {"attack": attack}})
    chosen = build_validation_attack(registry, config)
    settings = vars(chosen)
    assert settings["steps"] <= 10
    assert settings["restarts"] == 1
    assert not chosen.traits.stops_early
    assert (settings["norm"], settings["eps"]) == ("linf", 0.15)


def test_the_validation_table_has_best_last_and_averaged_weights(
    tmp_path: Path, registry: Registry
) -> None:
    config = resolve({"epochs": 3, "steps": 1, "validate_every": 2, "ema": 0.9, "select": "sa"})
    *_, done = train(config, tmp_path / "run", registry, data_dir=Path(), device="cpu")
    assert isinstance(done, TrainingDone)
    table = make_validation_table(done.entries, done.best, "sa")
    assert table is not None
    assert table.headings == ("weights", "epoch", "A_nat", "A_rob", "A_sa")
    assert len(table.rows) == 3
    accuracy = {entry["epoch"]: entry["val_a_sa"] for entry in done.entries if "val_a_sa" in entry}
    assert done.best == max(accuracy, key=lambda epoch: accuracy[epoch])
    assert table.rows[1][1] == "3"
    assert all("[" in cell for row in table.rows for cell in row[2:] if "correct" not in cell)


def test_without_validation_the_table_is_empty() -> None:
    assert make_validation_table([{"epoch": 1, "loss": 0.1}], None, "rob") is None
