"""Small networks: `digits-cnn` for very small images, `small-cnn` of TRADES for MNIST."""

from collections import OrderedDict

from torch import Tensor, nn

from ...errors import BadInput


class DigitsCnn(nn.Module):
    """Two 3x3 convolutions, the second with stride 2, and one hidden layer.

    (N, C, H, W) to (N, num_classes).
    """

    def __init__(
        self, num_classes: int, input_shape: tuple[int, int, int], width: int = 16, hidden: int = 64
    ) -> None:
        super().__init__()
        channels, image_height, image_width = input_shape
        if min(width, hidden) < 1 or min(image_height, image_width) < 2:
            raise BadInput(
                f"digits-cnn cannot be built with width={width}, hidden={hidden} "
                f"for images of {image_height}x{image_width}",
                hint="width and hidden are at least 1, images at least 2x2",
            )
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        # a stride of 2 with padding 1 halves a side, rounded up
        flat_size = 2 * width * ((image_height + 1) // 2) * ((image_width + 1) // 2)
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(flat_size, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


class SmallCnn(nn.Module):
    """Convolutions 32-32-pool-64-64-pool (3x3, no padding), then 200-200-classes with dropout.

    The MNIST network of TRADES (Zhang et al. 2019, arXiv:1901.08573). It has 312,202 parameters
    for 28x28 images. (N, C, H, W) to (N, num_classes).
    """

    def __init__(
        self, num_classes: int, input_shape: tuple[int, int, int], dropout: float = 0.5
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        flat = 64 * _side(height) * _side(width)
        # parameters are named as in the public network, so that its weights can be loaded
        self.feature_extractor = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 32, 3),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(32, 32, 3),
                relu2=nn.ReLU(),
                maxpool1=nn.MaxPool2d(2, 2),
                conv3=nn.Conv2d(32, 64, 3),
                relu3=nn.ReLU(),
                conv4=nn.Conv2d(64, 64, 3),
                relu4=nn.ReLU(),
                maxpool2=nn.MaxPool2d(2, 2),
            )
        )
        self.classifier = nn.Sequential(
            OrderedDict(
                fc1=nn.Linear(flat, 200),
                relu1=nn.ReLU(),
                drop=nn.Dropout(dropout),
                fc2=nn.Linear(200, 200),
                relu2=nn.ReLU(),
                fc3=nn.Linear(200, num_classes),
            )
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
                nn.init.constant_(module.get_parameter("bias"), 0)
        # as in the public network: at first all classes have the same probability
        for parameter in self.classifier.get_submodule("fc3").parameters():
            nn.init.zeros_(parameter)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.feature_extractor(images).flatten(1))
        return logits


def _side(pixels: int) -> int:
    """Return the side of the last feature map."""
    # twice: two unpadded 3x3 convolutions, which remove 4 pixels, and max-pooling
    side = ((pixels - 4) // 2 - 4) // 2
    if side < 1:
        raise BadInput(
            f"small-cnn needs images of at least 16x16 pixels, not of side {pixels}",
            hint="choose a smaller model: see wmr list models",
        )
    return side
