"""What a processor does to images, as numbers: size, interpolation, mean and std."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wmr_cli import BadInput

INTERPOLATION_OF_PILLOW = {0: "nearest", 2: "bilinear", 3: "bicubic"}
SUPPORTED = ("nearest", "bilinear", "bicubic")


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of images in [0, 1]; without a size, images keep theirs."""

    size: tuple[int, int] | None
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int = 3

    def replace(
        self,
        size: int | None,
        interpolation: str | None,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
    ) -> "Preprocessing":
        """Return it with what the user has set, and check the result."""
        if size is not None and size < 1:
            raise BadInput(f"size={size} is not positive", hint="size is the side in pixels")
        changed = dataclasses.replace(
            self,
            size=self.size if size is None else (size, size),
            interpolation=interpolation or self.interpolation,
            mean=mean or self.mean,
            std=std or self.std,
        )
        if changed.interpolation not in SUPPORTED:
            raise BadInput(
                f"interpolation {changed.interpolation!r} has no gradient here",
                hint=f"set interpolation=… to one of {', '.join(SUPPORTED)}",
            )
        if not changed.mean or not changed.std:
            raise BadInput(
                "the model has no preprocessor_config.json, so its normalisation is not known",
                hint="set mean=… and std=…, for example mean=0.5,std=0.5",
            )
        return changed


def read_processor(folder: Path, config: Mapping[str, Any]) -> Preprocessing:
    """Read the image processor of transformers with the defaults of its class.

    A processor crops the centre after it has resized an image. Here the whole image is resized to
    the size of the crop, so that an attack can use every pixel.
    """
    import transformers

    channels = int(config.get("num_channels", 3))
    has_processor = any(
        (folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")
    )
    if not has_processor:
        return Preprocessing(_read_size(config.get("image_size")), "bilinear", (), (), channels)
    processor = transformers.AutoImageProcessor.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False
    )
    settings: dict[str, Any] = processor.to_dict()
    size = None
    if settings.get("do_center_crop"):
        size = _read_size(settings.get("crop_size"))
    elif settings.get("do_resize", True):
        size = _read_size(settings.get("size"))
    # pixels from 0 to 255 are first multiplied, then normalised
    scale = 255 * float(settings.get("rescale_factor", 1 / 255))
    if not settings.get("do_rescale", True):
        scale = 255.0
    offset = 1.0 if settings.get("rescale_offset") else 0.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if settings.get("do_normalize", True):
        mean, std = tuple(settings["image_mean"]), tuple(settings["image_std"])
    if settings.get("include_top"):
        # EfficientNet divides twice
        std = tuple(value**2 for value in std)
    return Preprocessing(
        size,
        INTERPOLATION_OF_PILLOW.get(int(settings.get("resample", 2)), "another"),
        tuple((offset + value) / scale for value in mean),
        tuple(value / scale for value in std),
        channels,
    )


def read_timm_config(config: Mapping[str, Any]) -> Preprocessing:
    """Read the data config of timm, which older files have at the top level."""
    settings: Mapping[str, Any] = config.get("pretrained_cfg", config)
    channels, height, width = settings.get("input_size", (3, 224, 224))
    return Preprocessing(
        (height, width),
        str(settings.get("interpolation", "bilinear")),
        tuple(settings["mean"]) if "mean" in settings else (),
        tuple(settings["std"]) if "std" in settings else (),
        channels,
    )


def _read_size(size: Any) -> tuple[int, int] | None:  # noqa: ANN401 - JSON of a processor
    """Return (height, width) of any form in which processors store a size."""
    if size is None:
        return None
    if isinstance(size, int):
        return size, size
    if isinstance(size, list | tuple) and len(size) == 2:
        return int(size[0]), int(size[1])
    known = {key: value for key, value in dict(size).items() if value is not None}
    if {"height", "width"} <= known.keys():
        return int(known["height"]), int(known["width"])
    if "shortest_edge" in known:
        return int(known["shortest_edge"]), int(known["shortest_edge"])
    raise BadInput(f"the processor has a size of {dict(size)}", hint="set size=… in pixels")
