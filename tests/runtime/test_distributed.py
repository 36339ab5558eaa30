"""Ranks exchange values; with one process every operation is the identity."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from wmr_cli.errors import BadInput, BrokenContract
from wmr_cli.runtime.distributed import Ranks

TWO_RANKS = """
import json
import torch
from wmr_cli.runtime.fabric import Hardware, launch

ranks = launch(Hardware("cpu", 2)).ranks
own = torch.tensor([1.0 + ranks.index, 4.0])
share = ranks.share(torch.arange(5))
results = {
    "count": ranks.count,
    "is_first": ranks.is_first,
    "share": share.tolist(),
    "all_gather": ranks.all_gather(own).tolist(),
    "all_gather_varying": ranks.all_gather_varying(share, 5).tolist(),
    "sum": ranks.all_reduce(own, "sum").tolist(),
    "mean": ranks.all_reduce(own, "mean").tolist(),
    "max": ranks.all_reduce(own, "max").tolist(),
    "own": own.tolist(),
    "largest": ranks.max(10 * ranks.index),
    "objects": ranks.gather_objects(f"rank {ranks.index}"),
    "broadcast": ranks.broadcast(f"from {ranks.index}"),
}
with open(f"rank{ranks.index}.json", "w") as file:
    json.dump(results, file)
ranks.barrier()
"""


def test_two_ranks_exchange_values(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TWO_RANKS, encoding="utf-8")
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True, timeout=120)
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert (first.pop("is_first"), second.pop("is_first")) == (True, False)
    assert (first.pop("share"), second.pop("share")) == ([0, 1, 2], [3, 4])
    assert (first.pop("own"), second.pop("own")) == ([1.0, 4.0], [2.0, 4.0]), "left unchanged"
    assert first == second
    assert first == {
        "count": 2,
        "all_gather": [[1.0, 4.0], [2.0, 4.0]],
        "all_gather_varying": [0, 1, 2, 3, 4],
        "sum": [3.0, 8.0],
        "mean": [1.5, 4.0],
        "max": [2.0, 4.0],
        "largest": 10,
        "objects": ["rank 0", "rank 1"],
        "broadcast": "from 0",
    }


def test_one_rank_returns_its_own_values() -> None:
    ranks = Ranks()
    values = torch.arange(3.0)
    assert ranks.is_first
    assert torch.equal(ranks.share(values), values)
    assert torch.equal(ranks.all_gather(values), values[None])
    assert ranks.all_gather_varying(values, 3) is values
    assert ranks.all_reduce(values, "mean") is values
    assert ranks.max(3) == 3
    assert ranks.gather_objects("a") == ["a"]
    assert ranks.broadcast("a") == "a"
    ranks.barrier()


def test_one_rank_raises_its_errors_unchanged() -> None:
    with pytest.raises(KeyError), Ranks().describe_errors():
        raise KeyError("x")


def test_one_of_several_ranks_names_itself_in_unexpected_errors() -> None:
    ranks = Ranks(count=2)
    with pytest.raises(BrokenContract, match="process 0 failed: KeyError"), ranks.describe_errors():
        raise KeyError("x")
    with pytest.raises(BadInput, match="wrong"), ranks.describe_errors():
        raise BadInput("wrong")
    # an effect of another rank's failure, which that rank reports
    with pytest.raises(RuntimeError, match="gloo"), ranks.describe_errors():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer")
