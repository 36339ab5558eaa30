"""Adversarial images: rounding to 8 bits, memory, files and the summary."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.config import EvaluateConfig
from wmr_cli.core.protocols import AttackResult, Batch
from wmr_cli.errors import BadInput
from wmr_cli.evaluation.adversarial_images import ImageOutput, attack, round_to_uint8
from wmr_cli.evaluation.tasks import plan_tasks
from wmr_cli.events import AttackDone, ImagesDone
from wmr_cli.registry import Registry
from wmr_cli.reporting import figures
from wmr_cli.storage import checkpoints


def test_an_attack_with_its_own_loss_cannot_be_weighted(tiny_run: Path, registry: Registry) -> None:
    config = EvaluateConfig(attacks=("apgd-t:steps=2",), alpha_test=(2.0,), limit=5)
    with pytest.raises(BadInput, match="apgd-t"):
        list(attack(tiny_run, config, registry, data_dir=Path(), device="cpu", weighted=True))


class ConstantLogits(nn.Module):
    """A model with the same logits for every image."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.zeros(len(images), 10)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_perturbation_of_8_levels_is_still_8_levels_after_rounding(
    sign: int, tiny_run: Path, registry: Registry
) -> None:
    task = next(
        plan_tasks(checkpoints.load(tiny_run), EvaluateConfig(eps=(8 / 255,)), registry, Path())
    )
    levels = torch.arange(20, 84).reshape(1, 1, 8, 8)
    batch = Batch(levels.float() / 255, torch.tensor([0]), torch.tensor([0]))
    moved = batch.images + sign * 8 / 255
    result = round_to_uint8(
        AttackResult(moved, torch.zeros(1), torch.zeros(1, 10)),
        ConstantLogits(),
        batch,
        task,
    )
    assert torch.equal((result.images * 255).round().long(), levels + sign * 8)


def count_image_bytes() -> int:
    """Return the memory of all images that are alive; views share the memory of their base."""
    sizes = {}
    for found in gc.get_objects():
        if type(found) is torch.Tensor and found.dim() == 4:
            storage = found.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


@pytest.mark.parametrize(
    ("files", "kept"), [((), 0), (("grid",), 0), (("save",), 2 * 160), (("save", "grid"), 2 * 160)]
)
def test_images_stay_in_memory_only_if_they_are_saved(
    files: tuple[str, ...], kept: int, tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    config = EvaluateConfig(attacks=("fgsm",), limit=200, batch_size=20)
    paths: dict[str, Any] = {"save": tmp_path / "images.safetensors", "grid": tmp_path / "grid.png"}
    events = attack(
        tiny_run,
        config,
        registry,
        data_dir=Path(),
        device="cpu",
        output=ImageOutput(**{name: paths[name] for name in files}),
    )
    used = [count_image_bytes() for event in events if isinstance(event, ImagesDone)]
    assert len(used) == 10
    assert used[-1] - used[1] == kept * 8 * 8 * 4
    assert [name for name, file in paths.items() if file.exists()] == list(files)


def test_the_summary_does_not_depend_on_batches_or_files(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    def summarize(batch_size: int, output: ImageOutput) -> dict[str, Any]:
        config = EvaluateConfig(attacks=("fgsm",), limit=20, batch_size=batch_size)
        *_, done = attack(tiny_run, config, registry, data_dir=Path(), device="cpu", output=output)
        assert isinstance(done, AttackDone)
        return {name: value for name, value in done.summary.items() if "second" not in name}

    expected = summarize(6, ImageOutput())
    assert summarize(6, ImageOutput(save=tmp_path / "images.safetensors")) == expected
    assert summarize(20, ImageOutput()) == expected


@pytest.mark.parametrize("batch_size", [3, 20])
def test_a_grid_shows_the_first_ten_images_for_any_batch_size(
    batch_size: int,
    tiny_run: Path,
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []
    monkeypatch.setattr(figures, "attack_grid", lambda path, *arrays, **_: drawn.extend(arrays))
    config = EvaluateConfig(attacks=("fgsm",), limit=20, batch_size=batch_size)
    output = ImageOutput(grid=tmp_path / "grid.png")
    list(attack(tiny_run, config, registry, data_dir=Path(), device="cpu", output=output))
    task = next(plan_tasks(checkpoints.load(tiny_run), config, registry, Path()))
    assert [len(array) for array in drawn] == [10] * 5
    assert torch.equal(torch.from_numpy(drawn[0]), task.images.first(10).images)
