"""A plugin that is broken is set aside whole, with a reason that names the mistake; the others go on."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from support.typed import not_none
from wmr_cli.plugins import GROUP, check_targets, collect

OURS = tuple(entry_points(group=GROUP).select(name="builtins"))
PREAMBLE = "from wmr_cli import Entry, hookimpl\n"


def offering(entries: str, hook: str = "wmr_attacks") -> str:
    """The source of a plugin with one hook that returns `entries`."""
    return f"{PREAMBLE}\n@hookimpl\ndef {hook}():\n    return {entries}\n"


WritePlugin = Callable[[str, str], EntryPoint]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WritePlugin:
    """Write a plugin's module and give its entry point; it belongs to no distribution, so its owner is its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, source: str) -> EntryPoint:
        module = f"{tmp_path.name}_{name}".replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        return EntryPoint(name=name, value=module, group=GROUP)

    return write


def test_our_own_plugin_is_an_ordinary_one() -> None:
    found = collect(OURS)
    assert [plugin.name for plugin in found.plugins] == ["wmr-cli"]
    assert found.broken == []
    assert {kind for kind, _ in found.registry} == set(found.plugins[0].offers)
    assert check_targets(found.registry) == []


def test_a_good_plugin_can_offer_all_five_kinds(plugin: WritePlugin) -> None:
    hooks = {
        "models": "model",
        "datasets": "dataset",
        "losses": "defense",
        "kernels": "kernel",
        "attacks": "attack",
    }
    source = "".join(
        offering(f'[Entry("new-{kind}", "fractions:Fraction", "new")]', f"wmr_{hook}")
        for hook, kind in hooks.items()
    )
    found = collect([*OURS, plugin("good", source)])
    good = found.plugins[-1]
    assert (good.name, good.version, good.problem) == ("good", "unknown", None)
    assert good.offers == {kind: [f"new-{kind}"] for kind in hooks.values()}
    assert [found.registry.find(kind, f"new-{kind}").owner for kind in hooks.values()] == [
        "good"
    ] * 5
    assert found.registry.create("attack", "new-attack:numerator=3") == 3


def test_a_hook_may_be_a_generator(plugin: WritePlugin) -> None:
    source = (
        PREAMBLE + '@hookimpl\ndef wmr_attacks():\n    yield Entry("lazy", "builtins:dict", "")\n'
    )
    assert collect([plugin("lazy-one", source)]).registry.names("attack") == ["lazy"]


BROKEN = {
    "fails on import": ("raise ValueError('no luck today')", "ValueError: no luck today"),
    "needs what is not there": ("import no_such_package", "No module named 'no_such_package'"),
    "is no Python": ("def (", "SyntaxError"),
    "exits on import": ("import sys\nsys.exit('goodbye')", "SystemExit: goodbye"),
    "misspells a hook": (
        offering("[]", "wmr_atacks"),
        "no hook is called 'wmr_atacks': did you mean 'wmr_attacks'?",
    ),
    "asks for an argument": (
        f"{PREAMBLE}\n@hookimpl\ndef wmr_attacks(surprise):\n    return []\n",
        "surprise",
    ),
    "takes our name": (
        offering('[Entry("fresh", "a:b", ""), Entry("pgd", "a:b", "")]'),
        "attack 'pgd' is offered by both wmr-cli and broken",
    ),
    "offers a name twice": (
        offering('[Entry("twice", "a:b", ""), Entry("twice", "a:b", "")]'),
        "attack 'twice' is offered by both broken and broken",
    ),
    "returns text": (offering('"pgd"'), "a hook must return a list of Entry, not of str"),
    "returns a number": (offering("3"), "'int' object is not iterable"),
    "returns tuples": (
        offering('[("fresh", "a:b", "summary")]'),
        "a hook must return a list of Entry, not of tuple",
    ),
    "raises in a hook": (offering("1 / 0"), "ZeroDivisionError: division by zero"),
    "exits in a hook": (offering("exit(3)"), "SystemExit: 3"),
    "raises halfway": (
        f'{PREAMBLE}\n@hookimpl\ndef wmr_attacks():\n    yield Entry("fresh", "a:b", "")\n    raise OSError("disk gone")\n',
        "OSError: disk gone",
    ),
    "offers a bad name": (
        offering('[Entry("Not A Name", "a:b", "")]'),
        "'Not A Name' is not a name",
    ),
    "offers a bad target": (
        offering('[Entry("fresh", "package.module", "")]'),
        "is not 'package.module:attribute'",
    ),
    "offers no text": (offering('[Entry("fresh", "a:b", None)]'), "must be text"),
    "is right in one hook, wrong in another": (
        offering('[Entry("fresh", "a:b", "")]')
        + offering('[Entry("?", "a:b", "")]', "wmr_kernels"),
        "'?' is not a name",
    ),
}


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_set_aside_whole_and_the_others_go_on(
    plugin: WritePlugin, source: str, reason: str
) -> None:
    good = plugin("good", offering('[Entry("zeal", "builtins:dict", "")]'))
    found = collect([plugin("broken", source), good, *OURS])
    (broken,) = found.broken
    assert broken.name == "broken"
    problem = not_none(broken.problem)
    assert reason in problem
    assert "\n" not in problem
    assert broken.offers == {}
    assert {owned.owner for _, owned in found.registry} == {"wmr-cli", "good"}
    assert found.registry.names("attack") == sorted(
        [*collect(OURS).registry.names("attack"), "zeal"]
    )


def test_of_two_strangers_with_one_name_the_first_by_name_keeps_it(plugin: WritePlugin) -> None:
    source = offering('[Entry("zeal", "builtins:dict", "")]')
    found = collect([plugin("beta", source), plugin("alpha", source)])
    assert found.registry.find("attack", "zeal").owner == "alpha"
    (broken,) = found.broken
    assert all(name in not_none(broken.problem) for name in ("'zeal'", "alpha", "beta"))


def test_a_name_may_be_taken_by_another_kind(plugin: WritePlugin) -> None:
    found = collect(
        [*OURS, plugin("good", offering('[Entry("pgd", "builtins:dict", "")]', "wmr_kernels"))]
    )
    assert found.broken == []
    assert "pgd" in found.registry.names("kernel")


def test_a_plugin_that_prints_leaves_stdout_to_results(
    plugin: WritePlugin, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = plugin(
        "noisy",
        "print('hello from import')\n"
        + offering("print('hello from hook') or [Entry('loud', 'json:loads', '')]"),
    )
    assert collect([noisy]).broken == []
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "hello from import" in printed.err
    assert "hello from hook" in printed.err


def test_a_plugin_that_offers_nothing_is_set_aside(plugin: WritePlugin) -> None:
    (forgetful,) = collect([plugin("forgetful", offering("None"))]).plugins
    assert forgetful.problem
    (unmarked,) = collect([plugin("unmarked", "def wmr_attacks():\n    return []\n")]).plugins
    assert "@hookimpl" in not_none(unmarked.problem)


def test_check_targets_finds_what_is_not_there(plugin: WritePlugin) -> None:
    targets = {
        "ghost": "no_such_package:Attack",
        "half": "builtins:NoSuch",
        "fine": "builtins:dict",
    }
    made = (f'Entry("{name}", "{target}", "")' for name, target in targets.items())
    entries = f"[{', '.join(made)}]"
    problems = check_targets(collect([plugin("haunted", offering(entries))]).registry)
    assert len(problems) == 2
    assert "attack 'ghost' of haunted" in problems[0]
    assert "no_such_package" in problems[0]
    assert "attack 'half' of haunted" in problems[1]


def test_check_targets_survives_a_target_that_exits(plugin: WritePlugin, tmp_path: Path) -> None:
    (tmp_path / "quits_when_imported.py").write_text("raise SystemExit('not today')\n")
    found = collect(
        [plugin("moody", offering('[Entry("sulk", "quits_when_imported:Attack", "")]'))]
    )
    assert check_targets(found.registry) == ["moody: SystemExit: not today"]
