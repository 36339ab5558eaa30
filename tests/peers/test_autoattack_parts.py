"""The four parts of AutoAttack misclassify the same images as those of pyautoattack."""

import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from support.training import train
from wmr_cli.builtins.attacks.autoattack import STANDARD
from wmr_cli.builtins.attacks.autoattack import AutoAttack as OwnAutoAttack
from wmr_cli.config import resolve
from wmr_cli.core import torchvision_compat
from wmr_cli.core.losses import get_objective
from wmr_cli.core.protocols import Batch
from wmr_cli.core.run_attack import predictions
from wmr_cli.registry import Registry
from wmr_cli.runtime import components, datasets
from wmr_cli.storage import checkpoints

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

if importlib.util.find_spec("pyautoattack") is None:
    pytest.skip("pyautoattack is not installed here: `make test-peers`", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    # pyautoattack imports torchvision, which may need the patches of this module
    assert torchvision_compat.torchvision
    from pyautoattack import AutoAttack

IMAGES = 100
EPS = 0.15
MODELS = ("digits-cnn", "resnet20:depth=8")
MAX_MISSED = 2
"""Images that pyautoattack finds and `wmr` does not: each has random numbers of its own."""
MAX_MORE = {"apgd-ce": 2, "apgd-t": 2, "fab-t": 2, "square": 12}
"""Images that only `wmr` finds. Squares of pyautoattack never reach the last row and column."""


@dataclass(frozen=True)
class Case:
    """A network and the images that it classifies correctly."""

    model: nn.Module
    correct: Batch

    def find(self, part: str) -> Tensor:
        """Return which images a part of `wmr` misclassifies, (N,)."""
        (attack,) = OwnAutoAttack(eps=EPS, attacks=(part,)).parts()
        objective = get_objective(attack.traits.objective)
        return self.is_misclassified(attack(self.model, self.correct, objective, seed=0).images)

    def find_by_peer(self, part: str) -> Tensor:
        """Return which images a part of pyautoattack misclassifies, (N,)."""
        attack = AutoAttack(self.model, norm="Linf", eps=EPS, seed=0, device="cpu")
        # after the choice of its standard parameters
        attack.attacks_to_run = [part]
        images, _ = attack.run_standard_evaluation(self.correct.images, self.correct.labels)
        return self.is_misclassified(images)

    def is_misclassified(self, images: Tensor) -> Tensor:
        assert (images - self.correct.images).abs().max() <= EPS + 1e-5
        with torch.no_grad():
            return predictions(self.model(images)) != self.correct.labels


@pytest.fixture(scope="module", params=MODELS)
def case(
    request: pytest.FixtureRequest, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    path = tmp_path_factory.mktemp("peers") / "run"
    list(train(resolve({"model": request.param, "epochs": 6}), path, registry))
    model = components.restore_model(registry, checkpoints.load(path / "last.safetensors")).eval()
    split = datasets.build_dataset(registry, "digits", Path()).splits["test"]
    batch = split.batch(torch.arange(IMAGES))
    with torch.no_grad():
        is_correct = predictions(model(batch.images)) == batch.labels
    return Case(model, batch.select(is_correct.nonzero().squeeze(1)))


@pytest.mark.parametrize("part", STANDARD)
def test_a_part_misclassifies_the_same_images(part: str, case: Case) -> None:
    ours = case.find(part)
    theirs = case.find_by_peer(part)
    missed = int((theirs & ~ours).sum())
    more = int((ours & ~theirs).sum())
    both = int((ours & theirs).sum())
    print(f"{part}: both {both} of {len(ours)}, only wmr {more}, only pyautoattack {missed}")  # noqa: T201
    assert missed <= MAX_MISSED
    assert more <= MAX_MORE[part]
    # an agreement on no images, or on all, would say nothing
    assert 0.1 * len(ours) < both < 0.9 * len(ours)
