"""Read weights that another program saved, without running any of its code.

A file is a safetensors file, or a state dict that `torch.save` wrote. `torch.load` is called with
`weights_only=True`, and only after the checks of this module: its restricted unpickler is a second
line of defence. The first bytes are inspected before anything parses the file, because most files
that fail to load are failed downloads.
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
from typing import IO, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.data.downloads import looks_like_html
from ..errors import BadFile
from ..reading import is_folder, open_regular

WRAPPER_KEYS = ("state_dict", "model_state_dict", "model", "net", "network", "module", "weights")
"""Entries of a file that may hold the weights, in order of preference."""
MAX_WRAPPERS = 20
"""Wrappers that are opened inside each other. A pickle may contain itself."""
ZIP_MAGIC = b"PK\x03\x04"
SAFETENSORS_HEADER_START = b"{"
"""Byte 8 of a safetensors file: the header is JSON, after its length in 8 bytes."""
# Before zip archives, torch began a file with a pickled magic number, in pickle protocol 2 or 3.
LEGACY_MAGIC = tuple(
    b"\x80" + bytes([protocol]) + b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." for protocol in (2, 3)
)
HARMLESS_GLOBAL = re.compile(r"collections\.OrderedDict|torch\._utils\.\w+|torch\.\w*Storage")
"""Globals that a pickle of plain tensors refers to."""
MAX_LEGACY_PICKLES = 5
"""A legacy file has three pickles of metadata, the content, and the list of storages."""
DAMAGE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    OverflowError,
    MemoryError,
    OSError,
    EOFError,
    RuntimeError,
)
"""Exceptions of the readers of zip archives and pickles for a damaged file."""
# torch does not compress, so an archive beyond both limits is not a file of weights
MAX_UNPACKED_BYTES = 2**30
MAX_COMPRESSION_RATIO = 100
BLOCK_BYTES = 2**20
AGAIN_HINT = "download or copy it again from where it came"
PLAIN_HINT = (
    "where it came from, save plain weights: torch.save(model.state_dict(), …), "
    "or save_file(…) of safetensors"
)
WITH_CRC = "torch.serialization.set_crc32_options(True)"


@dataclass(frozen=True)
class ExternalWeights:
    """Weights by name, in the order of the file."""

    path: Path
    tensors: Mapping[str, Tensor]
    wrappers: tuple[str, ...] = ()
    """Keys of the wrappers around the weights, from the outside in."""
    ignored: tuple[str, ...] = ()
    """Keys of other entries that hold tensors."""
    keeps_order: bool = True
    """Whether the order is that of the model's layers; safetensors sorts by name."""


def read_weights(path: Path) -> ExternalWeights:
    """Read the weights of a file; raise BadFile if it does not hold plain weights."""
    head = _read_head(path)
    if path.suffix == ".safetensors":
        tensors = _check_state_dict(_load_safetensors(path, head), path)
        return ExternalWeights(path, tensors, keeps_order=False)
    content, wrappers, ignored = _unwrap(_load_torch(path, head), path)
    return ExternalWeights(path, _check_state_dict(content, path), wrappers, ignored)


def load_torch_file(path: Path) -> object:
    """Return what `torch.save` wrote, of any structure; raise BadFile if that needs code to run."""
    return _load_torch(path, _read_head(path))


def _read_head(path: Path) -> bytes:
    """Return the first bytes of a file; refuse files that cannot hold weights."""
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
        raise BadFile(f"{path} is empty", hint=AGAIN_HINT)
    # a safetensors file starts with a length, whose bytes may happen to be " <" and zeros
    is_text = b"\0" not in head
    if is_text and looks_like_html(head):
        raise BadFile(
            f"{path} is a web page, not weights",
            hint="download it again: the link leads to a page, which may need a login or a click",
        )
    if head.startswith(b"version https://git-lfs"):
        raise BadFile(
            f"{path} is a Git LFS pointer, not the weights",
            hint="fetch them with `git lfs pull`",
        )
    return head


def _load_safetensors(path: Path, head: bytes) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, UnicodeDecodeError) as error:
        if head.startswith((ZIP_MAGIC, *LEGACY_MAGIC)):
            raise BadFile(
                f"{path} was written by torch.save, not by safetensors", hint="rename it to .pt"
            ) from None
        raise BadFile(
            f"{path} is not a safetensors file, or only part of one: {error}", hint=AGAIN_HINT
        ) from None


def _load_torch(path: Path, head: bytes) -> object:
    """Return what `torch.save` wrote, as far as it can be read without running code."""
    if head[8:9] == SAFETENSORS_HEADER_START:
        raise BadFile(f"{path} is a safetensors file", hint="rename it to .safetensors")
    if head.startswith(ZIP_MAGIC):
        _check_archive(path)
    elif not head.startswith(LEGACY_MAGIC):
        # torch would try older formats, one of which runs code in old versions of torch
        _refuse_code(path)
        raise BadFile(f"{path} was not written by torch.save", hint=PLAIN_HINT)
    try:
        with warnings.catch_warnings():
            # torch warns about files that are refused below anyway
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch names the global that its unpickler refused only in the text of its error
        if refused := re.search(r"\bGLOBAL ([\w.]+)", str(error)):
            _refuse_global(path, refused[1].rstrip("."))
        if isinstance(error, pickle.UnpicklingError):
            _refuse_code(path)
        raise BadFile(f"{path} is damaged, or only part of a file", hint=AGAIN_HINT) from error


def _check_archive(path: Path) -> None:
    """Refuse a zip archive that is damaged, not of torch, or a TorchScript program."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            # sizes first: a zip bomb must not be unpacked to compute its checksums
            _check_sizes(entries, path)
            damaged = next((entry for entry in entries if not _matches_crc(archive, entry)), None)
    except DAMAGE_ERRORS:
        raise BadFile(
            f"{path} is damaged, or only part of a file: it is an archive without its end",
            hint=AGAIN_HINT,
        ) from None
    members = {entry.filename.partition("/")[2] for entry in entries}
    if "constants.pkl" in members:
        raise BadFile(
            f"{path} is a TorchScript program, which has to be run to be read", hint=PLAIN_HINT
        )
    if "data.pkl" not in members:
        hint = "unpack it, and name the file of weights inside" if members else PLAIN_HINT
        raise BadFile(f"{path} is a zip archive, but not one of torch.save", hint=hint)
    if damaged is None:
        return
    # torch can omit the checksums: all of them are zero then
    if not any(entry.CRC for entry in entries):
        raise BadFile(
            f"{path} has no checksums, so that damage cannot be detected",
            hint=f"save it again after {WITH_CRC}",
        )
    raise BadFile(
        f"{path} is damaged: the checksum (CRC) of {_escape(damaged.filename)} does not match",
        hint=f"{AGAIN_HINT}; if it was saved without checksums, save it again after {WITH_CRC}",
    )


def _check_sizes(entries: Iterable[zipfile.ZipInfo], path: Path) -> None:
    """Refuse an archive whose directory claims more than a file of this size can hold."""
    entries = list(entries)
    file_size = path.stat().st_size
    unpacked = sum(entry.file_size for entry in entries)
    is_bomb = unpacked > MAX_UNPACKED_BYTES and unpacked > MAX_COMPRESSION_RATIO * file_size
    # members that overlap add up to more than the file
    overlap = sum(entry.compress_size for entry in entries) > file_size
    if is_bomb or overlap:
        raise BadFile(
            f"{path} claims to hold {unpacked:,} bytes in a file of {file_size:,}", hint=AGAIN_HINT
        )
    # of two members with one name, torch may read another one than the one that was checked
    if len({entry.filename for entry in entries}) < len(entries):
        raise BadFile(f"{path} holds several members of one name", hint=AGAIN_HINT)


def _matches_crc(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bool:
    """Return whether a member has the checksum in the archive; torch does not verify it."""
    try:
        with archive.open(entry) as stream:
            # zipfile compares the checksum at the end of the member
            while stream.read(BLOCK_BYTES):
                pass
    except (zipfile.BadZipFile, zlib.error, EOFError):
        return False
    return True


def _refuse_code(path: Path) -> None:
    """Refuse a pickle that refers to a class or function. Nothing is unpickled to find out."""
    for name in _list_globals(path):
        if not HARMLESS_GLOBAL.fullmatch(name):
            _refuse_global(path, name)


def _refuse_global(path: Path, name: str) -> NoReturn:
    raise BadFile(
        f"{path} needs to run code: {_escape(name)}; it holds a whole model, or more than weights",
        hint=PLAIN_HINT,
    )


def _list_globals(path: Path) -> Iterator[str]:
    """Yield the classes and functions that the pickles of a file refer to, until damage."""
    try:
        if zipfile.is_zipfile(path):
            with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                for name in archive.namelist():
                    if name.endswith("/data.pkl"):
                        yield from _list_pickled_globals(io.BytesIO(archive.read(name)))
        else:
            with open_regular(path) as file:
                yield from _list_pickled_globals(file)
    except DAMAGE_ERRORS:
        # the opcodes after the damage cannot be parsed
        return


def _list_pickled_globals(file: IO[bytes]) -> Iterator[str]:
    """Yield the globals of a few consecutive pickles, by parsing their opcodes."""
    texts: list[str] = []
    for _ in range(MAX_LEGACY_PICKLES):
        for opcode, argument, _position in pickletools.genops(file):
            if opcode.name == "GLOBAL":
                yield str(argument).replace(" ", ".")
            elif opcode.name == "STACK_GLOBAL":
                # module and name are on the stack: usually the last two texts
                yield ".".join(texts[-2:])
            elif isinstance(argument, str):
                texts.append(argument)


def _unwrap(content: object, path: Path) -> tuple[object, tuple[str, ...], tuple[str, ...]]:
    """Return the innermost content, the keys of its wrappers, and keys of ignored tensors."""
    wrappers: list[str] = []
    ignored: list[str] = []
    for _ in range(MAX_WRAPPERS):
        if isinstance(content, list | tuple) and len(content) == 1:
            content = content[0]
            continue
        key = _find_wrapper(content)
        if key is None or not isinstance(content, Mapping):
            return content, tuple(wrappers), tuple(ignored)
        for name, entry in content.items():
            if name != key and _holds_tensors(entry):
                ignored.append(str(name))
        wrappers.append(key)
        content = content[key]
    raise BadFile(f"{path} wraps its weights more than {MAX_WRAPPERS} times", hint=PLAIN_HINT)


def _find_wrapper(content: object) -> str | None:
    """Return the key under which a file holds its weights, or None if it has no such key."""
    if not isinstance(content, Mapping):
        return None
    for key in WRAPPER_KEYS:
        # some files store the name of the model as text under "model"
        if isinstance(content.get(key), Mapping | list | tuple):
            return key
    return None


def _holds_tensors(entry: object) -> bool:
    return isinstance(entry, Mapping) and any(isinstance(value, Tensor) for value in entry.values())


def _check_state_dict(content: object, path: Path) -> dict[str, Tensor]:
    """Return a state dict of dense tensors by name; raise BadFile for anything else."""
    if not isinstance(content, Mapping):
        raise BadFile(
            f"{path} holds a {type(content).__name__} instead of weights by name", hint=PLAIN_HINT
        )
    if not _holds_tensors(content):
        entries = f"but {_abbreviate(content)}" if content else "it is an empty dict"
        raise BadFile(
            f"{path} holds no weights, {entries}",
            hint=f"weights must be at the top, or under one of {', '.join(WRAPPER_KEYS)}",
        )
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise BadFile(
                f"{name!r} among the weights of {path} is a {type(value).__name__}, not a tensor",
                hint=PLAIN_HINT,
            )
        # messages contain names, and control characters could change the user's terminal
        if not name.isprintable():
            raise BadFile(
                f"the name {name!r} among the weights of {path} is not printable", hint=PLAIN_HINT
            )
        if value.is_quantized or value.layout is not torch.strided or value.is_meta:
            raise BadFile(
                f"{name!r} in {path} is quantised, sparse or without content",
                hint="save dense weights in float32",
            )
    # detached: parameters were saved with requires_grad
    return {name: value.detach() for name, value in content.items()}


def _escape(name: object) -> str:
    """Return a name of a file without control characters, which could change the terminal."""
    return str(name) if str(name).isprintable() else repr(name)


def _abbreviate(names: Iterable[object], count: int = 5) -> str:
    """Return the first names as text."""
    first = [_escape(name) for name in islice(names, count + 1)]
    ending = ", …" if len(first) > count else ""
    return ", ".join(first[:count]) + ending
