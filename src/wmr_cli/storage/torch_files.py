"""Weights that another program saved, read without running any of its code: safetensors, or a plain state dict of torch's.

What does not look like weights is named by its first bytes before anything opens it: most files that fail to load are
downloads that went wrong.
"""

import io
import pickle
import pickletools
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.data.downloads import looks_like_a_page
from ..errors import BadFile
from ..reading import is_folder, open_regular

WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "module", "weights")
"""Entries of a file under which weights are looked for, the first one first."""
DEEPEST = 20
"""How many wrappers are opened; a pickle may contain itself."""
ZIP, SAFETENSORS_START = b"PK\x03\x04", b"{"
LEGACY = tuple(
    b"\x80" + bytes([protocol]) + b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." for protocol in (2, 3)
)
"""How files begin that torch wrote before it wrote zip archives: a number of its own, pickled."""
HARMLESS = re.compile(r"collections\.OrderedDict|torch\._utils\.\w+|torch\.\w*Storage")
BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    OverflowError,
    MemoryError,
    OSError,
    EOFError,
    RuntimeError,
)
"""What the readers of zip archives and pickles raise at a damaged file."""
AGAIN = "download or copy it again from where it came"
WITH_CRC = "torch.serialization.set_crc32_options(True)"
MOST_UNPACKED = 2**30
MOST_RATIO = 100
"""An archive of more than these bytes, which are so many times those of the file, is not of weights: torch does not compress."""
BLOCK = 2**20
PLAIN = "where it came from, save plain weights: torch.save(model.state_dict(), …), or save_file(…) of safetensors"


@dataclass(frozen=True)
class ExternalWeights:
    """Weights by name, in the order of the file, and where in the file they stood."""

    path: Path
    tensors: Mapping[str, Tensor]
    place: tuple[str, ...] = ()
    """the wrappers that were opened, from the outside in"""
    passed_over: tuple[str, ...] = ()
    """entries beside them that hold tensors too"""
    keeps_order: bool = True
    """whether the order is that of the network's layers; safetensors sorts by name"""


def read_weights(path: Path) -> ExternalWeights:
    """The weights of a file, or why there are none to be had."""
    head = _head(path)
    if path.suffix == ".safetensors":
        return ExternalWeights(path, _plain(_safetensors(path, head), path), keeps_order=False)
    content, place, passed_over = _unwrapped(_torch(path, head), path)
    return ExternalWeights(path, _plain(content, path), tuple(place), tuple(passed_over))


def load_torch_file(path: Path) -> Any:
    """What `torch.save` wrote, whatever it is, as far as it can be read without running code."""
    return _torch(path, _head(path))


def _head(path: Path) -> bytes:
    """The first bytes of a file that may hold weights."""
    if is_folder(path):
        raise BadFile(f"{path} is a folder", hint="name the file that holds the weights")
    try:
        with open_regular(path) as file:
            head = file.read(512)
    except OSError as error:
        raise BadFile(
            f"cannot read {path}: {error.strerror}", hint="name a file of weights, such as net.pt"
        ) from None
    if not head:
        raise BadFile(f"{path} is empty", hint=AGAIN)
    is_text = (
        b"\0" not in head
    )  # the length at the start of a safetensors file may happen to read ' <'
    if is_text and looks_like_a_page(head):
        raise BadFile(
            f"{path} is a web page, not weights",
            hint="download it again: the link leads to a page, which may want a login or a click",
        )
    if head.startswith(b"version https://git-lfs"):
        raise BadFile(
            f"{path} is a Git LFS pointer, not the weights it stands for",
            hint="fetch them with `git lfs pull`",
        )
    return head


def _safetensors(path: Path, head: bytes) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, UnicodeDecodeError) as error:
        if head.startswith((ZIP, *LEGACY)):
            raise BadFile(
                f"{path} is a file of torch's, not safetensors", hint="give it the ending .pt"
            ) from None
        raise BadFile(
            f"{path} is not a safetensors file, or only part of one: {error}", hint=AGAIN
        ) from None


def _torch(path: Path, head: bytes) -> Any:
    """What `torch.save` wrote, as far as it can be read without running code."""
    if head[8:9] == SAFETENSORS_START:
        raise BadFile(
            f"{path} is a safetensors file by another name", hint="give it the ending .safetensors"
        )
    if head.startswith(ZIP):
        _check_archive(path)
    elif not head.startswith(
        LEGACY
    ):  # torch would go on to formats of old, one of which runs code in old versions
        _refuse_code(path)
        raise BadFile(f"{path} is not a file of weights: torch.save did not write it", hint=PLAIN)
    try:
        with warnings.catch_warnings():  # what torch wants to tell about the file is told below
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if wanted := re.search(r"\bGLOBAL ([\w.]+)", str(error)):
            _refuse(path, wanted[1].rstrip("."))
        if isinstance(error, pickle.UnpicklingError):
            _refuse_code(path)
        raise BadFile(f"{path} is damaged, or only part of a file", hint=AGAIN) from error


def _check_archive(path: Path) -> None:
    """Refuse a zip archive that is cut short or damaged, that torch did not write, or that holds a program."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _check_members(entries, path)
            damaged = next((entry for entry in entries if not _is_sound(archive, entry)), None)
    except BROKEN:
        raise BadFile(
            f"{path} is damaged, or only part of a file: it is an archive without its end",
            hint=AGAIN,
        ) from None
    members = {entry.filename.partition("/")[2] for entry in entries}
    if "constants.pkl" in members:
        raise BadFile(
            f"{path} is a TorchScript program, which would have to be run to be read", hint=PLAIN
        )
    if "data.pkl" not in members:
        hint = "unpack it, and name the file of weights inside" if members else PLAIN
        raise BadFile(f"{path} is a zip archive, but not of torch's", hint=hint)
    if damaged is not None and not any(entry.CRC for entry in entries):
        raise BadFile(
            f"{path} has no checksums, so damage to it cannot be noticed",
            hint=f"save it again after {WITH_CRC}",
        )
    if damaged is not None:
        problem = f"{path} is damaged: the checksum (CRC) of {_shown(damaged.filename)} is wrong"
        raise BadFile(
            problem,
            hint=f"{AGAIN}; if it was saved without checksums, save it again after {WITH_CRC}",
        )


def _check_members(entries: Iterable[zipfile.ZipInfo], path: Path) -> None:
    """Refuse an archive whose directory claims what a file of this size does not hold, before any of it is unpacked."""
    entries, size = list(entries), path.stat().st_size
    unpacked = sum(entry.file_size for entry in entries)
    # members that share their bytes add up to more than the file
    is_bomb = unpacked > MOST_UNPACKED and unpacked > MOST_RATIO * size
    if is_bomb or sum(entry.compress_size for entry in entries) > size:
        raise BadFile(f"{path} claims to hold {unpacked:,} bytes in a file of {size:,}", hint=AGAIN)
    if len({entry.filename for entry in entries}) < len(entries):
        raise BadFile(f"{path} holds several members of one name", hint=AGAIN)


def _is_sound(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bool:
    """Return whether a member has the checksum that the archive states; torch itself does not verify it."""
    try:
        with archive.open(entry) as stream:
            while stream.read(BLOCK):
                pass
    except (zipfile.BadZipFile, zlib.error, EOFError):
        return False
    return True


def _refuse_code(path: Path) -> None:
    """Refuse a pickle that asks for a class or function, by its name; nothing is unpickled to find out."""
    for name in _globals(path):
        if not HARMLESS.fullmatch(name):
            _refuse(path, name)


def _refuse(path: Path, wanted: str) -> NoReturn:
    raise BadFile(
        f"{path} needs to run code: {_shown(wanted)}; it holds a whole model, or more than weights",
        hint=PLAIN,
    )


def _globals(path: Path) -> Iterator[str]:
    """Names of classes and functions that the pickles in a file ask for, as far as they can be followed."""
    try:
        if zipfile.is_zipfile(path):
            with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                for name in archive.namelist():
                    if name.endswith("/data.pkl"):
                        yield from _asked_for(io.BytesIO(archive.read(name)))
        else:
            with open_regular(path) as file:
                yield from _asked_for(file)
    except BROKEN:  # no longer a pickle: there is nothing more to follow
        return


def _asked_for(file: IO[bytes]) -> Iterator[str]:
    """The globals of up to five pickles in a row: torch's old files begin with three that only describe the fourth."""
    texts: list[str] = []
    for _ in range(5):
        for opcode, argument, _place in pickletools.genops(file):
            if opcode.name == "GLOBAL":
                yield str(argument).replace(" ", ".")
            elif opcode.name == "STACK_GLOBAL":  # module and name are the last two texts
                yield ".".join(texts[-2:])
            elif isinstance(argument, str):
                texts.append(argument)


def _unwrapped(content: Any, path: Path) -> tuple[Any, list[str], list[str]]:
    """The innermost content, the entries it stood under, and entries beside those that hold tensors too."""
    place: list[str] = []
    passed_over: list[str] = []
    for _ in range(DEEPEST):
        if isinstance(content, list | tuple) and len(content) == 1:
            content = content[0]
            continue
        found = [
            name
            for name in WRAPPERS
            if isinstance(content, Mapping)
            and isinstance(content.get(name), Mapping | list | tuple)
        ]
        if not found:
            return content, place, passed_over
        passed_over += [
            str(name)
            for name, entry in content.items()
            if name != found[0] and _holds_tensors(entry)
        ]
        place.append(found[0])
        content = content[found[0]]
    raise BadFile(f"{path} wraps its weights more than {DEEPEST} times", hint=PLAIN)


def _holds_tensors(entry: Any) -> bool:
    return isinstance(entry, Mapping) and any(isinstance(value, Tensor) for value in entry.values())


def _plain(content: Any, path: Path) -> dict[str, Tensor]:
    """A state dict: names, each with a dense tensor."""
    if not isinstance(content, Mapping):
        raise BadFile(
            f"{path} holds a {type(content).__name__} instead of weights by name", hint=PLAIN
        )
    if not _holds_tensors(content):
        entries = f"but {_few(content)}" if content else "it is an empty dict"
        known = ", ".join(WRAPPERS)
        raise BadFile(
            f"{path} holds no weights, {entries}",
            hint=f"weights stand at the top, or under one of {known}",
        )
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            problem = (
                f"{name!r} among the weights of {path} is a {type(value).__name__}, not a tensor"
            )
            raise BadFile(problem, hint=PLAIN)
        if not name.isprintable():
            raise BadFile(
                f"the name {name!r} among the weights of {path} cannot be shown", hint=PLAIN
            )
        if value.is_quantized or value.layout is not torch.strided or value.is_meta:
            raise BadFile(
                f"{name!r} in {path} is quantised, sparse or without content",
                hint="save dense weights in float32",
            )
    return {name: value.detach() for name, value in content.items()}


def _shown(name: object) -> str:
    """A name that a file gives, harmless to a terminal."""
    return str(name) if str(name).isprintable() else repr(name)


def _few(names: Iterable[object], shown: int = 5) -> str:
    """The first few names."""
    first = [_shown(name) for name in islice(names, shown + 1)]
    return ", ".join(first[:shown]) + (", …" if len(first) > shown else "")
