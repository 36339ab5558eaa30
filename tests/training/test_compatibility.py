"""Components that do not fit each other are refused before any work."""

import pytest

from wmr_cli.config import TrainConfig
from wmr_cli.errors import BadInput
from wmr_cli.registry import Registry
from wmr_cli.runtime.components import build_attack, build_defense
from wmr_cli.spec import Spec
from wmr_cli.training.compatibility import check_batch_size, check_ramps
from wmr_cli.training.setup import build_training_attack, build_training_kernel


def test_a_ramp_needs_a_parameter_to_scale(registry: Registry) -> None:
    kernel = registry.create("kernel", "none")
    pgd = build_attack(registry, Spec.parse("pgd"), norm="linf", eps=0.1)
    with pytest.raises(BadInput, match="kernel 'none'") as refused:
        check_ramps(pgd, kernel, TrainConfig(alpha_ramp=0.5, kernel="none"))
    assert "`alpha_ramp`" in refused.value.hint
    check_ramps(pgd, kernel, TrainConfig(eps_ramp=0.5))


def test_each_rank_needs_two_images_of_a_batch() -> None:
    check_batch_size(TrainConfig(batch_size=4), images=8, ranks=2)
    check_batch_size(TrainConfig(batch_size=1), images=8, ranks=1)
    with pytest.raises(BadInput) as refused:
        check_batch_size(TrainConfig(batch_size=3), images=9, ranks=2)
    assert "`batch_size`" in refused.value.hint


def test_an_alpha_without_weights_names_the_defense(registry: Registry) -> None:
    config = TrainConfig(defense="natural", kernel="none", alpha=1.0)
    attack = build_training_attack(registry, config)
    defense = build_defense(registry, config.defense)
    with pytest.raises(BadInput, match="defense 'natural'") as refused:
        build_training_kernel(registry, config, attack, defense)
    assert "`alpha`" in refused.value.hint
    unweighted = TrainConfig(defense="natural", kernel="none", alpha=0.0)
    build_training_kernel(registry, unweighted, attack, defense)
