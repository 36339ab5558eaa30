"""Checks of the component contracts, for the tests of `wmr` and of plugins.

Each raises AssertionError with the violated rule:

    from wmr_cli.testing import check_attack

    def test_my_attack():
        check_attack(MyAttack(eps=0.1))
"""

from .attacks import check_attack
from .datasets import check_dataset
from .defenses import check_defense
from .fixtures import CLASSES, SHAPE, RecordingLearner, tiny_batch, tiny_model
from .kernels import check_kernel
from .loggers import check_logger
from .models import check_model
from .verifiers import check_verifier

__all__ = [
    "CLASSES",
    "SHAPE",
    "RecordingLearner",
    "check_attack",
    "check_dataset",
    "check_defense",
    "check_kernel",
    "check_logger",
    "check_model",
    "check_verifier",
    "tiny_batch",
    "tiny_model",
]
