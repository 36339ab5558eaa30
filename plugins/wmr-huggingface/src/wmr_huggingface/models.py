"""Image classifiers of transformers and timm, for images in [0, 1] of the dataset's size."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from wmr_cli import BadFile, BadInput
from wmr_cli.core import Normalized, torchvision_compat

from .hub import Place
from .preprocessing import Preprocessing, read_processor, read_timm_config

Interpolation = Literal["nearest", "bilinear", "bicubic"]
TORCH_MODES: Mapping[str, str] = {
    "nearest": "nearest-exact",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
}


def from_hub(
    num_classes: int,
    input_shape: tuple[int, int, int],
    name: str | None = None,
    path: Path | None = None,
    revision: str | None = None,
    size: int | None = None,
    interpolation: Interpolation | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    new_head: bool = False,
    pretrained: bool = True,
) -> nn.Module:
    """Build a model of the hub or of a folder, with its preprocessing as layers.

    `size` is the side of the square that images are resized to, if not the processor's.
    `new_head` replaces the last layer by a random one for the classes of the dataset.
    """
    place = Place(name, path, revision)
    folder = place.model_folder(with_weights=pretrained)
    config = _read_json(folder / "config.json")
    is_timm = "architecture" in config and "model_type" not in config
    classes = config.get("num_classes") if is_timm else _count_labels(config)
    if pretrained and not new_head and classes is not None and classes != num_classes:
        raise BadInput(
            f"{place} has {classes} classes, the dataset has {num_classes}",
            hint="new_head=true replaces its last layer, for training",
        )
    if is_timm:
        network, preprocessing = _build_timm(folder, config, num_classes, pretrained, new_head)
    else:
        network, preprocessing = _build_transformers(
            folder, config, num_classes, pretrained, new_head
        )
    preprocessing = preprocessing.replace(size, interpolation, mean, std)
    model = HubModel(network, preprocessing, input_shape)
    _try(model, place, input_shape, num_classes)
    return model


class HubModel(nn.Module):
    """A network with its preprocessing, from images in [0, 1] to logits (N, K).

    Grey images are repeated to three channels. Images of another size are resized as a whole.
    """

    def __init__(
        self, network: nn.Module, preprocessing: Preprocessing, input_shape: tuple[int, int, int]
    ) -> None:
        super().__init__()
        channels = preprocessing.channels
        if input_shape[0] not in (1, channels):
            raise BadInput(
                f"the network has {channels} input channels, images have {input_shape[0]}",
                hint="choose another model or dataset",
            )
        self.channels = channels
        self.size = preprocessing.size or input_shape[1:]
        self.mode = TORCH_MODES[preprocessing.interpolation]
        # values of a bicubic interpolation can leave [0, 1]; a processor clips them
        self.clips = preprocessing.interpolation == "bicubic"
        self.network = Normalized(Logits(network), preprocessing.mean, preprocessing.std, channels)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images (N, C, H, W)."""
        if images.shape[1] != self.channels:
            images = images.expand(-1, self.channels, -1, -1)
        if images.shape[2:] != self.size:
            # as Pillow does when it makes an image smaller
            antialias = self.mode != "nearest-exact"
            images = functional.interpolate(
                images, tuple(self.size), mode=self.mode, antialias=antialias
            )
            if self.clips:
                images = images.clamp(0, 1)
        logits: Tensor = self.network(images)
        return logits


class Logits(nn.Module):
    """A network that returns only the logits of its output."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of preprocessed images."""
        output = self.network(images)
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return logits


def _count_labels(config: Mapping[str, Any]) -> int | None:
    """Return the classes of a config of transformers, which counts names rather than outputs."""
    if "num_labels" in config:
        return int(config["num_labels"])
    # two names are the default of transformers and are left out of the file
    return len(config["id2label"]) if config.get("id2label") else None


def _build_transformers(
    folder: Path, config: Mapping[str, Any], num_classes: int, pretrained: bool, new_head: bool
) -> tuple[nn.Module, Preprocessing]:
    # transformers imports torchvision, which may not fit the installed torch
    _ = torchvision_compat.torchvision
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    )

    kind = config.get("model_type")
    if kind not in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        needs_code = " without code of its repository" if "auto_map" in config else ""
        raise BadInput(
            f"{folder} is not an image classifier of transformers{needs_code}: model_type {kind!r}",
            hint="code of a repository is never run; choose a model that transformers contains",
        )
    settings: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with _quiet():
        if pretrained:
            if new_head:
                settings |= {"num_labels": num_classes, "ignore_mismatched_sizes": True}
            try:
                network = transformers.AutoModelForImageClassification.from_pretrained(
                    str(folder), use_safetensors=True, dtype=torch.float32, **settings
                )
            # transformers raises several kinds of errors for missing and damaged files
            except Exception as error:
                raise _unreadable(folder, error) from error
        else:
            own = transformers.AutoConfig.from_pretrained(
                str(folder), num_labels=num_classes, **settings
            )
            own.dtype = torch.float32
            network = transformers.AutoModelForImageClassification.from_config(own)
        return network, read_processor(folder, config)


def _build_timm(
    folder: Path, config: Mapping[str, Any], num_classes: int, pretrained: bool, new_head: bool
) -> tuple[nn.Module, Preprocessing]:
    from safetensors.torch import load_file

    timm = torchvision_compat.timm
    preprocessing = read_timm_config(config)
    architecture = config["architecture"]
    classes = int(config.get("num_classes", num_classes)) if pretrained else num_classes
    if not timm.is_model(architecture):
        raise BadInput(
            f"timm has no network {architecture!r}", hint="update timm, or choose another model"
        )
    network: Any = timm.create_model(
        architecture,
        pretrained=False,
        num_classes=classes,
        in_chans=preprocessing.channels,
        **config.get("model_args", {}),
    )
    if pretrained:
        try:
            network.load_state_dict(load_file(folder / "model.safetensors"))
        # safetensors and torch raise several kinds of errors for missing and damaged files
        except Exception as error:
            raise _unreadable(folder, error) from error
        if new_head:
            network.reset_classifier(num_classes)
    return network, preprocessing


def _unreadable(folder: Path, error: Exception) -> BadFile:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return BadFile(
        f"{folder} does not hold the weights of its config: {reason}",
        hint="weights are read from safetensors files only",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Let transformers print neither warnings nor progress."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    shows_progress = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shows_progress:
            logging.enable_progress_bar()


def _try(
    model: nn.Module, place: Place, input_shape: tuple[int, int, int], num_classes: int
) -> None:
    """Classify one image, because some networks refuse a size in the forward pass only."""
    was_training = model.training
    try:
        with torch.no_grad():
            logits = model.eval()(torch.zeros(1, *input_shape))
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"{place} cannot classify images of {input_shape[1]}x{input_shape[2]}: {reason}",
            hint="leave out size=…, or set the size that the network was trained with",
        ) from error
    finally:
        model.train(was_training)
    if logits.shape != (1, num_classes):
        raise BadInput(
            f"{place} returns {tuple(logits.shape)[1:]} logits for {num_classes} classes",
            hint="new_head=true replaces its last layer, for training",
        )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{file} cannot be read: {error}", hint="name a folder of a model") from error
    if not isinstance(content, dict):
        raise BadFile(f"{file} is not the config of a model", hint="name a folder of a model")
    return content
