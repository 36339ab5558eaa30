"""One door to build by name: what is misspelt is refused with the nearest name, and nothing is overwritten."""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.typed import mistyped, not_none
from wmr_cli.errors import BadInput, PluginError, UnknownName, did_you_mean
from wmr_cli.plugins import installed
from wmr_cli.registry import Entry, Registry
from wmr_cli.spec import Spec

pytestmark = pytest.mark.usefixtures("trusts_local_code")


@dataclass(frozen=True)
class Climb:
    """A component with a parameter of every sort; the tests register it by name."""

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
        ("attack", Entry("climb", f"{__name__}:Climb", "all by the user")),
        (
            "attack",
            Entry(
                "climb-margin", f"{__name__}:Climb", "some fixed", {"loss": "margin", "eps": 0.5}
            ),
        ),
        ("attack", Entry("plain", f"{__name__}:takes_nothing", "no parameters")),
        ("attack", Entry("free", f"{__name__}:takes_anything", "any parameters")),
        ("model", Entry("climb", f"{__name__}:takes_nothing", "the same name of another kind")),
    ]
    filled.add(offered, "alpine", "1.2")
    return filled


def refusal(registry: Registry, spec: str | Spec, **given: object) -> BadInput:
    with pytest.raises(BadInput) as refused:
        registry.create("attack", spec, **given)
    return refused.value


def test_a_component_is_built_from_its_spec(registry: Registry) -> None:
    assert registry.create("attack", "climb:eps=8/255,steps=3") == Climb(eps=8 / 255, steps=3)


def test_a_positional_value_goes_to_the_first_free_parameter(registry: Registry) -> None:
    assert registry.create("attack", "climb:0.1") == Climb(eps=0.1)
    assert registry.create("attack", "climb:7", eps=0.1) == Climb(eps=0.1, steps=7)
    assert registry.create("attack", "climb-margin:7") == Climb(eps=0.5, steps=7, loss="margin")


def test_a_component_without_parameters_takes_no_value(registry: Registry) -> None:
    assert "'plain'" in str(refusal(registry, "plain:3"))


def test_parameters_of_the_entry_the_caller_and_the_user_have_an_order(
    registry: Registry,
) -> None:
    assert registry.create("attack", "climb-margin") == Climb(eps=0.5, loss="margin")
    assert registry.create("attack", "climb-margin", eps=0.2) == Climb(eps=0.2, loss="margin")
    assert registry.create("attack", "climb-margin:loss=ce", eps=0.2) == Climb(eps=0.2, loss="ce")
    assert registry.create("attack", "climb-margin:eps=0.1") == Climb(eps=0.1, loss="margin")
    with pytest.raises(BadInput, match="eps"):
        registry.create("attack", "climb-margin:eps=0.1", eps=0.2)


def test_building_does_not_change_what_the_name_fixes(registry: Registry) -> None:
    registry.create("attack", "climb-margin:eps=0.1,loss=ce")
    assert registry.find("attack", "climb-margin").entry.params == {"loss": "margin", "eps": 0.5}


def test_a_target_that_takes_any_parameter_gets_them_as_they_look(registry: Registry) -> None:
    assert registry.create("attack", "free:size=3,ratio=1/2,name=x") == {
        "size": 3,
        "ratio": 0.5,
        "name": "x",
    }


def test_a_misspelt_name_is_refused_with_the_nearest(registry: Registry) -> None:
    problem = refusal(registry, "clim:eps=1")
    assert isinstance(problem, UnknownName)
    assert "'clim'" in str(problem)
    assert "'climb'" in problem.hint


def test_a_name_near_to_none_is_refused_with_all_of_them(registry: Registry) -> None:
    assert refusal(registry, "zzz").hint.endswith("climb, climb-margin, free, plain")


def test_a_name_of_a_kind_without_any_is_refused(registry: Registry) -> None:
    with pytest.raises(UnknownName) as refused:
        registry.create("kernel", "exp")
    assert refused.value.hint


def test_a_misspelt_key_is_refused_with_the_nearest(registry: Registry) -> None:
    problem = refusal(registry, "climb:stps=3", eps=0.1)
    assert "'stps'" in str(problem)
    assert "'steps'" in problem.hint


def test_a_key_near_to_none_is_refused_with_all_of_them(registry: Registry) -> None:
    assert refusal(registry, "climb:q=3", eps=0.1).hint.endswith("eps, loss, steps")


def test_a_missing_parameter_is_named(registry: Registry) -> None:
    problem = refusal(registry, "climb")
    assert "eps" in str(problem)
    assert "climb:eps=" in problem.hint


def test_a_value_that_cannot_be_read_names_its_key(registry: Registry) -> None:
    assert (
        str(refusal(registry, "climb:eps=1,steps=ten"))
        == "steps of attack 'climb': 'ten' is not a number"
    )


def test_accepts_tells_what_a_user_may_set(registry: Registry) -> None:
    assert registry.accepts("attack", "climb", "steps")
    assert not registry.accepts("attack", "climb", "restarts")
    assert registry.accepts("attack", "free", "restarts")


def test_declares_tells_what_a_component_names_itself(registry: Registry) -> None:
    assert registry.declares("attack", "climb", "steps")
    assert not registry.declares("attack", "free", "restarts")


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("no_such_package.module:Thing", "no_such_package"),
        (f"{__name__}:NoSuchClass", "NoSuchClass"),
        (f"{__name__}:Climb.no_such_part", "no_such_part"),
        (f"{__name__}:NOT_CALLABLE", "NOT_CALLABLE"),
    ],
)
def test_a_target_that_does_not_exist_is_found_when_it_is_built(
    registry: Registry, target: str, problem: str
) -> None:
    registry.add([("attack", Entry("ghost", target, "promises nothing"))], "haunted", "0.1")
    with pytest.raises(PluginError) as refused:
        registry.create("attack", "ghost")
    assert "attack 'ghost' of haunted" in str(refused.value)
    assert problem in str(refused.value)


def test_a_target_can_be_part_of_a_class(registry: Registry) -> None:
    registry.add(
        [("attack", Entry("upper", "builtins:str.upper", "an attribute of an attribute"))],
        "nested",
        "0.1",
    )
    assert registry.target("attack", "upper") is str.upper


def test_a_taken_name_is_refused_naming_both_owners(registry: Registry) -> None:
    with pytest.raises(PluginError) as refused:
        registry.add(
            [("attack", Entry("climb", f"{__name__}:Climb", "mine now"))], "newcomer", "0.1"
        )
    assert all(name in str(refused.value) for name in ("'climb'", "alpine", "newcomer"))
    assert registry.find("attack", "climb").owner == "alpine"


def test_of_a_plugin_with_one_taken_name_nothing_is_added(registry: Registry) -> None:
    before = list(registry)
    offered = [
        ("attack", Entry(name, f"{__name__}:Climb", "")) for name in ("fresh", "climb", "later")
    ]
    with pytest.raises(PluginError):
        registry.add(offered, "newcomer", "0.1")
    assert list(registry) == before


def test_a_name_offered_twice_by_one_plugin_is_refused() -> None:
    registry, entry = Registry(), Entry("climb", f"{__name__}:Climb", "")
    with pytest.raises(PluginError, match="twin"):
        registry.add([("attack", entry), ("attack", entry)], "twin", "0.1")
    assert registry.names("attack") == []


def test_used_names_plugins_and_local_files_behind_specs_but_not_our_own(
    registry: Registry, tmp_path: Path
) -> None:
    registry.add([("kernel", Entry("exp", f"{__name__}:takes_nothing", ""))], "wmr-cli", "9.9")
    file = tmp_path / "mine.py"
    file.write_text("class Net: pass\n")
    used = registry.external_versions(
        {"attack": "climb:eps=1", "kernel": "exp", "model": f"{file}:Net"}
    )
    assert used == {
        "alpine": "1.2",
        str(file): "sha256:" + hashlib.sha256(b"class Net: pass\n").hexdigest(),
    }
    assert registry.external_versions({"kernel": "exp"}) == {}


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (Entry("Climb", "a:b", ""), "'Climb'"),
        (Entry("two words", "a:b", ""), "two words"),
        (Entry("trailing-", "a:b", ""), "trailing-"),
        (Entry("climb", "package.module", ""), "package.module"),
        (Entry("climb", "a:b", mistyped(None)), "climb"),
        (Entry("climb", "a:b", "", mistyped(["eps"])), "params"),
    ],
)
def test_an_invalid_entry_names_its_problem(entry: Entry, problem: str) -> None:
    assert problem in not_none(entry.problem())


def test_a_sound_entry_has_no_problem() -> None:
    assert Entry("pgd-l2", "package.module:Class.method", "fine", {"eps": 0.5}).problem() is None


def test_a_local_class_is_built_from_its_file(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Push:\n    def __init__(self, eps: float, steps: int = 3):\n        self.made = (eps, steps)\n"
    )
    assert registry.create("attack", f"{file}:Push,1/4,steps=9").made == (0.25, 9)
    problem = refusal(registry, f"{file}:Pusj")
    assert str(file) in str(problem)
    assert "'Push'" in problem.hint


def test_annotations_that_are_text_are_understood(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Push:\n    eps: float = 1.0\n"
    )
    assert registry.create("attack", f"{file}:Push,eps=3").eps == 3.0


def test_a_file_that_is_not_there_is_refused(registry: Registry, tmp_path: Path) -> None:
    problem = refusal(registry, f"{tmp_path}/none.py:Push")
    assert f"{tmp_path}/none.py" in str(problem)
    assert "path/to/file.py:Class" in problem.hint


def test_a_file_that_fails_is_run_again_the_next_time(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "flaky.py"
    file.write_text("raise RuntimeError('half written')\n")
    problem = refusal(registry, f"{file}:Push")
    assert str(file) in str(problem)
    assert "RuntimeError: half written" in str(problem)
    file.write_text("class Push: pass\n")
    assert type(registry.create("attack", f"{file}:Push")).__name__ == "Push"


def test_a_local_file_can_import_its_neighbours_and_the_search_path_is_as_before(
    registry: Registry, tmp_path: Path
) -> None:
    (tmp_path / "wmr_test_neighbour.py").write_text("STEPS = 7\n")
    file = tmp_path / "mine.py"
    file.write_text("from wmr_test_neighbour import STEPS\nclass Push:\n    steps = STEPS\n")
    before = list(sys.path)
    assert registry.create("attack", f"{file}:Push").steps == 7
    assert sys.path == before


def test_the_search_path_is_as_before_when_a_local_file_fails(
    registry: Registry, tmp_path: Path
) -> None:
    before = list(sys.path)
    (tmp_path / "failing.py").write_text("import wmr_test_no_such_neighbour\n")
    assert "wmr_test_no_such_neighbour" in str(refusal(registry, f"{tmp_path}/failing.py:Push"))
    assert sys.path == before


def test_a_hint_counts_names_that_are_too_many_to_list() -> None:
    names = [f"network{number:03}" for number in range(61)]
    assert did_you_mean("zzz", names).startswith("61 names")
    assert did_you_mean("zzz", names[:60]).startswith("available: network000, network001")
    assert did_you_mean("network", names).startswith("did you mean 'network0")


@pytest.mark.parametrize(
    ("spec", "settled"),
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
def test_a_settled_spec_means_the_same_from_any_folder(spec: str, settled: str) -> None:
    registry = installed().registry
    made = registry.canonical_spec("dataset", spec)
    assert made == settled.format(here=Path.cwd())
    assert registry.canonical_spec("dataset", made) == made


def test_a_home_folder_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somebody")
    assert (
        installed().registry.canonical_spec("dataset", "folder:~/pics")
        == "folder:path=/somebody/pics"
    )


def test_a_bare_value_that_is_no_path_stays_bare() -> None:
    assert (
        installed().registry.canonical_spec("model", "timm:resnet18,size=32")
        == "timm:resnet18,size=32"
    )


def test_every_model_takes_a_normalisation_and_no_other_key() -> None:
    registry = installed().registry
    registry.check("model", "small-cnn:mean=0.1,std=0.3")
    with pytest.raises(UnknownName, match="'men'"):
        registry.check("model", "small-cnn:men=0.1")
    spec, common = registry.split_shared("model", Spec.parse("small-cnn:mean=0.1:0.2,dropout=0"))
    assert (str(spec), common) == ("small-cnn:dropout=0", {"mean": (0.1, 0.2)})
