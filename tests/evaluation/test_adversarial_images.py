"""Adversarial images that stay adversarial once they are saved."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.config import EvaluateConfig
from wmr_cli.core.protocols import AttackResult, Batch
from wmr_cli.errors import BadInput
from wmr_cli.evaluation.adversarial_images import attack, rounded
from wmr_cli.evaluation.tasks import plan_tasks
from wmr_cli.events import AttackDone, ImagesDone
from wmr_cli.registry import Registry
from wmr_cli.reporting import figures
from wmr_cli.storage import checkpoints


def test_an_attack_with_a_loss_of_its_own_is_not_called_weighted(
    tiny_run: Path, registry: Registry
) -> None:
    config = EvaluateConfig(attacks=("apgd-t:steps=2",), alpha_test=(2.0,), limit=5)
    with pytest.raises(BadInput, match="apgd-t"):
        list(attack(tiny_run, config, registry, data_dir=Path(), device="cpu", weighted=True))


class ConstantLogits(nn.Module):
    """A model with the same logits for every image."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.zeros(len(images), 10)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_move_of_whole_levels_survives_eight_bits(
    sign: int, tiny_run: Path, registry: Registry
) -> None:
    """8-bit data moved by 8/255 is moved by 8 levels after rounding, up or down, whatever float32 made of 199/255."""
    task = next(
        plan_tasks(checkpoints.load(tiny_run), EvaluateConfig(eps=(8 / 255,)), registry, Path())
    )
    levels = torch.arange(20, 84).reshape(1, 1, 8, 8)
    batch = Batch(levels.float() / 255, torch.tensor([0]), torch.tensor([0]))
    moved = batch.images + sign * 8 / 255
    result = rounded(
        AttackResult(moved, torch.zeros(1), torch.zeros(1, 10)),
        ConstantLogits(),
        batch,
        task,
    )
    assert torch.equal((result.images * 255).round().long(), levels + sign * 8)


def bytes_of_images() -> int:
    """In all batches of images that are alive; a view counts as what it is a view of."""
    batches = [made for made in gc.get_objects() if type(made) is torch.Tensor and made.dim() == 4]
    return sum(
        {
            made.untyped_storage().data_ptr(): made.untyped_storage().nbytes() for made in batches
        }.values()
    )


@pytest.mark.parametrize(
    ("files", "kept"), [((), 0), (("grid",), 0), (("save",), 2 * 160), (("save", "grid"), 2 * 160)]
)
def test_images_stay_in_memory_only_where_a_file_wants_them_all(
    files: tuple[str, ...], kept: int, tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    config = EvaluateConfig(attacks=("fgsm",), limit=200, batch_size=20)
    wanted = {"save": tmp_path / "images.safetensors", "grid": tmp_path / "grid.png"}
    events = attack(
        tiny_run,
        config,
        registry,
        data_dir=Path(),
        device="cpu",
        save=wanted["save"] if "save" in files else None,
        grid=wanted["grid"] if "grid" in files else None,
    )
    held = [bytes_of_images() for event in events if isinstance(event, ImagesDone)]
    assert len(held) == 10
    assert held[-1] - held[1] == kept * 8 * 8 * 4
    assert [name for name, file in wanted.items() if file.exists()] == list(files)


def test_the_summary_is_the_same_whatever_is_kept(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    def summary(**options: Any) -> dict[str, dict[str, float] | float | str | None]:
        config = EvaluateConfig(
            attacks=("fgsm",), limit=20, batch_size=options.pop("batch_size", 6)
        )
        *_, done = attack(tiny_run, config, registry, data_dir=Path(), device="cpu", **options)
        assert isinstance(done, AttackDone)
        return {name: value for name, value in done.summary.items() if "second" not in name}

    assert summary() == summary(save=tmp_path / "images.safetensors") == summary(batch_size=20)


@pytest.mark.parametrize("batch_size", [3, 20])
def test_a_grid_shows_the_first_ten_images_of_however_many_batches(
    batch_size: int,
    tiny_run: Path,
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []
    monkeypatch.setattr(figures, "attack_grid", lambda path, *arrays: drawn.extend(arrays))
    config = EvaluateConfig(attacks=("fgsm",), limit=20, batch_size=batch_size)
    list(
        attack(
            tiny_run, config, registry, data_dir=Path(), device="cpu", grid=tmp_path / "grid.png"
        )
    )
    task = next(plan_tasks(checkpoints.load(tiny_run), config, registry, Path()))
    assert [len(array) for array in drawn] == [10] * 5
    assert torch.equal(torch.from_numpy(drawn[0]), task.split.batch(task.positions[:10]).images)
