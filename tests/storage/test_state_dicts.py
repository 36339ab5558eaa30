"""Foreign weights find their place in a network completely or not at all, and the error says what to do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.errors import BadFile
from wmr_cli.storage.state_dicts import drop_normalization, match_weights
from wmr_cli.storage.torch_files import ExternalWeights

MEAN, STD = (
    torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1),
    torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1),
)


class Network(nn.Module):
    """A convolution, batch-norm and a last layer."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, classes)


def state(seed: int = 0, **changes: Any) -> dict[str, Tensor]:
    """A state of the network; a change to None takes an entry away, and __ stands for a dot."""
    torch.manual_seed(seed)
    tensors = {
        **Network().state_dict(),
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def foreign(tensors: dict[str, Tensor], keeps_order: bool = True) -> ExternalWeights:
    return ExternalWeights(Path("net.pt"), tensors, keeps_order=keeps_order)


def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same layers by other names."""
    return {
        f"layer{number}.{name.rpartition('.')[2]}": tensor
        for number, (name, tensor) in enumerate(tensors.items())
    }


def refusal(
    weights: dict[str, Tensor], match: str = "name", network: None = None, keeps_order: bool = True
) -> BadFile:
    with pytest.raises(BadFile) as caught:
        match_weights(foreign(weights, keeps_order), network or state(), match)
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
        foreign({prefix + name: tensor for name, tensor in state(1).items()}), state(), "name"
    )
    assert_same(found.tensors, state(1))
    assert (found.prefix, found.matched) == (prefix, 9)


@pytest.mark.parametrize("dropped", ["", "module.", "model."])
def test_a_prefix_that_the_network_has_itself_is_kept(dropped: str) -> None:
    network = {f"model.{name}": tensor for name, tensor in state().items()}
    wanted = {f"model.{name}": tensor for name, tensor in state(1).items()}
    found = match_weights(
        foreign({dropped + name: tensor for name, tensor in wanted.items()}), network, "name"
    )
    assert_same(found.tensors, wanted)
    assert found.prefix == dropped


def test_a_prefix_that_some_names_lack_is_not_dropped() -> None:
    mixed = {
        ("module." if "conv" in name else "") + name: tensor for name, tensor in state(1).items()
    }
    assert "2 missing (conv.weight; conv.bias), 2 unexpected (module.conv.weight" in str(
        refusal(mixed)
    )


@pytest.mark.parametrize("match", ["name", "shape"])
def test_the_count_of_batches_may_be_missing(match: str) -> None:
    old = state(1, norm__num_batches_tracked=None)
    found = match_weights(foreign(old), state(), match)
    assert_same(found.tensors, state(1))
    assert found.matched == 8


def test_the_order_of_names_does_not_matter() -> None:
    assert_same(
        match_weights(foreign(dict(sorted(state(1).items()))), state(), "name").tensors, state(1)
    )


def test_every_group_is_counted_and_its_first_names_are_told() -> None:
    weights = renamed(state()) | {"conv.weight": torch.zeros(4, 3, 3, 3)}
    assert str(refusal(weights)) == (
        "net.pt does not fit the network: 7 missing (conv.bias; norm.weight; norm.bias; …), "
        "9 unexpected (layer0.weight; layer1.bias; layer2.weight; …), "
        "1 of another shape (conv.weight: 4x3x3x3 in the file, 4x1x3x3 in the network)"
    )


def test_another_number_of_classes_is_named() -> None:
    problem = refusal(Network(1000).state_dict())
    assert (
        "2 of another shape (fc.weight: 1000x4 in the file, 10x4 in the network; fc.bias: 1000 in the file"
        in str(problem)
    )
    assert "the weights have 1000 outputs, the data set has 10 classes" in problem.hint


@pytest.mark.parametrize(
    "weights",
    [
        state(fc__weight=torch.zeros(10, 8)),
        state(conv__weight=torch.zeros(8, 1, 3, 3)),
        state(fc__weight=torch.zeros(7, 4), fc__bias=torch.zeros(7), extra=torch.zeros(1)),
        state(fc__weight=torch.zeros(40)),
    ],
    ids=["other width", "other layer", "more than that", "other rank"],
)
def test_another_difference_is_not_taken_for_the_number_of_classes(
    weights: dict[str, Tensor],
) -> None:
    assert "outputs" not in refusal(weights).hint


def test_matching_by_shape_is_proposed_only_where_it_would_work() -> None:
    assert "--match shape" in refusal(renamed(state())).hint
    assert "--match shape" not in refusal(renamed(state()), keeps_order=False).hint
    assert "--match shape" not in refusal(renamed(state(conv__weight=torch.zeros(4, 3, 3, 3)))).hint
    assert "--match shape" not in refusal(renamed(state(fc__bias=None))).hint


@pytest.mark.parametrize(
    "name", ["mean", "mu", "normalize.mean", "0.std", "module.sigma", "image_mean", "_mean"]
)
def test_weights_that_normalise_say_how(name: str) -> None:
    problem = refusal(state() | {name: MEAN})
    kind = "std" if name.endswith(("std", "sigma")) else "mean"
    assert f"put {kind}=0.485:0.456:0.406 into the model's spec" in problem.hint
    assert (
        f"put {kind}=0.485:0.456:0.406 into" in refusal({name: MEAN} | state(), match="shape").hint
    )


def test_the_statistics_of_batch_norm_are_no_normalisation() -> None:
    assert "spec" not in refusal(state() | {"other.running_mean": torch.zeros(4)}).hint


def test_a_normalisation_that_the_spec_sets_too_is_dropped() -> None:
    weights = foreign(
        {"module.0.mean": MEAN, "module.0.std": STD}
        | {f"module.1.{name}": t for name, t in state(1).items()}
    )
    kept = drop_normalization(weights, {"mean": MEAN, "std": STD})
    found = match_weights(kept, state(), "name")
    assert_same(found.tensors, state(1))
    assert found.prefix == "module.1."


@pytest.mark.parametrize(
    "said",
    [torch.tensor([0.5]), MEAN.flip(1), torch.zeros(2)],
    ids=["half", "other order", "two values"],
)
def test_another_normalisation_than_the_spec_sets_is_refused(said: Tensor) -> None:
    with pytest.raises(
        BadFile, match=r"'mu' in net\.pt is 0\.485:0\.456:0\.406, but the model's spec says mean="
    ) as caught:
        drop_normalization(foreign({"mu": MEAN}), {"mean": said, "std": STD})
    assert caught.value.hint == "write mean=0.485:0.456:0.406"


def test_tensors_are_matched_by_the_order_of_their_shapes() -> None:
    found = match_weights(foreign(renamed(state(1))), state(), "shape")
    assert_same(found.tensors, state(1) | {"norm.num_batches_tracked": torch.tensor(0)})
    assert found.prefix == ""


@pytest.mark.parametrize(
    ("weights", "place"),
    [
        (
            dict(reversed(state().items())),
            "as tensor 1 the file has fc.bias of 10, the network has conv.weight of 4x1x3x3",
        ),
        (state(fc__bias=None), "as tensor 8 the file has nothing, the network has fc.bias of 10"),
        (
            state() | {"more": torch.zeros(())},
            "as tensor 9 the file has more of a single number, the network has nothing",
        ),
    ],
    ids=["order", "too few", "too many"],
)
def test_the_place_where_the_orders_part_is_named(weights: dict[str, Tensor], place: str) -> None:
    assert place in str(refusal(weights, "shape"))


def test_safetensors_are_not_matched_by_order() -> None:
    assert "do not keep the order" in str(refusal(state(), "shape", keeps_order=False))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_the_networks(kind: torch.dtype) -> None:
    weights = {
        name: tensor.to(kind) if tensor.is_floating_point() else tensor
        for name, tensor in state(1).items()
    }
    found = match_weights(foreign(weights), state(), "name").tensors
    assert {tensor.dtype for tensor in found.values()} == {torch.float32, torch.int64}
    torch.testing.assert_close(found, state(1), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    "kind", [torch.int8, torch.uint8, torch.int64, torch.complex64, torch.float8_e4m3fn]
)
def test_whole_or_quantised_numbers_are_no_weights(kind: torch.dtype) -> None:
    problem = refusal(state(fc__weight=torch.zeros(10, 4).to(kind)))
    assert (
        f"'fc.weight' in net.pt is {str(kind).removeprefix('torch.')}, the network has float32"
        in str(problem)
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_numbers_that_are_not_finite_are_refused_by_name(value: float) -> None:
    bias = torch.zeros(10, dtype=torch.float64)
    bias[3] = value
    assert "'fc.bias' in net.pt holds NaN or infinity" in str(refusal(state(fc__bias=bias)))


def test_weights_that_shared_memory_no_longer_do() -> None:
    shared = torch.ones(10)
    weights = state(fc__bias=shared, conv__bias=shared[:4], norm__bias=shared[:4])
    found = match_weights(foreign(weights), state(), "name").tensors
    pointers = [tensor.untyped_storage().data_ptr() for tensor in (*found.values(), shared)]
    assert len(set(pointers)) == len(pointers)
