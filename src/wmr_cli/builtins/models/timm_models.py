"""Any network of timm, for the channels, classes and size of the data, with its own normalisation as the first layer."""

import re
from statistics import fmean
from typing import Any

import torch
from torch import nn

from ...core.contexts import evaluating
from ...core.nn.preprocessing import Normalized, Resized
from ...core.torchvision_compat import timm
from ...errors import BadFile, BadInput, UnknownName, did_you_mean

SETTLED = (
    "cache_dir",
    "in_chans",
    "img_size",
    "checkpoint_path",
    "features_only",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
)
"""Options of timm that the data settle, or that would make something else than a fresh classifier."""


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
    """The architecture `name`, built for the size of the images; with `size` the model resizes them to size x size first.

    Images are normalised by timm's own mean and std of the architecture unless the two are given. `pretrained` loads
    timm's weights. Any other option, such as drop_rate=0.1 or patch_size=4, is handed to timm.
    """
    channels, height, width = input_shape
    if size is not None and size < 1:
        raise BadInput(
            f"images cannot be of size {size}",
            hint="size is the side in pixels that the network sees",
        )
    shape = (channels, height, width) if size is None else (channels, size, size)
    _check_words(name, options)
    network = _fitting(name, num_classes, shape, options)
    if pretrained:
        network = _with_weights(name, num_classes, shape, options)
    own_mean, own_std = (
        _for_channels(network.pretrained_cfg[key], channels) for key in ("mean", "std")
    )
    return Normalized(
        network if size is None else Resized(network, size),
        mean or own_mean,
        std or own_std,
        channels,
    )


def _check_words(name: str, options: dict[str, Any]) -> None:
    """Refuse a name that timm does not list, and options that are not the user's to set."""
    known = timm.list_models()
    if name not in known and name not in timm.list_models(include_tags=True):
        hint = did_you_mean(name, [other for other in known if name in other] or known)
        raise UnknownName(f"timm has no network {name!r}", hint=hint)
    for key in options:
        if key in SETTLED:
            raise BadInput(f"{key} of timm:{name} is set elsewhere", hint=f"leave out {key}=…")


def _fitting(
    name: str, num_classes: int, shape: tuple[int, int, int], options: dict[str, Any]
) -> Any:
    """A fresh network that takes images of this shape: tried on one, as timm notices some misfits in the forward pass only."""
    try:
        network = _build(name, num_classes, shape, options)
        with torch.no_grad(), evaluating(network):
            network(torch.zeros(1, *shape))
    except Exception as error:  # of any kind: timm has no error of its own for what it cannot build
        key = _refused_option(error)
        if key in options:
            hint = "an option is what its class in timm takes and its name leaves open, or size, pretrained, mean, std"
            raise BadInput(f"timm's {name} does not take {key!r}", hint=hint) from error
        raise _misfit(name, shape, options, str(error), step=32) from error
    for module in network.modules():
        if (
            isinstance(module, timm.layers.PatchEmbed)
            and module.img_size
            and not module.dynamic_img_pad
        ):
            patch = module.patch_size[0]
            if any(
                side % patch for side in module.img_size
            ):  # timm would cut off the rest of the image
                raise _misfit(
                    name,
                    shape,
                    options,
                    f"they cannot be cut into patches of {patch}x{patch}",
                    step=patch,
                )
    return network


def _build(
    name: str,
    num_classes: int,
    shape: tuple[int, int, int],
    options: dict[str, Any],
    *,
    pretrained: bool = False,
) -> Any:
    """timm's network. An architecture whose layers depend on the size of its images is told it; the others do not ask."""
    channels, *sides = shape
    settled = {"num_classes": num_classes, "in_chans": channels, "pretrained": pretrained}
    try:
        # some architectures know squares only, by their side
        return timm.create_model(
            name, img_size=sides[0] if sides[0] == sides[1] else tuple(sides), **settled, **options
        )
    except TypeError as error:
        if _refused_option(error) != "img_size":
            raise
    return timm.create_model(name, **settled, **options)


def _with_weights(
    name: str, num_classes: int, shape: tuple[int, int, int], options: dict[str, Any]
) -> Any:
    """The network, which is known to fit, with timm's weights."""
    try:
        return _build(name, num_classes, shape, options, pretrained=True)
    except Exception as error:  # of any kind: network, cache and files fail in many ways
        problem = f"timm's weights of {name} cannot be loaded: {_first_line(str(error))}"
        hint = "they are downloaded once and kept: this needs a network, or a cache that has them; or leave out pretrained"
        raise BadFile(problem, hint=hint) from error


def _refused_option(error: Exception) -> str | None:
    """The keyword that a constructor did not want, if that was the matter."""
    found = re.search(
        r"(?:unexpected keyword argument|multiple values for keyword argument) '(\w+)'", str(error)
    )
    return found[1] if isinstance(error, TypeError) and found else None


def _misfit(
    name: str, shape: tuple[int, int, int], options: dict[str, Any], problem: str, step: int
) -> BadInput:
    """What to say of images that do not fit, with the next larger side that is a multiple of `step`, or else timm's own."""
    _, height, width = shape
    own = timm.models.get_pretrained_cfg_value(name, "input_size")[-1]
    larger = -(-max(height, width) // step) * step
    is_new = larger < own and (height, width) != (larger, larger)
    hint = (
        f"let it resize them: timm:{name},size={larger}; timm made it for {own}"
        if is_new
        else f"write timm:{name},size={own}"
    )
    if options:
        hint = f"see to {', '.join(options)}; or {hint}"
    return BadInput(
        f"timm's {name} cannot be built for images of {height}x{width}: {_first_line(problem)}",
        hint=hint,
    )


def _for_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One value per channel; their average where the data have other channels than the network was made for."""
    return tuple(values) if len(values) == channels else (fmean(values),)


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["timm gives no reason"])[0]
