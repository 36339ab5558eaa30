"""Adversarial images that stay adversarial once they are saved."""

import gc
from pathlib import Path

import pytest
import torch

from wmr_cli.config import EvaluateConfig
from wmr_cli.core.contracts import Attacked, Batch
from wmr_cli.errors import BadInput
from wmr_cli.reporting import figures
from wmr_cli.storage import checkpoints
from wmr_cli.workflows.attack import attack, rounded
from wmr_cli.workflows.events import AttackDone, ImagesDone
from wmr_cli.workflows.planning import plan


def test_an_attack_with_a_loss_of_its_own_is_not_called_weighted(tiny_run, registry):
    config = EvaluateConfig(attacks=("apgd-t:steps=2",), alpha_test=(2.0,), limit=5)
    with pytest.raises(BadInput, match="climbs a loss of its own"):
        list(attack(tiny_run, config, registry, data_dir=Path(), device="cpu", weighted=True))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_move_of_whole_levels_survives_eight_bits(sign, tiny_run, registry):
    """8-bit data moved by 8/255 is moved by 8 levels after rounding, up or down, whatever float32 made of 199/255."""
    task = next(plan(checkpoints.load(tiny_run), EvaluateConfig(eps=(8 / 255,)), registry, Path()))
    levels = torch.arange(20, 84).reshape(1, 1, 8, 8)
    batch = Batch(levels.float() / 255, torch.tensor([0]), torch.tensor([0]))
    moved = batch.images + sign * 8 / 255
    result = rounded(Attacked(moved, torch.zeros(1, 10), torch.zeros(1)), lambda images: torch.zeros(1, 10), batch, task)
    assert torch.equal((result.images * 255).round().long(), levels + sign * 8)


def bytes_of_images():
    """In all batches of images that are alive; a view counts as what it is a view of."""
    batches = [made for made in gc.get_objects() if type(made) is torch.Tensor and made.dim() == 4]
    return sum({made.untyped_storage().data_ptr(): made.untyped_storage().nbytes() for made in batches}.values())


@pytest.mark.parametrize(("files", "kept"), [((), 0), (("grid",), 0), (("save",), 2 * 160), (("save", "grid"), 2 * 160)])
def test_images_stay_in_memory_only_where_a_file_wants_them_all(files, kept, tiny_run, registry, tmp_path):
    config = EvaluateConfig(attacks=("fgsm",), limit=200, batch_size=20)
    wanted = {"save": tmp_path / "images.safetensors", "grid": tmp_path / "grid.png"}
    events = attack(tiny_run, config, registry, data_dir=Path(), device="cpu", **{name: wanted[name] for name in files})
    held = [bytes_of_images() for event in events if isinstance(event, ImagesDone)]
    assert len(held) == 10
    assert held[-1] - held[1] == kept * 8 * 8 * 4
    assert [name for name, file in wanted.items() if file.exists()] == list(files)


def test_the_summary_is_the_same_whatever_is_kept(tiny_run, registry, tmp_path):
    def summary(**options):
        config = EvaluateConfig(attacks=("fgsm",), limit=20, batch_size=options.pop("batch_size", 6))
        *_, done = attack(tiny_run, config, registry, data_dir=Path(), device="cpu", **options)
        assert isinstance(done, AttackDone)
        return {name: value for name, value in done.summary.items() if "second" not in name}

    assert summary() == summary(save=tmp_path / "images.safetensors") == summary(batch_size=20)


@pytest.mark.parametrize("batch_size", [3, 20])
def test_a_grid_shows_the_first_ten_images_of_however_many_batches(batch_size, tiny_run, registry, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "attack_grid", lambda path, *arrays: drawn.extend(arrays))
    config = EvaluateConfig(attacks=("fgsm",), limit=20, batch_size=batch_size)
    list(attack(tiny_run, config, registry, data_dir=Path(), device="cpu", grid=tmp_path / "grid.png"))
    task = next(plan(checkpoints.load(tiny_run), config, registry, Path()))
    assert [len(array) for array in drawn] == [10] * 5
    assert torch.equal(torch.from_numpy(drawn[0]), task.split.batch(task.positions[:10]).images)
