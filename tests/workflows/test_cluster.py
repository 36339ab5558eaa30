"""Jobs of a cluster: whatever ends the following of them cancels those that are left."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from wmr_cli.errors import BadInput
from wmr_cli.workflows import cluster
from wmr_cli.workflows.study_file import read_study


class Pretended:
    """An executor that takes so many jobs and then says no."""

    def __init__(self, takes: int) -> None:
        self.takes, self.cancelled = takes, []

    def submit(self, call):
        if self.takes == 0:
            raise RuntimeError("sbatch: error:\n no such partition")
        self.takes -= 1
        name = call[call.index("--run") + 1]
        return SimpleNamespace(job_id=name, done=lambda: False, cancel=lambda: self.cancelled.append(name))


@pytest.fixture
def study(registry):
    Path("study.toml").write_text("[grid]\nseed = [0, 1, 2]\n")
    return read_study(Path("study.toml"), registry)


def followed(study, executor, monkeypatch):
    monkeypatch.setattr(cluster, "_executor", lambda study, folder: (executor, lambda words, verbose: words))
    return cluster.submitted(study, None)


def test_a_stop_in_the_midst_of_submitting_cancels_what_was_submitted(study, monkeypatch):
    executor = Pretended(takes=3)
    walk = followed(study, executor, monkeypatch)
    next(walk), next(walk)
    walk.close()
    assert executor.cancelled == ["digits-trades-a2-s0", "digits-trades-a2-s1"]


def test_a_refusal_of_the_cluster_is_told_and_the_others_are_cancelled(study, monkeypatch):
    executor = Pretended(takes=1)
    with pytest.raises(BadInput, match="could not be submitted: sbatch: error: no such partition"):
        list(followed(study, executor, monkeypatch))
    assert executor.cancelled == ["digits-trades-a2-s0"]
