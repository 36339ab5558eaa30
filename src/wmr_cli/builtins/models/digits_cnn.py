"""A small network for very small images."""

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
