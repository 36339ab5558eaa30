"""The network of the numerics check, trained by `studies/exact_digits.py`."""

from torch import nn


class DigitsMlp(nn.Sequential):
    """Two hidden layers of 16 units for images of 8x8 pixels: small enough for exact proofs."""

    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(64, 16),
            nn.ReLU(),
            nn.Linear(16, 16),
            nn.ReLU(),
            nn.Linear(16, 10),
        )
