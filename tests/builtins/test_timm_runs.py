"""Networks of timm by name: `wmr train --model timm:NAME`, `wmr evaluate --model timm:NAME`."""

from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
import torch

from support.training import train
from support.typed import instance_of, not_none
from wmr_cli.config import EvaluateConfig, TrainConfig
from wmr_cli.core.data.splits import MemorySource, MemorySplit
from wmr_cli.core.nn.preprocessing import unwrap_preprocessing
from wmr_cli.core.rng import derive_seed
from wmr_cli.evaluation.run import evaluate
from wmr_cli.events import EvaluationDone, TrainingDone
from wmr_cli.plugins import collect
from wmr_cli.registry import Entry, Registry
from wmr_cli.runtime import components
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import checkpoints, records

CLASSES = 3

# options make networks shallow and narrow: the test is about the architecture, not its size
NETWORKS = {
    "colours:side=32": [
        # convolutional
        "timm:resnet10t",
        "timm:mobilenetv3_small_050",
        "timm:tinynet_e,drop_rate=0.1",
        "timm:convnext_atto",
        "timm:regnetx_002",
        "timm:ghostnet_050",
        "timm:repghostnet_050",
        "timm:densenet121,growth_rate=8",
        # transformers
        "timm:vit_tiny_patch16_224,patch_size=8,depth=2",
        "timm:deit_tiny_patch16_224,depth=2",
        "timm:swin_tiny_patch4_window7_224,embed_dim=24",
        "timm:xcit_nano_12_p8_224,depth=2",
        # multi-layer perceptrons
        "timm:mixer_s16_224",
        "timm:resmlp_12_224",
        "timm:gmlp_ti16_224",
        # hybrids
        "timm:mobilevit_xxs",
        "timm:levit_128s",
        "timm:edgenext_xx_small",
    ],
    "colours:side=28,channels=1": ["timm:regnetx_002", "timm:vit_tiny_patch16_224,size=32,depth=2"],
}
# one of each family; the others take two minutes
FAST = {
    "timm:resnet10t",
    "timm:vit_tiny_patch16_224,patch_size=8,depth=2",
    "timm:gmlp_ti16_224",
    "timm:mobilevit_xxs",
    "timm:regnetx_002",
}
CASES = [
    pytest.param(
        dataset,
        model,
        marks=[] if model in FAST else pytest.mark.slow,
        id=f"{model} on {dataset}",
    )
    for dataset, models in NETWORKS.items()
    for model in models
]


def colours(root: Path, side: int, channels: int = 3) -> MemorySource:
    """Noise in three classes: 12 images to train on, 3 to validate, 9 to test."""
    images = torch.randint(
        0,
        256,
        (24, channels, side, side),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )
    labels, index = torch.arange(24) % CLASSES, torch.arange(24)
    bounds = {"train": slice(0, 12), "val": slice(12, 15), "test": slice(15, 24)}
    return MemorySource(
        CLASSES,
        {name: MemorySplit(images[at], labels[at], index[at]) for name, at in bounds.items()},
    )


@pytest.fixture(scope="module")
def with_colours() -> Registry:
    found = collect(entry_points(group="wmr")).registry
    found.add([("dataset", Entry("colours", f"{__name__}:colours", "noise"))], "tests", "0")
    return found


@pytest.mark.parametrize(("dataset", "model"), CASES)
def test_a_network_of_timm_is_trained_and_evaluated(
    dataset: str, model: str, with_colours: Registry, tmp_path: Path
) -> None:
    config = TrainConfig(
        dataset=dataset,
        model=model,
        defense="pgd",
        kernel="none",
        epochs=1,
        batch_size=6,
        steps=1,
        lr=0.01,
        validate_every=0,
    )
    run = tmp_path / "run"
    assert isinstance(
        list(train(config, run, with_colours, data_dir=Path(), device="cpu"))[-1], TrainingDone
    )

    checkpoint = checkpoints.load(run)
    torch.manual_seed(derive_seed("model", config.seed))
    fresh = components.build_model(
        with_colours, model, checkpoint.num_classes, checkpoint.input_shape
    )
    start = {
        name: parameter for name, parameter in fresh.named_parameters() if parameter.requires_grad
    }
    still = [
        name
        for name, parameter in start.items()
        if torch.equal(parameter, checkpoint.tensors[name])
    ]
    assert len(still) < len(start) / 2, "training moves most parameters"

    evaluation = EvaluateConfig(metrics=("nat", "rob"), limit=8, steps=1, alpha_test=(1.0,))
    walk = evaluate(run, evaluation, with_colours, data_dir=Path(), hardware=Hardware("cpu"))
    (done,) = [event for event in walk if isinstance(event, EvaluationDone)]
    assert (done.record.checkpoint.model, done.record.dataset.n) == (model, 8)
    rows = records.load_rows(done.rows)
    assert rows["clean/logits"].shape == (8, CLASSES)
    assert done.record.a_nat.value == np.mean(rows["clean/prediction"] == rows["label"])
    assert not_none(done.record.a_rob).value <= 1
    moved = np.abs(rows["uniform/logits"] - rows["clean/logits"]).max(axis=1)
    assert (moved > 0).all(), "the attack finds a way through the network to every image"

    network, _ = unwrap_preprocessing(components.restore_model(with_colours, checkpoint))
    torch.save(network.state_dict(), tmp_path / "weights.pt")  # as timm itself names them
    foreign = EvaluateConfig(
        model=model, dataset=dataset, metrics=("nat", "rob"), limit=8, steps=1, alpha_test=(1.0,)
    )
    *_, again = evaluate(
        tmp_path / "weights.pt", foreign, with_colours, data_dir=Path(), hardware=Hardware("cpu")
    )
    foreign_rows = records.load_rows(instance_of(EvaluationDone, again).rows)
    assert np.array_equal(foreign_rows["clean/logits"], rows["clean/logits"])
