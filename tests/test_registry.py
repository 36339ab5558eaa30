"""Components are built by name; unknown names are refused, and no name is replaced."""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.typed import mistyped, not_none
from wmr_cli.errors import BadInput, PluginError, UnknownName, did_you_mean
from wmr_cli.plugins import load_plugins
from wmr_cli.registry import Entry, Registry
from wmr_cli.spec import Spec

pytestmark = pytest.mark.usefixtures("trusts_local_code")


@dataclass(frozen=True)
class SampleAttack:
    """A component with required and optional parameters."""

    eps: float
    steps: int = 10
    loss: str = "ce"


def takes_anything(**params: object) -> dict[str, object]:
    return params


def takes_nothing() -> str:
    return "made"


NOT_CALLABLE = 3


@pytest.fixture
def registry() -> Registry:
    filled = Registry()
    offered = [
        ("attack", Entry("sample", f"{__name__}:SampleAttack", "all by the user")),
        (
            "attack",
            Entry(
                "sample-margin",
                f"{__name__}:SampleAttack",
                "some fixed",
                {"loss": "margin", "eps": 0.5},
            ),
        ),
        ("attack", Entry("plain", f"{__name__}:takes_nothing", "no parameters")),
        ("attack", Entry("free", f"{__name__}:takes_anything", "any parameters")),
        ("model", Entry("sample", f"{__name__}:takes_nothing", "the same name, another kind")),
    ]
    filled.add(offered, "first-plugin", "1.2")
    return filled


def get_error(registry: Registry, spec: str | Spec, **given: object) -> BadInput:
    """Create an attack that has to be refused, and return the error."""
    with pytest.raises(BadInput) as caught:
        registry.create("attack", spec, **given)
    return caught.value


def test_a_component_is_built_from_its_spec(registry: Registry) -> None:
    assert registry.create("attack", "sample:eps=8/255,steps=3") == SampleAttack(
        eps=8 / 255, steps=3
    )


def test_a_positional_value_goes_to_the_first_free_parameter(registry: Registry) -> None:
    assert registry.create("attack", "sample:0.1") == SampleAttack(eps=0.1)
    assert registry.create("attack", "sample:7", eps=0.1) == SampleAttack(eps=0.1, steps=7)
    assert registry.create("attack", "sample-margin:7") == SampleAttack(
        eps=0.5, steps=7, loss="margin"
    )


def test_a_component_without_parameters_takes_no_value(registry: Registry) -> None:
    assert "'plain'" in str(get_error(registry, "plain:3"))


def test_a_spec_overrides_the_caller_and_the_caller_overrides_the_entry(registry: Registry) -> None:
    assert registry.create("attack", "sample-margin") == SampleAttack(eps=0.5, loss="margin")
    assert registry.create("attack", "sample-margin", eps=0.2) == SampleAttack(
        eps=0.2, loss="margin"
    )
    assert registry.create("attack", "sample-margin:loss=ce", eps=0.2) == SampleAttack(
        eps=0.2, loss="ce"
    )
    assert registry.create("attack", "sample-margin:eps=0.1") == SampleAttack(
        eps=0.1, loss="margin"
    )
    with pytest.raises(BadInput, match="eps"):
        registry.create("attack", "sample-margin:eps=0.1", eps=0.2)


def test_building_does_not_change_the_parameters_of_the_entry(registry: Registry) -> None:
    registry.create("attack", "sample-margin:eps=0.1,loss=ce")
    assert registry.find("attack", "sample-margin").entry.params == {"loss": "margin", "eps": 0.5}


def test_parameters_without_a_type_are_parsed_by_their_text(registry: Registry) -> None:
    assert registry.create("attack", "free:size=3,ratio=1/2,name=x") == {
        "size": 3,
        "ratio": 0.5,
        "name": "x",
    }


def test_a_misspelt_name_is_refused_with_the_nearest_one(registry: Registry) -> None:
    error = get_error(registry, "sampl:eps=1")
    assert isinstance(error, UnknownName)
    assert "'sampl'" in str(error)
    assert "'sample'" in error.hint


def test_a_name_without_a_near_one_is_refused_with_all_names(registry: Registry) -> None:
    assert get_error(registry, "zzz").hint.endswith("free, plain, sample, sample-margin")


@pytest.mark.parametrize("kind", ["attack", "kernel"])
def test_a_name_of_a_known_plugin_is_refused_with_the_plugin(kind: str, registry: Registry) -> None:
    with pytest.raises(UnknownName) as caught:
        registry.create(kind, "torchattacks:name=PGD")
    assert "wmr-torchattacks" in str(caught.value.hint)


def test_a_name_of_an_empty_kind_is_refused(registry: Registry) -> None:
    with pytest.raises(UnknownName) as caught:
        registry.create("kernel", "exp")
    assert caught.value.hint


def test_a_misspelt_parameter_is_refused_with_the_nearest_one(registry: Registry) -> None:
    error = get_error(registry, "sample:stps=3", eps=0.1)
    assert "'stps'" in str(error)
    assert "'steps'" in error.hint


def test_a_parameter_without_a_near_one_is_refused_with_all_parameters(registry: Registry) -> None:
    assert get_error(registry, "sample:q=3", eps=0.1).hint.endswith("eps, loss, steps")


def test_a_parameter_of_a_component_without_any_is_refused_as_such(registry: Registry) -> None:
    assert get_error(registry, "plain:q=3").hint == "plain has no parameters"


def test_a_missing_parameter_is_named(registry: Registry) -> None:
    error = get_error(registry, "sample")
    assert "eps" in str(error)
    assert "sample:eps=" in error.hint


def test_a_value_of_another_type_is_refused_with_its_parameter(registry: Registry) -> None:
    error = get_error(registry, "sample:eps=1,steps=ten")
    assert all(part in str(error) for part in ("steps", "'sample'", "'ten'"))


def test_accepts_includes_parameters_of_a_catch_all(registry: Registry) -> None:
    assert registry.accepts("attack", "sample", "steps")
    assert not registry.accepts("attack", "sample", "restarts")
    assert registry.accepts("attack", "free", "restarts")


def test_declares_excludes_parameters_of_a_catch_all(registry: Registry) -> None:
    assert registry.declares("attack", "sample", "steps")
    assert not registry.declares("attack", "free", "restarts")


def test_a_default_is_that_of_the_name_or_else_of_the_target(registry: Registry) -> None:
    assert registry.default("attack", "sample", "loss") == "ce"
    assert registry.default("attack", "sample-margin", "loss") == "margin"
    assert registry.default("attack", "sample-margin", "steps") == 10
    assert registry.default("attack", "sample", "eps") is None
    assert registry.default("attack", "sample", "unknown") is None


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("no_such_package.module:Thing", "no_such_package"),
        (f"{__name__}:NoSuchClass", "NoSuchClass"),
        (f"{__name__}:SampleAttack.no_such_part", "no_such_part"),
        (f"{__name__}:NOT_CALLABLE", "NOT_CALLABLE"),
    ],
)
def test_a_missing_target_is_an_error_only_when_it_is_built(
    registry: Registry, target: str, problem: str
) -> None:
    registry.add([("attack", Entry("ghost", target, "a missing target"))], "owner", "0.1")
    with pytest.raises(PluginError) as caught:
        registry.create("attack", "ghost")
    assert "attack 'ghost' of owner" in str(caught.value)
    assert problem in str(caught.value)


def test_a_target_can_be_part_of_a_class(registry: Registry) -> None:
    registry.add(
        [("attack", Entry("upper", "builtins:str.upper", "an attribute of an attribute"))],
        "nested",
        "0.1",
    )
    assert registry.target("attack", "upper") is str.upper


def test_a_name_that_is_taken_is_refused_with_both_owners(registry: Registry) -> None:
    with pytest.raises(PluginError) as caught:
        registry.add(
            [("attack", Entry("sample", f"{__name__}:SampleAttack", "mine now"))],
            "second-plugin",
            "0.1",
        )
    assert all(name in str(caught.value) for name in ("'sample'", "first-plugin", "second-plugin"))
    assert registry.find("attack", "sample").owner == "first-plugin"


def test_a_plugin_with_one_taken_name_adds_nothing(registry: Registry) -> None:
    before = list(registry)
    offered = [
        ("attack", Entry(name, f"{__name__}:SampleAttack", ""))
        for name in ("fresh", "sample", "later")
    ]
    with pytest.raises(PluginError):
        registry.add(offered, "second-plugin", "0.1")
    assert list(registry) == before


def test_a_plugin_that_registers_a_name_twice_is_refused() -> None:
    registry = Registry()
    entry = Entry("sample", f"{__name__}:SampleAttack", "")
    with pytest.raises(PluginError, match="owner"):
        registry.add([("attack", entry), ("attack", entry)], "owner", "0.1")
    assert registry.names("attack") == []


def test_external_versions_lists_plugins_and_local_files_but_not_built_ins(
    registry: Registry, tmp_path: Path
) -> None:
    registry.add([("kernel", Entry("exp", f"{__name__}:takes_nothing", ""))], "wmr-cli", "9.9")
    file = tmp_path / "mine.py"
    file.write_text("class Net: pass\n")
    used = registry.external_versions(
        {"attack": "sample:eps=1", "kernel": "exp", "model": f"{file}:Net"}
    )
    assert used == {
        "first-plugin": "1.2",
        str(file): "sha256:" + hashlib.sha256(b"class Net: pass\n").hexdigest(),
    }
    assert registry.external_versions({"kernel": "exp"}) == {}


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (Entry("SampleAttack", "a:b", ""), "'SampleAttack'"),
        (Entry("two words", "a:b", ""), "two words"),
        (Entry("trailing-", "a:b", ""), "trailing-"),
        (Entry("sample", "package.module", ""), "package.module"),
        (Entry("sample", "a:b", mistyped(None)), "sample"),
        (Entry("sample", "a:b", "", mistyped(["eps"])), "params"),
    ],
)
def test_an_invalid_entry_names_its_problem(entry: Entry, problem: str) -> None:
    assert problem in not_none(entry.problem())


def test_a_valid_entry_has_no_problem() -> None:
    assert Entry("pgd-l2", "package.module:Class.method", "fine", {"eps": 0.5}).problem() is None


def test_a_local_class_is_built_from_its_file(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Push:\n"
        "    def __init__(self, eps: float, steps: int = 3):\n"
        "        self.made = (eps, steps)\n"
    )
    assert registry.create("attack", f"{file}:Push,1/4,steps=9").made == (0.25, 9)
    error = get_error(registry, f"{file}:Pusj")
    assert str(file) in str(error)
    assert "'Push'" in error.hint


def test_postponed_annotations_are_evaluated(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Push:\n"
        "    eps: float = 1.0\n"
    )
    assert registry.create("attack", f"{file}:Push,eps=3").eps == 3.0


def test_a_missing_local_file_is_refused(registry: Registry, tmp_path: Path) -> None:
    error = get_error(registry, f"{tmp_path}/none.py:Push")
    assert f"{tmp_path}/none.py" in str(error)
    assert "path/to/file.py:Class" in error.hint


def test_a_local_file_that_failed_is_imported_again(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "flaky.py"
    file.write_text("raise RuntimeError('half written')\n")
    error = get_error(registry, f"{file}:Push")
    assert str(file) in str(error)
    assert "RuntimeError: half written" in str(error)
    file.write_text("class Push: pass\n")
    assert type(registry.create("attack", f"{file}:Push")).__name__ == "Push"


def test_a_local_file_imports_neighbours_without_a_change_of_the_search_path(
    registry: Registry, tmp_path: Path
) -> None:
    (tmp_path / "wmr_test_neighbour.py").write_text("STEPS = 7\n")
    file = tmp_path / "mine.py"
    file.write_text("from wmr_test_neighbour import STEPS\nclass Push:\n    steps = STEPS\n")
    before = list(sys.path)
    assert registry.create("attack", f"{file}:Push").steps == 7
    assert sys.path == before


def test_a_failing_local_file_does_not_change_the_search_path(
    registry: Registry, tmp_path: Path
) -> None:
    before = list(sys.path)
    (tmp_path / "failing.py").write_text("import wmr_test_no_such_neighbour\n")
    assert "wmr_test_no_such_neighbour" in str(get_error(registry, f"{tmp_path}/failing.py:Push"))
    assert sys.path == before


def test_a_hint_counts_names_if_there_are_too_many_to_list() -> None:
    names = [f"network{number:03}" for number in range(61)]
    assert did_you_mean("zzz", names).startswith("61 names")
    assert did_you_mean("zzz", names[:60]).startswith("available: network000, network001")
    assert did_you_mean("network", names).startswith("did you mean 'network0")


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("folder:pics", "folder:path={here}/pics"),
        ("folder:path=pics,size=32", "folder:path={here}/pics,size=32"),
        ("folder:pics,size=32", "folder:path={here}/pics,size=32"),
        ("arrays:path=sub/data.npz", "arrays:path={here}/sub/data.npz"),
        ("arrays:path=/data.npz", "arrays:path=/data.npz"),
        ("mnist:holdout=0.1", "mnist:holdout=0.1"),
        ("digits", "digits"),
    ],
)
def test_a_canonical_spec_has_absolute_paths_and_is_canonical(spec: str, canonical: str) -> None:
    registry = load_plugins().registry
    found = registry.canonical_spec("dataset", spec)
    assert found == canonical.format(here=Path.cwd())
    assert registry.canonical_spec("dataset", found) == found


def test_a_canonical_spec_has_no_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    assert (
        load_plugins().registry.canonical_spec("dataset", "folder:~/pics")
        == "folder:path=/home/user/pics"
    )


def pin_to_seven(spec: Spec) -> Spec:
    return spec.with_params(revision="7")


def test_an_entry_decides_what_a_canonical_spec_holds() -> None:
    registry = Registry()
    entry = Entry("pinned", f"{__name__}:takes_anything", "", pin=f"{__name__}:pin_to_seven")
    registry.add([("model", entry)], "one", "1")
    assert registry.canonical_spec("model", "pinned:x=1") == "pinned:x=1,revision=7"
    broken = Entry("broken", f"{__name__}:takes_anything", "", pin="no_such_module:pin")
    registry.add([("model", broken)], "two", "1")
    with pytest.raises(PluginError, match="'broken' of two"):
        registry.canonical_spec("model", "broken")
    assert "pin" in (Entry("x", "a:b", "", pin="not a target").problem() or "")


def test_a_value_without_a_key_that_is_not_a_path_stays_without_a_key() -> None:
    assert (
        load_plugins().registry.canonical_spec("model", "timm:resnet18,size=32")
        == "timm:resnet18,size=32"
    )


def test_every_model_takes_a_normalisation_and_no_other_key() -> None:
    registry = load_plugins().registry
    registry.check("model", "small-cnn:mean=0.1,std=0.3")
    with pytest.raises(UnknownName, match="'men'"):
        registry.check("model", "small-cnn:men=0.1")
    spec, common = registry.split_shared("model", Spec.parse("small-cnn:mean=0.1:0.2,dropout=0"))
    assert (str(spec), common) == ("small-cnn:dropout=0", {"mean": (0.1, 0.2)})
