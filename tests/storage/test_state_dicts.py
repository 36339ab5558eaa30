"""Imported weights match a model completely or not at all, and the error has a remedy."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.errors import BadFile
from wmr_cli.storage.state_dicts import drop_normalization, match_weights
from wmr_cli.storage.torch_files import ExternalWeights

MEAN = torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1)


class Network(nn.Module):
    """A convolution, batch-norm and a last layer."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, classes)


def make_state(seed: int = 0, **changes: Any) -> dict[str, Tensor]:
    """Return a state dict of the network; None removes an entry, and __ stands for a dot."""
    torch.manual_seed(seed)
    tensors = {
        **Network().state_dict(),
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def read_from_file(tensors: dict[str, Tensor], keeps_order: bool = True) -> ExternalWeights:
    return ExternalWeights(Path("net.pt"), tensors, keeps_order=keeps_order)


def rename_layers(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same layers under other names."""
    return {
        f"layer{number}.{name.rpartition('.')[2]}": tensor
        for number, (name, tensor) in enumerate(tensors.items())
    }


def get_error(weights: dict[str, Tensor], match: str = "name", keeps_order: bool = True) -> BadFile:
    """Match weights that do not fit, and return the error."""
    with pytest.raises(BadFile) as caught:
        match_weights(read_from_file(weights, keeps_order), make_state(), match)
    assert "\n" not in str(caught.value)
    return caught.value


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(found) == list(wanted)
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "module.",
        "_orig_mod.",
        "model.",
        "net.",
        "network.",
        "module.model.",
        "1.",
        "net.net.net.",
    ],
)
def test_a_prefix_that_all_names_share_is_dropped(prefix: str) -> None:
    found = match_weights(
        read_from_file({prefix + name: tensor for name, tensor in make_state(1).items()}),
        make_state(),
        "name",
    )
    assert_same(found.tensors, make_state(1))
    assert (found.prefix, found.matched) == (prefix, 9)


@pytest.mark.parametrize("dropped", ["", "module.", "model."])
def test_a_prefix_that_the_network_has_itself_is_kept(dropped: str) -> None:
    network = {f"model.{name}": tensor for name, tensor in make_state().items()}
    wanted = {f"model.{name}": tensor for name, tensor in make_state(1).items()}
    found = match_weights(
        read_from_file({dropped + name: tensor for name, tensor in wanted.items()}), network, "name"
    )
    assert_same(found.tensors, wanted)
    assert found.prefix == dropped


def test_a_prefix_that_some_names_lack_is_not_dropped() -> None:
    mixed = {
        ("module." if "conv" in name else "") + name: tensor
        for name, tensor in make_state(1).items()
    }
    assert "module.conv.weight" in str(get_error(mixed))


@pytest.mark.parametrize("match", ["name", "shape"])
def test_the_count_of_batches_may_be_missing(match: str) -> None:
    old = make_state(1, norm__num_batches_tracked=None)
    found = match_weights(read_from_file(old), make_state(), match)
    assert_same(found.tensors, make_state(1))
    assert found.matched == 8


def test_the_order_of_names_does_not_matter() -> None:
    assert_same(
        match_weights(
            read_from_file(dict(sorted(make_state(1).items()))), make_state(), "name"
        ).tensors,
        make_state(1),
    )


def test_the_error_counts_every_group_and_lists_its_first_names() -> None:
    weights = rename_layers(make_state()) | {"conv.weight": torch.zeros(4, 3, 3, 3)}
    text = str(get_error(weights))
    for group in (
        "7 missing (conv.bias; norm.weight; norm.bias; …)",
        "9 unexpected (layer0.weight; layer1.bias; layer2.weight; …)",
        "1 of another shape (conv.weight: 4x3x3x3",
    ):
        assert group in text


def test_another_number_of_classes_is_recognised() -> None:
    hint = get_error(Network(1000).state_dict()).hint
    assert "1000 outputs" in hint
    assert "10 classes" in hint
    assert "`dataset`" in hint


@pytest.mark.parametrize(
    "weights",
    [
        make_state(fc__weight=torch.zeros(10, 8)),
        make_state(conv__weight=torch.zeros(8, 1, 3, 3)),
        make_state(fc__weight=torch.zeros(7, 4), fc__bias=torch.zeros(7), extra=torch.zeros(1)),
        make_state(fc__weight=torch.zeros(40)),
    ],
    ids=["other width", "other layer", "more than that", "other rank"],
)
def test_other_differences_are_not_taken_for_the_number_of_classes(
    weights: dict[str, Tensor],
) -> None:
    assert "outputs" not in get_error(weights).hint


def test_matching_by_shape_is_suggested_only_if_it_would_succeed() -> None:
    assert "`match=shape`" in get_error(rename_layers(make_state())).hint
    assert "`match=shape`" not in get_error(rename_layers(make_state()), keeps_order=False).hint
    assert (
        "`match=shape`"
        not in get_error(rename_layers(make_state(conv__weight=torch.zeros(4, 3, 3, 3)))).hint
    )
    assert "`match=shape`" not in get_error(rename_layers(make_state(fc__bias=None))).hint


@pytest.mark.parametrize(
    "name", ["mean", "mu", "normalize.mean", "0.std", "module.sigma", "image_mean", "_mean"]
)
def test_a_normalisation_in_the_weights_is_suggested_for_the_spec(name: str) -> None:
    kind = "std" if name.endswith(("std", "sigma")) else "mean"
    expected = f"{kind}=0.485:0.456:0.406"
    assert expected in get_error(make_state() | {name: MEAN}).hint
    assert expected in get_error({name: MEAN} | make_state(), match="shape").hint


def test_statistics_of_batch_norm_are_not_taken_for_a_normalisation() -> None:
    hint = get_error(make_state() | {"other.running_mean": torch.zeros(4)}).hint
    assert "mean=" not in hint


def test_a_normalisation_that_the_spec_sets_as_well_is_dropped() -> None:
    weights = read_from_file(
        {"module.0.mean": MEAN, "module.0.std": STD}
        | {f"module.1.{name}": t for name, t in make_state(1).items()}
    )
    kept = drop_normalization(weights, {"mean": MEAN, "std": STD})
    found = match_weights(kept, make_state(), "name")
    assert_same(found.tensors, make_state(1))
    assert found.prefix == "module.1."


@pytest.mark.parametrize(
    "mean",
    [torch.tensor([0.5]), MEAN.flip(1), torch.zeros(2)],
    ids=["half", "other order", "two values"],
)
def test_a_normalisation_that_differs_from_the_spec_is_refused(mean: Tensor) -> None:
    with pytest.raises(BadFile, match="'mu'") as caught:
        drop_normalization(read_from_file({"mu": MEAN}), {"mean": mean, "std": STD})
    assert "mean=0.485:0.456:0.406" in caught.value.hint


def test_tensors_are_matched_by_the_order_of_their_shapes() -> None:
    found = match_weights(read_from_file(rename_layers(make_state(1))), make_state(), "shape")
    assert_same(found.tensors, make_state(1) | {"norm.num_batches_tracked": torch.tensor(0)})
    assert found.prefix == ""


@pytest.mark.parametrize(
    ("weights", "number", "shapes"),
    [
        (dict(reversed(make_state().items())), 1, ("fc.bias of shape 10", "4x1x3x3")),
        (make_state(fc__bias=None), 8, ("nothing", "fc.bias of shape 10")),
        (make_state() | {"more": torch.zeros(())}, 9, ("more of shape", "nothing")),
    ],
    ids=["order", "too few", "too many"],
)
def test_the_first_tensor_that_differs_in_order_is_named(
    weights: dict[str, Tensor], number: int, shapes: tuple[str, str]
) -> None:
    text = str(get_error(weights, "shape"))
    assert f"tensor {number} " in text
    assert all(shape in text for shape in shapes)


def test_safetensors_files_are_not_matched_by_order() -> None:
    assert "safetensors" in str(get_error(make_state(), "shape", keeps_order=False))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_are_converted_to_the_precision_of_the_model(kind: torch.dtype) -> None:
    weights = {
        name: tensor.to(kind) if tensor.is_floating_point() else tensor
        for name, tensor in make_state(1).items()
    }
    found = match_weights(read_from_file(weights), make_state(), "name").tensors
    assert {tensor.dtype for tensor in found.values()} == {torch.float32, torch.int64}
    torch.testing.assert_close(found, make_state(1), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    "kind", [torch.int8, torch.uint8, torch.int64, torch.complex64, torch.float8_e4m3fn]
)
def test_integer_complex_and_quantised_weights_are_refused(kind: torch.dtype) -> None:
    text = str(get_error(make_state(fc__weight=torch.zeros(10, 4).to(kind))))
    assert "'fc.weight'" in text
    assert str(kind).removeprefix("torch.") in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    bias = torch.zeros(10, dtype=torch.float64)
    bias[3] = value
    assert "'fc.bias'" in str(get_error(make_state(fc__bias=bias)))


def test_tensors_that_shared_memory_are_copied() -> None:
    shared = torch.ones(10)
    weights = make_state(fc__bias=shared, conv__bias=shared[:4], norm__bias=shared[:4])
    found = match_weights(read_from_file(weights), make_state(), "name").tensors
    pointers = [tensor.untyped_storage().data_ptr() for tensor in (*found.values(), shared)]
    assert len(set(pointers)) == len(pointers)
