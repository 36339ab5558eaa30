"""What commands do before they start: trust code, load the registry, check component names."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..config import SPECS, EvaluateConfig, TrainConfig, default_data_dir
from ..errors import BadInput, BrokenContract
from ..spec import Spec
from .console import say

if TYPE_CHECKING:
    from ..registry import Registry


def find_data_dir(data_dir: Path | None) -> Path:
    """Return the folder of the datasets."""
    return data_dir or default_data_dir()


def trust_code(named: Iterable[str | None], hashes: Iterable[str] = (), *, quiet: bool) -> None:
    """Trust the local classes in these specs and the files with these hashes; remember both."""
    from ..local_code import trust_hashes, trust_named

    # typing a path is consent to run it; a path that only a file names needs its hash
    problems = trust_named([spec for spec in named if spec is not None], remember=True)
    for text in hashes:
        try:
            problems += trust_hashes([text], remember=True)
        except BadInput as problem:
            raise BadInput(f"`trust_code`: {problem}", hint=problem.hint) from None
    for text in dict.fromkeys(problems):
        say(text, quiet=quiet, is_warning=True)


def load_components(quiet: bool) -> "Registry":
    """Return everything that can be built by name; warn about plugins that cannot be used."""
    from ..plugins import load_plugins

    # one broken plugin must not keep users from everything else
    found = load_plugins()
    if found.broken:
        names = ", ".join(plugin.name for plugin in found.broken)
        say(f"not loaded: {names}; `wmr plugins` shows the reason", quiet=quiet, is_warning=True)
    return found.registry


def check_loggers(specs: Iterable[str], registry: "Registry") -> None:
    """Build each logger, before torch is imported: its package may be missing."""
    for spec in specs:
        registry.create("logger", spec)


def find_checkpoint(
    named: Path, config: EvaluateConfig, registry: "Registry", data_dir: Path
) -> tuple[Path | None, EvaluateConfig]:
    """Return the path of a CHECKPOINT; a plugin resolves one such as `hf:owner/name`.

    A plugin may find a model instead of a checkpoint, which becomes the setting `model`.
    """
    text = str(named)
    # an existing file is never a name
    if named.exists() or text.partition(":")[0] not in registry.names("checkpoint"):
        return named, config
    found = registry.create("checkpoint", text, root=data_dir)
    if isinstance(found, Path):
        return found, config
    if not isinstance(found, Spec):
        raise BrokenContract(
            f"checkpoint {text!r} is a {type(found).__name__}",
            hint="a place of checkpoints returns a Path, or the Spec of a model",
        )
    if config.model is not None:
        raise BadInput(f"`model` and {text!r} both name a model", hint="keep one of the two")
    return None, msgspec.structs.replace(config, model=str(found))


def canonical_config(config: TrainConfig, registry: "Registry") -> TrainConfig:
    """Check every component, and fill in the kernel's own alpha if none is given."""
    # parameters are checked before torch is imported, so a typo fails at once
    for kind in SPECS:
        registry.check(kind, getattr(config, kind))
    specs = {kind: registry.canonical_spec(kind, getattr(config, kind)) for kind in SPECS}
    if config.extra is not None:
        registry.check("dataset", config.extra)
        specs["extra"] = registry.canonical_spec("dataset", config.extra)
    config = msgspec.structs.replace(config, **specs)
    # stored with the run, so that a later change of the default does not change its meaning
    if config.alpha is None:
        alpha = registry.default("kernel", Spec.parse(config.kernel).name, "alpha")
        config = msgspec.structs.replace(config, alpha=alpha)
    return config
