"""Residual networks, mostly of timm, with stems for small or large images.

ResNet and the CIFAR networks of its paper (He et al. 2016, arXiv:1512.03385), pre-activation ResNet
(He et al. 2016, arXiv:1603.05027), Wide ResNet (Zagoruyko and Komodakis 2016, arXiv:1605.07146).
"""

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from ...core.torchvision_compat import timm
from ...errors import BadInput

Stem = Literal["cifar", "imagenet"]


def resnet18(
    num_classes: int, input_shape: tuple[int, int, int], stem: Stem = "cifar"
) -> nn.Module:
    """Eight blocks of two 3x3 convolutions.

    It has 11,173,962 parameters with the cifar stem, 3 channels and 10 classes.
    """
    return _resnet(timm.models.resnet.BasicBlock, (2, 2, 2, 2), num_classes, input_shape[0], stem)


def resnet50(
    num_classes: int, input_shape: tuple[int, int, int], stem: Stem = "imagenet"
) -> nn.Module:
    """Sixteen bottleneck blocks.

    With 3 channels and 200 classes it has 23,917,832 parameters, or 23,910,152 with the cifar stem.
    """
    return _resnet(timm.models.resnet.Bottleneck, (3, 4, 6, 3), num_classes, input_shape[0], stem)


def _resnet(
    block: type[nn.Module], layers: tuple[int, ...], num_classes: int, channels: int, stem: Stem
) -> nn.Module:
    """Build timm's ResNet; its imagenet stem divides the side by 4, the cifar stem keeps it."""
    network: nn.Module = timm.models.resnet.ResNet(
        block,
        layers,
        num_classes=num_classes,
        in_chans=channels,
        # published robust models have blocks that do not start as the identity
        zero_init_last=False,
    )
    if stem == "cifar":
        # a stem that divides the side by 4 would leave 8x8 of 32x32 pixels
        convolution = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        network.conv1 = convolution
        network.maxpool = nn.Identity()
    return network


def preact_resnet18(num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Eight blocks of two 3x3 convolutions and a last norm.

    It has 11,172,170 parameters with 3 channels and 10 classes.
    """
    widths = (64, 128, 256, 512)
    return _preact_resnet((2, 2, 2, 2), widths, 64, num_classes, input_shape[0])


def _preact_resnet(
    blocks: tuple[int, ...],
    widths: tuple[int, ...],
    stem_width: int,
    num_classes: int,
    channels: int,
) -> nn.Module:
    """Build stages of basic blocks with batch-norm on a 3x3 stem, which keeps the side.

    Every stage except the first halves the side.
    """
    network: nn.Module = timm.models.resnetv2.ResNetV2(
        list(blocks),
        widths,
        num_classes=num_classes,
        in_chans=channels,
        stem_chs=stem_width,
        basic=True,
        bottle_ratio=1.0,
        conv_layer=timm.layers.create_conv2d,
        # the default is group-norm, as in BiT
        norm_layer=timm.layers.BatchNormAct2d,
    )
    convolution = nn.Conv2d(channels, stem_width, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    network.stem = nn.Sequential(OrderedDict(conv=convolution))
    return network


def wide_resnet(
    num_classes: int, input_shape: tuple[int, int, int], depth: int = 28, width: int = 10
) -> nn.Module:
    """Three stages of (depth - 4) / 6 pre-activation blocks without dropout.

    The stages have `width` times 16, 32 and 64 channels. With 3 channels and 10 classes, 28-10 has
    36,479,194 parameters and 34-10 has 46,160,474.
    """
    if depth < 10 or depth % 6 != 4:
        raise BadInput(
            f"a wide ResNet cannot have depth {depth}",
            hint="depth is 10, 16, 22, 28, 34, …: 4 more than a multiple of 6",
        )
    if width < 1:
        raise BadInput(
            f"width={width} of a wide ResNet is not positive", hint="width is an integer from 1"
        )
    stages = (16 * width, 32 * width, 64 * width)
    return _preact_resnet(((depth - 4) // 6,) * 3, stages, 16, num_classes, input_shape[0])


class CifarResNet(nn.Module):
    """Three stages of (depth - 2) / 6 basic blocks, 16, 32 and 64 channels wide.

    Its shortcuts have no parameters (the paper's option A). Depth 20 with 10 classes has 269,722
    parameters. (N, C, H, W) to (N, num_classes).
    """

    def __init__(
        self, num_classes: int, input_shape: tuple[int, int, int], depth: int = 20
    ) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            hint = "depth is 8, 14, 20, 32, 44, 56, …: 2 more than a multiple of 6"
            raise BadInput(f"a CIFAR ResNet cannot have depth {depth}", hint=hint)
        blocks = (depth - 2) // 6
        # parameters are named as in public networks of this kind, so that their weights fit
        self.conv1 = nn.Conv2d(input_shape[0], 16, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks)
        self.layer2 = _stage(16, 32, blocks)
        self.layer3 = _stage(32, 64, blocks)
        self.linear = nn.Linear(64, num_classes)
        # after timm's blocks have initialised themselves: the paper initialises as He et al. 2015
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        features = functional.relu(self.bn1(self.conv1(images)))
        features = self.layer3(self.layer2(self.layer1(features)))
        logits: Tensor = self.linear(features.mean(dim=(2, 3)))
        return logits


class _Subsample(nn.Module):
    """Takes every second pixel, and adds channels of zeros before and after the others.

    (N, C, H, W) to (N, 2C, ⌈H/2⌉, ⌈W/2⌉).
    """

    def forward(self, features: Tensor) -> Tensor:
        added = features.shape[1] // 2
        return functional.pad(features[:, :, ::2, ::2], (0, 0, 0, 0, added, added))


def _stage(channels: int, width: int, blocks: int) -> nn.Sequential:
    """Build basic blocks; the first halves the side if it doubles the channels."""
    block = timm.models.resnet.BasicBlock
    if width == channels:
        first = block(channels, width)
    else:
        first = block(channels, width, stride=2, downsample=_Subsample())
    return nn.Sequential(first, *(block(width, width) for _ in range(blocks - 1)))
