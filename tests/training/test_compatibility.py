"""Components that do not fit each other are refused before any work."""

import pytest

from wmr_cli.config import TrainConfig
from wmr_cli.errors import BadInput
from wmr_cli.registry import Registry
from wmr_cli.runtime.components import build_attack
from wmr_cli.spec import Spec
from wmr_cli.training.compatibility import check_batch_size, check_ramps


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
