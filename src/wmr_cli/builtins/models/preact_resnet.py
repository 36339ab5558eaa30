"""Residual networks that normalise before they convolve (He et al. 2016, arXiv:1603.05027), timm's, for small images."""

from collections import OrderedDict

from torch import nn

from ...core.vision import timm


def preact_resnet18(num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Eight blocks of two 3x3 convolutions and a last norm. With 3 channels and 10 classes: 11,172,170 parameters."""
    return preactivated((2, 2, 2, 2), (64, 128, 256, 512), 64, num_classes, input_shape[0])


def preactivated(blocks: tuple[int, ...], widths: tuple[int, ...], stem_width: int, num_classes: int, channels: int) -> nn.Module:
    """Stages of basic blocks with batch norm, every stage but the first halving the side, on a 3x3 stem that keeps it."""
    network: nn.Module = timm.models.resnetv2.ResNetV2(
        list(blocks),
        widths,
        num_classes=num_classes,
        in_chans=channels,
        stem_chs=stem_width,
        basic=True,
        bottle_ratio=1.0,
        conv_layer=timm.layers.create_conv2d,
        norm_layer=timm.layers.BatchNormAct2d,
    )
    convolution = nn.Conv2d(channels, stem_width, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    network.stem = nn.Sequential(OrderedDict(conv=convolution))
    return network
