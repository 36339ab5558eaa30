"""The CIFAR networks of the ResNet paper (He et al. 2016, arXiv:1512.03385, section 4.2)."""

from torch import Tensor, nn
from torch.nn import functional

from ...core.vision import timm
from ...errors import BadInput


class CifarResNet(nn.Module):
    """Three stages of (depth - 2) / 6 basic blocks, 16, 32 and 64 channels wide. Depth 20, 10 classes: 269,722 parameters.

    Its shortcuts have no parameters (the paper's option A). Parameters are named as in the public networks of this kind,
    so that their weights load. (N, C, H, W) to (N, num_classes).
    """

    def __init__(self, num_classes: int, input_shape: tuple[int, int, int], depth: int = 20) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            hint = "depth is 8, 14, 20, 32, 44, 56, …: 2 more than a multiple of 6"
            raise BadInput(f"there is no CIFAR ResNet of depth {depth}", hint=hint)
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(input_shape[0], 16, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks)
        self.layer2 = _stage(16, 32, blocks)
        self.layer3 = _stage(32, 64, blocks)
        self.linear = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        features = functional.relu(self.bn1(self.conv1(images)))
        features = self.layer3(self.layer2(self.layer1(features)))
        logits: Tensor = self.linear(features.mean(dim=(2, 3)))
        return logits


class _Subsample(nn.Module):
    """Every second pixel, and channels of zeros before and after the others. (N, C, H, W) to (N, 2C, ⌈H/2⌉, ⌈W/2⌉)."""

    def forward(self, features: Tensor) -> Tensor:
        added = features.shape[1] // 2
        return functional.pad(features[:, :, ::2, ::2], (0, 0, 0, 0, added, added))


def _stage(channels: int, width: int, blocks: int) -> nn.Sequential:
    """Basic blocks, the first of which halves the side where it doubles the channels."""
    block = timm.models.resnet.BasicBlock
    is_wider = width != channels
    first = block(channels, width, stride=2 if is_wider else 1, downsample=_Subsample() if is_wider else None)
    return nn.Sequential(first, *(block(width, width) for _ in range(blocks - 1)))
