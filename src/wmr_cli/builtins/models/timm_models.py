"""Any network of timm, for the channels, classes and size of the data.

Its own normalisation becomes the first layer.
"""

import re
from statistics import fmean
from typing import Any

import torch
from torch import nn

from ...core.contexts import evaluating
from ...core.nn.preprocessing import Normalized, Resized
from ...core.torchvision_compat import timm
from ...errors import BadFile, BadInput, UnknownName, did_you_mean

RESERVED_OPTIONS = (
    "cache_dir",
    "in_chans",
    "img_size",
    "checkpoint_path",
    "features_only",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
)
"""Options of timm that the data decide, or that would not give a new classifier."""
USUAL_STRIDE = 32
"""Total stride of most architectures: a side that is a multiple of it usually fits."""


def from_timm(
    num_classes: int,
    input_shape: tuple[int, int, int],
    name: str,
    size: int | None = None,
    pretrained: bool = False,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    **options: Any,
) -> nn.Module:
    """Build the architecture `name` for the size of the images; with `size`, resize them first.

    Images are normalised by timm's mean and std of the architecture unless they are given.
    `pretrained` loads timm's weights. Other options, such as drop_rate=0.1, are passed to timm.
    """
    channels, height, width = input_shape
    if size is not None and size < 1:
        raise BadInput(f"size={size} is not positive", hint="size is the side in pixels")
    shape = (channels, height, width) if size is None else (channels, size, size)
    _check_options(name, options)
    # built without weights first: a misfit is reported before anything is downloaded
    network = _build_and_check(name, num_classes, shape, options)
    if pretrained:
        network = _build_with_weights(name, num_classes, shape, options)
    config: Any = network.pretrained_cfg
    mean = mean or _for_channels(config["mean"], channels)
    std = std or _for_channels(config["std"], channels)
    if size is not None:
        network = Resized(network, size)
    return Normalized(network, mean, std, channels)


def _check_options(name: str, options: dict[str, Any]) -> None:
    """Check that timm knows the architecture, and that the options are not reserved."""
    known = timm.list_models()
    if name not in known and name not in timm.list_models(include_tags=True):
        hint = did_you_mean(name, [other for other in known if name in other] or known)
        raise UnknownName(f"timm has no network {name!r}", hint=hint)
    for key in options:
        if key in RESERVED_OPTIONS:
            raise BadInput(f"{key} of timm:{name} is set elsewhere", hint=f"leave out {key}=…")


def _build_and_check(
    name: str, num_classes: int, shape: tuple[int, int, int], options: dict[str, Any]
) -> nn.Module:
    """Build a network with random weights and try it on one image of this shape."""
    try:
        network = _build(name, num_classes, shape, options)
        # timm detects some misfits in the forward pass only
        with torch.no_grad(), evaluating(network):
            network(torch.zeros(1, *shape))
    # any exception: timm has no error class for what it cannot build
    except Exception as error:
        key = _find_refused_option(error)
        if key in options:
            raise BadInput(
                f"timm's {name} does not take {key!r}",
                hint="options are those of its class in timm that its name does not fix, "
                "and size, pretrained, mean, std",
            ) from error
        raise _make_misfit(name, shape, options, str(error), step=USUAL_STRIDE) from error
    patch_layers: list[Any] = [
        module for module in network.modules() if isinstance(module, timm.layers.PatchEmbed)
    ]
    for layer in patch_layers:
        if not layer.img_size or layer.dynamic_img_pad:
            continue
        patch = layer.patch_size[0]
        # timm would silently ignore the pixels beyond the last whole patch
        if any(side % patch for side in layer.img_size):
            problem = f"they cannot be cut into patches of {patch}x{patch}"
            raise _make_misfit(name, shape, options, problem, step=patch)
    return network


def _build(
    name: str,
    num_classes: int,
    shape: tuple[int, int, int],
    options: dict[str, Any],
    *,
    pretrained: bool = False,
) -> nn.Module:
    """Build timm's network, with the size of the images if its layers depend on it."""
    channels, height, width = shape
    fixed = {"num_classes": num_classes, "in_chans": channels, "pretrained": pretrained}
    # some architectures take the side of a square only
    image_size = height if height == width else (height, width)
    network: nn.Module
    try:
        network = timm.create_model(name, img_size=image_size, **fixed, **options)
    except TypeError as error:
        # the layers of convolutional networks do not depend on the size
        if _find_refused_option(error) != "img_size":
            raise
        network = timm.create_model(name, **fixed, **options)
    return network


def _build_with_weights(
    name: str, num_classes: int, shape: tuple[int, int, int], options: dict[str, Any]
) -> nn.Module:
    """Build a network that is known to fit, with timm's weights."""
    try:
        return _build(name, num_classes, shape, options, pretrained=True)
    # any exception: network, cache and files fail in many ways
    except Exception as error:
        raise BadFile(
            f"timm's weights of {name} cannot be loaded: {_first_line(str(error))}",
            hint="weights are downloaded once and cached: connect to the network, "
            "or leave out pretrained",
        ) from error


def _find_refused_option(error: Exception) -> str | None:
    """Return the keyword that a constructor refused, if that is the error."""
    found = re.search(
        r"(?:unexpected keyword argument|multiple values for keyword argument) '(\w+)'", str(error)
    )
    if not isinstance(error, TypeError) or found is None:
        return None
    return found[1]


def _make_misfit(
    name: str, shape: tuple[int, int, int], options: dict[str, Any], problem: str, step: int
) -> BadInput:
    """Make the error for images that do not fit, with a size that may fit in its hint."""
    _, height, width = shape
    native = timm.models.get_pretrained_cfg_value(name, "input_size")[-1]
    # the next multiple of `step`, if it is smaller than the architecture's native size
    larger = -(-max(height, width) // step) * step
    hint = f"write timm:{name},size={native}"
    if larger < native and (height, width) != (larger, larger):
        hint = f"resize images: timm:{name},size={larger}; its native size is {native}"
    if options:
        hint = f"check {', '.join(options)}; or {hint}"
    return BadInput(
        f"timm's {name} cannot be built for images of {height}x{width}: {_first_line(problem)}",
        hint=hint,
    )


def _for_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Return one value per channel, or their mean for data with other channels."""
    return tuple(values) if len(values) == channels else (fmean(values),)


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["timm gives no reason"])[0]
