"""Weights of other programs: which files are read, which are refused, and that no code is run."""

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
    """An object that creates the file `sprung` when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, ("touch sprung",)


def get_error(path: Path | str) -> BadFile:
    """Read a file that has to be refused, and return the error."""
    with pytest.raises(BadFile) as caught:
        read_weights(Path(path))
    assert "\n" not in str(caught.value)
    return caught.value


def are_equal(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor] = STATE) -> bool:
    return list(tensors) == list(state) and all(
        torch.equal(tensors[name], state[name]) for name in state
    )


@pytest.mark.parametrize(
    ("content", "wrappers"),
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
def test_weights_are_found_inside_wrappers(
    content: object, wrappers: tuple[str, ...], is_zip: bool
) -> None:
    torch.save(content, "net.pt", _use_new_zipfile_serialization=is_zip)
    found = read_weights(Path("net.pt"))
    assert are_equal(found.tensors)
    assert (found.wrappers, found.ignored, found.keeps_order) == (wrappers, (), True)


def test_parameters_are_read_without_gradients() -> None:
    torch.save({name: nn.Parameter(tensor) for name, tensor in STATE.items()}, "net.pt")
    tensors = read_weights(Path("net.pt")).tensors
    assert not any(tensor.requires_grad for tensor in tensors.values())


def test_safetensors_files_are_read_without_the_order_of_layers() -> None:
    safetensors.torch.save_file(STATE, "net.safetensors", metadata={"format": "pt"})
    found = read_weights(Path("net.safetensors"))
    assert are_equal(found.tensors, dict(sorted(STATE.items())))
    assert not found.keeps_order


def test_a_header_length_that_looks_like_markup_is_not_taken_for_a_web_page() -> None:
    # a safetensors file begins with the length of its header; 15392 is " <" and six zeros
    length = 15392
    entries = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    header = json.dumps(entries).encode().ljust(length)
    Path("net.safetensors").write_bytes(length.to_bytes(8, "little") + header + b"\0" * 4)
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
def test_of_several_weights_the_preferred_key_is_taken_and_the_others_are_listed(
    content: dict[str, dict[str, Tensor]], taken: str
) -> None:
    torch.save(content, "net.pt")
    found = read_weights(Path("net.pt"))
    assert found.wrappers == (taken,)
    assert found.ignored == tuple(name for name in content if name != taken)


def test_a_file_that_contains_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["model"] = endless
    torch.save(endless, "net.pt")
    get_error("net.pt")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"ema": STATE, "epoch": 3}, "ema, epoch"),
        ({str(number): number for number in range(9)}, "0, 1, 2, 3, 4, …"),
        ({}, "empty"),
        ({"state_dict": {}}, "empty"),
        ([STATE, STATE], "list"),
        (torch.zeros(3), "Tensor"),
        ({**STATE, "epoch": 3}, "'epoch'"),
        ({**STATE, "\x1b[2J": torch.zeros(1)}, r"'\x1b[2J'"),
        ({"\x1b[2J": 3}, r"'\x1b[2J'"),
        (dict([*STATE.items(), (7, torch.zeros(1))]), "7 among"),
        ({**STATE, "mask": torch.eye(3).to_sparse()}, "'mask'"),
    ],
)
def test_content_other_than_a_state_dict_is_refused_and_named(content: object, named: str) -> None:
    torch.save(content, "net.pt")
    assert named in str(get_error("net.pt"))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_bare_pickle_is_refused_with_the_global_it_refers_to(protocol: int) -> None:
    Path("net.pt").write_bytes(pickle.dumps({"state_dict": Trap()}, protocol=protocol))
    error = get_error("net.pt")
    assert f"{os.system.__module__}.system" in str(error)
    assert "torch.save(model.state_dict()" in error.hint
    assert not Path("sprung").exists()
    # the trap works: an ordinary unpickler runs it
    pickle.loads(Path("net.pt").read_bytes())
    assert Path("sprung").exists()


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"state_dict": STATE, "extra": Trap()}, f"{os.system.__module__}.system"),
        (nn.Sequential(nn.Linear(2, 2)), "torch.nn.modules.container.Sequential"),
        ({"state_dict": STATE, "where": Path()}, "pathlib."),
    ],
    ids=["trap", "whole model", "object"],
)
def test_a_torch_file_with_objects_is_refused_with_the_global_it_refers_to(
    content: object, name: str, is_zip: bool
) -> None:
    torch.save(content, "net.pt", _use_new_zipfile_serialization=is_zip)
    error = get_error("net.pt")
    assert name in str(error)
    assert "torch.save(model.state_dict()" in error.hint
    assert not Path("sprung").exists()


def test_torch_load_is_called_with_weights_only(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(STATE, "net.pt")
    calls = []
    load = torch.load

    def record_flags(path: Path, **flags: Any) -> object:
        calls.append(flags)
        return load(path, **flags)

    monkeypatch.setattr(torch, "load", record_flags)
    read_weights(Path("net.pt"))
    assert calls == [{"map_location": "cpu", "weights_only": True}]


@pytest.mark.parametrize("name", ["net.pt", "net.safetensors"])
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty"),
        (b"\n  <!DOCTYPE html><html><title>Virus scan warning</title>", "web page"),
        (b"\xef\xbb\xbf<html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS"),
    ],
    ids=["empty", "page", "page with byte-order mark", "pointer"],
)
def test_a_failed_download_is_recognised(name: str, content: bytes, kind: str) -> None:
    Path(name).write_bytes(content)
    error = get_error(name)
    assert kind in str(error)
    assert error.hint


@pytest.mark.parametrize(
    "content", [b"no weights\n" * 99, b"\0" * 999, bytes(range(255, 0, -1)), b"\x80\x02}q\x00."]
)
def test_a_file_that_torch_did_not_write_is_refused(content: bytes) -> None:
    Path("net.pth").write_bytes(content)
    assert "torch.save" in str(get_error("net.pth"))


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_truncated_torch_file_is_refused(is_zip: bool, kept: float) -> None:
    torch.save(
        {"state_dict": {"weight": torch.zeros(5000)}},
        "whole.pt",
        _use_new_zipfile_serialization=is_zip,
    )
    whole = Path("whole.pt").read_bytes()
    Path("net.pt").write_bytes(whole[: int(kept * len(whole))])
    assert get_error("net.pt").hint


def test_a_truncated_safetensors_file_is_refused() -> None:
    whole = safetensors.torch.save(STATE)
    Path("net.safetensors").write_bytes(whole[:-1])
    get_error("net.safetensors")


@pytest.mark.parametrize(
    "content", [{"state_dict": STATE, "epoch": 3}, nn.Linear(2, 2)], ids=["weights", "whole model"]
)
@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_a_flipped_bit_anywhere_gives_weights_or_bad_file(content: object, is_zip: bool) -> None:
    torch.save(content, "whole.pt", _use_new_zipfile_serialization=is_zip)
    whole = Path("whole.pt").read_bytes()
    generator = random.Random(0)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        Path("net.pt").write_bytes(damaged)
        with contextlib.suppress(BadFile):
            assert read_weights(Path("net.pt")).tensors


def test_a_zip_archive_of_other_files_is_refused() -> None:
    with zipfile.ZipFile("net.pt", "w") as archive:
        archive.writestr("weights/net.bin", "…")
    assert "zip archive" in str(get_error("net.pt"))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_torchscript_program_is_refused() -> None:
    torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)).save("net.pt")
    assert "TorchScript" in str(get_error("net.pt"))


def test_a_wrong_file_suffix_is_refused_with_the_right_one() -> None:
    safetensors.torch.save_file(STATE, "net.pt")
    assert ".safetensors" in get_error("net.pt").hint
    torch.save(STATE, "net.safetensors")
    assert ".pt" in get_error("net.safetensors").hint


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "none.pt" in str(get_error("none.pt"))
    assert str(tmp_path) in str(get_error(tmp_path))


def test_read_saved_returns_any_structure_but_runs_no_code() -> None:
    torch.save({"last": STATE, "epoch": 3, "names": ["a", "b"]}, "net.pt")
    content = read_saved("net.pt")
    assert (content["epoch"], content["names"]) == (3, ["a", "b"])
    assert are_equal(content["last"])
    torch.save({"last": STATE, "trap": Trap()}, "trap.pt")
    with pytest.raises(BadFile, match=r"posix\.system"):
        read_saved("trap.pt")
    assert not Path("sprung").exists()


def compress_archive(source: str, target: str) -> None:
    """Write the members of an archive into a compressed one."""
    with (
        zipfile.ZipFile(source) as plain,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for member in plain.namelist():
            packed.writestr(member, plain.read(member))


def test_a_flipped_bit_of_a_tensor_is_refused() -> None:
    torch.save({"state_dict": STATE}, "net.pt")
    content = bytearray(Path("net.pt").read_bytes())
    with zipfile.ZipFile("net.pt") as archive:
        member = next(entry for entry in archive.infolist() if entry.filename.endswith("data/0"))
        start = content.index(archive.read(member), member.header_offset)
    content[start + 5] ^= 1
    Path("net.pt").write_bytes(content)
    # torch itself does not verify checksums
    assert torch.load("net.pt", weights_only=True)
    assert "net/data/0" in str(get_error("net.pt"))
    with pytest.raises(BadFile, match="net/data/0"):
        read_saved("net.pt")


def test_an_archive_without_checksums_is_refused() -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    torch.save(STATE, "net.pt")
    torch.serialization.set_crc32_options(before)
    assert "set_crc32_options(True)" in get_error("net.pt").hint


def test_a_compressed_archive_is_read_unless_it_unpacks_to_too_many_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.save(STATE | {"zeros": torch.zeros(100_000)}, "whole.pt")
    compress_archive("whole.pt", "net.pt")
    assert read_weights(Path("net.pt")).tensors.keys() == {*STATE, "zeros"}
    monkeypatch.setattr("wmr_cli.storage.torch_files.MAX_UNPACKED_BYTES", 100_000)
    get_error("net.pt")


def test_an_archive_whose_members_overlap_is_refused() -> None:
    torch.save({"zeros": torch.zeros(1000)}, "whole.pt")
    content = Path("whole.pt").read_bytes()
    size = (4000).to_bytes(4, "little")
    assert content.count(size) >= 2
    Path("net.pt").write_bytes(content.replace(size, (400_000).to_bytes(4, "little")))
    get_error("net.pt")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_two_members_of_one_name_is_refused() -> None:
    torch.save(STATE, "net.pt")
    with zipfile.ZipFile("net.pt", "a") as archive:
        archive.writestr("net/data.pkl", b"other")
    get_error("net.pt")


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_only_a_regular_file_is_read(make: Callable[..., Any], ending: str) -> None:
    make(Path(f"net{ending}"))
    with time_limit(60):
        assert get_error(f"net{ending}").hint


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "\ud800"])
def test_an_unreadable_file_name_is_refused(name: str) -> None:
    assert get_error(name).hint
