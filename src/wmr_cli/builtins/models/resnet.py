"""Residual networks (He et al. 2016, arXiv:1512.03385), timm's, with a stem for small images or for large ones."""

from typing import Literal

from torch import nn

from ...core.vision import timm

Stem = Literal["cifar", "imagenet"]


def resnet18(num_classes: int, input_shape: tuple[int, int, int], stem: Stem = "cifar") -> nn.Module:
    """Eight blocks of two 3x3 convolutions. With the cifar stem, 3 channels and 10 classes: 11,173,962 parameters."""
    return _resnet(timm.models.resnet.BasicBlock, (2, 2, 2, 2), num_classes, input_shape[0], stem)


def resnet50(num_classes: int, input_shape: tuple[int, int, int], stem: Stem = "imagenet") -> nn.Module:
    """Sixteen bottleneck blocks. With 3 channels and 200 classes: 23,917,832 parameters, 23,910,152 with the cifar stem."""
    return _resnet(timm.models.resnet.Bottleneck, (3, 4, 6, 3), num_classes, input_shape[0], stem)


def _resnet(block: type[nn.Module], layers: tuple[int, ...], num_classes: int, channels: int, stem: Stem) -> nn.Module:
    """The imagenet stem is timm's 7x7 convolution and max-pool, which quarter the side; the cifar stem keeps it."""
    network: nn.Module = timm.models.resnet.ResNet(
        block,
        layers,
        num_classes=num_classes,
        in_chans=channels,
        # robust training is compared with networks whose blocks do not start as the identity
        zero_init_last=False,
    )
    if stem == "cifar":
        convolution = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        network.conv1, network.maxpool = convolution, nn.Identity()
    return network
