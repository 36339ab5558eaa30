"""A broken plugin is skipped as a whole with a reason, and all others work."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from support.typed import not_none
from wmr_cli.plugins import GROUP, check_targets, collect

BUILTIN_PLUGIN = tuple(entry_points(group=GROUP).select(name="builtins"))
PREAMBLE = "from wmr_cli import Entry, hookimpl\n"


def write_hook(entries: str, hook: str = "wmr_attacks") -> str:
    """Return the source of a plugin with one hook that returns `entries`."""
    return f"{PREAMBLE}\n@hookimpl\ndef {hook}():\n    return {entries}\n"


WritePlugin = Callable[[str, str], EntryPoint]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WritePlugin:
    """Write the module of a plugin and return its entry point.

    It belongs to no distribution, so that its owner is its name.
    """
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, source: str) -> EntryPoint:
        module = f"{tmp_path.name}_{name}".replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        return EntryPoint(name=name, value=module, group=GROUP)

    return write


def test_the_built_in_plugin_is_loaded_like_any_other() -> None:
    found = collect(BUILTIN_PLUGIN)
    assert [plugin.name for plugin in found.plugins] == ["wmr-cli"]
    assert found.broken == []
    assert {kind for kind, _ in found.registry} == set(found.plugins[0].offers)
    assert check_targets(found.registry) == []


def test_a_plugin_can_register_all_five_kinds(plugin: WritePlugin) -> None:
    hooks = {
        "models": "model",
        "datasets": "dataset",
        "defenses": "defense",
        "kernels": "kernel",
        "attacks": "attack",
    }
    source = "".join(
        write_hook(f'[Entry("new-{kind}", "fractions:Fraction", "new")]', f"wmr_{hook}")
        for hook, kind in hooks.items()
    )
    found = collect([*BUILTIN_PLUGIN, plugin("good", source)])
    good = found.plugins[-1]
    assert (good.name, good.version, good.problem) == ("good", "unknown", None)
    assert good.offers == {kind: [f"new-{kind}"] for kind in hooks.values()}
    owners = {found.registry.find(kind, f"new-{kind}").owner for kind in hooks.values()}
    assert owners == {"good"}
    assert found.registry.create("attack", "new-attack:numerator=3") == 3


def test_the_hook_of_defenses_has_its_old_name_too(plugin: WritePlugin) -> None:
    old = plugin("old", write_hook('[Entry("mine", "fractions:Fraction", "")]', "wmr_losses"))
    found = collect([*BUILTIN_PLUGIN, old])
    assert found.plugins[-1].offers == {"defense": ["mine"]}
    assert found.registry.create("defense", "mine:numerator=3") == 3


def test_a_hook_may_be_a_generator(plugin: WritePlugin) -> None:
    source = (
        PREAMBLE + '@hookimpl\ndef wmr_attacks():\n    yield Entry("lazy", "builtins:dict", "")\n'
    )
    assert collect([plugin("lazy-one", source)]).registry.names("attack") == ["lazy"]


RAISES_HALFWAY = f"""{PREAMBLE}
@hookimpl
def wmr_attacks():
    yield Entry("fresh", "a:b", "")
    raise OSError("disk gone")
"""
BROKEN_PLUGINS = {
    "fails on import": ("raise ValueError('unlucky')", "ValueError: unlucky"),
    "imports a missing package": ("import no_such_package", "'no_such_package'"),
    "is not Python": ("def (", "SyntaxError"),
    "exits on import": ("import sys\nsys.exit('goodbye')", "SystemExit: goodbye"),
    "misspells a hook": (write_hook("[]", "wmr_atacks"), "'wmr_attacks'"),
    "hook with an unknown argument": (
        f"{PREAMBLE}\n@hookimpl\ndef wmr_attacks(surprise):\n    return []\n",
        "surprise",
    ),
    "takes a built-in name": (
        write_hook('[Entry("fresh", "a:b", ""), Entry("pgd", "a:b", "")]'),
        "'pgd'",
    ),
    "registers a name twice": (
        write_hook('[Entry("twice", "a:b", ""), Entry("twice", "a:b", "")]'),
        "'twice'",
    ),
    "returns text": (write_hook('"pgd"'), "str"),
    "returns a number": (write_hook("3"), "int"),
    "returns tuples": (write_hook('[("fresh", "a:b", "summary")]'), "tuple"),
    "raises in a hook": (write_hook("1 / 0"), "ZeroDivisionError"),
    "exits in a hook": (write_hook("exit(3)"), "SystemExit: 3"),
    "raises halfway": (RAISES_HALFWAY, "OSError: disk gone"),
    "invalid name": (write_hook('[Entry("Not A Name", "a:b", "")]'), "'Not A Name'"),
    "invalid target": (write_hook('[Entry("fresh", "package.module", "")]'), "'package.module'"),
    "missing summary": (write_hook('[Entry("fresh", "a:b", None)]'), "'fresh'"),
    "one valid and one invalid hook": (
        write_hook('[Entry("fresh", "a:b", "")]')
        + write_hook('[Entry("?", "a:b", "")]', "wmr_kernels"),
        "'?'",
    ),
}
"""The source of a plugin, and what its problem has to name."""


@pytest.mark.parametrize(("source", "reason"), BROKEN_PLUGINS.values(), ids=BROKEN_PLUGINS)
def test_a_broken_plugin_is_skipped_as_a_whole_and_others_are_loaded(
    plugin: WritePlugin, source: str, reason: str
) -> None:
    good = plugin("good", write_hook('[Entry("zeal", "builtins:dict", "")]'))
    found = collect([plugin("broken", source), good, *BUILTIN_PLUGIN])
    (broken,) = found.broken
    assert broken.name == "broken"
    problem = not_none(broken.problem)
    assert reason in problem
    assert "\n" not in problem
    assert broken.offers == {}
    assert {owned.owner for _, owned in found.registry} == {"wmr-cli", "good"}
    assert found.registry.names("attack") == sorted(
        [*collect(BUILTIN_PLUGIN).registry.names("attack"), "zeal"]
    )


def test_of_two_plugins_with_one_name_the_first_in_order_keeps_it(plugin: WritePlugin) -> None:
    source = write_hook('[Entry("zeal", "builtins:dict", "")]')
    found = collect([plugin("beta", source), plugin("alpha", source)])
    assert found.registry.find("attack", "zeal").owner == "alpha"
    (broken,) = found.broken
    assert all(name in not_none(broken.problem) for name in ("'zeal'", "alpha", "beta"))


def test_two_kinds_may_have_the_same_name(plugin: WritePlugin) -> None:
    found = collect(
        [
            *BUILTIN_PLUGIN,
            plugin("good", write_hook('[Entry("pgd", "builtins:dict", "")]', "wmr_kernels")),
        ]
    )
    assert found.broken == []
    assert "pgd" in found.registry.names("kernel")


def test_output_of_a_plugin_goes_to_stderr(
    plugin: WritePlugin, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = plugin(
        "noisy",
        "print('hello from import')\n"
        + write_hook("print('hello from hook') or [Entry('loud', 'json:loads', '')]"),
    )
    assert collect([noisy]).broken == []
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "hello from import" in printed.err
    assert "hello from hook" in printed.err


def test_a_plugin_without_entries_is_skipped(plugin: WritePlugin) -> None:
    (forgetful,) = collect([plugin("forgetful", write_hook("None"))]).plugins
    assert forgetful.problem
    (unmarked,) = collect([plugin("unmarked", "def wmr_attacks():\n    return []\n")]).plugins
    assert "@hookimpl" in not_none(unmarked.problem)


def test_check_targets_lists_missing_targets(plugin: WritePlugin) -> None:
    targets = {
        "ghost": "no_such_package:Attack",
        "half": "builtins:NoSuch",
        "fine": "builtins:dict",
    }
    entries = ", ".join(f'Entry("{name}", "{target}", "")' for name, target in targets.items())
    found = collect([plugin("owner", write_hook(f"[{entries}]"))])
    problems = check_targets(found.registry)
    assert len(problems) == 2
    assert all("owner" in problem for problem in problems)
    assert "'ghost'" in problems[0]
    assert "no_such_package" in problems[0]
    assert "'half'" in problems[1]


def test_check_targets_lists_a_target_that_exits(plugin: WritePlugin, tmp_path: Path) -> None:
    (tmp_path / "quits_when_imported.py").write_text("raise SystemExit('not today')\n")
    found = collect(
        [plugin("moody", write_hook('[Entry("sulk", "quits_when_imported:Attack", "")]'))]
    )
    assert check_targets(found.registry) == ["moody: SystemExit: not today"]
