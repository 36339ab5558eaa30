"""Architectures of the networks in `published_numbers.json`, for `--model FILE:CLASS`."""

from torch import nn


class Mlp(nn.Sequential):
    """Two hidden layers of 100 units, for images of 28x28 pixels."""

    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(784, 100),
            nn.ReLU(),
            nn.Linear(100, 100),
            nn.ReLU(),
            nn.Linear(100, 10),
        )


class Cnn(nn.Sequential):
    """Two convolutions with stride 2 and two linear layers, for images of 28x28 pixels."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(1568, 100),
            nn.ReLU(),
            nn.Linear(100, 10),
        )
