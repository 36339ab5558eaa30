"""The wrapper: names, options, refusals, an unchanged model, the clean image, the record."""

import json
import subprocess
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from wmr_cli import BadInput, UnknownName, create
from wmr_cli.core import (
    Attack,
    AttackResult,
    Batch,
    HasRemarks,
    Objective,
    cross_entropy,
    get_objective,
)
from wmr_cli.testing import tiny_batch, tiny_model
from wmr_torchattacks.random_numbers import seed_by_index


def run(
    attack: Attack,
    model: nn.Module,
    batch: Batch,
    seed: int = 0,
    objective: Objective = cross_entropy,
) -> AttackResult:
    return attack(model, batch, objective, seed=seed)


@pytest.mark.parametrize(
    ("spec", "problem", "hint"),
    [
        (
            "torchattacks:CW",
            "does not support the norm linf",
            "torchattacks:CW,norm=l2,eps=",
        ),
        ("torchattacks:PGD,norm=l2", "does not support the norm l2", "PGDL2"),
        ("torchattacks:OnePixel", "neither an Linf nor an L2 ball: it changes a few pixels", "BIM"),
        ("torchattacks:EADL1,norm=l2", r"\(L1\)", "PGDL2"),
        ("torchattacks:MultiAttack", "consists of other attacks", ""),
        ("torchattacks:pgd", "has no attack 'pgd'", "did you mean 'PGD'?"),
        ("torchattacks:MIFGMS", "has no attack 'MIFGMS'", "did you mean 'MIFGSM'?"),
        ("torchattacks:MIFGSM,decoy=1", "MIFGSM has no 'decoy'", "did you mean 'decay'?"),
        (
            "torchattacks:APGD,seed=3",
            "seed of torchattacks:APGD is set elsewhere",
            "leave out seed=",
        ),
        (
            "torchattacks:PIFGSM,max_epsilon=0.1",
            "max_epsilon of torchattacks:PIFGSM is set",
            "leave out",
        ),
        (
            "torchattacks:PGD,alpha=0.1,step=0.1",
            "step and alpha of torchattacks:PGD are the same",
            "keep one",
        ),
        ("torchattacks:FGSM,steps=3", "FGSM has no 'steps'", "--steps"),
        ("torchattacks:APGD,step=0.1", "APGD has no 'step'", "--step-size"),
        ("torchattacks:PGD,steps=0", "PGD cannot be run", "`steps`"),
        ("torchattacks:PGD,alpha=-1", "PGD cannot be run", "`step`"),
        (
            "torchattacks:AutoAttack,version=best",
            "AutoAttack cannot be built: Not valid version",
            "options",
        ),
        ("torchattacks", "needs name", "torchattacks:name="),
    ],
)
def test_invalid_specs_are_refused_with_the_reason(spec: str, problem: str, hint: str) -> None:
    with pytest.raises(BadInput, match=problem) as refusal:
        create("attack", spec)
    assert hint in refusal.value.hint


def test_a_misspelt_name_is_an_unknown_name() -> None:
    with pytest.raises(UnknownName):
        create("attack", "torchattacks:DeepFol", norm="l2")


def test_steps_keep_their_ratio_to_the_radius() -> None:
    assert vars(create("attack", "torchattacks:PGD", eps=8 / 255))["step"] == 2 / 255
    assert vars(create("attack", "torchattacks:PGD", eps=0.3))["step"] == pytest.approx(0.075)
    assert vars(create("attack", "torchattacks:FFGSM", eps=8 / 255))["step"] == 10 / 255
    assert vars(create("attack", "torchattacks:PGDL2", norm="l2", eps=0.5))[
        "step"
    ] == pytest.approx(0.1)
    assert vars(create("attack", "torchattacks:PGD,alpha=1/255,steps=7"))["step"] == 1 / 255
    assert vars(create("attack", "torchattacks:PIFGSM,num_iter_set=4"))["steps"] == 4
    assert vars(create("attack", "torchattacks:FGSM"))["steps"] is None


def test_options_reach_torchattacks() -> None:
    model, batch = tiny_model(), tiny_batch()
    plain, without = (
        run(create("attack", f"torchattacks:MIFGSM{options}", eps=0.1), model, batch).images
        for options in ("", ",decay=0")
    )
    assert not torch.equal(plain, without)


def test_attacks_of_one_kind_are_equal_if_their_numbers_are() -> None:
    one, other, third = (
        create("attack", f"torchattacks:MIFGSM,decay={decay}") for decay in (0.9, 0.9, 0.8)
    )
    assert repr(one) == repr(other)
    assert repr(one) != repr(third)


@pytest.mark.parametrize(
    "spec",
    [
        "torchattacks:CW,steps=3",
        "torchattacks:PGDL2,steps=3",
        "torchattacks:EADEN,max_iterations=10",
    ],
)
def test_a_mixed_mode_gradients_and_flags_are_left_alone(spec: str) -> None:
    model, batch = tiny_model(), tiny_batch()
    model.get_submodule("4").train()  # dropout alone
    model.get_parameter("0.bias").requires_grad_(False)
    last = model.get_parameter("5.weight")
    last.grad = torch.ones_like(last)
    modes, flags = (
        [module.training for module in model.modules()],
        [each.requires_grad for each in model.parameters()],
    )
    run(create("attack", spec, norm="l2", eps=1.0), model, batch)
    assert [module.training for module in model.modules()] == modes
    assert [each.requires_grad for each in model.parameters()] == flags
    assert [each.grad is None for each in model.parameters()] == [
        True,
        True,
        True,
        True,
        False,
        True,
    ]
    assert torch.equal(last.grad, torch.ones_like(last))


def test_the_model_is_left_alone_when_torchattacks_fails() -> None:
    model, batch = tiny_model(), tiny_batch()
    state = torch.get_rng_state()
    with pytest.raises(BadInput, match="TIFGSM fails on these images") as refusal:
        run(create("attack", "torchattacks:TIFGSM"), model, batch)
    assert "3 channels" in refusal.value.hint
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "spec", ["torchattacks:PGD", "torchattacks:Square,n_queries=5", "torchattacks:APGD"]
)
def test_the_global_random_numbers_are_left_alone(spec: str) -> None:
    model, batch = tiny_model(), tiny_batch()
    state = torch.get_rng_state()
    run(create("attack", spec, eps=0.1), model, batch)
    assert torch.equal(torch.get_rng_state(), state)


class Flat(nn.Module):
    """Constant near every image: no gradient at all."""

    def forward(self, images: Tensor) -> Tensor:
        return (images * 4).round().flatten(1)[:, :4]


def test_an_image_without_a_gradient_stays_as_it_is() -> None:
    batch = tiny_batch()
    images = run(create("attack", "torchattacks:MIFGSM", eps=0.01), Flat(), batch).images
    assert torch.equal(images, batch.images)


@pytest.mark.parametrize("loss", ["ce", "margin"])
def test_nothing_is_worse_than_the_clean_image(loss: str) -> None:
    model, batch = tiny_model(), tiny_batch(40)
    objective = get_objective(loss)
    result = run(
        create("attack", "torchattacks:GN,std=0.3", eps=0.2), model, batch, objective=objective
    )
    assert result.logits is not None
    with torch.no_grad():
        clean = model(batch.images)
    was_fooled, is_fooled = (
        logits.argmax(dim=1) != batch.labels for logits in (clean, result.logits)
    )
    assert bool((is_fooled | ~was_fooled).all())
    unchanged = was_fooled == is_fooled
    gained = objective(result.logits, batch.labels) - objective(clean, batch.labels)
    assert bool((gained[unchanged] >= 0).all())
    assert bool(
        (result.images == batch.images).flatten(1).all(dim=1).any()
    )  # noise alone often helps the model


def test_restarts_only_help() -> None:
    model, batch = tiny_model(), tiny_batch(40)

    def mean_loss(restarts: int) -> float:
        attack = create("attack", f"torchattacks:GN,restarts={restarts}", eps=0.2)
        logits = run(attack, model, batch).logits
        assert logits is not None
        return float(cross_entropy(logits, batch.labels).mean())

    assert mean_loss(restarts=5) > mean_loss(restarts=1)


def test_what_torchattacks_prints_stays_off_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    run(
        create("attack", "torchattacks:APGD,verbose=true,steps=2", eps=0.1),
        tiny_model(),
        tiny_batch(),
    )
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "initial accuracy" in printed.err


@pytest.mark.parametrize(
    ("spec", "norm", "phrases"),
    [
        ("torchattacks:PGD", "linf", ["unweighted loss"]),
        ("torchattacks:CW", "l2", ["nearest misclassified image", "other images of the batch"]),
        ("torchattacks:CW,alone=true", "l2", ["nearest misclassified image"]),
        ("torchattacks:APGD", "linf", []),
        ("torchattacks:APGD,n_restarts=2", "linf", ["other images of the batch"]),
        ("torchattacks:GN", "l2", ["unweighted loss", "noise of its own"]),
    ],
)
def test_remarks(spec: str, norm: str, phrases: list[str]) -> None:
    attack = create("attack", spec, norm=norm)
    assert isinstance(attack, HasRemarks)
    remarks = list(attack.remarks(10))
    assert len(remarks) == len(phrases)
    assert all(phrase in remark for phrase, remark in zip(phrases, remarks, strict=True))


def test_random_numbers_depend_on_the_image_index() -> None:
    index = torch.tensor([5, 9, 2])

    def drawn(index: Tensor, seed: int = 1, restart: int = 0) -> tuple[Tensor, Tensor]:
        like = torch.empty(len(index), 3, 4, 4)
        with seed_by_index(index, seed, restart):
            rows = torch.rand(2 * len(index), 7).reshape(len(index), 14)
            place = torch.rand(1)
            return torch.cat(
                [like.uniform_(-2, 3).flatten(1), torch.randn_like(like).flatten(1), rows], dim=1
            ), place

    values, place = drawn(index)
    part, place_again = drawn(index[1:2])
    assert torch.equal(part, values[1:2])
    assert torch.equal(place, place_again)
    assert not torch.equal(drawn(index, seed=2)[0], values)
    assert not torch.equal(drawn(index, restart=1)[0], values)
    many = drawn(torch.arange(500))[0]
    uniform, normal = many[:, :48], many[:, 48:96]
    assert float(uniform.min()) >= -2
    assert float(uniform.max()) < 3
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.05)
    assert float(normal.std()) == pytest.approx(1, abs=0.02)


def test_a_record_tells_the_attack_and_rebuilds_it(
    wmr: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    trained = wmr("train", "--attack", "torchattacks:FFGSM", "--epochs", "2", "--out", "run")
    assert trained.returncode == 0, trained.stderr
    assert "unweighted loss" in trained.stderr
    flags = ["--limit", "30", "--alpha-test", "1", "--format", "json", "--checks"]
    done = wmr("evaluate", "run", "--attack", "torchattacks:MIFGSM,steps=3,decay=0.5", *flags)
    assert done.returncode == 0, done.stderr
    assert "unweighted loss" in done.stderr
    (record,) = json.loads(done.stdout)
    assert record["plugins"] == {"wmr-torchattacks": "0.1.0"}
    attack = create("attack", record["attack"]["spec"], eps=record["threat"]["eps"])
    settings = vars(attack)
    assert (settings["name"], settings["steps"]) == ("MIFGSM", 3)
    assert settings["decay"] == 0.5
    assert record["a_rob"]["value"] <= record["a_nat"]["value"]
    assert record["by_alpha"][0]["a_tr"] is not None
    assert "6 steps" in next(
        check["text"] for check in record["checks"] if check["name"] == "more steps do not help"
    )
    refused = wmr("evaluate", "run", "--attack", "torchattacks:Pixle")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
