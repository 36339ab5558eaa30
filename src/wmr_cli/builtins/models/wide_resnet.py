"""Wide residual networks (Zagoruyko and Komodakis 2016, arXiv:1605.07146)."""

from torch import nn

from ...errors import BadInput
from .preact_resnet import preactivated


def wide_resnet(num_classes: int, input_shape: tuple[int, int, int], depth: int = 28, width: int = 10) -> nn.Module:
    """Three stages of (depth - 4) / 6 pre-activation blocks, width times 16, 32 and 64 channels wide, no dropout.

    With 3 channels and 10 classes 28-10 has 36,479,194 parameters and 34-10 has 46,160,474.
    """
    if depth < 10 or depth % 6 != 4:
        raise BadInput(
            f"there is no wide ResNet of depth {depth}", hint="depth is 10, 16, 22, 28, 34, …: 4 more than a multiple of 6"
        )
    if width < 1:
        raise BadInput(f"a wide ResNet cannot be {width} wide", hint="width is a whole number from 1 up")
    stages = (16 * width, 32 * width, 64 * width)
    return preactivated(((depth - 4) // 6,) * 3, stages, 16, num_classes, input_shape[0])
