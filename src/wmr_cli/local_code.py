"""Import classes from Python files that the user has named: `path/to/file.py:Class`.

Importing a file runs it, so that the user must have named the file. A name that appears only in a
checkpoint, a record, a config file or a study is refused: these files may come from other people.
Trust is bound to content, not to a path: to the SHA-256 of the file and the name of the class. The
user grants it

* by naming the class on a command line, which is remembered in the state folder, or in Python,
* by giving the hash of the file: `--trust-code SHA256`, or `trust_code=` in Python.

Modules that a local file imports from its own folder follow the same rule. They are trusted
together with the file when the user names it. Source files are compiled from the bytes that were
hashed, never from a .pyc file, which could hold other code.
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
"""Grants of this process: the SHA-256 of a file, and a class, `IMPORT` or `WHOLE_FILE`."""
_named_files: dict[Path, bool] = {}
"""Files that the user has named in this process, by resolved path, and whether to remember them.

Modules that they import from their folder are trusted, and remembered, together with them.
"""


def state_folder() -> Path:
    """Return the folder with one marker file for each grant that is remembered."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    # the XDG specification requires that a relative path is ignored
    if not base.is_absolute():
        base = Path("~/.local/state").expanduser()
    return base / "wmr" / "trusted-code"


def trust_hashes(hashes: Iterable[str], *, remember: bool) -> list[str]:
    """Trust files by their SHA-256; return warnings about grants that cannot be remembered."""
    warnings: list[str] = []
    for text in hashes:
        sha256 = text.lower().removeprefix("sha256:")
        if not re.fullmatch("[0-9a-f]{64}", sha256):
            raise BadInput(
                f"{text!r} is not a SHA-256",
                hint="it has 64 hexadecimal digits; `sha256sum FILE` prints that of a file",
            )
        warnings += _grant(sha256, WHOLE_FILE, remember=remember, path="")
        if remember:
            # child processes of a sweep must not depend on a state folder that may be read-only
            os.environ[TRUST_CODE] = " ".join({*os.environ.get(TRUST_CODE, "").split(), sha256})
    return warnings


def trust_named(specs: Iterable[str | Spec], *, remember: bool) -> list[str]:
    """Trust local classes in specs of the user; return warnings about grants not remembered."""
    warnings: list[str] = []
    for spec in specs:
        for name in local_names(Spec.parse(spec) if isinstance(spec, str) else spec):
            path, attribute = _split_name(name)
            # the import reports a missing file
            if not is_regular(path):
                continue
            resolved = path.resolve()
            _named_files[resolved] = remember or _named_files.get(resolved, False)
            sha256 = _hash(_read_source(path))
            warnings += _grant(sha256, attribute, remember=remember, path=str(path.absolute()))
    return warnings


def local_names(spec: Spec) -> Iterator[str]:
    """Yield every local class that a spec names: itself, and nested specs.

    Text that a component may parse as a spec counts as well.
    """
    if spec.is_local:
        yield spec.name
    values = list(spec.params.values())
    if spec.value is not None:
        values.append(spec.value)
    for value in values:
        nested = _as_spec(value)
        if nested is not None:
            yield from local_names(nested)


def check(spec: Spec, kind: str | None = None) -> None:
    """Raise UntrustedCode if a spec names a local class that the user has not named.

    `kind` is the setting with which the user could name it.
    """
    for name in local_names(spec):
        path, attribute = _split_name(name)
        if is_regular(path):
            setting = None if kind is None else f"`{kind}={name}`"
            _require(path, _hash(_read_source(path)), attribute, setting)


def check_commands(path: Path, setting: str) -> None:
    """Raise UntrustedCode unless the user has given the hash of a file.

    For files whose `setting` holds commands to run.
    """
    sha256 = _hash(_read_source(path))
    if not _is_trusted(sha256, WHOLE_FILE):
        raise UntrustedCode(
            f"{path}: {setting} may run commands that only this file names",
            hint=f"read the file; if you trust it, add `trust_code={sha256}`",
        )


def load_class(name: str, kind: str | None = None) -> Callable[..., Any]:
    """Import `path/to/file.py:Class`, which the user must have named."""
    path, attribute = _split_name(name)
    if not is_regular(path):
        raise BadInput(
            f"{str(path)!r} is not a file", hint="a local class is written path/to/file.py:Class"
        )
    check(Spec(name), kind)
    module = _import(path, attribute)
    if not hasattr(module, attribute):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise UnknownName(
            f"{str(path)!r} has no {attribute!r}", hint=did_you_mean(attribute, classes)
        )
    found = getattr(module, attribute)
    if not callable(found):
        raise BadInput(
            f"{name} is a {type(found).__name__}",
            hint="name a class, or a function that builds the component",
        )
    return found  # type: ignore[no-any-return]


def _split_name(name: str) -> tuple[Path, str]:
    path, _, attribute = name.rpartition(":")
    return Path(path), attribute


def _as_spec(value: Value) -> Spec | None:
    """Return a parameter as a spec if it may name a local class, else None."""
    if isinstance(value, Spec):
        return value
    if ".py:" not in value:
        return None
    try:
        return Spec.parse(value)
    except BadInput:
        return None


def _read_source(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise BadInput(
            f"cannot read {path}: {error.strerror}", hint="a local class is in a Python file"
        ) from None


def _hash(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def _grant(sha256: str, what: str, *, remember: bool, path: str) -> list[str]:
    """Trust a file in this process and, with `remember`, in later ones.

    Return a warning if it cannot be remembered.
    """
    _granted.add((sha256, what))
    if not remember or _is_remembered(sha256, what):
        return []
    try:
        marker = state_folder() / _marker_name(sha256, what)
        # the folder decides which code may run, so that only its owner may write to it
        marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # the name is the grant; the path inside only helps to read the folder
        marker.write_text(f"{path}\n", encoding="utf-8", errors="surrogateescape")
    # RuntimeError: the home folder is not known
    except (OSError, RuntimeError) as error:
        return [f"cannot remember trusted code: {error}"]
    return []


def _marker_name(sha256: str, what: str) -> str:
    return sha256 if what == WHOLE_FILE else f"{sha256}.{what}"


def _is_trusted(sha256: str, what: str) -> bool:
    if sha256 in os.environ.get(TRUST_CODE, "").split():
        return True
    return any(
        (sha256, each) in _granted or _is_remembered(sha256, each) for each in (what, WHOLE_FILE)
    )


def _is_remembered(sha256: str, what: str) -> bool:
    try:
        return (state_folder() / _marker_name(sha256, what)).is_file()
    # the folder is not readable, or the home folder is not known
    except (OSError, RuntimeError):
        return False


def _require(path: Path, sha256: str, what: str, setting: str | None) -> None:
    """Raise UntrustedCode unless a grant exists; `setting` is another way to give one."""
    if _is_trusted(sha256, what):
        return
    alternative = "" if setting is None else f", or name it yourself: {setting}"
    raise UntrustedCode(
        f"{path.absolute()} was not run: you have not named it, or it has changed since",
        hint=f"read this file; if you trust it, add `trust_code={sha256}`{alternative}",
    )


def _import(path: Path, attribute: str) -> ModuleType:
    """Run a file as a module with a unique name, once per process."""
    path = path.resolve()
    # the name contains the content: a file that was edited is another module
    identity = str(path).encode(errors="surrogateescape") + _read_source(path)
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
        # a half-imported module must not be found by the next import
        sys.modules.pop(module_name, None)
        if isinstance(error, WmrError) or not isinstance(error, Exception | SystemExit):
            raise
        raise BadInput(
            f"{path} cannot be imported: {type(error).__name__}: {error}",
            hint=_point_to_line(error),
        ) from error
    return module


def _point_to_line(error: BaseException) -> str:
    """Return a hint with the line of the user's file that failed."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"see line {error.lineno} of {error.filename}"
    lines = traceback.extract_tb(error.__traceback__)
    for line in reversed(lines):
        # skip this module and the frozen importlib
        if line.filename != __file__ and not line.filename.startswith("<"):
            return f"see line {line.lineno} of {line.filename}"
    return "see the file"


class _CheckedLoader(SourceFileLoader):
    """Compile a source file from the bytes whose hash is trusted."""

    def __init__(self, fullname: str, path: Path, what: str) -> None:
        super().__init__(fullname, str(path))
        self._what = what

    def get_code(self, fullname: str) -> CodeType:
        # not super(): that may read a .pyc, and would read the source a second time
        source = _read_source(Path(self.path))
        _require(Path(self.path), _hash(source), self._what, None)
        code: CodeType = self.source_to_code(source, self.path)
        return code


@dataclass(frozen=True)
class _Importer:
    """The local file on whose behalf modules are imported."""

    folder: Path
    grants: bool
    """Whether the user has named the file in this process, and so trusts its neighbours."""
    remembers: bool


@dataclass(frozen=True)
class _Sibling:
    """A module that was found beside a local file."""

    folder: Path
    file: Path | None
    """None for a namespace package."""
    sha256: str = ""

    @property
    def is_current(self) -> bool:
        """Whether the file has the content that was imported."""
        if self.file is None:
            return True
        return self.file.is_file() and _hash(_read_source(self.file)) == self.sha256


class _FolderFinder:
    """Find trusted modules in the folder of a local file while that file is imported.

    Submodules of packages that were found there are checked at any time, because they may be
    imported later. A package is recognised by the search locations that this finder gave it. So a
    link inside the package does not bypass the check, and packages that are installed below the
    folder are not affected.
    """

    def __init__(self) -> None:
        self._importers: list[_Importer] = []
        self._locations: dict[str, _Importer] = {}
        self._siblings: dict[str, _Sibling] = {}

    @contextlib.contextmanager
    def importing(self, importer: _Importer) -> Iterator[None]:
        """Let imports find modules of this folder before installed ones, as for a script."""
        importlib.invalidate_caches()
        if self not in sys.meta_path:
            # built-in and frozen modules come first, as they do for scripts
            position = len(sys.meta_path)
            if PathFinder in sys.meta_path:
                position = sys.meta_path.index(PathFinder)
            sys.meta_path.insert(position, self)
        # not in a nested import: its importer still needs its own modules
        if not self._importers:
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
        # a package may have added folders to its path: modules there are checked as well
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None:
            return None
        importer = owners[0]
        # a file that the user has named may grant more than the one that opened the package
        if self._importers and self._importers[-1].folder == importer.folder:
            importer = self._importers[-1]
        return self._add_check(spec, importer)

    def _find_beside(self, fullname: str, target: ModuleType | None) -> ModuleSpec | None:
        if not self._importers:
            return None
        importer = self._importers[-1]
        spec = PathFinder.find_spec(fullname, [str(importer.folder)], target)
        # as for scripts, an installed module has priority over a folder without __init__.py
        if spec is None or (_is_namespace(spec) and self._is_installed(fullname)):
            return None
        return self._add_check(spec, importer)

    @staticmethod
    def _is_installed(fullname: str) -> bool:
        """Return whether the search path has a module of this name, not only a folder."""
        found = PathFinder.find_spec(fullname)
        return found is not None and not _is_namespace(found)

    def _add_check(self, spec: ModuleSpec, importer: _Importer) -> ModuleSpec:
        """Require trust in a module, and let its loader verify the content again."""
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations = list(spec.submodule_search_locations)
            self._locations |= dict.fromkeys(spec.submodule_search_locations, importer)
        # a namespace package has no code to run
        if _is_namespace(spec) or spec.origin is None:
            self._siblings[spec.name] = _Sibling(importer.folder, None)
            return spec
        file = Path(spec.origin)
        sha256 = _hash(_read_source(file))
        if importer.grants:
            _grant(sha256, IMPORT, remember=importer.remembers, path=str(file))
        _require(file, sha256, IMPORT, None)
        self._siblings[spec.name] = _Sibling(importer.folder, file, sha256)
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _CheckedLoader(spec.name, file, IMPORT)
        return spec

    def _forget_others(self, folder: Path) -> None:
        """Forget modules of other folders and of earlier versions of a file.

        Neighbours have plain names in `sys.modules`: two folders may both have a `utils.py`.
        """
        for name, sibling in list(self._siblings.items()):
            if sibling.folder != folder or not sibling.is_current:
                del self._siblings[name]
                sys.modules.pop(name, None)


def _is_namespace(spec: ModuleSpec) -> bool:
    return not spec.has_location


_finder = _FolderFinder()
