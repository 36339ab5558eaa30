"""Write the generated parts of the pages: `python docs/generate.py`; `--check` only compares.

The text between `<!-- generated: NAME -->` and `<!-- end -->` in a page is generated. The rest of
the page is written by hand.
"""

import ast
import inspect
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeAlias

import msgspec
import typer

import published
import wmr_cli
from wmr_cli import measures, presets
from wmr_cli.cli import app
from wmr_cli.config import EvaluationSettings, Setting, Struct, TrainConfig, list_settings
from wmr_cli.plugins import load_plugins
from wmr_cli.registry import INJECTED_PARAMS, KINDS, OWN_DISTRIBUTION, Entry
from wmr_cli.spec import Spec, format_number
from wmr_cli.storage.records import Record, load_field_descriptions

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "wmr_cli"
STUDIES = DOCS.parent / "studies"
WIDTH = 100
BLOCK = re.compile(
    r"(?P<begin><!-- generated: (?P<name>\w+) -->\n).*?(?P<end><!-- end -->\n)", re.DOTALL
)
DOCSTRING_FIELD = re.compile(
    r"^(Objective|Weight|Cost|Good for|Reference): (.*(?:\n[ \t]+.*)*)\n?", re.MULTILINE
)
PYTHON_NAMES = ("load", "create", "evaluate", "Result", "read_rows")
MEASURES_NAMES = (
    "Estimate",
    "plain_accuracy",
    "weighted_accuracy",
    "exponential_log_weights",
    "probability_margins",
    "tempered_accuracy",
    "calibrate",
    "Calibration",
    "calibrated_accuracy",
    "calibrated_losses",
    "calibrating_temperature",
    "worst_case",
    "worst_accuracy",
    "bootstrap",
    "RunningAccuracy",
)
"""Functions for notebooks; the module has more."""
COMPARED_FIELDS = ("Cost", "Good for")
"""Fields that only the tables of `defenses.md` show."""
METHOD_INTRODUCTIONS = {
    "model": (
        "[Models](models.md) compares them. All also have "
        "[`mean=` and `std=`](models.md#normalisation)."
    ),
    "dataset": "[Data](data.md) compares them.",
    "defense": ("[Defenses and weightings](defenses.md#defenses) compares them, with their costs."),
    "kernel": "[Defenses and weightings](defenses.md#kernels) compares them.",
    "attack": (
        "[Attacks](attacks.md) compares them. All also have `norm=linf` or `l2` and `eps`, by "
        "default those of the checkpoint. A `loss` is `ce`, `margin`, `pmargin`, `cw` or `dlr`. "
        "`eot` is the number of draws of a [stochastic model](attacks.md#stochastic-models)."
    ),
    "verifier": "None is built in; [plugins](plugins.md#wmr-certify) have verifiers.",
    "logger": "[Trackers](trackers.md) describes them.",
}
COMMON_PARAMS = {"attack": ("norm", "eps")}
"""Parameters that the introduction of a kind describes."""
SHAPES = re.compile(r"[ \n]*\(N, C, H, W\) (?:in|to) [^.]+\.")
"""The shapes and ranges of images in docstrings, which are for authors of components."""
DIFFERENCE = " difference"
"""Ends the name of a difference in `studies/interval_coverage.json`."""
JSON_WORDS: dict[Any, str] = {int: "integer", str: "string", bool: "boolean"}
MISSING = (types.NoneType, msgspec.UnsetType)
"""Types of fields that may be null or absent."""
BESIDE_SETTINGS = ("summary", "defenses", "evaluate")
"""Keys of a preset that are not settings of a run."""
TYPE_WORDS: dict[Any, str] = {
    float: "number",
    int: "whole number",
    str: "text",
    bool: "true or false",
    Path: "path",
    Spec: "component",
    types.NoneType: "none",
    inspect.Parameter.empty: "",
    Any: "anything",
}

TypeHint: TypeAlias = Any
Value: TypeAlias = Any
ClickObject: TypeAlias = Any
"""A command or context: the classes of click that Typer contains are private."""
Target: TypeAlias = Callable[..., Any]
"""The class or function behind a name of the registry."""

# ---- commands and settings ----


def make_commands() -> Iterator[str]:
    """Yield a section for each command with its help."""
    for path, text in iterate_helps():
        yield f"## {path}\n\n```text\n{text}\n```\n"


def iterate_helps() -> Iterator[tuple[str, str]]:
    """Yield every command and its help, groups before their members."""
    return _iterate_helps(typer.main.get_command(app), "wmr", None)


def _iterate_helps(
    command: ClickObject, name: str, parent: ClickObject
) -> Iterator[tuple[str, str]]:
    # Typer's plain formatter at a fixed width: no terminal, no colour
    command.rich_markup_mode = None
    context = command.context_class(command, info_name=name, parent=parent, terminal_width=WIDTH)
    lines = [line.rstrip() for line in command.get_help(context).splitlines()]
    yield context.command_path, "\n".join(lines)
    if isinstance(command, typer.core.TyperGroup):
        for member in command.list_commands(context):
            if not command.commands[member].hidden:
                yield from _iterate_helps(command.commands[member], member, context)


def make_config_keys() -> Iterator[str]:
    """Yield a table of all keys of a config file."""
    rows = list(_list_keys(TrainConfig, ""))
    rows += _list_keys(EvaluationSettings, "evaluate.")
    yield _make_table(("key", "value", "default", "meaning"), rows)


def _list_keys(struct: type[Struct], prefix: str) -> Iterator[tuple[str, ...]]:
    for key, declared in list_settings(struct).items():
        if declared.default != EvaluationSettings():
            meaning = _escape(declared.description)
            default = _format_default(declared.default)
            if isinstance(declared.default, tuple):
                default = default.replace(":", ", ")
            yield f"`{prefix}{key}`", _describe_values(declared), default, meaning


def _describe_values(declared: Setting) -> str:
    """Return the values that a setting allows, without bounds."""
    words = _describe_type(_strip_bounds(declared.hint))
    return words.replace("joined by colons", "as a list").removesuffix(" or none")


def _strip_bounds(hint: TypeHint) -> TypeHint:
    """Return a type without `Annotated`, also inside unions and tuples."""
    origin: TypeHint = typing.get_origin(hint)
    arguments = tuple(_strip_bounds(part) for part in typing.get_args(hint))
    if origin is typing.Annotated:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[arguments]  # noqa: UP007
    if origin is tuple:
        return types.GenericAlias(tuple, arguments)
    return hint


def make_presets() -> Iterator[str]:
    """Yield the settings of defenses that all presets share, then a section for each preset."""
    loaded = {name: presets.load(name) for name in presets.names()}
    shared = _find_shared_defenses(loaded)
    rows = []
    for defense, settings in shared.items():
        without = [name for name, preset in loaded.items() if defense not in preset["defenses"]]
        names = ", ".join(f"`{name}`" for name in without)
        exceptions = f"all except {names}" if without else "all"
        rows.append((*_describe_settings(defense, settings), exceptions))
    yield _make_table(("defense", "settings", "presets"), rows)
    for name, preset in loaded.items():
        about, comments = _read_comments(name)
        settings = {key: value for key, value in preset.items() if key not in BESIDE_SETTINGS}
        own = {key: value for key, value in preset["defenses"].items() if key not in shared}
        items = [f"all: {_format_settings(settings)}"]
        for table, settings in [*own.items(), ("evaluate", preset["evaluate"])]:
            label, cell = _describe_settings(table, settings)
            comment = f" ({_escape(comments[table])})" if table in comments else ""
            items.append(f"{label}: {cell}{comment}")
        text = f"{preset['summary']}. {about}".rstrip()
        listing = "".join(f"* {item}\n" for item in items)
        yield f"## `{name}`\n\n{text}\n\n{listing}"


def _find_shared_defenses(loaded: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the settings of each defense for which several presets have equal ones."""
    by_defense: dict[str, list[dict[str, Any]]] = {}
    for preset in loaded.values():
        for defense, settings in preset["defenses"].items():
            by_defense.setdefault(defense, []).append(settings)
    return {
        defense: settings[0]
        for defense, settings in by_defense.items()
        if len(settings) > 1 and all(other == settings[0] for other in settings)
    }


def _describe_settings(table: str, settings: dict[str, Any]) -> tuple[str, str]:
    """Return the spec of a defense, or the name of another table, and the settings in it."""
    others = {key: value for key, value in settings.items() if key not in ("defense", "evaluate")}
    cell = _format_settings(others)
    if "evaluate" in settings:
        cell += f"; evaluation: {_format_settings(settings['evaluate'])}"
    return f"`{settings.get('defense', table)}`", cell


def _format_settings(settings: dict[str, Any]) -> str:
    return " ".join(f"`{key}={_format_setting(value)}`" for key, value in settings.items())


def _format_setting(value: Value) -> str:
    """Return a value as a flag accepts it: lists are joined by commas."""
    if isinstance(value, list):
        return ",".join(map(_format_value, value))
    return _format_value(value)


def _read_comments(preset: str) -> tuple[str, dict[str, str]]:
    """Return the comment at the head of a preset, and those at the ends of lines by table."""
    text = resources.files(presets).joinpath(f"{preset}.toml").read_text(encoding="utf-8")
    head = re.findall(r"^#( +)(.*)", text.partition("\n\n")[0], re.MULTILINE)
    # commands have a deeper indentation
    about = " ".join(f"`{line}`." if len(indent) > 1 else _escape(line) for indent, line in head)
    comments: dict[str, str] = {}
    table = ""
    for line in text.splitlines():
        if header := re.match(r"\[(?:defenses\.)?([\w-]+)", line):
            table = header[1]
        if "  # " in line:
            comments[table] = line.partition("  # ")[2]
    return f"{about[:1].upper()}{about[1:]}." if about else "", comments


# ---- components ----


def make_methods() -> Iterator[str]:
    """Yield a section for each kind of component, with every built-in one."""
    for kind in KINDS:
        yield f"## {kind.capitalize()}s\n\n{METHOD_INTRODUCTIONS[kind]}\n"
        described: dict[Target, Entry] = {}
        for entry, target in list_builtins(kind):
            if target in described:
                yield _make_variant(entry, described[target])
            else:
                described[target] = entry
                yield _make_method(kind, entry, target)


def list_builtins(kind: str) -> list[tuple[Entry, Target]]:
    """Return the built-in entries of a kind with their classes or functions."""
    registry = load_plugins().registry
    entries = [
        owned.entry for of, owned in registry if of == kind and owned.owner == OWN_DISTRIBUTION
    ]
    return [(entry, registry.target(kind, entry.name)) for entry in entries]


def _make_method(kind: str, entry: Entry, target: Target) -> str:
    prose, fields = split_docstring(inspect.getdoc(target) or "")
    listing = "".join(
        f"* {name}: {_link_papers(text)}\n"
        for name, text in fields.items()
        if name not in COMPARED_FIELDS
    )
    settings = [
        _format_parameter(parameter, entry.params.get(name, parameter.default))
        for name, parameter in inspect.signature(target, eval_str=True).parameters.items()
        if name not in (*INJECTED_PARAMS.get(kind, ()), *COMMON_PARAMS.get(kind, ()))
        and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    listing += f"* Parameters: {', '.join(settings)}\n" if settings else ""
    prose = _link_papers(SHAPES.sub("", prose))
    return "\n\n".join(filter(None, (f"### `{entry.name}`", prose, listing.strip()))) + "\n"


def _make_variant(entry: Entry, base: Entry) -> str:
    """Return the section of another name for a component: the parameters that it sets."""
    settings = " and ".join(f"`{key}={_format_value(entry.params[key])}`" for key in entry.params)
    return f"### `{entry.name}`\n\n`{base.name}` with {settings}.\n"


def _format_parameter(parameter: inspect.Parameter, default: Value) -> str:
    """Return `key=default` with other choices, or the type of a parameter without a default."""
    key = f"{parameter.name}="
    required = default is inspect.Parameter.empty
    if required or default is None or default in ("", (), []):
        hint = _describe_type(parameter.annotation).removesuffix(" or none")
        return f"`{key}` ({hint}{', required' if required else ''})"
    text = f"`{key}{_format_default(default).strip('`')}`"
    if typing.get_origin(parameter.annotation) is typing.Literal:
        others = (one for one in typing.get_args(parameter.annotation) if one != default)
        return " or ".join((text, *(f"`{one}`" for one in others)))
    return text


def split_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the prose of a docstring, and its fields such as `Cost: K + 1`."""
    fields = {name: " ".join(text.split()) for name, text in DOCSTRING_FIELD.findall(docstring)}
    return DOCSTRING_FIELD.sub("", docstring).strip(), fields


def make_defenses() -> Iterator[str]:
    """Yield a table of all built-in defenses."""
    rows = []
    for entry, target in list_builtins("defense"):
        fields = split_docstring(inspect.getdoc(target) or "")[1]
        cells = (fields["Objective"], fields["Cost"], fields["Good for"])
        rows.append((_link_method(entry.name), *map(_link_papers, cells)))
    yield _make_table(("name", "objective", "passes", "good for"), rows)


def make_kernels() -> Iterator[str]:
    """Yield a table of all built-in kernels."""
    rows = []
    for entry, target in list_builtins("kernel"):
        fields = split_docstring(inspect.getdoc(target) or "")[1]
        cells = (fields["Weight"], fields["Good for"])
        rows.append((_link_method(entry.name), *map(_link_papers, cells)))
    yield _make_table(("name", "weight", "good for"), rows)


def make_digits_study() -> Iterator[str]:
    """Yield the results of `studies/digits_defenses.py`, the most robust first."""
    results = json.loads((STUDIES / "digits_defenses.json").read_text(encoding="utf-8"))
    rows = []
    for defense in sorted(results, key=lambda name: -fmean(results[name]["a_rob"])):
        accuracies = [results[defense][name] for name in ("a_nat", "a_rob", "a_sa", "a_tr")]
        cost = f"{results[defense]['cost']:.1f}"
        rows.append((_link_method(defense), *map(_format_spread, accuracies), cost))
    yield _make_table(("defense", "A_nat", "A_rob", "A_sa(2)", "A_tr(2)", "time"), rows)


def make_alpha_study() -> Iterator[str]:
    """Yield the results of `studies/digits_alpha.py`: statistics of weights, and accuracies."""
    results = json.loads((STUDIES / "digits_alpha.json").read_text(encoding="utf-8"))
    names = ("a_rob", "a_rob_worst", "a_sa", "a_sa_calibrated")
    rows = []
    for defense, by_alpha in results.items():
        for alpha, values in by_alpha.items():
            weights = (
                f"{fmean(values['weight_mean']):.2f}",
                f"{100 * fmean(values['weight_ess']):.0f} %",
            )
            accuracies = [_format_spread(values[name]) for name in names]
            rows.append((_link_method(defense), alpha, *weights, *accuracies))
    headings = ("A_rob", "A_rob, worst", "A_sa(2)", "A_cal(2)")
    yield _make_table(("defense", "α", "mean weight", "ESS", *headings), rows)


def _format_spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation over seeds, in percent."""
    return f"{100 * fmean(values):.1f} ± {100 * stdev(values):.1f}"


def make_published_numbers() -> Iterator[str]:
    """Yield a table of errors that others printed, and those measured by `wmr`."""
    headings, *rows = published.list_published_rows()
    yield _make_table(headings, rows)


def make_completeness() -> Iterator[str]:
    """Yield a table of the fraction of vulnerable images that attacks find, in percent."""
    headings, *rows = published.list_completeness_rows()
    yield _make_table(headings, rows)


def make_coverage() -> Iterator[str]:
    """Yield a table of how often intervals hold the truth, on test sets drawn from records."""
    results = json.loads((STUDIES / "interval_coverage.json").read_text(encoding="utf-8"))
    columns = {
        f"{population}, {int(images):,} images": coverage
        for population, by_size in results.items()
        for images, coverage in by_size.items()
    }
    names = [name for name in next(iter(columns.values())) if not name.endswith(DIFFERENCE)]
    rows = [
        (
            name.replace("a_", "A_", 1),
            *(
                f"{100 * coverage[name]:.1f} % ({100 * coverage[name + DIFFERENCE]:.1f})"
                for coverage in columns.values()
            ),
        )
        for name in names
    ]
    yield _make_table(("", *columns), rows)


# ---- records and Python functions ----


def make_record() -> Iterator[str]:
    """Yield a list of fields for a record and for each struct inside it."""
    descriptions = load_field_descriptions()
    for struct in list_structs(Record):
        name = struct.__name__
        hints = typing.get_type_hints(struct)
        described = descriptions.pop(name, {})
        different = sorted(described.keys() ^ hints.keys())
        if different:
            raise SystemExit(f"record_fields.toml, [{name}]: correct {', '.join(different)}")
        fields = "".join(
            f"* `{field}` ({_describe_json(hints[field])}): {described[field]}\n"
            for field in struct.__struct_fields__
        )
        yield f"### {name}\n\n{_escape(inspect.getdoc(struct) or '')}\n\n{fields}"
    if descriptions:
        raise SystemExit(f"record_fields.toml: unknown {', '.join(descriptions)}")


def list_structs(struct: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """Return a struct and those inside it, in order of appearance."""
    found = [struct]
    for hint in typing.get_type_hints(struct).values():
        for part in _find_structs(hint):
            found += [inner for inner in list_structs(part) if inner not in found]
    return found


def _find_structs(hint: TypeHint) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for inner in typing.get_args(hint):
        yield from _find_structs(inner)


def _describe_json(hint: TypeHint) -> str:
    """Return the JSON type of a field, with `?` if it may be missing. Structs have links."""
    origin: TypeHint = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if origin in (typing.Union, types.UnionType):
        parts = [part for part in arguments if part not in MISSING]
        text = " or ".join(_describe_json(part) for part in parts)
        return f"{text}?" if len(parts) < len(arguments) else text
    if origin is list:
        item = _describe_json(arguments[0])
        return f"list of {item}" if item.endswith(")") else f"list of {item}s"
    if hint in JSON_WORDS:
        return JSON_WORDS[hint]
    if origin is dict:
        return "object"
    return _describe_type(hint)


def make_python() -> Iterator[str]:
    """Yield the public functions and classes with signatures, docstrings and members."""
    for module, names in ((wmr_cli, PYTHON_NAMES), (measures, MEASURES_NAMES)):
        yield f"### `{module.__name__}`\n"
        yield from (_make_public(name, getattr(module, name)) for name in names)


def _make_public(name: str, item: Value) -> str:
    text = f"#### `{name}`\n\n"
    members: list[str] = []
    if inspect.isclass(item):
        public = [key for key in vars(item) if not key.startswith("_")]
        members = [_describe_member(key, vars(item)[key]) for key in public]
    else:
        text += f"```text\n{_format_signature(name, item)}\n```\n\n"
    # further paragraphs of a docstring belong to its item of the list
    items = [re.sub(r"\n(?=.)", "\n    ", line) for line in members if line]
    listing = "".join(f"* {line}\n" for line in items)
    text += _escape(inspect.getdoc(item) or "") + "\n"
    return f"{text}\n{listing}" if listing else text


def _describe_member(name: str, value: Value) -> str:
    """Return `compute()` and its docstring; nothing for a field, which its class explains."""
    if isinstance(value, classmethod):
        value = value.__func__
    if isinstance(value, property):
        return f"`{name}`: {_escape(inspect.getdoc(value) or '')}" if value.__doc__ else ""
    if not inspect.isfunction(value):
        return ""
    parameters = inspect.signature(value).parameters.values()
    own = [_without_type(one) for one in parameters if one.name not in ("self", "cls")]
    return f"`{name}({', '.join(own)})`: {_escape(inspect.getdoc(value) or '')}"


def _without_type(parameter: inspect.Parameter) -> str:
    return str(parameter.replace(annotation=inspect.Parameter.empty))


def _format_signature(name: str, function: Target) -> str:
    """Return a signature without types, on several lines if it is too long for one."""
    texts: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        texts.append(_without_type(parameter))
    line = f"{name}({', '.join(texts)})"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + ")"


# ---- modules ----


def make_tree() -> Iterator[str]:
    """Yield all packages with the first sentences of their docstrings, and their modules."""
    modules = sorted(file for file in SOURCE.glob("*.py") if file.name != "__init__.py")
    lines = ["src/wmr_cli/", *(f"{file.name:25} {_first_sentence(file)}" for file in modules)]
    for package in sorted(path.parent for path in SOURCE.glob("**/*/__init__.py")):
        folder = package.relative_to(SOURCE).as_posix() + "/"
        lines += [f"{folder:25} {_first_sentence(package / '__init__.py')}"]
        # the components themselves are in methods.md
        if package.parent.name != "builtins":
            lines += _list_modules(package)
    listing = "\n".join(lines)
    yield f"```text\n{listing}\n```\n"


def _list_modules(folder: Path) -> list[str]:
    """Return lines with the names of the modules of a folder."""
    names = sorted(file.stem for file in folder.glob("*.py") if file.name != "__init__.py")
    indent = " " * 26
    return textwrap.wrap(", ".join(names), WIDTH, initial_indent=indent, subsequent_indent=indent)


def _first_sentence(module: Path) -> str:
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].partition(". ")[0].removesuffix(".")


# ---- Markdown ----


def _describe_type(hint: TypeHint) -> str:
    """Return a type in words of users."""
    origin: TypeHint = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe_type(part) for part in arguments)
    if origin in (tuple, list):
        return f"{_describe_type(arguments[0])}s, joined by colons"
    return TYPE_WORDS.get(hint, str(hint))


def _format_default(value: Value) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or value in ("", (), []):
        return "none"
    if isinstance(value, tuple | list):
        return f"`{':'.join(_format_value(part) for part in value)}`"
    return f"`{_format_value(value)}`"


def _format_value(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return format_number(value) if isinstance(value, float) else str(value)


def _link_method(name: str) -> str:
    return f"[`{name}`](methods.md#{name})"


def _link_papers(text: str) -> str:
    """Return prose with links to papers."""
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", _escape(text))


def _escape(text: str) -> str:
    """Escape plain text for Markdown: outside backticks, stars and underscores are literal."""

    def escape(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith("`") else "\\" + match[0]

    return re.sub(r"`[^`]*`|[*_<]", escape, text)


def _make_table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *(tuple(map(_escape_cell, row)) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _escape_cell(text: str) -> str:
    """Escape bars, which end a cell."""

    def escape(match: re.Match[str]) -> str:
        if match[0] == "|":
            return "\\|"
        if "|" not in match[1]:
            return match[0]
        # inside code some readers show a backslash, so bars are written as HTML there
        code = re.sub(r"[|*_<>&]", lambda sign: f"&#{ord(sign[0])};", match[1])
        return f"<code>{code}</code>"

    return re.sub(r"`([^`]*)`|\|", escape, text)


# ---- pages ----

PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "alpha_study": make_alpha_study,
    "commands": make_commands,
    "completeness": make_completeness,
    "config_keys": make_config_keys,
    "coverage": make_coverage,
    "defenses": make_defenses,
    "digits_study": make_digits_study,
    "kernels": make_kernels,
    "methods": make_methods,
    "presets": make_presets,
    "published_numbers": make_published_numbers,
    "python": make_python,
    "record": make_record,
    "tree": make_tree,
}


def make_pages() -> dict[Path, str]:
    """Return the text of every page that has a generated part."""

    def fill(block: re.Match[str]) -> str:
        return block["begin"] + "\n" + "\n".join(PARTS[block["name"]]()) + "\n" + block["end"]

    texts = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
    return {page: BLOCK.sub(fill, text) for page, text in texts.items() if BLOCK.search(text)}


def find_stale_pages() -> list[str]:
    """Return the pages that differ from what would be generated."""
    return [
        str(page.relative_to(DOCS))
        for page, text in make_pages().items()
        if page.read_text(encoding="utf-8") != text
    ]


def main() -> None:
    """Write the pages, or compare them."""
    if "--check" in sys.argv[1:]:
        stale = find_stale_pages()
        if stale:
            raise SystemExit(f"out of date: {', '.join(stale)}; run `python docs/generate.py`")
        return
    for page, text in make_pages().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
