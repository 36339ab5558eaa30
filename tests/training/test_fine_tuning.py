"""A run starts from given weights with a new head if needed, and trains only what it should."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from support.real_data import DATA_DIR, MNIST_MODEL, MNIST_WEIGHTS, needs_checkpoints, needs_data
from support.training import train
from support.typed import instance_of, not_none, stop
from wmr_cli.config import EvaluateConfig, TrainConfig, resolve
from wmr_cli.core.data.splits import MemorySource
from wmr_cli.core.nn.preprocessing import Normalized, unwrap_preprocessing
from wmr_cli.core.torchvision_compat import timm
from wmr_cli.errors import BadFile, BadInput, UnknownName, WmrError
from wmr_cli.evaluation.run import evaluate
from wmr_cli.events import EvaluationDone, Message, StepDone, TrainingDone
from wmr_cli.registry import Registry
from wmr_cli.runtime import components, datasets
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.storage import checkpoints
from wmr_cli.storage.runs import RunFolder
from wmr_cli.training.fine_tuning import find_head
from wmr_cli.training.loop import train_step
from wmr_cli.training.optimization import StepSettings
from wmr_cli.training.setup import TrainingSetup, set_up_training

NETWORKS = '''
import torch
from torch import nn


class Net(nn.Module):
    """Its head is defined before its other layers."""

    def __init__(self, num_classes, width=8):
        super().__init__()
        self.head = nn.Linear(16 * width, num_classes)
        self.conv = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.plain_norm = nn.BatchNorm2d(width, affine=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, images):
        features = self.plain_norm(self.norm(self.conv(images)).relu())
        return self.head(self.drop(features.flatten(1)))


class RenamedNet(nn.Module):
    """The same layers as in `Net`, in the same order, with other names."""

    def __init__(self, num_classes):
        super().__init__()
        self.classifier = nn.Linear(128, num_classes)
        self.first = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.second = nn.BatchNorm2d(8)
        self.third = nn.BatchNorm2d(8, affine=False)

    def forward(self, images):
        features = self.third(self.second(self.first(images)).relu())
        return self.classifier(features.flatten(1))


class DeeperNet(Net):
    """`Net` with a layer more."""

    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.extra = nn.Conv2d(8, 8, 1)

    def forward(self, images):
        features = self.extra(self.plain_norm(self.norm(self.conv(images)).relu()))
        return self.head(features.flatten(1))


class FixedNet(nn.Module):
    """Five classes whatever the data, scaled logits, and an unused layer that is defined last."""

    def __init__(self):
        super().__init__()
        self.output = nn.Linear(32, 5)
        self.scale = nn.BatchNorm1d(5)
        self.hidden = nn.Linear(64, 32)
        self.unused = nn.Linear(3, 5)

    def forward(self, images):
        return self.scale(self.output(self.hidden(images.flatten(1)).relu()))


class Hidden(nn.Module):
    """Its logits are computed without a layer."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 32)

    def forward(self, images):
        return self.hidden(images.flatten(1))[:, :10]
'''
NET = "networks.py:Net"
FAST: dict[str, Any] = {
    "defense": "pgd",
    "kernel": "none",
    "steps": 1,
    "epochs": 1,
    "batch_size": 64,
    "validate_every": 0,
}


@pytest.fixture(autouse=True)
def _write_networks(tmp_path: Path, trusts_local_code: None) -> None:
    (tmp_path / "networks.py").write_text(NETWORKS, encoding="utf-8")


@pytest.fixture
def five_digits(registry: Registry, tmp_path: Path) -> str:
    """Write the digits 0 to 4 as arrays; return the spec of the dataset."""
    source = datasets.build_dataset(registry, "digits", Path())
    arrays: dict[str, Any] = {}
    for name, split in source.splits.items():
        batch = split.batch(torch.arange(len(split)))
        rows = batch.labels < 5
        arrays[f"{name}_images"] = (255 * batch.images[rows, 0]).round().numpy().astype(np.uint8)
        arrays[f"{name}_labels"] = batch.labels[rows].numpy()
    np.savez(tmp_path / "five.npz", **arrays)
    return f"arrays:path={tmp_path / 'five.npz'}"


def make_config(**settings: Any) -> TrainConfig:
    return resolve({"preset": "digits", **FAST, **settings})


def set_up(registry: Registry, **settings: Any) -> TrainingSetup:
    data_dir = settings.pop("data_dir", Path())
    return set_up_training(make_config(**settings), registry, data_dir, launch(Hardware("cpu")))


def run(registry: Registry, path: Path | str, **settings: Any) -> list[Any]:
    return list(train(make_config(**settings), Path(path), registry))


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def build(registry: Registry, model: str, num_classes: int = 10, seed: int = 5) -> nn.Module:
    """Build a network for digits, with random statistics."""
    torch.manual_seed(seed)
    built = components.build_model(registry, model, num_classes, (1, 8, 8))
    for name, buffer in built.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    return built


@pytest.fixture
def net(registry: Registry) -> dict[str, Tensor]:
    """Save the weights of a `Net` for ten classes to net.pt, and return them."""
    state = build(registry, NET).state_dict()
    torch.save(state, "net.pt")
    return state


def assert_equal(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Check that the expected tensors are among these, bit-identical."""
    assert expected
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name


def without(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}


# ---- from which weights ----


def test_a_run_starts_from_a_checkpoint_with_all_its_weights(
    tiny_run: Path, registry: Registry
) -> None:
    checkpoint = checkpoints.load(tiny_run)
    setup = set_up(registry, init=str(tiny_run))
    assert_equal(setup.model.state_dict(), checkpoint.tensors)
    assert setup.config.init_sha256 == checkpoint.sha256
    assert not_none(setup.initial).new == ()


def test_a_checkpoint_of_other_classes_gets_the_new_head_of_a_fresh_model(
    tiny_run: Path, five_digits: str, registry: Registry
) -> None:
    settings = {"dataset": five_digits, "model": "digits-cnn"}
    fresh = copy_state(set_up(registry, **settings).model)
    setup = set_up(registry, init=str(tiny_run / "last.safetensors"), **settings)
    head = {"classifier.3.weight", "classifier.3.bias"}
    assert set(not_none(setup.initial).new) == head
    trained = checkpoints.load(tiny_run).tensors
    assert_equal(
        setup.model.state_dict(), {name: trained[name] for name in trained if name not in head}
    )
    # no random number is drawn for the search of the head
    assert_equal(setup.model.state_dict(), {name: fresh[name] for name in head})


def test_a_fine_tuned_run_stores_its_source_and_is_evaluated(
    tiny_run: Path, five_digits: str, registry: Registry
) -> None:
    settings = {"dataset": five_digits, "model": "digits-cnn", "epochs": 2, "lr": 0.01}
    events = run(registry, "tuned", init=str(tiny_run), **settings)
    assert isinstance(events[-1], TrainingDone)
    texts = [event.text for event in events if isinstance(event, Message)]
    (message,) = [text for text in texts if "6 of 8 tensors" in text]
    assert "new: classifier.3.weight, classifier.3.bias" in message
    sha256 = checkpoints.load(tiny_run).sha256
    for config in (
        checkpoints.load(Path("tuned")).config,
        TrainConfig.from_json(Path("tuned/config.json").read_bytes()),
    ):
        assert (config.init, config.init_sha256) == (str(tiny_run), sha256)
    evaluation = EvaluateConfig(metrics=("nat",))
    walk = evaluate(Path("tuned"), evaluation, registry, data_dir=Path(), hardware=Hardware("cpu"))
    *_, done = walk
    assert instance_of(EvaluationDone, done).record.a_nat.value > 0.8


def test_weights_of_another_program_start_the_network_inside_our_normalisation(
    registry: Registry,
) -> None:
    state = build(registry, NET).state_dict()
    wrapped = {f"module.{name}": each for name, each in state.items()}
    torch.save({"state_dict": wrapped, "averaged": wrapped}, "net.pth")
    setup = set_up(registry, model=f"{NET},mean=0.5,std=0.25", init="net.pth")
    model = instance_of(Normalized, setup.model)
    assert_equal(model.network.state_dict(), state)
    assert any("averaged" in text for text in setup.list_warnings())
    digest = not_none(setup.config.init_sha256)
    completed = subprocess.run(["sha256sum", "net.pth"], capture_output=True, text=True, check=True)
    assert completed.stdout.split()[0] == digest


def test_a_stored_normalisation_that_differs_from_that_of_the_model_is_refused(
    registry: Registry,
) -> None:
    state = build(registry, NET).state_dict()
    torch.save({**state, "mean": torch.tensor([0.3]), "std": torch.tensor([0.25])}, "net.pth")
    assert "mean" in refusal(registry, model=f"{NET},mean=0.5,std=0.25", init="net.pth").hint
    assert "mean=0.3" in refusal(registry, model=NET, init="net.pth").hint
    setup = set_up(registry, model=f"{NET},mean=0.3,std=0.25", init="net.pth")
    assert_equal(instance_of(Normalized, setup.model).network.state_dict(), state)


@pytest.mark.parametrize(
    ("trained", "model"),
    [
        ("digits-cnn", "digits-cnn:mean=0.5"),
        ("digits-cnn:mean=0.5,std=0.25", "digits-cnn:mean=0.5,std=0.5"),
        (f"{NET},mean=0.5", NET),
        ("timm:resnet10t,size=32", "timm:resnet10t,size=32,mean=0,std=1"),
    ],
)
def test_a_checkpoint_trained_on_images_normalised_otherwise_is_refused(
    trained: str, model: str, registry: Registry
) -> None:
    setup = set_up(registry, model=trained)
    Path("trained").mkdir()
    weights = setup.model.state_dict()
    data = setup.source
    file = Path("trained/last.safetensors")
    checkpoints.save(file, weights, setup.config, data, alpha_train=None, epoch=1)
    stored = checkpoints.load(Path("trained")).model
    problem = refusal(registry, model=model, init="trained")
    assert "normalise" in str(problem)
    assert stored in problem.hint
    setup = set_up(registry, model=trained, init="trained")
    assert_equal(setup.model.state_dict(), checkpoints.load(Path("trained")).tensors)


@pytest.mark.parametrize("num_classes", [10, 1000])
def test_a_checkpoint_of_timm_gets_a_new_head(
    num_classes: int, registry: Registry, tmp_path: Path
) -> None:
    theirs = timm.create_model("resnet10t", num_classes=num_classes, in_chans=1)
    state = theirs.state_dict()
    safetensors.torch.save_file(state, "resnet10t.safetensors")
    spec = "timm:resnet10t,size=32"
    setup = set_up(registry, model=spec, init="resnet10t.safetensors", freeze=("backbone",))
    network, prefix = unwrap_preprocessing(setup.model)
    assert prefix == "network.network."
    expected = state if num_classes == 10 else without(state, "fc.")
    assert_equal(network.state_dict(), expected)
    trainable = [name for name, each in network.named_parameters() if each.requires_grad]
    assert trainable == ["fc.weight", "fc.bias"]


def test_pretrained_weights_and_initial_weights_exclude_each_other(registry: Registry) -> None:
    problem = refusal(registry, model="timm:resnet10t,size=32,pretrained=true", init="net.pt")
    assert "pretrained" in problem.hint


PUBLISHED = """
from torch import nn


class Cnn(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(
            nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(1568, 100), nn.ReLU(), nn.Linear(100, num_classes),
        )
"""


@needs_data
@needs_checkpoints
@pytest.mark.data
def test_a_published_network_is_fine_tuned(registry: Registry) -> None:
    published = torch.load(MNIST_WEIGHTS, weights_only=True)
    settings = {"preset": "cpu/mnist", "init": str(MNIST_WEIGHTS.absolute())}
    setup = set_up(registry, data_dir=DATA_DIR, model=MNIST_MODEL, **settings)
    assert_equal(setup.model.state_dict(), published)

    Path("published.py").write_text(PUBLISHED)
    images, labels = np.zeros((60, 28, 28), np.uint8), np.arange(60) % 4
    np.savez("four.npz", images=images, labels=labels)
    settings["dataset"] = "arrays:path=four.npz"
    assert "10 outputs" in str(refusal(registry, model=MNIST_MODEL, **settings))
    setup = set_up(registry, model="published.py:Cnn", **settings)
    assert not_none(setup.initial).new == ("7.weight", "7.bias")
    assert_equal(setup.model.state_dict(), without(published, "7."))


# ---- how they are matched ----


def refusal(registry: Registry, **settings: Any) -> WmrError:
    """Return the error of a run, after checking that it has written nothing."""
    with pytest.raises((BadFile, BadInput)) as raised:
        run(registry, "refused", **settings)
    assert not Path("refused").exists()
    assert raised.value.hint
    assert "\n" not in str(raised.value)
    return raised.value


def test_another_width_is_refused_with_the_model_of_the_checkpoint(
    tiny_run: Path, registry: Registry
) -> None:
    problem = refusal(registry, model="digits-cnn:width=8", init=str(tiny_run))
    assert "of another shape" in str(problem)
    assert "`model=digits-cnn`" in problem.hint


@pytest.mark.usefixtures("net")
def test_weights_of_another_network_are_refused(registry: Registry) -> None:
    problem = refusal(registry, init="net.pt")
    assert "missing" in str(problem)
    assert "`init_match=partial`" in problem.hint
    problem = refusal(registry, init="net.pt", init_match="partial")
    assert "0 %" in str(problem)


@pytest.mark.usefixtures("net")
def test_the_same_layers_with_other_names_are_matched_by_order(
    net: dict[str, Tensor], five_digits: str, registry: Registry
) -> None:
    other = {"model": "networks.py:RenamedNet", "init": "net.pt"}
    assert "`init_match=shape`" in refusal(registry, **other).hint
    same = [*set_up(registry, **other, init_match="shape").model.state_dict().values()]
    assert all(torch.equal(*pair) for pair in zip(same, net.values(), strict=True))
    setup = set_up(registry, **other, init_match="shape", dataset=five_digits)
    assert not_none(setup.initial).new == ("classifier.weight", "classifier.bias")
    assert torch.equal(setup.model.state_dict()["first.weight"], net["conv.weight"])
    torch.save(without(net, "head."), "headless.pt")
    other["init"] = "headless.pt"
    setup = set_up(registry, **other, init_match="shape")
    assert not_none(setup.initial).new == ("classifier.weight", "classifier.bias")
    assert torch.equal(setup.model.state_dict()["third.running_var"], net["plain_norm.running_var"])


def test_safetensors_are_not_matched_by_order(net: dict[str, Tensor], registry: Registry) -> None:
    safetensors.torch.save_file(net, "net.safetensors")
    settings = {"model": NET, "init": "net.safetensors"}
    assert "order" in str(refusal(registry, **settings, init_match="shape"))
    assert_equal(set_up(registry, **settings).model.state_dict(), net)


def test_a_partial_match_warns_of_random_layers(net: dict[str, Tensor], registry: Registry) -> None:
    settings = {"model": "networks.py:DeeperNet", "init": "net.pt"}
    assert "extra.weight" in str(refusal(registry, **settings))
    setup = set_up(registry, **settings, init_match="partial")
    assert_equal(setup.model.state_dict(), net)
    (warning,) = [text for text in setup.list_warnings() if "random" in text]
    assert "extra.weight, extra.bias" in warning
    torch.save({**net, "projection.weight": torch.rand(3, 3)}, "net.pt")
    assert "projection.weight" in str(refusal(registry, model=NET, init="net.pt"))
    assert_equal(set_up(registry, **settings, init_match="partial").model.state_dict(), net)


def test_a_head_is_used_as_a_whole_or_not_at_all(
    net: dict[str, Tensor], registry: Registry
) -> None:
    torch.save({**net, "head.weight": torch.rand(10, 7)}, "net.pt")
    setup = set_up(registry, model=NET, init="net.pt")
    assert not_none(setup.initial).new == ("head.weight", "head.bias")
    # a head of several layers in the file
    others = {"head.0.weight": torch.rand(4, 4), "head.2.bias": torch.rand(4)}
    torch.save({**without(net, "head."), **others}, "net.pt")
    setup = set_up(registry, model=NET, init="net.pt")
    assert not_none(setup.initial).new == ("head.weight", "head.bias")
    assert_equal(setup.model.state_dict(), without(net, "head."))


@pytest.mark.usefixtures("net")
def test_a_config_with_the_hash_of_other_weights_is_refused(registry: Registry) -> None:
    sha256 = not_none(set_up(registry, model=NET, init="net.pt").config.init_sha256)
    assert set_up(registry, model=NET, init="net.pt", init_sha256=sha256).initial
    problem = refusal(registry, model=NET, init="net.pt", init_sha256="0" * 64)
    assert sha256 in str(problem)


@pytest.mark.parametrize("init", ["", "missing.pt", "missing", "networks.py", "/dev/zero"])
def test_a_file_without_weights_is_refused(init: str, registry: Registry) -> None:
    refusal(registry, init=init)


def test_nothing_pickled_is_executed(registry: Registry, tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), "pickled.pt")
    assert "needs to run code" in str(refusal(registry, init="pickled.pt"))


def test_a_kernel_needs_no_burn_in_after_trained_weights(
    tiny_run: Path, registry: Registry
) -> None:
    settings: dict[str, Any] = {"init": str(tiny_run), "epochs": 8}
    problem = refusal(registry, **settings, kernel="mail")
    assert problem.hint.endswith("mail:start-epoch=0")
    setup = set_up(registry, **settings, kernel="mail:start-epoch=0")
    setup.learner.begin_step(0, 0, StepSettings(0.1), 64)
    assert setup.learner.kernel is setup.kernel, "weights from the first epoch on"


# ---- the head ----


HEADS = {
    "digits-cnn": {"classifier.3.weight", "classifier.3.bias"},
    NET: {"head.weight", "head.bias"},
    "networks.py:FixedNet": {
        *("output.weight", "output.bias", "scale.weight", "scale.bias"),
        *("scale.running_mean", "scale.running_var", "scale.num_batches_tracked"),
    },
    "networks.py:Hidden": set(),
    "resnet18": {"fc.weight", "fc.bias"},
    "resnet20": {"linear.weight", "linear.bias"},
    "preact-resnet18": {"head.fc.weight", "head.fc.bias"},
    f"{NET},mean=0.5": {"network.head.weight", "network.head.bias"},
}


@pytest.mark.parametrize("model", HEADS)
def test_the_head_is_what_depends_on_the_number_of_classes(model: str, registry: Registry) -> None:
    source = datasets.build_dataset(registry, "digits", Path())
    if model == "networks.py:FixedNet":
        source = dataclasses.replace(instance_of(MemorySource, source), num_classes=5)
    built = components.build_model(registry, model, source.num_classes, source.input_shape)
    before = torch.get_rng_state()
    assert find_head(built, TrainConfig(model=model), registry, source) == HEADS[model]
    assert torch.equal(before, torch.get_rng_state()), "the run has the same random numbers"


@pytest.mark.parametrize(
    "name",
    [
        "resnet10t",
        "mobilenetv3_small_050",
        "convnext_atto",
        "vit_tiny_patch16_224,depth=1",
        "deit_tiny_distilled_patch16_224,depth=1",
        "regnetx_002",
        "ghostnet_050",
    ],
)
def test_the_head_of_a_network_of_timm_is_its_classifier(name: str, registry: Registry) -> None:
    source = datasets.build_dataset(registry, "digits", Path())
    model = components.build_model(registry, f"timm:{name},size=32", 10, (1, 8, 8))
    network: Any = unwrap_preprocessing(model)[0]
    classifier = network.get_classifier()
    layers = classifier if isinstance(classifier, tuple) else (classifier,)
    expected = {
        id(parameter)
        for layer in layers
        for parameter in instance_of(nn.Module, layer).parameters()
    }
    head = find_head(model, TrainConfig(model=f"timm:{name},size=32"), registry, source)
    assert {id(each) for key, each in model.named_parameters() if key in head} == expected


@pytest.mark.parametrize("settings", [{"freeze": ("backbone",)}, {"backbone_lr_scale": 0.1}])
def test_a_model_without_a_known_head_has_no_backbone(
    settings: dict[str, Any], registry: Registry
) -> None:
    problem = refusal(registry, model="networks.py:Hidden", **settings)
    assert "head" in str(problem)


# ---- frozen layers ----


@pytest.mark.parametrize(
    "method",
    [
        {"defense": "trades", "kernel": "exp", "alpha": 2.0, "ema": 0.9, "decay": "weights"},
        {"defense": "pgd", "attack_mode": "train", "optimizer": "sgd", "weight_decay": 0.1},
        {"defense": "free:m=2", "epochs": 2, "optimizer": "adamw", "weight_decay": 0.1},
    ],
    ids=["trades-ema", "train-mode", "free"],
)
def test_a_frozen_backbone_is_bit_identical_after_training(
    method: dict[str, Any], net: dict[str, Tensor], registry: Registry
) -> None:
    run(registry, "tuned", model=NET, init="net.pt", freeze=("backbone",), **method)
    for file in ("last", "ema"):
        if file == "last" or "ema" in method:
            trained = checkpoints.load(Path(f"tuned/{file}.safetensors")).tensors
            assert_equal(trained, without(net, "head."))
            assert not torch.equal(trained["head.weight"], net["head.weight"])


def test_frozen_parameters_have_no_gradient_and_are_not_optimised(
    net: dict[str, Tensor], registry: Registry
) -> None:
    setup = set_up(registry, model=NET, init="net.pt", freeze=("conv", "norm"))
    step(setup)
    parameters = dict(setup.model.named_parameters())
    frozen = {name for name, each in parameters.items() if not each.requires_grad}
    assert frozen == {"conv.weight", "conv.bias", "norm.weight", "norm.bias"}
    assert all(parameters[name].grad is None for name in frozen)
    optimised = {id(each) for group in setup.optimizer.param_groups for each in group["params"]}
    assert optimised == {id(each) for name, each in parameters.items() if name not in frozen}
    state = setup.model.state_dict()
    assert_equal(state, {name: each for name, each in net.items() if name.startswith(("c", "n"))})
    # the other batch-norm is not frozen
    assert not torch.equal(state["plain_norm.running_mean"], net["plain_norm.running_mean"])
    assert setup.model.get_submodule("drop").training


@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        (("conv",), {"conv.weight", "conv.bias"}),
        (("*.weight",), {"conv.weight", "norm.weight", "head.weight"}),
        (("n*",), {"norm.weight", "norm.bias"}),
        (("conv.bias", "head"), {"conv.bias", "head.weight", "head.bias"}),
        (("backbone", "head.bias"), {"conv.*", "norm.*", "head.bias"}),
    ],
)
@pytest.mark.parametrize("model", [NET, f"{NET},mean=0.5,std=0.5"])
def test_layers_are_frozen_by_name_or_pattern(
    model: str, patterns: tuple[str, ...], frozen: set[str], registry: Registry
) -> None:
    network, _ = unwrap_preprocessing(set_up(registry, model=model, freeze=patterns).model)
    found = {name for name, each in network.named_parameters() if not each.requires_grad}
    expected = {
        name
        for name, _ in network.named_parameters()
        if name in frozen or f"{name.partition('.')[0]}.*" in frozen
    }
    assert found == expected


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"freeze": ("convv",)}, UnknownName),
        ({"freeze": ("conv", "layer1.*")}, UnknownName),
        ({"freeze": ("*",)}, BadInput),
        ({"freeze": ("plain_norm",)}, BadInput),
        ({"freeze": ("backbone", "head")}, BadInput),
        ({"freeze": ("backbone",), "backbone_lr_scale": 0.1}, BadInput),
        ({"init_match": "shape"}, BadInput),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(
    settings: dict[str, Any], error: type[WmrError], registry: Registry
) -> None:
    assert isinstance(refusal(registry, model=NET, **settings), error)


# ---- learning rates ----


def step(setup: TrainingSetup, learning_rate: float = 0.125) -> None:
    count = len(setup.split)
    setup.learner.begin_step(0, 0, StepSettings(learning_rate), count)
    train_step(setup, setup.split.batch(torch.arange(count)))


@pytest.mark.usefixtures("net")
@pytest.mark.parametrize("decay", ["all", "weights"])
def test_layers_before_the_head_move_by_their_own_learning_rate(
    decay: str, registry: Registry
) -> None:
    setup = set_up(
        registry,
        model=NET,
        init="net.pt",
        defense="natural",
        optimizer="sgd",
        momentum=0.0,
        decay=decay,
        backbone_lr_scale=0.25,
    )
    gradients: dict[str, Tensor] = {}
    before = {name: each.detach().clone() for name, each in setup.model.named_parameters()}

    def record(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for name, parameter in setup.model.named_parameters():
            gradients[name] = not_none(parameter.grad).clone()

    setup.optimizer.register_step_pre_hook(record)
    step(setup)
    for name, parameter in setup.model.named_parameters():
        rate = 0.125 if name.startswith("head.") else 0.125 * 0.25
        assert gradients[name].abs().max() > 0 or name == "conv.bias"
        assert torch.equal(parameter, before[name].add(gradients[name], alpha=-rate)), name


# ---- resuming ----


@pytest.mark.parametrize(
    "settings",
    [
        {"backbone_lr_scale": 0.1, "ema": 0.9, "decay": "weights"},
        {"freeze": ("backbone",), "optimizer": "sgd"},
    ],
    ids=["scale", "freeze"],
)
def test_a_run_resumes_bit_identically_without_its_initial_weights(
    settings: dict[str, Any], net: dict[str, Tensor], registry: Registry
) -> None:
    config = make_config(model=NET, init="net.pt", epochs=3, **settings)
    list(train(config, Path("straight"), registry))

    def walk(**more: Any) -> Iterator[Any]:
        return train(config, Path("cut"), registry, **more)

    cut = walk(save_minutes=1e-9)
    steps = 0
    while steps < 25:
        steps += isinstance(next(cut), StepDone)
    stop(cut)
    Path("net.pt").unlink()
    assert isinstance(list(walk(resume=True))[-1], TrainingDone)
    for file in ("last", "ema") if "ema" in settings else ("last",):
        straight, resumed = (
            checkpoints.load(Path(run, f"{file}.safetensors")) for run in ("straight", "cut")
        )
        assert_equal(resumed.tensors, straight.tensors)
        assert resumed.sha256 == straight.sha256, "header included"


def test_the_initial_weights_may_change_after_the_start(
    net: dict[str, Tensor], registry: Registry
) -> None:
    config = make_config(model=NET, init="net.pt", epochs=2)
    walk = train(config, Path("run"), registry)
    while not RunFolder(Path("run")).resume.exists():
        next(walk)
    stop(walk)
    stored = TrainConfig.from_json(Path("run/config.json").read_bytes())
    torch.save({name: tensor + 1 for name, tensor in net.items()}, "net.pt")
    list(train(config, Path("run"), registry, resume=True))
    assert checkpoints.load(Path("run")).config == stored
    assert TrainConfig.from_json(Path("run/config.json").read_bytes()) == stored
    list(train(config, Path("straight"), registry))
    other = checkpoints.load(Path("straight"))
    assert other.config.init_sha256 != stored.init_sha256
    assert not torch.equal(
        other.tensors["conv.weight"], checkpoints.load(Path("run")).tensors["conv.weight"]
    )


@pytest.mark.usefixtures("net")
def test_a_run_that_saved_nothing_starts_again_from_the_present_weights(
    registry: Registry,
) -> None:
    config = make_config(model=NET, init="net.pt")
    walk = train(config, Path("run"), registry)
    while not Path("run/config.json").exists():
        next(walk)
    stop(walk)
    torch.save(build(registry, NET, seed=6).state_dict(), "net.pt")
    list(train(config, Path("run"), registry, resume=True))
    list(train(config, Path("straight"), registry))
    run, straight = (checkpoints.load(Path(name)) for name in ("run", "straight"))
    assert run.sha256 == straight.sha256
    assert TrainConfig.from_json(Path("run/config.json").read_bytes()) == run.config


# ---- several processes ----


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_processes_keep_frozen_layers(processes: int, net: dict[str, Tensor]) -> None:
    """A mean over three processes is rounded, one over two is not."""
    words = (
        *("--model", NET, "--init", "net.pt", "--freeze", "norm", "--defense", "natural"),
        *("--epochs", "1", "--batch-size", "300", "--backbone-lr-scale", "0.5"),
        *("--ema", "0.9", "--validate-every", "0", "--quiet", "--out", "run"),
    )
    command = [sys.executable, "-m", "wmr_cli", "train", *words, "--devices", str(processes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    frozen = {key: each for key, each in net.items() if key.startswith("norm.")}
    for file in ("last", "ema"):
        checkpoint = checkpoints.load(Path(f"run/{file}.safetensors"))
        assert_equal(checkpoint.tensors, frozen)
        for name in ("head.weight", "conv.weight", "plain_norm.running_mean"):
            assert not torch.equal(checkpoint.tensors[name], net[name])
        assert checkpoint.config.init_sha256


def test_two_processes_fine_tune_like_one(net: dict[str, Tensor]) -> None:
    words = (
        *("--model", NET, "--init", "net.pt", "--freeze", "backbone", "--defense", "natural"),
        *("--epochs", "1", "--batch-size", "127", "--validate-every", "0", "--quiet"),
    )
    # without dropout, whose random numbers differ between processes
    Path("networks.py").write_text(NETWORKS.replace("Dropout(0.1)", "Identity()"))
    for name, devices in (("one", "1"), ("two", "2")):
        command = [sys.executable, "-m", "wmr_cli", "train", *words, "--out", name]
        done = subprocess.run(
            [*command, "--devices", devices], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    one, two = (checkpoints.load(Path(name)).tensors for name in ("one", "two"))
    assert_equal(two, without(net, "head."))
    torch.testing.assert_close(two["head.weight"], one["head.weight"], rtol=1e-3, atol=1e-4)
    assert not torch.equal(one["head.weight"], net["head.weight"])
