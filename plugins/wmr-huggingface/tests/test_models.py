"""Models of transformers and timm from local folders, without network."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from hub_server import Hub

import wmr_huggingface
from conftest import Run, make_vit
from wmr_cli import BadFile, BadInput, Spec
from wmr_cli.testing import check_model
from wmr_huggingface.hub import hash_model, pin_model
from wmr_huggingface.models import from_hub

SHAPE = (3, 16, 16)
FAST = ("--attack", "pgd:steps=2", "--eps", "0.05", "--limit", "40", "--metrics", "nat,rob")


def random_images(
    count: int = 4, size: int = 16
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(1).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def to_batch(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


def authors_logits(
    folder: Path, pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
) -> torch.Tensor:
    """Return the logits of transformers itself, with its own processor."""
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    processor = AutoImageProcessor.from_pretrained(folder)
    network = AutoModelForImageClassification.from_pretrained(folder).eval()
    images = [PIL.Image.fromarray(image) for image in pixels]
    with torch.no_grad():
        logits: torch.Tensor = network(**processor(images, return_tensors="pt")).logits
    return logits


def test_the_models_meet_the_contract(vit: Path, timm_model: Path) -> None:
    check_model(partial(from_hub, path=vit), 10, SHAPE)
    check_model(partial(from_hub, path=timm_model, size=32), 10, (3, 32, 32))


def test_logits_are_those_of_transformers(vit: Path) -> None:
    pixels = random_images()
    model = from_hub(10, SHAPE, path=vit).eval()
    with torch.no_grad():
        found = model(to_batch(pixels))
    torch.testing.assert_close(found, authors_logits(vit, pixels), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("resample", [2, 3])
def test_resizing_is_that_of_the_processor_up_to_rounding(tmp_path: Path, resample: int) -> None:
    folder = make_vit(tmp_path / "vit", resample=resample)
    pixels = random_images(size=40)
    model = from_hub(10, (3, 40, 40), path=folder).eval()
    with torch.no_grad():
        found = model(to_batch(pixels))
    # the processor rounds resized pixels to 8 bits
    expected = authors_logits(folder, pixels)
    assert (found - expected).abs().max() < 0.01 * expected.std()
    other = from_hub(10, (3, 40, 40), path=folder, interpolation="nearest").eval()
    with torch.no_grad():
        assert (other(to_batch(pixels)) - expected).abs().max() > 0.1 * expected.std()


@pytest.mark.parametrize(
    "settings",
    [
        {"do_rescale": False},
        {"rescale_factor": 1 / 127.5},
        {"do_normalize": False},
        {"size": 16, "do_center_crop": True, "crop_size": 16},
        {"size": {"shortest_edge": 16}},
    ],
    ids=str,
)
def test_settings_of_the_processor_are_layers(vit: Path, settings: dict[str, object]) -> None:
    file = vit / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    pixels = random_images()
    model = from_hub(10, SHAPE, path=vit).eval()
    with torch.no_grad():
        found = model(to_batch(pixels))
    torch.testing.assert_close(found, authors_logits(vit, pixels), rtol=1e-3, atol=1e-3)


def test_timm_networks_use_the_data_config_of_their_file(timm_model: Path) -> None:
    from wmr_cli.core import torchvision_compat

    timm = torchvision_compat.timm
    network = timm.create_model("test_resnet", num_classes=10)
    from safetensors.torch import load_file

    network.load_state_dict(load_file(timm_model / "model.safetensors"))
    config = json.loads((timm_model / "config.json").read_text())["pretrained_cfg"]
    side = config["input_size"][1]
    images = to_batch(random_images(size=side))
    mean, std = (torch.tensor(config[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    model = from_hub(10, (3, side, side), path=timm_model).eval()
    with torch.no_grad():
        expected = network.eval()((images - mean) / std)
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


def test_grey_images_are_repeated(vit: Path) -> None:
    model = from_hub(10, (1, 16, 16), path=vit).eval()
    grey = torch.rand(2, 1, 16, 16)
    with torch.no_grad():
        assert torch.equal(model(grey), model(grey.expand(-1, 3, -1, -1)))
    with pytest.raises(BadInput, match="2"):
        from_hub(10, (2, 16, 16), path=vit)


def test_another_number_of_classes_needs_a_new_head(vit: Path, timm_model: Path) -> None:
    for folder, size in ((vit, None), (timm_model, 32)):
        with pytest.raises(BadInput, match="10 classes, the dataset has 7") as refusal:
            from_hub(7, SHAPE, path=folder, size=size)
        assert "new_head" in refusal.value.hint
        model = from_hub(7, SHAPE, path=folder, size=size, new_head=True).eval()
        assert model(torch.zeros(1, *SHAPE)).shape == (1, 7)


def test_a_size_that_the_network_does_not_take_is_refused(vit: Path) -> None:
    with pytest.raises(BadInput, match="cannot classify"):
        from_hub(10, SHAPE, path=vit, size=24)


def test_pickled_weights_are_never_read(vit: Path) -> None:
    weights = from_hub(10, SHAPE, path=vit).state_dict()
    torch.save(weights, vit / "pytorch_model.bin")
    (vit / "model.safetensors").unlink()
    with pytest.raises(BadFile, match="weights"):
        from_hub(10, SHAPE, path=vit)


def test_code_of_a_repository_is_never_run(tmp_path: Path) -> None:
    folder = tmp_path / "custom"
    folder.mkdir()
    config = {
        "model_type": "mine",
        "num_labels": 10,
        "auto_map": {"AutoModelForImageClassification": "code.Mine"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(BadInput, match="without code of its repository"):
        from_hub(10, SHAPE, path=folder)
    assert not (tmp_path / "ran").exists()


def test_without_a_processor_the_normalisation_is_required(vit: Path) -> None:
    (vit / "preprocessor_config.json").unlink()
    with pytest.raises(BadInput, match="preprocessor_config"):
        from_hub(10, SHAPE, path=vit)
    from_hub(10, SHAPE, path=vit, mean=(0.5,), std=(0.5,))


def test_a_folder_is_pinned_by_its_content(vit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(vit.parent)
    pinned = pin_model(Spec.parse("hf:./vit,size=16"))
    assert pinned.params == {"path": str(vit), "size": "16", "revision": hash_model(vit)}
    assert pin_model(pinned) == pinned
    (vit / "README.md").write_text("other text does not matter")
    assert pin_model(Spec.parse("hf:path=vit,size=16")) == pinned
    weights = vit / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(BadFile, match="has changed"):
        from_hub(10, SHAPE, path=vit, revision=str(pinned.params["revision"]))


@pytest.mark.parametrize("text", ["hf:one", "hf:a/b/c", "hf:name=a/b,path=c", "hf"])
def test_other_places_are_refused(text: str) -> None:
    with pytest.raises(BadInput):
        pin_model(Spec.parse(text))


def test_listing_imports_nothing_heavy() -> None:
    hooks = ("wmr_models", "wmr_datasets", "wmr_checkpoints", "wmr_commands")
    entries = [entry for hook in hooks for entry in getattr(wmr_huggingface, hook)()]
    assert [entry.problem() for entry in entries] == [None] * 5
    code = "import sys, wmr_huggingface as plugin; plugin.wmr_models()"
    code += (
        "; assert not {'torch', 'transformers', 'datasets', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_folder_is_evaluated_twice_with_one_record(vit: Path, wmr: Run) -> None:
    first = json.loads(
        wmr("evaluate", f"hf:{vit}", "--dataset", "digits", *FAST, "--format", "json").stdout
    )
    second = wmr("evaluate", "--model", "hf:./vit", "--dataset", "digits", *FAST)
    assert "already recorded" in second.stderr
    (record,) = first
    assert hash_model(vit) in record["checkpoint"]["model"]
    assert record["plugins"] == {"wmr-huggingface": "0.1.0"}


def test_a_model_of_the_hub_is_pinned_to_its_commit(
    vit: Path, wmr: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {file.name: file.read_bytes() for file in vit.iterdir()}
    commit = hub.add("me/vit", {**files, "pytorch_model.bin": b"pickle", "code.py": b"boom"})
    words = ("evaluate", "hf:me/vit", "--dataset", "digits", *FAST, "--format", "json")
    (record,) = json.loads(wmr(*words).stdout)
    assert record["checkpoint"]["model"] == f"hf:me/vit,revision={commit}"
    assert not any("pytorch_model.bin" in request for request in hub.requests)
    assert not any("code.py" in request for request in hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "already recorded" in wmr(*words).stderr


def test_a_model_that_is_not_there_is_named(wmr: Run) -> None:
    missing = wmr("evaluate", "--model", "hf:me/vit", "--dataset", "digits", *FAST, status=2)
    assert "me/vit is not in the cache" in missing.stderr
