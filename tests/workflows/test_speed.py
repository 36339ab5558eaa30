"""What makes attacks cheap leaves their results alone: the twin, the layout, memory that is kept, and passes that are shared."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.builtins.defenses.trades import Trades
from wmr_cli.builtins.kernels.exp import Exponential
from wmr_cli.config import EvaluateConfig, TrainConfig
from wmr_cli.core.contracts import Batch
from wmr_cli.core.guards import guarded
from wmr_cli.core.lean import twin_of
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.norms import NORMS
from wmr_cli.workflows import devices, parts
from wmr_cli.workflows.evaluate import evaluate
from wmr_cli.workflows.events import EvaluationDone
from wmr_cli.workflows.examine import Examination
from wmr_cli.workflows.learner import FabricLearner
from wmr_cli.workflows.optimization import Pace

EPS = 0.1


def batch(shape=(3, 8, 8), size=8):
    generator = torch.Generator().manual_seed(0)
    return Batch(torch.rand(size, *shape, generator=generator), torch.arange(size) % 3, torch.arange(size))


def trained(folds, steps=3):
    """Weights and statistics after a few steps of TRADES on a network with batch-norm."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 3)
    model, whole = nn.Sequential(*layers), batch()
    sgd, config = torch.optim.SGD(model.parameters(), lr=0.1), TrainConfig(eps=EPS)
    attack = Pgd(eps=EPS, steps=4, step=0.03)
    learner = FabricLearner(devices.fabric("cpu"), model, sgd, attack, Exponential(2.0), config, 3)
    learner.twin = twin_of(model, whole.images) if folds else None
    for step in range(steps):
        learner.begin_step(0, step, Pace(0.1), len(whole.labels))
        Trades().step(learner, whole)
    assert (learner.twin is not None and learner.twin.folded == 1) == folds
    return model.state_dict()


def test_training_with_a_twin_is_training_without_but_for_rounding():
    plain, folded = trained(folds=False), trained(folds=True)
    assert all(torch.allclose(plain[name], folded[name], atol=1e-4) for name in plain)
    assert not torch.equal(plain["0.weight"], trained(folds=False, steps=2)["0.weight"])


class Live(TorchDispatchMode):
    """The most bytes that tensors made inside held at once; views hold what they are views of."""

    def __init__(self):
        super().__init__()
        self.held, self.peak = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.held[storage._cdata] = torch.multiprocessing.reductions.StorageWeakRef(storage), storage.nbytes()
        self.held = {key: kept for key, kept in self.held.items() if not kept[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.held.values()))
        return made


def peak_of(work):
    with Live() as live:
        work()
    return live.peak


@pytest.mark.parametrize("spec", ["small-cnn", "resnet20"])
@pytest.mark.parametrize("leans", [False, True])
def test_an_attack_needs_no_more_memory_than_a_bare_pass(registry, spec, leans):
    shape = (1, 28, 28) if spec == "small-cnn" else (3, 16, 16)
    model, whole = parts.model(registry, spec, 10, shape).eval(), batch(shape, size=64)

    def bare():
        images = whole.images.clone().requires_grad_()
        torch.autograd.grad(cross_entropy(model(images), whole.labels).sum(), images)

    attacked = twin_of(model, whole.images).module if leans else model
    attack = Pgd(eps=EPS, steps=3)
    ours = peak_of(lambda: guarded(attack, attacked, whole, cross_entropy, 0, NORMS["linf"], EPS, 10))
    assert ours <= 1.2 * peak_of(bare)


@pytest.mark.parametrize(("crafts", "attacks"), [(True, 4), (False, 1)])
def test_k_values_of_alpha_cost_one_attack_and_k_more_for_a_tr(crafts, attacks):
    calls, plain = [], Pgd(eps=EPS, steps=1)

    def counted(*args):
        calls.append(1)
        return plain(*args)

    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()
    kernels = {alpha: Exponential(alpha) for alpha in (1.0, 1.5, 2.0)}
    Examination(model, counted, "linf", EPS, 3, seed=0, kernels=kernels, crafts_by_weight=crafts).rows(batch())
    assert len(calls) == attacks


def test_attacks_of_one_evaluation_share_the_clean_pass(tiny_run, registry, tmp_path, monkeypatch):
    passes, seen = [], Examination._clean_logits

    def counting(self, whole):
        if whole.index.numpy().tobytes() not in self.known:
            passes.append(len(whole.labels))
        return seen(self, whole)

    monkeypatch.setattr(Examination, "_clean_logits", counting)
    config = EvaluateConfig(attacks=("pgd", "fgsm"), eps=(0.05, 0.1), metrics=("nat", "rob"), limit=20)
    walk = evaluate(tiny_run, config, registry, data_dir=tmp_path, device="cpu", out=tmp_path)
    found = [event.record.a_nat for event in walk if isinstance(event, EvaluationDone)]
    assert len(found) == 6
    assert all(a_nat == found[0] for a_nat in found)
    assert sum(passes) == 20


@pytest.mark.parametrize("change", [{"fold": False}, {"layout": "contiguous"}])
def test_an_evaluation_is_the_same_without_the_twin_and_in_either_layout(change, tiny_run, registry, tmp_path):
    def measured(folder, **settings):
        config = EvaluateConfig(limit=40, steps=3, **settings)
        walk = evaluate(tiny_run, config, registry, data_dir=tmp_path, device="cpu", out=tmp_path / folder)
        return next(event.record for event in walk if isinstance(event, EvaluationDone))

    usual, other = measured("usual"), measured("other", **change)
    assert usual.id != other.id
    assert usual.a_rob.value == pytest.approx(other.a_rob.value, abs=1e-6)
    assert usual.by_alpha[0].a_tr.value == pytest.approx(other.by_alpha[0].a_tr.value, abs=1e-4)


def test_the_layout_is_the_one_asked_for_or_by_rule():
    cpu, other = torch.device("cpu"), torch.device("meta")
    assert devices.memory_format("auto", cpu) == torch.channels_last
    assert devices.memory_format("auto", other) == torch.contiguous_format
    assert devices.memory_format("auto", other, "bf16") == torch.channels_last
    assert devices.memory_format("contiguous", cpu) == torch.contiguous_format
    assert devices.memory_format("channels-last", other) == torch.channels_last


FAULTS = """
import resource, sys
import torch
from wmr_cli.workflows import devices

told = sys.argv[1] == "kept" and devices.keep_memory()
torch.set_num_threads(1)
network = torch.nn.Sequential(torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.ReLU())
images = torch.rand(128, 1, 28, 28, requires_grad=True)
for number in range(6):
    if number == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.autograd.grad(network(images).sum(), images)
print(int(told), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_kept_for_the_next_pass():
    """In processes of their own: what malloc is told holds for all of one."""
    (_, usual), (told, kept) = (
        map(int, subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout.split())
        for how in ("usual", "kept")
    )
    if not told or usual < 1000:
        pytest.skip("only glibc can be told, and large pages hide what it does")
    assert kept < usual / 2


@pytest.mark.parametrize(("said", "calls"), [("1", 1), ("0", 0)])
def test_memory_goes_back_to_the_system_where_the_user_says_so(said, calls, monkeypatch):
    told = []
    monkeypatch.setenv(devices.KEEP_MEMORY, said)
    monkeypatch.setattr(devices, "keep_memory", lambda: told.append(1))
    devices.fabric("cpu")
    assert len(told) == calls
