"""The contracts as checks, for our own tests and for those of plugins. Each raises AssertionError with the broken promise.

from wmr_cli.testing import check_attack
def test_my_attack(): check_attack(MyAttack(eps=0.1))
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .core.contracts import Attack, Attacked, Batch, DataSource, Defense, Evidence, Kernel
from .core.losses import cross_entropy
from .core.modes import evaluating
from .core.norms import NORMS

SHAPE = (1, 8, 8)
CLASSES = 4


def tiny_model(num_classes: int = CLASSES, input_shape: tuple[int, int, int] = SHAPE) -> nn.Module:
    """A network with batch-norm and dropout, the two layers whose mode matters, in eval mode."""
    torch.manual_seed(0)
    flat = 8 * input_shape[1] * input_shape[2]
    features = (nn.Conv2d(input_shape[0], 8, 3, padding=1), nn.BatchNorm2d(8), nn.Tanh())
    return nn.Sequential(*features, nn.Flatten(), nn.Dropout(0.5), nn.Linear(flat, num_classes)).eval()


def tiny_batch(size: int = 12, num_classes: int = CLASSES, input_shape: tuple[int, int, int] = SHAPE) -> Batch:
    """Images in [0, 1], the corners of the cube among them."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(size, *input_shape, generator=generator)
    images[0], images[1] = 0, 1
    return Batch(images, torch.arange(size) % num_classes, 100 + torch.arange(size))


def check_attack(attack: Attack, model: nn.Module | None = None, batch: Batch | None = None) -> None:
    """In the ball and in [0, 1]; its logits are those of its images; a function of (seed, index) and not of the batch;
    it climbs its objective and leaves the model as it was.
    """
    model, batch = model or tiny_model(), batch or tiny_batch()
    before = _snapshot(model)

    def run(part: Batch, seed: int = 3) -> Any:
        return attack(model, part.images, part.labels, cross_entropy, part.index, seed)

    result = run(batch)
    images = result.images
    assert images.shape == batch.images.shape, f"images of shape {tuple(images.shape)} for {tuple(batch.images.shape)}"
    assert not images.requires_grad and not result.logits.requires_grad, "results carry no graph"
    assert bool(((images >= 0) & (images <= 1)).all()), "images left [0, 1]"
    norm, eps = getattr(attack, "norm", "linf"), getattr(attack, "eps", None)
    if eps is not None:
        assert float(NORMS[norm].size(images - batch.images).max()) <= eps + 1e-6, f"images left the {norm} ball of radius {eps}"
    with torch.no_grad(), evaluating(model):
        torch.testing.assert_close(result.logits, model(images), msg="logits are not those of the returned images")
        clean = cross_entropy(model(batch.images), batch.labels)
    assert result.steps_survived.shape == batch.labels.shape, "steps_survived has one entry per image"
    assert float(cross_entropy(result.logits, batch.labels).mean()) >= float(clean.mean()), "the attack does not climb"
    _assert_same(before, _snapshot(model))
    assert torch.equal(images, run(batch).images), "the same seed gives the same images"
    rows = torch.tensor([7, 2, 5])
    part = run(Batch(batch.images[rows], batch.labels[rows], batch.index[rows]))
    torch.testing.assert_close(part.images, images[rows], atol=1e-5, rtol=0, msg="an image's result depends on its batch")


def check_model(make: Callable[..., nn.Module], num_classes: int = 10, input_shape: tuple[int, int, int] = (1, 28, 28)) -> None:
    """Finite logits (N, classes) from images in [0, 1], differentiable to the input, the same image by image in eval mode."""
    torch.manual_seed(0)
    model = make(num_classes=num_classes, input_shape=input_shape)
    batch = tiny_batch(4, num_classes, input_shape)
    model.train()
    cross_entropy(model(batch.images), batch.labels).mean().backward()
    assert any(parameter.grad is not None for parameter in model.parameters()), "no parameter gets a gradient"
    model.eval()
    images = batch.images.clone().requires_grad_()
    logits = model(images)
    assert logits.shape == (4, num_classes), f"outputs of shape {tuple(logits.shape)} instead of {(4, num_classes)}"
    assert bool(logits.isfinite().all()), "logits are not finite"
    (gradient,) = torch.autograd.grad(logits.sum(), images)
    assert gradient.shape == images.shape, "no gradient reaches the input"
    alone = torch.cat([model(image[None]) for image in batch.images])
    torch.testing.assert_close(alone, logits, atol=1e-5, rtol=1e-4, msg="in eval mode an image's logits depend on its batch")
    again = make(num_classes=num_classes, input_shape=input_shape)
    again.load_state_dict(model.state_dict())


def check_dataset(source: DataSource) -> None:
    """Splits train, val and test without a common image; images in [0, 1] of the promised shape; labels in range."""
    assert source.num_classes >= 2, "a classifier needs two classes"
    seen: set[int] = set()
    for name in ("train", "val", "test"):
        assert name in source.splits, f"there is no split {name!r}"
        split = source.splits[name]
        assert len(split) == len(split.labels) > 0, f"{name}: {len(split)} images and {len(split.labels)} labels"
        batch = split.batch(torch.arange(min(64, len(split))))
        assert tuple(batch.images.shape[1:]) == tuple(source.input_shape), (
            f"{name}: images of shape {tuple(batch.images.shape[1:])}"
        )
        assert batch.images.dtype == torch.float32, f"{name}: images are {batch.images.dtype}"
        assert float(batch.images.min()) >= 0 and float(batch.images.max()) <= 1, f"{name}: images are not in [0, 1]"
        assert torch.equal(batch.labels, split.labels[: len(batch.labels)]), f"{name}: labels of batch and split differ"
        assert int(split.labels.min()) >= 0 and int(split.labels.max()) < source.num_classes, f"{name}: labels out of range"
        everything = split.batch(torch.arange(len(split))).index.tolist() if len(split) <= 100_000 else batch.index.tolist()
        assert len(set(everything)) == len(everything), f"{name}: an index occurs twice"
        assert seen.isdisjoint(everything), f"{name} shares images with another split"
        seen.update(everything)
        assert len(split.sha256) == 64, f"{name}: sha256 is no content hash"


def check_kernel(kernel: Kernel) -> None:
    """One log-weight per image, a number or -inf; an attack can climb it, or it is detached."""
    torch.manual_seed(0)
    logits, labels = torch.randn(6, CLASSES), torch.arange(6) % CLASSES
    evidence = Evidence(
        logits,
        labels,
        index=torch.arange(6),
        clean_logits=logits,
        steps_survived=torch.arange(6),
        loss=cross_entropy(logits, labels),
    )
    logs = kernel(evidence)
    assert logs.shape == (6,), f"log-weights of shape {tuple(logs.shape)}, not one per image"
    assert not bool(logs.isnan().any() | (logs == float("inf")).any()), "a log-weight is not a number or -inf"
    if not getattr(kernel, "detached", False):
        assert not getattr(kernel, "compares", False), "a kernel that compares images says `detached = True`"
        beyond = [name for name in getattr(kernel, "needs", ()) if name != "loss"]
        assert not beyond, f"an attack does not know {beyond}: say `detached = True`"


class RecordingLearner:
    """The smallest learner: plain SGD, an attack that only adds noise, and a note of every loss."""

    def __init__(self, model: nn.Module, kernel: Kernel | None = None) -> None:
        self.model = model
        self.kernel: Kernel = kernel or (lambda evidence: evidence.logits.new_zeros(len(evidence.labels)))
        self.norm, self.eps = NORMS["linf"], 0.05
        self.epoch, self.step_index, self.seed = 0, 0, 0
        self.paid: list[float] = []
        self.steps = 0
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits

    def attack_mode(self) -> Any:
        return evaluating(self.model)

    def attack(self, batch: Batch, objective: Any, own: Any = None) -> Any:
        if own is not None:
            with evaluating(self.model):
                return own(self.model, batch.images, batch.labels, objective, batch.index, self.seed)
        images = (batch.images + 0.05 * torch.sign(torch.sin(1000 * batch.images))).clamp(0, 1)
        with torch.no_grad(), evaluating(self.model):
            logits = self.model(images)
        assert objective(logits, batch.labels).shape == batch.labels.shape, "an objective gives one value per image"
        return Attacked(images, logits, torch.zeros_like(batch.labels))

    def weights(self, evidence: Evidence) -> Tensor:
        return self.kernel(evidence).exp()

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels)

    def mean(self, values: Tensor) -> Tensor:
        return values.mean()

    def gather(self, values: Tensor) -> Tensor:
        return values

    def add_gradients(self, gradients: Any) -> None:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def backward(self, loss: Tensor) -> None:
        assert loss.ndim == 0, "the loss of a step is one number"
        self.paid.append(float(loss.detach()))
        loss.backward()

    def optimizer_step(self) -> None:
        self.steps += 1
        self._optimizer.step()
        self._optimizer.zero_grad()


def check_loss(defense: Defense) -> None:
    """A step moves the parameters, reports per image without a graph, and repeated steps on one batch lower the loss."""
    model, batch = tiny_model().train(), tiny_batch()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    learner = RecordingLearner(model)
    before = _snapshot(model)[0]
    report = defense.step(learner, batch)
    assert learner.steps >= 1, "a step of the defense takes an optimizer step"
    assert any(not torch.equal(old, new) for old, new in zip(before.values(), model.state_dict().values(), strict=True)), (
        "nothing moved"
    )
    for name in ("losses", "weights", "margins", "correct"):
        values = getattr(report, name)
        assert values.shape == batch.labels.shape and not values.requires_grad, (
            f"{name} of the report is not one detached value per image"
        )
    for _ in range(30):
        defense.step(learner, batch)
    assert learner.paid[-1] < learner.paid[0], f"the loss went from {learner.paid[0]:.4f} to {learner.paid[-1]:.4f}"


def _snapshot(model: nn.Module) -> tuple[dict[str, Tensor], list[bool], list[Tensor | None]]:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return state, [module.training for module in model.modules()], [parameter.grad for parameter in model.parameters()]


def _assert_same(before: Any, after: Any) -> None:
    for name, tensor in before[0].items():
        assert torch.equal(tensor, after[0][name]), f"the attack changed {name} of the model"
    assert before[1] == after[1], "the attack changed the model's mode"
    assert all(old is new for old, new in zip(before[2], after[2], strict=True)), "the attack left gradients in the parameters"
