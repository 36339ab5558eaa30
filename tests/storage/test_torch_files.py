"""Weights of other programs: what is seen through, what is refused, and that nothing in them is ever run."""

import contextlib
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from support.special_files import IRREGULAR, time_limit
from wmr_cli import read_saved
from wmr_cli.errors import BadFile
from wmr_cli.storage.torch_files import read_weights

STATE = {"conv.weight": torch.arange(8.0).reshape(2, 1, 2, 2), "conv.bias": torch.ones(2)}
OPTIMIZER = {
    "state": {0: {"step": torch.tensor(3.0)}},
    "param_groups": [{"lr": 0.1, "params": [0]}],
}


class Trap:
    """Unpickled by an ordinary reader, it makes a file."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, ("touch sprung",)


def refusal(path: Path | str) -> BadFile:
    with pytest.raises(BadFile) as caught:
        read_weights(Path(path))
    assert "\n" not in str(caught.value)
    return caught.value


def same(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor] = STATE) -> bool:
    return list(tensors) == list(state) and all(
        torch.equal(tensors[name], state[name]) for name in state
    )


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (STATE, ()),
        (
            {
                "state_dict": STATE,
                "epoch": 3,
                "best_prec1": torch.tensor(91.7),
                "optimizer": OPTIMIZER,
            },
            ("state_dict",),
        ),
        ({"model_state_dict": STATE, "loss": 0.5}, ("model_state_dict",)),
        ({"model": STATE, "args": {"lr": 0.1}}, ("model",)),
        ({"net": STATE, "acc": 95.1, "epoch": 199}, ("net",)),
        ({"network": STATE}, ("network",)),
        ({"model": {"state_dict": STATE}, "epoch": 1}, ("model", "state_dict")),
        ([STATE], ()),
        ((STATE,), ()),
        ([{"model": [{"net": (STATE,)}]}], ("model", "net")),
        ({"model": "resnet20", "state_dict": STATE}, ("state_dict",)),
    ],
)
@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_wrappers_are_seen_through(
    content: dict[
        str,
        dict[str, dict[int | str, object] | float | list[Any] | Tensor] | float | str | Tensor,
    ]
    | list[dict[str, list[Any] | Tensor]]
    | tuple[dict[str, Tensor]],
    place: tuple[str, ...],
    is_zip: bool,
) -> None:
    torch.save(content, "net.pt", _use_new_zipfile_serialization=is_zip)
    found = read_weights(Path("net.pt"))
    assert same(found.tensors)
    assert (found.place, found.passed_over, found.keeps_order) == (place, (), True)


def test_parameters_are_tensors_without_a_graph() -> None:
    torch.save({name: nn.Parameter(tensor) for name, tensor in STATE.items()}, "net.pt")
    assert [tensor.requires_grad for tensor in read_weights(Path("net.pt")).tensors.values()] == [
        False,
        False,
    ]


def test_safetensors_are_read_and_known_to_have_lost_their_order() -> None:
    safetensors.torch.save_file(STATE, "net.safetensors", metadata={"format": "pt"})
    found = read_weights(Path("net.safetensors"))
    assert same(found.tensors, dict(sorted(STATE.items())))
    assert not found.keeps_order


def test_a_length_that_reads_like_markup_is_no_web_page() -> None:
    """A safetensors file begins with the length of its header; 15392 is written ' <' and six zeros."""
    header = (
        json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
        .encode()
        .ljust(15392)
    )
    Path("net.safetensors").write_bytes((15392).to_bytes(8, "little") + header + b"\0" * 4)
    assert read_weights(Path("net.safetensors")).tensors.keys() == {"w"}


@pytest.mark.parametrize(
    ("content", "taken"),
    [
        ({"ema": STATE, "model": STATE}, "model"),
        ({"network": STATE, "net": STATE}, "net"),
        ({"net": STATE, "model": STATE}, "model"),
        ({"model": STATE, "state_dict": STATE}, "state_dict"),
    ],
)
def test_of_several_the_named_one_is_taken_and_the_others_are_told(
    content: dict[str, dict[str, Tensor]], taken: str
) -> None:
    torch.save(content, "net.pt")
    found = read_weights(Path("net.pt"))
    assert found.place == (taken,)
    assert found.passed_over == tuple(name for name in content if name != taken)


def test_a_file_that_contains_itself_comes_to_an_end() -> None:
    endless: dict[str, Any] = {}
    endless["model"] = endless
    torch.save(endless, "net.pt")
    assert "more than" in str(refusal("net.pt"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"ema": STATE, "epoch": 3}, "holds no weights, but ema, epoch"),
        ({str(number): number for number in range(9)}, "0, 1, 2, 3, 4, …"),
        ({}, "it is an empty dict"),
        ({"state_dict": {}}, "it is an empty dict"),
        ([STATE, STATE], "holds a list instead of weights"),
        (torch.zeros(3), "holds a Tensor instead of weights"),
        ({**STATE, "epoch": 3}, "'epoch' among the weights of net.pt is a int"),
        ({**STATE, "\x1b[2J": torch.zeros(1)}, r"the name '\x1b[2J' among the weights"),
        ({"\x1b[2J": 3}, r"holds no weights, but '\x1b[2J'"),
        (dict([*STATE.items(), (7, torch.zeros(1))]), "7 among the weights"),
        ({**STATE, "mask": torch.eye(3).to_sparse()}, "'mask' in net.pt is quantised, sparse"),
    ],
)
def test_what_is_not_a_state_dict_is_refused(
    content: dict[int | str, dict[str, Tensor] | int | Tensor] | list[dict[str, Tensor]] | Tensor,
    reason: str,
) -> None:
    torch.save(content, "net.pt")
    assert reason in str(refusal("net.pt"))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_bare_pickle_runs_nothing_and_is_refused_by_the_name_it_wants(protocol: int) -> None:
    Path("net.pt").write_bytes(pickle.dumps({"state_dict": Trap()}, protocol=protocol))
    problem = refusal("net.pt")
    assert f"needs to run code: {os.system.__module__}.system" in str(problem)
    assert "torch.save(model.state_dict()" in problem.hint
    assert not Path("sprung").exists()
    pickle.loads(Path("net.pt").read_bytes())
    assert Path("sprung").exists()  # it was a trap


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ({"state_dict": STATE, "extra": Trap()}, f"{os.system.__module__}.system"),
        (nn.Sequential(nn.Linear(2, 2)), "torch.nn.modules.container.Sequential"),
        ({"state_dict": STATE, "where": Path()}, "pathlib."),
    ],
    ids=["trap", "whole model", "object"],
)
def test_a_file_of_torchs_runs_nothing_and_is_refused_by_the_name_it_wants(
    content: dict[str, Trap | dict[str, Tensor] | Path] | nn.Module, wanted: str, is_zip: bool
) -> None:
    torch.save(content, "net.pt", _use_new_zipfile_serialization=is_zip)
    problem = refusal("net.pt")
    assert f"needs to run code: {wanted}" in str(problem)
    assert "torch.save(model.state_dict()" in problem.hint
    assert not Path("sprung").exists()


def test_torch_is_asked_for_weights_only(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(STATE, "net.pt")
    asked = []
    load = torch.load

    def record_flags(path: Path, **flags: Any) -> object:
        asked.append(flags)
        return load(path, **flags)

    monkeypatch.setattr(torch, "load", record_flags)
    read_weights(Path("net.pt"))
    assert asked == [{"map_location": "cpu", "weights_only": True}]


@pytest.mark.parametrize("name", ["net.pt", "net.safetensors"])
@pytest.mark.parametrize(
    ("content", "reason", "remedy"),
    [
        (b"", "is empty", "again"),
        (
            b"\n  <!DOCTYPE html><html><title>Virus scan warning</title>",
            "is a web page, not weights",
            "download it again",
        ),
        (b"\xef\xbb\xbf<html>", "is a web page, not weights", "download it again"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            "is a Git LFS pointer",
            "git lfs pull",
        ),
    ],
    ids=["empty", "page", "page with a mark", "pointer"],
)
def test_a_download_that_went_wrong_is_named(
    name: str, content: bytes, reason: str, remedy: str
) -> None:
    Path(name).write_bytes(content)
    problem = refusal(name)
    assert reason in str(problem)
    assert remedy in problem.hint


@pytest.mark.parametrize(
    "content", [b"no weights\n" * 99, b"\0" * 999, bytes(range(255, 0, -1)), b"\x80\x02}q\x00."]
)
def test_what_torch_did_not_write_is_refused(content: bytes) -> None:
    Path("net.pth").write_bytes(content)
    assert "torch.save did not write it" in str(refusal("net.pth"))


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_part_of_a_file_is_refused(is_zip: bool, kept: float) -> None:
    torch.save(
        {"state_dict": {"weight": torch.zeros(5000)}},
        "whole.pt",
        _use_new_zipfile_serialization=is_zip,
    )
    whole = Path("whole.pt").read_bytes()
    Path("net.pt").write_bytes(whole[: int(kept * len(whole))])
    problem = refusal("net.pt")
    assert "part of a file" in str(problem)
    assert "again" in problem.hint


def test_part_of_a_safetensors_file_is_refused() -> None:
    whole = safetensors.torch.save(STATE)
    Path("net.safetensors").write_bytes(whole[:-1])
    assert "only part of one" in str(refusal("net.safetensors"))


@pytest.mark.parametrize(
    "content", [{"state_dict": STATE, "epoch": 3}, nn.Linear(2, 2)], ids=["weights", "whole model"]
)
@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_damage_anywhere_gives_weights_or_a_refusal(
    content: dict[str, dict[str, Tensor] | int] | nn.Module, is_zip: bool
) -> None:
    torch.save(content, "whole.pt", _use_new_zipfile_serialization=is_zip)
    whole, dice = Path("whole.pt").read_bytes(), random.Random(0)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        Path("net.pt").write_bytes(damaged)
        with contextlib.suppress(BadFile):
            assert read_weights(Path("net.pt")).tensors


def test_a_zip_archive_of_something_else_is_refused() -> None:
    with zipfile.ZipFile("net.pt", "w") as archive:
        archive.writestr("weights/net.bin", "…")
    assert "a zip archive, but not of torch's" in str(refusal("net.pt"))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_torchscript_program_is_refused() -> None:
    torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)).save("net.pt")
    problem = refusal("net.pt")
    assert "TorchScript" in str(problem)
    assert "state_dict" in problem.hint


def test_a_file_under_the_wrong_ending_is_named() -> None:
    safetensors.torch.save_file(STATE, "net.pt")
    assert ".safetensors" in refusal("net.pt").hint
    torch.save(STATE, "net.safetensors")
    assert ".pt" in refusal("net.safetensors").hint


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "cannot read none.pt" in str(refusal("none.pt"))
    assert "is a folder" in str(refusal(tmp_path))


def test_plugins_read_whatever_torch_saved_and_run_nothing() -> None:
    torch.save({"last": STATE, "epoch": 3, "names": ["a", "b"]}, "net.pt")
    content = read_saved("net.pt")
    assert (content["epoch"], content["names"]) == (3, ["a", "b"])
    assert same(content["last"])
    torch.save({"last": STATE, "trap": Trap()}, "trap.pt")
    with pytest.raises(BadFile, match=r"needs to run code: posix\.system"):
        read_saved("trap.pt")
    assert not Path("sprung").exists()


def repacked(
    change: Callable[..., Any], name: str = "net.pt", compression: int = zipfile.ZIP_STORED
) -> None:
    """Write the members of whole.pt into another archive, each as `change` gives it."""
    with zipfile.ZipFile("whole.pt") as whole, zipfile.ZipFile(name, "w", compression) as archive:
        for member in whole.namelist():
            archive.writestr(member, change(member, whole.read(member)))


def test_a_flipped_bit_of_a_tensor_is_refused() -> None:
    torch.save({"state_dict": STATE}, "net.pt")
    content = bytearray(Path("net.pt").read_bytes())
    with zipfile.ZipFile("net.pt") as archive:
        member = next(entry for entry in archive.infolist() if entry.filename.endswith("data/0"))
        place = content.index(archive.read(member), member.header_offset)
    content[place + 5] ^= 1
    Path("net.pt").write_bytes(content)
    assert torch.load("net.pt", weights_only=True)  # torch does not notice
    problem = refusal("net.pt")
    assert "the checksum (CRC) of net/data/0 is wrong" in str(problem)
    assert "again" in problem.hint
    with pytest.raises(BadFile, match="CRC"):
        read_saved("net.pt")


def test_an_archive_without_checksums_is_refused_with_the_way_to_add_them() -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    torch.save(STATE, "net.pt")
    torch.serialization.set_crc32_options(before)
    problem = refusal("net.pt")
    assert "has no checksums" in str(problem)
    assert "set_crc32_options(True)" in problem.hint


def test_a_packed_archive_is_read_and_one_that_unpacks_to_far_more_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.save(STATE | {"zeros": torch.zeros(100_000)}, "whole.pt")
    repacked(lambda member, content: content, compression=zipfile.ZIP_DEFLATED)
    assert read_weights(Path("net.pt")).tensors.keys() == {*STATE, "zeros"}
    monkeypatch.setattr("wmr_cli.storage.torch_files.MOST_UNPACKED", 100_000)
    assert "claims to hold 400" in str(refusal("net.pt"))


def test_an_archive_whose_members_overlap_is_refused() -> None:
    torch.save({"zeros": torch.zeros(1000)}, "whole.pt")
    content = Path("whole.pt").read_bytes()
    size = (4000).to_bytes(4, "little")
    assert content.count(size) >= 2
    Path("net.pt").write_bytes(content.replace(size, (400_000).to_bytes(4, "little")))
    assert "claims to hold" in str(refusal("net.pt"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_two_members_of_one_name_is_refused() -> None:
    torch.save(STATE, "net.pt")
    with zipfile.ZipFile("net.pt", "a") as archive:
        archive.writestr("net/data.pkl", b"other")
    assert "several members of one name" in str(refusal("net.pt"))


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_only_a_regular_file_is_read(make: Callable[..., Any], ending: str) -> None:
    make(Path(f"net{ending}"))
    with time_limit(60):
        problem = refusal(f"net{ending}")
    assert "is a folder" in str(problem) or "not a regular file" in str(problem)
    assert problem.hint


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "\ud800"])
def test_a_name_that_cannot_be_read_is_refused(name: str) -> None:
    assert refusal(name).hint
