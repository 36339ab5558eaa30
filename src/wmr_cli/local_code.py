"""Import classes from Python files that the user has named: `path/to/file.py:Class`.

Importing a file runs it, so the user must have named it. A name that stands only in a checkpoint, a record, a config file or a
study is refused. Trust is bound to content: the SHA-256 of the file, together with the name of the class. The user grants it

* by naming the class on a command line, which is remembered in the state folder, or in a call from Python,
* by giving the hash of the file: `--trust-code SHA256`, or `trust_code=` in Python.

Modules that a local file imports from its own folder follow the same rule. They are trusted together with the file when the
user names it. Source files are compiled from the bytes that were hashed, never from a .pyc file.
"""

import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .errors import BadInput, UnknownName, UntrustedCode, WmrError, did_you_mean
from .reading import is_regular, read_bytes
from .spec import Spec, Value

WHOLE_FILE = ""
"""Grants every class of a file, and importing it."""
IMPORT = "-import"
"""Grants importing a file from a local one. No class can have this name."""
TRUST_CODE = "WMR_TRUST_CODE"
"""Environment variable with hashes of `--trust-code`, for the processes that a command starts."""

_granted: set[tuple[str, str]] = set()
"""What the user has named in this process: pairs of the SHA-256 of a file and a class, `IMPORT` or `WHOLE_FILE`."""
_named_files: dict[Path, bool] = {}
"""Files that the user has named in this process, resolved. What they import from their folder is trusted with them, and
remembered where the value is true."""


def state_folder() -> Path:
    """Return the folder with a marker file for everything that the user has named on a command line."""
    base = os.environ.get("XDG_STATE_HOME", "")
    # the specification ignores a relative path
    return (
        (Path(base) if Path(base).is_absolute() else Path("~/.local/state").expanduser())
        / "wmr"
        / "trusted-code"
    )


def trust_hashes(hashes: Iterable[str], *, remember: bool) -> list[str]:
    """Trust files by their SHA-256, given as text; return warnings about what could not be remembered."""
    found: list[str] = []
    for text in hashes:
        sha256 = text.lower().removeprefix("sha256:")
        if not re.fullmatch("[0-9a-f]{64}", sha256):
            raise BadInput(
                f"{text!r} is not a SHA-256",
                hint="it has 64 hexadecimal digits; `sha256sum FILE` prints that of a file",
            )
        found += _grant(sha256, WHOLE_FILE, remember=remember, path="")
        if remember:
            os.environ[TRUST_CODE] = " ".join({*os.environ.get(TRUST_CODE, "").split(), sha256})
    return found


def trust_named(specs: Iterable[str | Spec], *, remember: bool) -> list[str]:
    """Trust the local classes in specs that the user has written; return warnings about what could not be remembered."""
    found: list[str] = []
    for spec in specs:
        for name in local_names(Spec.parse(spec) if isinstance(spec, str) else spec):
            path, attribute = _parted(name)
            if is_regular(path):  # a missing file is reported by the import
                _named_files[path.resolve()] = remember or _named_files.get(path.resolve(), False)
                found += _grant(
                    _hash(_source(path)), attribute, remember=remember, path=str(path.absolute())
                )
    return found


def local_names(spec: Spec) -> Iterator[str]:
    """Yield every local class that a spec names: itself, nested specs, and text that a component may read as a spec."""
    if spec.is_local:
        yield spec.name
    for value in (*spec.params.values(), *([] if spec.value is None else [spec.value])):
        nested = _as_spec(value)
        if nested is not None:
            yield from local_names(nested)


def check(spec: Spec, kind: str | None = None) -> None:
    """Raise UntrustedCode if a spec names a local class that the user has not named. `kind` is that of the component."""
    for name in local_names(spec):
        path, attribute = _parted(name)
        if is_regular(path):
            _require(
                path, _hash(_source(path)), attribute, None if kind is None else f"--{kind} {name}"
            )


def check_commands(path: Path, what: str) -> None:
    """Raise UntrustedCode unless the user has given the hash of a file whose setting `what` holds commands to run."""
    sha256 = _hash(_source(path))
    if not _is_trusted(sha256, WHOLE_FILE):
        problem = f"{path}: {what} may run commands that only this file names"
        raise UntrustedCode(
            problem, hint=f"read the file; if you trust it, add --trust-code {sha256}"
        )


def load_class(name: str, kind: str | None = None) -> Callable[..., Any]:
    """Import `path/to/file.py:Class`, which the user must have named."""
    path, attribute = _parted(name)
    if not is_regular(path):
        raise BadInput(
            f"there is no file {str(path)!r}", hint="a local class is written path/to/file.py:Class"
        )
    check(Spec(name), kind)
    module = _import(path, attribute)
    if not hasattr(module, attribute):
        public = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise UnknownName(
            f"{str(path)!r} has no {attribute!r}", hint=did_you_mean(attribute, public)
        )
    found = getattr(module, attribute)
    if not callable(found):
        raise BadInput(
            f"{name} is a {type(found).__name__}",
            hint="name a class, or a function that builds the component",
        )
    return found  # type: ignore[no-any-return]


def _parted(name: str) -> tuple[Path, str]:
    path, _, attribute = name.rpartition(":")
    return Path(path), attribute


def _as_spec(value: Value) -> Spec | None:
    """Return a parameter as a spec, if it may be one that names a local class."""
    if isinstance(value, Spec):
        return value
    if ".py:" not in value:
        return None
    try:
        return Spec.parse(value)
    except BadInput:
        return None


def _source(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise BadInput(
            f"cannot read {path}: {error.strerror}", hint="a local class is in a Python file"
        ) from None


def _hash(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def _grant(sha256: str, what: str, *, remember: bool, path: str) -> list[str]:
    """Trust a file for this process and, with `remember`, for later ones; return a warning if the latter fails."""
    _granted.add((sha256, what))
    if not remember or _is_remembered(sha256, what):
        return []
    try:
        marker = state_folder() / _marker(sha256, what)
        marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        marker.write_text(f"{path}\n", encoding="utf-8", errors="surrogateescape")
    except (OSError, RuntimeError) as error:  # the latter where the home folder is not known
        return [f"cannot remember trusted code: {error}"]
    return []


def _marker(sha256: str, what: str) -> str:
    return sha256 if what == WHOLE_FILE else f"{sha256}.{what}"


def _is_trusted(sha256: str, what: str) -> bool:
    if sha256 in os.environ.get(TRUST_CODE, "").split():
        return True
    return any(
        (sha256, each) in _granted or _is_remembered(sha256, each) for each in (what, WHOLE_FILE)
    )


def _is_remembered(sha256: str, what: str) -> bool:
    try:
        return (state_folder() / _marker(sha256, what)).is_file()
    except (OSError, RuntimeError):  # not readable, or the home folder is not known
        return False


def _require(path: Path, sha256: str, what: str, named: str | None) -> None:
    if _is_trusted(sha256, what):
        return
    by_name = "" if named is None else f", or name it yourself: {named}"
    raise UntrustedCode(
        f"{path.absolute()} was not run: you have not named it, or it has changed since",
        hint=f"read this file; if you trust it, add --trust-code {sha256}{by_name}",
    )


def _import(path: Path, attribute: str) -> ModuleType:
    """Run a file as a module of its own name, once per process."""
    path = path.resolve()
    # by content as well: a file that was edited is another module
    identity = str(path).encode(errors="surrogateescape") + _source(path)
    module_name = f"wmr_local_{re.sub('[^0-9A-Za-z_]', '_', path.stem)}_{_hash(identity)}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    importer = _Importer(
        path.parent, grants=path in _named_files, remembers=_named_files.get(path, False)
    )
    spec = importlib.util.spec_from_file_location(
        module_name, path, loader=_CheckedLoader(module_name, path, attribute)
    )
    assert spec is not None  # a loader was given
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        # stdout is reserved for results
        with contextlib.redirect_stdout(sys.stderr), _finder.importing(importer):
            spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(module_name, None)
        if isinstance(error, WmrError) or not isinstance(error, Exception | SystemExit):
            raise
        raise BadInput(
            f"{path} cannot be imported: {type(error).__name__}: {error}", hint=_place(error)
        ) from error
    return module


def _place(error: BaseException) -> str:
    """Return a hint with the line that failed, in a file of the user."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"see line {error.lineno} of {error.filename}"
    lines = traceback.extract_tb(error.__traceback__)
    own = [
        line for line in lines if line.filename != __file__ and not line.filename.startswith("<")
    ]
    return f"see line {own[-1].lineno} of {own[-1].filename}" if own else "see the file"


class _CheckedLoader(SourceFileLoader):
    """Compile a source file from the bytes whose hash is trusted."""

    def __init__(self, fullname: str, path: Path, what: str) -> None:
        super().__init__(fullname, str(path))
        self._what = what

    def get_code(self, fullname: str) -> CodeType:
        source = _source(Path(self.path))
        _require(Path(self.path), _hash(source), self._what, None)
        code: CodeType = self.source_to_code(source, self.path)
        return code


@dataclass(frozen=True)
class _Importer:
    """The local file on whose behalf modules are imported."""

    folder: Path
    grants: bool
    """whether the user has named the file in this process, and so trusts what it imports from its folder"""
    remembers: bool


@dataclass(frozen=True)
class _Sibling:
    """A module that was found beside a local file."""

    folder: Path
    file: Path | None
    """None for a namespace package"""
    sha256: str = ""

    @property
    def is_current(self) -> bool:
        """Whether the file is as it was when it was imported."""
        return self.file is None or (
            self.file.is_file() and _hash(_source(self.file)) == self.sha256
        )


class _FolderFinder:
    """Find modules in the folder of a local file while that file is imported, and require that they are trusted, too.

    Submodules of packages that were found there are checked at any time, as they may be imported later. A package is known by
    the search locations that this finder gave it, so that a link inside it does not lead around the check, and installed
    packages are left alone even where they are installed below the folder.
    """

    def __init__(self) -> None:
        self._importers: list[_Importer] = []
        self._locations: dict[str, _Importer] = {}
        self._siblings: dict[str, _Sibling] = {}

    @contextlib.contextmanager
    def importing(self, importer: _Importer) -> Iterator[None]:
        """Let imports find modules of this folder before installed ones, as in a script that lies there."""
        importlib.invalidate_caches()
        if self not in sys.meta_path:
            # built-in and frozen modules come first, as they do for scripts
            position = (
                sys.meta_path.index(PathFinder)
                if PathFinder in sys.meta_path
                else len(sys.meta_path)
            )
            sys.meta_path.insert(position, self)
        if not self._importers:  # a module that is being imported must stay
            self._forget_others(importer.folder)
        self._importers.append(importer)
        try:
            yield
        finally:
            self._importers.pop()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module in a local folder, with a loader that checks it."""
        if path is None:
            return self._find_beside(fullname, target)
        owners = [self._locations[place] for place in path if place in self._locations]
        if not owners:
            return None
        # a package may have added folders to its path: what is found there is checked, too
        spec = PathFinder.find_spec(fullname, path, target)
        current = [
            importer for importer in self._importers[-1:] if importer.folder == owners[0].folder
        ]
        return None if spec is None else self._checked(spec, (current or owners)[0])

    def _find_beside(self, fullname: str, target: ModuleType | None) -> ModuleSpec | None:
        if not self._importers:
            return None
        importer = self._importers[-1]
        spec = PathFinder.find_spec(fullname, [str(importer.folder)], target)
        if spec is None or (_is_namespace(spec) and self._is_installed(fullname)):
            return None  # as for scripts, an installed module is preferred to a folder without __init__.py
        return self._checked(spec, importer)

    @staticmethod
    def _is_installed(fullname: str) -> bool:
        """Whether a module, and not only another namespace folder, has this name on the search path."""
        found = PathFinder.find_spec(fullname)
        return found is not None and not _is_namespace(found)

    def _checked(self, spec: ModuleSpec, importer: _Importer) -> ModuleSpec:
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations = list(spec.submodule_search_locations)
            self._locations |= dict.fromkeys(spec.submodule_search_locations, importer)
        if _is_namespace(spec) or spec.origin is None:  # nothing to run
            self._siblings[spec.name] = _Sibling(importer.folder, None)
            return spec
        file = Path(spec.origin)
        sha256 = _hash(_source(file))
        if importer.grants:
            _grant(sha256, IMPORT, remember=importer.remembers, path=str(file))
        _require(file, sha256, IMPORT, None)
        self._siblings[spec.name] = _Sibling(importer.folder, file, sha256)
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _CheckedLoader(spec.name, file, IMPORT)
        return spec

    def _forget_others(self, folder: Path) -> None:
        """Import modules again that another folder, or an earlier version of a file, has put in their place."""
        for name, sibling in list(self._siblings.items()):
            if sibling.folder != folder or not sibling.is_current:
                del self._siblings[name]
                sys.modules.pop(name, None)


def _is_namespace(spec: ModuleSpec) -> bool:
    return not spec.has_location


_finder = _FolderFinder()
