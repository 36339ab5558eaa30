"""Write the parts of the pages that come from the program: `python docs/generate.py`; with `--check`, compare and exit 1.

A page marks such a part itself: what stands between `<!-- generated: NAME -->` and `<!-- end -->` is replaced. The rest of
the page is written by hand.
"""

import ast
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec
import typer

import wmr_cli
from wmr_cli import measures, presets
from wmr_cli.cli import app
from wmr_cli.config import resolve
from wmr_cli.core.traits import ALWAYS_PROVIDED, KernelTraits
from wmr_cli.plugins import installed
from wmr_cli.registry import INJECTED_PARAMS, KINDS, OWN_DISTRIBUTION, Entry
from wmr_cli.spec import Spec, format_number
from wmr_cli.storage.records import Record, load_field_descriptions

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "wmr_cli"
WIDTH = 100
BLOCK = re.compile(
    r"(?P<begin><!-- generated: (?P<name>\w+) -->\n).*?(?P<end><!-- end -->\n)", re.DOTALL
)


def commands() -> Iterator[str]:
    """The help of every command in plain text. Typer's own formatter at a fixed width: no terminal, no colour."""
    for path, text in helps():
        yield f"## {path}\n\n```text\n{text}\n```\n"


def helps() -> Iterator[tuple[str, str]]:
    """Every command with its help, groups before their members."""
    return _helps(typer.main.get_command(app), "wmr", None)


def _helps(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    command.rich_markup_mode = None
    context = command.context_class(command, info_name=name, parent=parent, terminal_width=WIDTH)
    yield (
        context.command_path,
        "\n".join(line.rstrip() for line in command.get_help(context).splitlines()),
    )
    inner = getattr(command, "commands", {})
    for member in command.list_commands(context) if inner else ():
        if not inner[member].hidden:
            yield from _helps(inner[member], member, context)


def methods() -> Iterator[str]:
    """Every built-in name by kind: its summary, its docstring, its parameters with their defaults."""
    for kind in KINDS:
        targets = ours(kind)
        yield f"## {'Data set' if kind == 'dataset' else kind.capitalize()}s\n"
        if kind in ("defense", "kernel"):
            yield "[Defenses and weightings](defenses.md) compares them, and explains the signs and words in use here.\n"
        yield _table(
            ("name", "what it is"),
            [(f"`{entry.name}`", _prose(entry.summary)) for entry, _ in targets],
        )
        yield from (_method(kind, entry, target) for entry, target in targets)


def ours(kind: str) -> list[tuple[Entry, Callable[..., Any]]]:
    """The built-in entries of a kind, each with what stands behind it."""
    registry = installed().registry
    entries = [
        owned.entry for of, owned in registry if of == kind and owned.owner == OWN_DISTRIBUTION
    ]
    return [(entry, registry.target(kind, entry.name)) for entry in entries]


def _method(kind: str, entry: Entry, target: Callable[..., Any]) -> str:
    given = INJECTED_PARAMS.get(kind, ())
    rows = [
        (
            f"`{name}`",
            _default(entry.params.get(name, parameter.default)),
            _words(parameter.annotation),
        )
        for name, parameter in inspect.signature(target, eval_str=True).parameters.items()
        if name not in given and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    parameters = _table(("parameter", "default", "value"), rows) if rows else "No parameters.\n"
    prose, found = fields(inspect.getdoc(target) or "")
    listed = "".join(f"* {name}: {_cited(text)}\n" for name, text in found.items())
    return "\n\n".join(
        filter(None, (f"### `{entry.name}`", _prose(prose), listed.strip(), parameters))
    )


_FIELD = re.compile(
    r"^(Objective|Weight|Cost|Good for|Reference): (.*(?:\n[ \t]+.*)*)\n?", re.MULTILINE
)


def fields(docstring: str) -> tuple[str, dict[str, str]]:
    """The prose of a docstring, and its fields such as `Cost: K + 1`, which may go on on indented lines."""
    found = {name: " ".join(text.split()) for name, text in _FIELD.findall(docstring)}
    return _FIELD.sub("", docstring).strip(), found


def defenses() -> Iterator[str]:
    """Every built-in defense in one table."""
    rows = []
    for entry, target in ours("defense"):
        found = fields(inspect.getdoc(target) or "")[1]
        weighed = _weighed(found["Objective"], target)
        cells = (
            found["Objective"],
            weighed,
            found["Cost"],
            found["Good for"],
            found.get("Reference", ""),
        )
        rows.append((_anchored(entry.name), *map(_cited, cells)))
    yield _table(("name", "objective", "weights", "passes", "good for", "reference"), rows)


def _weighed(objective: str, target: Callable[..., Any]) -> str:
    """Which term of the loss carries the weights, and whether the attack climbs them."""
    term = re.search(r"weight\(x'?\) \* (\w+\((?:[^()]|\([^()]*\))*\))", objective)
    assert term, f"{objective} has no weight"
    choice = " or as `terms` says" if "terms" in inspect.signature(target).parameters else ""
    if target().traits.shares_gradient:
        return f"`{term[1]}`{choice}; the attack, by the same gradient"
    return f"`{term[1]}`{choice}" + (
        "; the attack" if re.search(r"weight \* |the same", objective) else ""
    )


def kernels() -> Iterator[str]:
    """Every built-in kernel in one table."""
    rows = []
    for entry, target in ours("kernel"):
        found = fields(inspect.getdoc(target) or "")[1]
        cells = (
            found["Weight"],
            found["Good for"],
            found.get("Reference", ""),
            ", ".join(uses(target)),
        )
        rows.append((_anchored(entry.name), *map(_cited, cells)))
    yield _table(("name", "weight", "good for", "reference", "usable in"), rows)


def digits_study() -> Iterator[str]:
    """What `studies/digits_defenses.py` has found, the most robust first."""
    found = json.loads(
        (DOCS.parent / "studies" / "digits_defenses.json").read_text(encoding="utf-8")
    )
    rows = []
    for defense in sorted(found, key=lambda name: -fmean(found[name]["a_rob"])):
        shares = (found[defense][name] for name in ("a_nat", "a_rob", "a_sa", "a_tr"))
        spread = [f"{100 * fmean(values):.1f} ± {100 * stdev(values):.1f}" for values in shares]
        rows.append((_anchored(defense), *spread, f"{found[defense]['cost']:.1f}"))
    yield _table(("defense", "A_nat", "A_rob", "A_sa(2)", "A_tr(2)", "time"), rows)


def alpha_study() -> Iterator[str]:
    """What `studies/digits_alpha.py` has found: what the log says of the weights, and what the test images say."""
    found = json.loads((DOCS.parent / "studies" / "digits_alpha.json").read_text(encoding="utf-8"))
    rows = []
    for defense, by_alpha in found.items():
        for alpha, seen in by_alpha.items():
            mean = {name: fmean(values) for name, values in seen.items()}
            health = (
                f"{mean['weight_mean']:.2f}",
                f"{mean['weight_max']:.3g}",
                f"{100 * mean['weight_ess']:.0f} %",
            )
            names = ("a_nat", "a_rob", "a_rob_worst", "a_sa", "a_sa_calibrated", "a_tr")
            spread = (f"{100 * mean[name]:.1f} ± {100 * stdev(seen[name]):.1f}" for name in names)
            rows.append((_anchored(defense), alpha, *health, *spread))
    shares = ("A_nat", "A_rob", "A_rob, worst", "A_sa(2)", "A_sa(2), calibrated", "A_tr(2)")
    yield _table(("defense", "α", "mean weight", "largest", "ESS", *shares), rows)


def preset_alphas() -> Iterator[str]:
    """The α that each preset gives to the two defenses of the paper, and the α_test of its evaluation."""
    rows = []
    for name in presets.names():
        configs = [resolve({"preset": name, "defense": defense}) for defense in ("pgd", "trades")]
        alphas, tested = (
            (format_number(config.alpha or 0) for config in configs),
            map(format_number, configs[0].evaluate.alpha_test),
        )
        rows.append((f"[`{name}`](presets.md#{name.replace('/', '')})", *alphas, ", ".join(tested)))
    yield _table(("preset", "`pgd`", "`trades`", "α_test"), rows)


def uses(kernel: Any) -> Iterator[str]:
    """Where a kernel can weigh, by what its class says of itself."""
    declared = kernel.traits
    # a property depends on parameters: build the kernel with its defaults
    traits = declared if isinstance(declared, KernelTraits) else kernel().traits
    compares = traits.compares_images
    burn_in = traits.start_epoch
    rare = sorted(name.replace("_", " ") for name in traits.needs - ALWAYS_PROVIDED)
    known = f" with a defense that knows {' and '.join(rare)}" if rare else ""
    yield (
        "training"
        + " over the batch" * compares
        + f" after {burn_in} epochs" * bool(burn_in)
        + known
    )
    if traits.differentiable and not (compares or traits.needs - {"loss"}):
        yield "weighted attack"
    if traits.usable_as_metric and not rare:
        yield "evaluate" + " over all images" * compares


def _anchored(name: str) -> str:
    return f"[`{name}`](methods.md#{name})"


def _cited(text: str) -> str:
    """Prose whose papers are links."""
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", _prose(text))


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "to be given"
    if isinstance(value, tuple | list):
        return f"`{':'.join(_plain(part) for part in value)}`" if value else "none"
    return "none" if value in (None, "") else f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return format_number(value) if isinstance(value, float) else str(value)


_WORDS = {float: "number", int: "whole number", str: "text", bool: "true or false", Path: "path", Spec: "component",
          types.NoneType: "none", inspect.Parameter.empty: "", Any: "anything"}  # fmt: skip


def _words(kind: Any) -> str:
    """A parameter's type as a user thinks of it."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(part) for part in inner)
    if origin in (tuple, list):
        return f"{_words(inner[0])}s, joined by colons"
    return _WORDS.get(kind, str(kind))


def settings() -> Iterator[str]:
    """Every preset: its summary and its file."""
    for name in presets.names():
        file = resources.files(presets).joinpath(f"{name}.toml")
        text = file.read_text(encoding="utf-8").strip()
        yield f"## `{name}`\n\n{presets.load(name)['summary']}.\n\n```toml\n{text}\n```\n"


def record() -> Iterator[str]:
    """The fields of a record and of the parts inside it, each with type and meaning."""
    meanings = load_field_descriptions()
    for struct in structs(Record):
        fields = typing.get_type_hints(struct)
        said = meanings.pop(struct.__name__, {})
        if said.keys() != fields.keys():
            raise SystemExit(
                f"record_fields.toml, [{struct.__name__}]: mend {', '.join(sorted(said.keys() ^ fields.keys()))}"
            )
        rows = [(f"`{name}`", _json(fields[name]), said[name]) for name in struct.__struct_fields__]
        yield f"### {struct.__name__}\n\n{_prose(inspect.getdoc(struct) or '')}\n\n{_table(('field', 'type', 'meaning'), rows)}"
    if meanings:
        raise SystemExit(f"record_fields.toml explains what is not there: {', '.join(meanings)}")


def structs(struct: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """A struct and those inside it, in the order in which a reader meets them."""
    found = [struct]
    for kind in typing.get_type_hints(struct).values():
        for part in _parts(kind):
            found += [inner for inner in structs(part) if inner not in found]
    return found


def _parts(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for inner in typing.get_args(kind):
        yield from _parts(inner)


def _json(kind: Any) -> str:
    """A field's type as JSON has it; parts of a record link to their section."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_json(part) for part in inner)
    if origin is list:
        item = _json(inner[0])
        return f"list of {item}" if item.endswith(")") else f"list of {item}s"
    return "object" if origin is dict else {types.NoneType: "null"}.get(kind) or _words(kind)


PYTHON = ("load", "create", "evaluate", "Result")
MEASURES = (
    "Estimate", "plain_accuracy", "weighted_accuracy", "exponential_log_weights", "probability_margins", "tempered_accuracy",
    "calibrated_accuracy", "calibrated_losses", "calibrating_temperature", "worst_case", "worst_accuracy", "bootstrap",
    "RunningAccuracy",
)  # fmt: skip
"""What a notebook begins with; the module has more."""


def python() -> Iterator[str]:
    """The public functions and classes, each with its signature, its docstring and its members."""
    for module, names in ((wmr_cli, PYTHON), (measures, MEASURES)):
        yield f"### `{module.__name__}`\n"
        yield from (_public(name, getattr(module, name)) for name in names)


def _public(name: str, found: Any) -> str:
    is_class = inspect.isclass(found)
    head = f"#### `{name}`\n\n" + (
        "" if is_class else f"```text\n{_signature(name, found)}\n```\n\n"
    )
    members = (
        [_member(key, value) for key, value in vars(found).items() if not key.startswith("_")]
        if is_class
        else []
    )
    listed = "".join(f"* {line}\n" for line in members if line)
    return head + _prose(inspect.getdoc(found) or "") + "\n" + (f"\n{listed}" if listed else "")


def _member(name: str, value: Any) -> str:
    """`.compute()`: what it is; nothing for a field, which the docstring of its class explains."""
    value = value.__func__ if isinstance(value, classmethod) else value
    if isinstance(value, property):
        return f"`{name}`: {_prose(inspect.getdoc(value) or '')}" if value.__doc__ else ""
    if not inspect.isfunction(value):
        return ""
    own = [
        parameter
        for parameter in inspect.signature(value).parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    return f"`{name}({', '.join(map(_bare, own))})`: {_prose(inspect.getdoc(value) or '')}"


def _bare(parameter: inspect.Parameter) -> str:
    return str(parameter.replace(annotation=inspect.Parameter.empty))


def _signature(name: str, function: Callable[..., Any]) -> str:
    """A signature without its types, which prose and editors tell better; a line for each parameter where one is too long."""
    parameters = list(inspect.signature(function).parameters.values())
    texts = [_bare(parameter) for parameter in parameters]
    named = next(
        (at for at, one in enumerate(parameters) if one.kind is inspect.Parameter.KEYWORD_ONLY),
        None,
    )
    if named is not None:
        texts.insert(named, "*")
    short = f"{name}({', '.join(texts)})"
    return (
        short
        if len(short) <= WIDTH
        else f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + ")"
    )


def tree() -> Iterator[str]:
    """Every module with the first sentence of its docstring; of the built-ins the folders only, `methods.md` has the rest."""
    lines = list(_branch(SOURCE, ""))
    width = max(len(name) for name, _ in lines) + 2
    listing = "\n".join(
        f"{name:{width}}{about}".rstrip() for name, about in [("src/wmr_cli/", ""), *lines]
    )
    yield f"```text\n{listing}\n```\n"


def _branch(folder: Path, indent: str) -> Iterator[tuple[str, str]]:
    is_method = folder.parent.name == "builtins"
    files = (
        []
        if is_method
        else sorted(file for file in folder.glob("*.py") if file.name != "__init__.py")
    )
    folders = sorted(path.parent for path in folder.glob("*/__init__.py"))
    for item in [*folders, *files]:
        is_last = item == [*folders, *files][-1]
        shown = f"{indent}{'└──' if is_last else '├──'} {item.name}{'/' if item.is_dir() else ''}"
        yield shown, _first_sentence(item / "__init__.py" if item.is_dir() else item)
        if item.is_dir():
            yield from _branch(item, indent + ("    " if is_last else "│   "))


def _first_sentence(module: Path) -> str:
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].partition(". ")[0].removesuffix(".")


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *(tuple(map(_cell, row)) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """A bar ends a cell. Inside code some readers show the backslash before it, so there it is written as HTML."""

    def written(match: re.Match[str]) -> str:
        if match[0] == "|":
            return "\\|"
        code = re.sub(r"[|*_<>&]", lambda sign: f"&#{ord(sign[0])};", match[1])
        return f"<code>{code}</code>" if "|" in match[1] else match[0]

    return re.sub(r"`([^`]*)`|\|", written, text)


def _prose(text: str) -> str:
    """Docstrings are text, not Markdown: outside backticks a star or underscore starts no emphasis."""
    return re.sub(
        r"`[^`]*`|[*_<]", lambda match: match[0] if match[0][0] == "`" else "\\" + match[0], text
    )


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "alpha_study": alpha_study,
    "commands": commands,
    "defenses": defenses,
    "digits_study": digits_study,
    "kernels": kernels,
    "methods": methods,
    "preset_alphas": preset_alphas,
    "presets": settings,
    "python": python,
    "record": record,
    "tree": tree,
}


def pages() -> dict[Path, str]:
    """Every page that has a generated part, as it should read."""

    def fill(block: re.Match[str]) -> str:
        return block["begin"] + "\n" + "\n".join(PARTS[block["name"]]()) + "\n" + block["end"]

    texts = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
    return {page: BLOCK.sub(fill, text) for page, text in texts.items() if BLOCK.search(text)}


def stale() -> list[str]:
    """Pages that no longer say what the program says."""
    return [
        str(page.relative_to(DOCS))
        for page, text in pages().items()
        if page.read_text(encoding="utf-8") != text
    ]


def main() -> None:
    """Write the pages, or compare them."""
    if "--check" in sys.argv[1:]:
        if names := stale():
            raise SystemExit(f"out of date: {', '.join(names)}; run `python docs/generate.py`")
        return
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
