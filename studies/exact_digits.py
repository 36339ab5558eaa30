"""Train the network of `wmr doctor --numerics`, prove its margins and store its results.

Usage: `python studies/exact_digits.py [OUT]`. It takes some minutes. By default OUT is the
file in the package. Training and proofs are deterministic on one kind of CPU and version of torch.

For the first test images of the digits, integer programming proves the lowest logit margin in an
ε-ball: if it is negative, an attack can succeed, and no attack finds a lower margin.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import wmr_cli
from exact_margins import Layers, find_exact_margin
from wmr_cli.core.protocols import Batch
from wmr_cli.numerics import network, reference
from wmr_cli.numerics.checks import evaluate_attack
from wmr_cli.numerics.network import DigitsMlp
from wmr_cli.storage import checkpoints

OUT = Path(reference.__file__).with_name(reference.FILE)
TRAINING = (
    "--preset", "digits", "--defense", "pgd", "--alpha", "0", "--eps", "0.1", "--steps", "7",
    "--step-size", "0.04",
)  # fmt: skip
MAX_GAP = 1e-6
"""Largest difference between a proved bound and a margin that is attained."""
MIN_DISTANCE = 1e-4
"""Rounding must not decide any result: margins and ReLU inputs are at least as far from 0."""


def train(folder: Path) -> dict[str, Tensor]:
    """Train the network by `wmr train` with one thread and return its weights."""
    model = f"{network.__file__}:DigitsMlp"
    command = [sys.executable, "-m", "wmr_cli", "train", *TRAINING, "--model", model]
    subprocess.run([*command, "--out", folder / "run", "--quiet"], check=True)
    return dict(checkpoints.load(folder / "run").tensors)


def read_layers(trained: nn.Module) -> Layers:
    """Return weights and biases of all linear layers in float64."""
    linear = [layer for layer in trained.modules() if isinstance(layer, nn.Linear)]
    return [(layer.weight.double().numpy(), layer.bias.double().numpy()) for layer in linear]


def prove_margins(trained: nn.Module, batch: Batch) -> Tensor:
    """Return the lowest margin of each image (N,) in its ball."""
    layers = read_layers(trained)
    cases = [
        (layers, image.flatten().double().numpy(), int(label), reference.EPS)
        for image, label in zip(batch.images, batch.labels, strict=True)
    ]
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(find_exact_margin, *zip(*cases, strict=True)))
    assert max(one.attained - one.bound for one in found) < MAX_GAP
    bounds = torch.tensor([one.bound for one in found], dtype=torch.float64)
    assert bounds.abs().min() > MIN_DISTANCE
    return bounds


def compute_results(trained: DigitsMlp, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Yield what a device has to reproduce in float64 where possible."""
    precise = DigitsMlp().double()
    precise.load_state_dict(trained.state_dict())
    images = batch.images.double().requires_grad_()
    values = images
    for layer in precise:
        if isinstance(layer, nn.ReLU):
            assert values.abs().min() > MIN_DISTANCE / 10
        values = layer(values)
    loss = nn.functional.cross_entropy(values, batch.labels, reduction="sum")
    yield "logits", values.detach()
    yield "gradients", torch.autograd.grad(loss, images)[0].float()
    result = evaluate_attack(trained, batch, reference.PGD, torch.device("cpu"))
    assert np.abs(result.rows["uniform/logit_margin"]).min() > 10 * MIN_DISTANCE
    yield "pgd_predictions", torch.from_numpy(result.rows["uniform/prediction"])
    yield "pgd_a_sa", torch.tensor(result.a_sa(reference.ALPHA).value, dtype=torch.float64)
    yield "random_words", reference.make_random_words(torch.device("cpu"))


def main() -> None:
    """Train, prove and store."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    torch.set_num_threads(1)
    split = wmr_cli.create("dataset", "digits").splits["test"]
    with tempfile.TemporaryDirectory() as folder:
        weights = train(Path(folder))
    trained = DigitsMlp()
    trained.load_state_dict(weights)
    trained.eval().requires_grad_(False)
    batch = split.batch(torch.arange(reference.NUM_IMAGES))
    results = dict(compute_results(trained, batch))
    results["lowest_margins"] = prove_margins(trained, batch)
    save_file(weights | results, out)


if __name__ == "__main__":
    main()
