"""An imported model has the logits and accuracy of the original, as an ordinary checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from support.typed import instance_of
from wmr_cli.config import EvaluateConfig
from wmr_cli.core.protocols import Batch
from wmr_cli.errors import BadFile, BadInput, RunFolderError
from wmr_cli.evaluation.importing import ImportRequest, import_weights
from wmr_cli.evaluation.run import evaluate
from wmr_cli.events import EvaluationDone, Event, ImportDone, Message
from wmr_cli.registry import Registry
from wmr_cli.runtime import components, datasets
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import checkpoints

pytestmark = pytest.mark.usefixtures("trusts_local_code")

NETWORKS = '''
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, classes: int = 10):
        conv = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        super().__init__(conv, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, classes))

class RenamedNet(nn.Module):
    """The same layers with other names."""
    def __init__(self):
        super().__init__()
        conv = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.features = nn.Sequential(conv, nn.BatchNorm2d(8))
        self.head = nn.Linear(128, 10)
    def forward(self, images):
        return self.head(self.features(images).relu().flatten(1))

class Constant(nn.Linear):
    """Its weights are constants of its code."""
    def __init__(self):
        super().__init__(64, 10)
        nn.init.ones_(self.weight), nn.init.zeros_(self.bias)
    def forward(self, images):
        return super().forward(images.flatten(1))
'''


@pytest.fixture
def networks(tmp_path: Path) -> str:
    """Write a file of networks; return its relative path."""
    (tmp_path / "networks.py").write_text(NETWORKS, encoding="utf-8")
    return "networks.py"


@pytest.fixture(scope="module")
def test_images(registry: Registry) -> Batch:
    split = datasets.build_dataset(registry, "digits", Path()).splits["test"]
    return split.batch(torch.arange(len(split)))


@pytest.fixture
def net(networks: str, registry: Registry, test_images: Batch) -> torch.nn.Module:
    """Return a network whose last layer is fitted to the training images."""
    torch.manual_seed(0)
    network = registry.create("model", f"{networks}:Net").train()
    train = datasets.build_dataset(registry, "digits", Path()).splits["train"]
    batch = train.batch(torch.arange(len(train)))
    with torch.no_grad():
        # batch-norm adapts its statistics
        for _ in range(20):
            network(batch.images)
        features = torch.nn.Sequential(*list(network.eval())[:-1])(batch.images)
        classes = torch.nn.functional.one_hot(batch.labels, 10).float() - 0.1
        network[-1].weight.copy_(torch.linalg.lstsq(features, classes, driver="gelsd").solution.T)
        network[-1].bias.zero_()
    assert accuracy(network, test_images) > 0.8
    result: torch.nn.Module = network
    return result


def accuracy(network: nn.Module, batch: Batch) -> float:
    with torch.no_grad():
        return float((network(batch.images).argmax(1) == batch.labels).double().mean())


def evaluate_on_cpu(path: Path | None, config: EvaluateConfig, registry: Registry) -> list[Event]:
    return list(evaluate(path, config, registry, data_dir=Path(), hardware=Hardware("cpu")))


def run_import(
    registry: Registry,
    weights: Path | str = "net.pt",
    model: str = "networks.py:Net",
    dataset: str | None = "digits",
    **settings: Any,
) -> tuple[Path, list[str]]:
    """Import weights; return the path of the checkpoint and the texts of all messages."""
    request = ImportRequest(weights=Path(weights), model=model, dataset=dataset, **settings)
    *events, done = import_weights(request, registry, Path())
    assert isinstance(done, ImportDone)
    texts = [instance_of(Message, event).text for event in events]
    return done.checkpoint, texts


def a_nat(path: Path, registry: Registry, **settings: Any) -> float:
    config = EvaluateConfig(metrics=("nat",), **settings)
    *_, done = evaluate(path, config, registry, data_dir=Path(), hardware=Hardware("cpu"))
    assert isinstance(done, EvaluationDone)
    return done.record.a_nat.value


def test_an_imported_network_has_the_logits_of_the_saved_one(
    net: nn.Module, registry: Registry, test_images: Batch
) -> None:
    torch.save(
        {
            "state_dict": {f"module.{name}": tensor for name, tensor in net.state_dict().items()},
            "epoch": 3,
        },
        "net.pt",
    )
    path, messages = run_import(registry)
    assert path == Path("net.safetensors")
    (message,) = messages
    for fact in ("9 tensors", "1,386 parameters", "by name", "'module.'", "'state_dict'"):
        assert fact in message
    restored = components.restore_model(registry, checkpoints.load(path))
    with torch.no_grad():
        assert torch.equal(restored(test_images.images), net(test_images.images))
    assert a_nat(path, registry) == accuracy(net, test_images)


def test_the_header_of_an_imported_checkpoint_is_complete(
    net: nn.Module, registry: Registry, tmp_path: Path
) -> None:
    torch.save(net.state_dict(), "net.pt")
    made = checkpoints.load(run_import(registry)[0])
    assert made.model == f"{tmp_path}/networks.py:Net"
    assert (made.dataset, made.num_classes, made.input_shape) == ("digits", 10, (1, 8, 8))
    assert (made.defense, made.kernel) == ("imported", "none")
    assert (made.alpha_train, made.epoch) == (None, 0)
    assert (made.norm, made.eps, made.config.evaluate.step_size) == ("linf", 0.15, 0.015)


def test_another_eps_keeps_the_ratio_of_step_to_eps(net: nn.Module, registry: Registry) -> None:
    torch.save(net.state_dict(), "net.pt")
    made = checkpoints.load(run_import(registry, eps=0.3)[0])
    assert (made.eps, made.config.evaluate.step_size) == (0.3, 0.03)


def test_layers_with_other_names_are_matched_by_shape(
    net: nn.Module, registry: Registry, test_images: Batch
) -> None:
    torch.save(net.state_dict(), "net.pt")
    with pytest.raises(BadFile, match="does not fit") as caught:
        run_import(registry, model="networks.py:RenamedNet")
    assert "`match=shape`" in caught.value.hint
    path, messages = run_import(registry, model="networks.py:RenamedNet", match="shape")
    assert "by shape" in messages[0]
    assert a_nat(path, registry) == accuracy(net, test_images)


def test_a_normalisation_in_the_spec_is_a_layer_before_the_model(
    net: nn.Sequential, registry: Registry, test_images: Batch
) -> None:
    scaled = {**net.state_dict()}
    # compensates std: padding is zero before and after the normalisation
    scaled["0.weight"] = net.get_parameter("0.weight") * 2
    torch.save(
        {"0.mean": torch.zeros(1), "0.std": torch.tensor([2.0])}
        | {f"1.{name}": t for name, t in scaled.items()},
        "net.pt",
    )
    with pytest.raises(BadFile) as caught:
        run_import(registry)
    assert "mean=0,std=2" in caught.value.hint
    path, messages = run_import(registry, model="networks.py:Net,mean=0,std=2")
    assert "prefix '1.'" in messages[0]
    assert {name.partition(".")[0] for name in checkpoints.load(path).tensors} == {"network"}
    assert a_nat(path, registry) == accuracy(net, test_images)


def test_half_precision_is_converted_to_single_precision(
    net: nn.Module, registry: Registry, test_images: Batch
) -> None:
    safetensors.torch.save_file(
        {name: tensor.clone() for name, tensor in net.half().state_dict().items()},
        "net.safetensors",
    )
    path, _ = run_import(registry, weights="net.safetensors")
    assert path == Path("net.wmr.safetensors")
    assert {tensor.dtype for tensor in checkpoints.load(path).tensors.values()} == {
        torch.float32,
        torch.int64,
    }
    assert a_nat(path, registry) == accuracy(net.float(), test_images)


def test_imported_weights_of_a_run_equal_its_own(tiny_run: Path, registry: Registry) -> None:
    torch.save(dict(checkpoints.load(tiny_run).tensors), "net.pt")
    path, _ = run_import(registry, model="digits-cnn")
    found = checkpoints.load(path).tensors
    own = checkpoints.load(tiny_run).tensors
    assert [name for name in own if not torch.equal(found[name], own[name])] == []


def test_weights_are_evaluated_like_the_checkpoint_of_their_import(
    net: nn.Module, registry: Registry
) -> None:
    torch.save(net.state_dict(), "net.pt")
    config = EvaluateConfig(model="networks.py:Net", dataset="digits", limit=20, steps=2)
    first = evaluate_on_cpu(Path("net.pt"), config, registry)[-1]
    again = evaluate_on_cpu(Path("net.pt"), config, registry)[-1]
    assert isinstance(first, EvaluationDone)
    assert isinstance(again, EvaluationDone)
    assert (first.stored, again.stored) == (False, True)
    assert again.record == first.record
    assert first.record.checkpoint.path == "net.pt"
    assert first.rows.parent == Path("net.evaluations")
    saved = checkpoints.load(run_import(registry)[0])
    assert saved.sha256 == first.record.checkpoint.sha256


def test_a_config_file_beside_weights_does_not_make_the_folder_a_run(
    net: nn.Module, registry: Registry
) -> None:
    torch.save(net.state_dict(), "net.pt")
    Path("config.json").write_text("{}")
    a_nat(Path("net.pt"), registry, model="networks.py:Net", dataset="digits")
    assert list(Path("net.evaluations").glob("*.json"))


def test_a_network_without_weights_is_evaluated_with_a_warning(
    networks: str, registry: Registry
) -> None:
    config = EvaluateConfig(model=f"{networks}:Net", dataset="digits", metrics=("nat",))
    torch.manual_seed(5)
    warning, *_, done = evaluate_on_cpu(None, config, registry)
    assert isinstance(warning, Message)
    assert isinstance(done, EvaluationDone)
    assert warning.is_warning
    assert "random: 4 of the 9" in warning.text
    assert done.rows.parent == Path("Net.evaluations")
    # the global random generator is not changed
    assert torch.initial_seed() == 5
    again = evaluate_on_cpu(None, config, registry)[-1]
    assert instance_of(EvaluationDone, again).stored


def test_a_network_with_constant_weights_gives_no_warning(
    networks: str, registry: Registry
) -> None:
    config = EvaluateConfig(model=f"{networks}:Constant", dataset="digits", metrics=("nat",))
    events = list(evaluate(None, config, registry, data_dir=Path(), hardware=Hardware("cpu")))
    assert [event.text for event in events if isinstance(event, Message)] == []


def test_weights_that_are_ignored_are_listed(net: nn.Module, registry: Registry) -> None:
    torch.save({"model": net.state_dict(), "ema": net.state_dict()}, "net.pt")
    _, (matched, warning) = run_import(registry)
    assert "from 'model'" in matched
    assert "'ema'" in warning


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"model": "networks.py:RenamedNet"}, BadFile),
        ({"model": "networks.py:Net,classes=7"}, BadInput),
        ({"match": "shape", "model": "digits-cnn"}, BadFile),
        ({"dataset": None}, BadInput),
        ({"dataset": "digit"}, BadInput),
        ({"model": "networks.py:Nett"}, BadInput),
        ({"out": Path("made.pt")}, BadInput),
        ({"out": Path("taken.safetensors")}, BadInput),
        ({"weights": "none.pt"}, BadFile),
        ({"weights": "nan.pt"}, BadFile),
        ({"weights": "seven.pt", "model": "networks.py:Net,classes=7"}, BadInput),
    ],
)
def test_a_failed_import_writes_nothing(
    net: nn.Module,
    registry: Registry,
    tmp_path: Path,
    settings: dict[str, Any],
    error: type[BadFile | BadInput],
) -> None:
    torch.save(net.state_dict(), "net.pt")
    torch.save(net.state_dict() | {"4.bias": torch.full((10,), torch.nan)}, "nan.pt")
    torch.save(registry.create("model", "networks.py:Net,classes=7").state_dict(), "seven.pt")
    Path("taken.safetensors").write_text("precious")
    before = read_files(tmp_path)
    with pytest.raises(error):
        run_import(registry, **settings)
    assert read_files(tmp_path) == before


def test_the_file_of_weights_is_never_overwritten(
    net: nn.Module, registry: Registry, tmp_path: Path
) -> None:
    safetensors.torch.save_file(net.state_dict(), "net.safetensors")
    before = Path("net.safetensors").read_bytes()
    for out in (Path("net.safetensors"), Path("..") / tmp_path.name / "net.safetensors"):
        with pytest.raises(BadInput, match="`out`"):
            run_import(registry, weights="net.safetensors", out=out, overwrite=True)
    assert Path("net.safetensors").read_bytes() == before


def test_an_existing_file_is_replaced_only_with_overwrite(
    net: nn.Module, registry: Registry
) -> None:
    torch.save(net.state_dict(), "net.pt")
    Path("net.safetensors").write_text("old")
    with pytest.raises(BadInput, match=r"net\.safetensors") as caught:
        run_import(registry)
    assert "`overwrite=True`" in caught.value.hint
    assert checkpoints.load(run_import(registry, overwrite=True)[0]).dataset == "digits"


def test_a_path_that_cannot_be_written_is_refused_before_the_dataset_is_loaded(
    net: nn.Module, registry: Registry, tmp_path: Path
) -> None:
    torch.save(net.state_dict(), "net.pt")
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot write"):
        run_import(
            registry, dataset="folder:path=no-such-data", out=tmp_path / "file" / "net.safetensors"
        )


@pytest.mark.parametrize("path", ["last.safetensors", "."])
def test_a_checkpoint_of_wmr_is_not_imported(tiny_run: Path, registry: Registry, path: str) -> None:
    with pytest.raises(BadInput, match="checkpoint of wmr") as caught:
        run_import(
            registry, weights=tiny_run / path, model="digits-cnn", out=Path("new.safetensors")
        )
    assert f"wmr evaluate {tiny_run / path}" in caught.value.hint
