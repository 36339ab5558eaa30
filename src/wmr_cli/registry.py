"""Component names and their targets. Listing imports nothing; building imports one target."""

import contextlib
import hashlib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from . import local_code
from .errors import BadInput, PluginError, UnknownName, WmrError, did_you_mean
from .spec import Spec, TypeHint, Value, read_value

KINDS = ("model", "dataset", "defense", "kernel", "attack", "verifier", "logger")
PROGRAM_KINDS = ("checkpoint", "command")
"""What plugins add to the program itself: places of checkpoints, and commands."""
ALL_KINDS = (*KINDS, *PROGRAM_KINDS)
OWN_COMMANDS = (
    "train", "evaluate", "attack", "import", "report", "sweep", "list", "schema", "plugins",
    "bench", "doctor",
)  # fmt: skip
"""Commands of the program, which a plugin cannot replace."""
OWN_DISTRIBUTION = "wmr-cli"
ENTRY_POINT_GROUP = "wmr"
INJECTED_PARAMS = {
    "model": ("num_classes", "input_shape"),
    "dataset": ("root", "split_seed"),
    "checkpoint": ("root",),
}
"""Parameters that the program fills in, by kind."""
SHARED_PARAMS: Mapping[str, Mapping[str, TypeHint]] = {
    "model": {"mean": tuple[float, ...], "std": tuple[float, ...]}
}
"""Parameters of every component of a kind. The program applies them if the target does not."""
PLUGIN_OF_NAME = {
    "awp": "wmr-awp",
    "crown": "wmr-certify",
    "hf": "wmr-huggingface",
    "ibp": "wmr-certify",
    "robustbench": "wmr-robustbench",
    "torchattacks": "wmr-torchattacks",
}
"""Names that the plugins in the repository would add."""
Component: TypeAlias = Any
"""What a target builds. Callers check it against the protocol of its kind."""


def suggest_plugin(name: str) -> str:
    """Return a hint to install the plugin that would add a name."""
    return f"install {PLUGIN_OF_NAME[name]}, from plugins/ in the repository of wmr"


@dataclass(frozen=True)
class Entry:
    """A name that a plugin registers."""

    name: str
    """Lower case, words joined by '-'."""
    target: str
    """`package.module:attribute`, imported when the component is built."""
    summary: str
    """Shown by `wmr list`."""
    params: Mapping[str, object] = field(default_factory=dict)
    """Parameters that this name sets, as defaults."""
    files: tuple[str, ...] = ()
    """Files that a dataset reads, relative to the data folder; `wmr list` shows if they exist."""
    pin: str = ""
    """`package.module:function` from a Spec to the Spec to store, such as one with a revision."""

    def problem(self) -> str | None:
        """Return why this entry cannot be registered, or None if it can."""
        if not all(isinstance(text, str) for text in (self.name, self.target, self.summary)):
            return f"name, target and summary of {self.name!r} must be text"
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            return f"{self.name!r} is not a name: lower case, words joined by '-'"
        if not re.fullmatch(r"[\w.]+:[\w.]+", self.target):
            return f"target {self.target!r} of {self.name!r} is not 'package.module:attribute'"
        if not isinstance(self.files, tuple) or not all(isinstance(f, str) for f in self.files):
            return f"files of {self.name!r} must be a tuple of text"
        if not isinstance(self.pin, str) or not re.fullmatch(r"([\w.]+:[\w.]+)?", self.pin):
            return f"pin {self.pin!r} of {self.name!r} is not 'package.module:attribute'"
        # typed as object: annotations of a plugin are not checked
        params: object = self.params
        if not isinstance(params, Mapping):
            return f"params of {self.name!r} must be a mapping"
        return None


@dataclass(frozen=True)
class Owned:
    """An entry and the plugin that registered it."""

    entry: Entry
    owner: str
    version: str


class Registry:
    """All registered names of all kinds, and how to build them."""

    def __init__(self) -> None:
        self._owned: dict[str, dict[str, Owned]] = {kind: {} for kind in ALL_KINDS}

    def add(self, offered: Iterable[tuple[str, Entry]], owner: str, version: str) -> None:
        """Register all entries of a plugin, or none: a name that is taken raises PluginError."""
        added: dict[tuple[str, str], Owned] = {}
        for kind, entry in offered:
            if kind == "command" and entry.name in OWN_COMMANDS:
                raise PluginError(
                    f"command {entry.name!r} of {owner} is one of {OWN_DISTRIBUTION} itself",
                    hint=f"uninstall {owner}",
                )
            taken = self._owned[kind].get(entry.name) or added.get((kind, entry.name))
            if taken:
                raise PluginError(
                    f"{kind} {entry.name!r} is registered by both {taken.owner} and {owner}",
                    hint="uninstall one of the two",
                )
            added[kind, entry.name] = Owned(entry, owner, version)
        # only after all names are checked: a plugin is registered as a whole
        for (kind, name), owned in added.items():
            self._owned[kind][name] = owned

    def names(self, kind: str) -> list[str]:
        """Return all names of a kind, sorted."""
        return sorted(self._owned[kind])

    def __iter__(self) -> Iterator[tuple[str, Owned]]:
        return ((kind, self._owned[kind][name]) for kind in ALL_KINDS for name in self.names(kind))

    def find(self, kind: str, name: str) -> Owned:
        """Return the entry of a name; an unknown name raises UnknownName with the nearest one."""
        known = self._owned[kind]
        if name not in known:
            if name in PLUGIN_OF_NAME:
                hint = suggest_plugin(name)
            elif known:
                hint = did_you_mean(name, known)
            else:
                # only verifiers are never built in
                hint = f"no {kind} is installed; the plugin wmr-certify has some"
            raise UnknownName(f"no {kind} is called {name!r}", hint=hint)
        return known[name]

    def check(self, kind: str, spec: str) -> None:
        """Raise UnknownName for a misspelt name or parameter, without building anything."""
        parsed = Spec.parse(spec)
        # before the target is imported, which runs the file
        local_code.check(parsed, kind)
        signature = _Signature.of(self.target(kind, parsed.name))
        for key in parsed.params:
            if key not in SHARED_PARAMS.get(kind, {}):
                signature.check(key, kind, parsed)

    def target(self, kind: str, name: str) -> Callable[..., Component]:
        """Import the class or function of a name: a registered one, or a local `file.py:Class`."""
        if Spec(name).is_local:
            return local_code.load_class(name, kind)
        owned = self.find(kind, name)
        return self._import(owned, kind, owned.entry.target)

    def _import(self, owned: Owned, kind: str, target: str) -> Callable[..., Component]:
        """Import a class or function of a plugin."""
        name = owned.entry.name
        module, _, attribute = target.partition(":")
        try:
            # stdout is reserved for results; a plugin may print while it is imported
            with contextlib.redirect_stdout(sys.stderr):
                found: Any = importlib.import_module(module)
            # an attribute of a class is a valid target, such as a class method
            for part in attribute.split("."):
                found = getattr(found, part)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise PluginError(
                f"{kind} {name!r} of {owned.owner} cannot be loaded: {reason}",
                hint="`wmr plugins --check` tries every name; ask the author of the plugin",
            ) from error
        if not callable(found):
            raise PluginError(
                f"{kind} {name!r} of {owned.owner}: {target} is not callable",
                hint="ask the author of the plugin",
            )
        return found  # type: ignore[no-any-return]

    def accepts(self, kind: str, name: str, parameter: str) -> bool:
        """Return whether a component can be called with this parameter."""
        return _Signature.of(self.target(kind, name)).accepts(parameter)

    def declares(self, kind: str, name: str, parameter: str) -> bool:
        """Return whether a component has a parameter of this name, not only `**options`."""
        return parameter in _Signature.of(self.target(kind, name)).names()

    def default(self, kind: str, name: str, parameter: str) -> Component:
        """Return the default of a parameter, or None if the parameter or its default is missing.

        Parameters that the name sets take precedence over defaults of the target.
        """
        entry_params = self._entry_params(kind, Spec(name))
        if parameter in entry_params:
            return entry_params[parameter]
        found = _Signature.of(self.target(kind, name)).parameters.get(parameter)
        if found is None or found.default is inspect.Parameter.empty:
            return None
        return found.default

    def create(self, kind: str, spec: Spec | str, **given: object) -> Component:
        """Build a component.

        Parameters of the entry come first, then those of the caller, then those of the spec. A
        parameter of the caller cannot be set in the spec.
        """
        spec = Spec.parse(spec) if isinstance(spec, str) else spec
        # nested specs are checked too: a component may build them at any later time
        local_code.check(spec, kind)
        target = self.target(kind, spec.name)
        signature = _Signature.of(target)
        entry_params = self._entry_params(kind, spec)
        # a misspelt keyword of a caller is refused like one in a spec, and text is read like there
        for key, value in given.items():
            signature.check(key, kind, spec)
            if isinstance(value, str):
                hint = signature.hint_of(key)
                given[key] = (
                    value if hint is Any else _read_param(kind, spec.name, key, value, hint)
                )
        written = _name_value(spec, signature, {*entry_params, *given})
        params = {**entry_params, **given}
        for key, value in written.items():
            if key in given:
                raise BadInput(
                    f"{key} of {kind} {spec.name!r} is set elsewhere", hint=f"leave out {key}=…"
                )
            signature.check(key, kind, spec)
            params[key] = _read_param(kind, spec.name, key, value, signature.hint_of(key))
        missing = signature.first_missing(params)
        if missing:
            # file.py:Class has a colon already
            separator = "," if spec.is_local else ":"
            example = f"{spec.name}{separator}{missing}=…"
            raise BadInput(f"{kind} {spec.name!r} needs {missing}", hint=f"write {example}")
        if spec.is_local:
            return _build_local(target, params, spec)
        return target(**params)

    def split_shared(self, kind: str, spec: Spec) -> tuple[Spec, dict[str, Any]]:
        """Split a spec into one for the target and the values of shared parameters.

        Shared parameters that the target accepts itself stay in its spec.
        """
        hints = {
            key: hint
            for key, hint in SHARED_PARAMS.get(kind, {}).items()
            if not self.accepts(kind, spec.name, key)
        }
        values = {
            key: _read_param(kind, spec.name, key, spec.params[key], hint)
            for key, hint in hints.items()
            if key in spec.params
        }
        return spec.without(*hints), values

    def canonical_spec(self, kind: str, spec: str) -> str:
        """Return a spec that means the same in any folder and at any time.

        Paths become absolute, and an entry with a function `pin` decides what is stored. A value
        without a key gets its key if it is a path, otherwise the spec stays as written.
        """
        parsed = Spec.parse(spec).absolute()
        local_code.check(parsed, kind)
        if not parsed.is_local:
            owned = self.find(kind, parsed.name)
            if owned.entry.pin:
                parsed = self._import(owned, kind, owned.entry.pin)(parsed)
        signature = _Signature.of(self.target(kind, parsed.name))
        # a value without a key never means a parameter that the program sets
        taken = {*self._entry_params(kind, parsed), *INJECTED_PARAMS.get(kind, ())}
        params = _name_value(parsed, signature, taken)
        absolute: dict[str, Value] = {}
        for key, value in params.items():
            hint = signature.hint_of(key)
            if hint in (Path, Path | None):
                path = _read_param(kind, parsed.name, key, value, hint)
                if isinstance(path, Path):
                    absolute[key] = str(path.absolute())
        return str(Spec(parsed.name, None, {**params, **absolute})) if absolute else str(parsed)

    def external_versions(self, specs: Mapping[str, str]) -> dict[str, str]:
        """Return the plugins (with version) and local files (with hash) that specs by kind use."""
        found = {}
        for kind, text in specs.items():
            spec = Spec.parse(text)
            signature = _Signature.of(self.target(kind, spec.name))
            files = [str(spec.params[key]) for key in spec.params if signature.hint_of(key) is Path]
            if spec.is_local:
                files.append(spec.name.rpartition(":")[0])
            for path in files:
                # a dataset has its own hash, and its files may be large
                if Path(path).is_file() and kind != "dataset":
                    found[path] = "sha256:" + hashlib.sha256(Path(path).read_bytes()).hexdigest()
            if not spec.is_local:
                owned = self.find(kind, spec.name)
                # the version of wmr itself is a field of its own in records
                if owned.owner != OWN_DISTRIBUTION:
                    found[owned.owner] = owned.version
        return found

    def _entry_params(self, kind: str, spec: Spec) -> Mapping[str, object]:
        """Return the parameters that a registered name sets; a local class has none."""
        return {} if spec.is_local else self.find(kind, spec.name).entry.params


@dataclass(frozen=True)
class _Signature:
    """The parameters that a target can be called with."""

    parameters: Mapping[str, inspect.Parameter]

    @classmethod
    def of(cls, target: Callable[..., Component]) -> "_Signature":
        try:
            return cls(inspect.signature(target, eval_str=True).parameters)
        except NameError:
            # annotations that are imported under TYPE_CHECKING only
            return cls(inspect.signature(target).parameters)
        except (TypeError, ValueError) as error:
            raise PluginError(
                f"{target!r} cannot be built by name: {error}", hint="name a class or a function"
            ) from None

    def names(self) -> list[str]:
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [name for name, parameter in self.parameters.items() if parameter.kind in named]

    def accepts(self, name: str) -> bool:
        kinds = [parameter.kind for parameter in self.parameters.values()]
        return inspect.Parameter.VAR_KEYWORD in kinds or name in self.names()

    def check(self, name: str, kind: str, spec: Spec) -> None:
        if self.accepts(name):
            return
        excluded = {name, *INJECTED_PARAMS.get(kind, ())}
        # without the name itself: a shared parameter that this target lacks is not a suggestion
        known = [
            key for key in (*self.names(), *SHARED_PARAMS.get(kind, ())) if key not in excluded
        ]
        hint = did_you_mean(name, known) if known else f"{spec.name} has no parameters"
        raise UnknownName(f"{kind} {spec.name!r} has no {name!r}", hint=hint)

    def hint_of(self, name: str) -> TypeHint:
        """Return the type hint of a parameter, or Any if it has none that can be evaluated."""
        if name not in self.parameters:
            return Any
        annotation = self.parameters[name].annotation
        if annotation is inspect.Parameter.empty or isinstance(annotation, str):
            return Any
        return annotation

    def first_free(self, taken: set[str], spec: Spec) -> str:
        free = [name for name in self.names() if name not in taken]
        if not free:
            raise BadInput(
                f"{spec.name!r} takes no value", hint=f"write {spec.name} alone, or key=value"
            )
        return free[0]

    def first_missing(self, params: Mapping[str, object]) -> str | None:
        for name in self.names():
            if name not in params and self.parameters[name].default is inspect.Parameter.empty:
                return name
        return None


def _name_value(spec: Spec, signature: _Signature, taken: set[str]) -> dict[str, Value]:
    """Return the parameters of a spec; a value without a key belongs to the first free one."""
    if spec.value is None:
        return dict(spec.params)
    key = signature.first_free({*taken, *spec.params}, spec)
    return {key: spec.value, **spec.params}


def _read_param(kind: str, name: str, key: str, value: Value, hint: TypeHint) -> object:
    """Convert the text of a parameter to its type; an error names the parameter."""
    try:
        return read_value(value, hint)
    except BadInput as problem:
        remedy = problem.hint or f"`wmr list {kind}s` lists them; the documentation has their keys"
        raise BadInput(f"{key} of {kind} {name!r}: {problem}", hint=remedy) from None


def _build_local(
    target: Callable[..., Component], params: Mapping[str, object], spec: Spec
) -> Component:
    """Build a local class; an error in it becomes BadInput with the line that failed."""
    try:
        return target(**params)
    except WmrError:
        raise
    except (Exception, SystemExit) as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{spec.name} cannot be built: {type(error).__name__}: {error}"
        raise BadInput(problem, hint=f"see line {line.lineno} of {line.filename}") from error
