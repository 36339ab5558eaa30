"""Commands print results on stdout and messages on stderr; all formats have the same numbers."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from support.cli_runner import wmr
from wmr_cli import __version__, presets
from wmr_cli.plugins import load_plugins
from wmr_cli.storage import checkpoints

COMMANDS = (
    "train",
    "evaluate",
    "attack",
    "import",
    "report",
    "sweep",
    "list",
    "schema",
    "plugins",
    "doctor",
)
TINY = ("--limit", "20", "--steps", "2")
SHARES = ("a_nat", "a_rob", "a_sa", "a_tr")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of one epoch without evaluations; it is read-only."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    wmr("train", "--epochs", 1, "--validate-every", 0, "--out", folder, "-q")
    return folder


@pytest.fixture(scope="module")
def evaluated(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the run with one record at two alphas; it is read-only."""
    folder = tmp_path_factory.mktemp("evaluated") / "tiny"
    shutil.copytree(trained, folder)
    wmr("evaluate", folder, *TINY, "--alpha-test", "1,2", "-q")
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """Return a copy of the run for tests that write to it."""
    return Path(shutil.copytree(trained, tmp_path / "tiny"))


@pytest.mark.parametrize(
    "command", [(), *((name,) for name in COMMANDS), ("plugins", "new")], ids=str
)
def test_help_ends_with_a_worked_example(command: tuple[str, ...]) -> None:
    _, _, example = wmr(*command, "--help").stdout.rpartition("Example: ")
    assert " ".join(example.split()).startswith(
        " ".join(["wmr", *command]) if command else "wmr train, then wmr evaluate"
    )
    assert "╯" not in example  # nothing follows it


@pytest.mark.parametrize("command", [*COMMANDS, "plugins new"])
def test_every_flag_is_in_a_named_panel(command: str) -> None:
    text = wmr(*command.split(), "--help").stdout
    panels = [line.strip("╭─╮ ") for line in text.splitlines() if line.startswith("╭")]
    # --help is the only flag of `schema`
    assert ("Options" in panels) == (command == "schema")


@pytest.mark.parametrize("setting", [("--defense", "natural"), ("--kernel", "none")])
def test_alpha_0_is_accepted_without_weights(setting: tuple[str, str]) -> None:
    wmr("train", *setting, "--alpha", "0", "--epochs", "1", "--dry-run")
    assert "--alpha" in wmr("train", *setting, "--alpha", "1", "--dry-run", status=2).stderr


def test_help_names_every_command() -> None:
    text = wmr("--help").stdout.partition("Commands")[2]
    places = [text.find(f"│ {name} ") for name in COMMANDS]
    assert min(places) >= 0
    assert places == sorted(places), "in the order of work"


@pytest.mark.parametrize("kind", ["model", "dataset", "defense", "attack", "kernel", "preset"])
def test_list_shows_every_name_of_a_kind_and_no_other(kind: str) -> None:
    names = presets.names() if kind == "preset" else load_plugins().registry.names(kind)
    lines = wmr("list", f"{kind}s").stdout.splitlines()
    assert [line.split()[1] for line in lines if line.split()[:1] == [kind]] == names
    assert len([line for line in lines if line.strip()]) == len(names) + (
        3 if kind == "dataset" else 2
    )  # heading, rule, caption


def test_list_shows_all_kinds_and_takes_a_pattern() -> None:
    everything = wmr("list").stdout
    assert "digits-cnn" in everything
    assert "trades" in everything
    assert "pgd-margin" not in wmr("list", "attacks", "fg*").stdout
    assert "pgd-margin" in wmr("list", "attacks", "margin").stdout
    nothing = wmr("list", "attacks", "zzz*", status=1)
    assert nothing.stdout == ""
    assert "'zzz*'" in nothing.stderr


def test_plugins_shows_ours_with_what_it_offers() -> None:
    text = wmr("plugins").stdout
    assert "wmr-cli" in text
    assert __version__ in text
    assert "attacks apgd-ce, apgd-dlr" in text


def test_plugins_check_passes_for_the_built_in_components() -> None:
    result = wmr("plugins", "--check")
    assert "wmr-cli" in result.stdout
    assert result.stderr
    assert wmr("plugins", "--check", "--quiet").stderr == ""


def test_a_new_plugin_is_written_to_its_folder(tmp_path: Path) -> None:
    result = wmr("plugins", "new", "mine", "--kind", "attack", "--kind", "kernel")
    assert result.stdout == "wmr-mine\n"
    assert "pip install -e 'wmr-mine[test]'" in result.stderr
    assert Path("wmr-mine/src/wmr_mine/kernel.py").is_file()
    result = wmr(
        "plugins",
        "new",
        "wmr-mine",
        "--kind",
        "loss",
        "--out",
        tmp_path / "deep" / "plugin",
        "--quiet",
    )
    assert (result.stdout, result.stderr) == (f"{tmp_path}/deep/plugin\n", "")
    assert (tmp_path / "deep" / "plugin" / "src" / "wmr_mine" / "defense.py").is_file()


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["my_attack", "--kind", "attack"], "'my_attack'", "'my-attack'"),
        (["pgd", "--kind", "attack"], "'pgd'", "'my-pgd'"),
        (["mine", "--kind", "atack"], "'atack'", "'attack'"),
        (["mine", "--kind", "defence"], "'defence'", "'defense'"),
        (["mine"], "'--kind'", "wmr plugins new --help"),
        (["--kind", "model"], "'NAME'", "wmr plugins new --help"),
        (["mine", "--kind", "model", "--out", "taken"], "taken", "--out"),
        (["mine", "--kind", "model", "--out", "file/mine"], "file/mine", "--out"),
    ],
)
def test_an_invalid_new_plugin_gives_one_error_and_one_hint(
    words: list[str], error: str, hint: str
) -> None:
    Path("taken/work").mkdir(parents=True)
    Path("file").touch()
    lines = wmr("plugins", "new", *words, status=2).stderr.splitlines()
    assert len(lines) == 2
    assert error in lines[0]
    assert hint in lines[1]
    assert sorted(str(path) for path in Path().rglob("*")) == ["file", "taken", "taken/work"]


def test_check_and_new_exclude_each_other() -> None:
    assert (
        "--check" in wmr("plugins", "--check", "new", "mine", "--kind", "attack", status=2).stderr
    )


def test_doctor_accepts_this_installation(tmp_path: Path) -> None:
    text = wmr("doctor", "--data-dir", tmp_path / "data").stdout
    assert "problem" not in text
    assert [
        name for name in ("torch", "torchvision", "timm", "devices", "plugins") if name not in text
    ] == []
    assert str(tmp_path / "data") in text


def test_training_names_the_checkpoint_on_stdout_and_the_next_command_on_stderr(
    tmp_path: Path,
) -> None:
    result = wmr(
        "train", "--epochs", 2, "--validate-every", 1, "--steps", 1, "--out", tmp_path / "run"
    )
    assert result.stdout == f"{tmp_path}/run/last.safetensors\n"
    assert result.stderr.count("epoch 1/2") == 1
    assert f"wmr evaluate {tmp_path}/run" in result.stderr.splitlines()[-1]
    made = {file.name for file in (tmp_path / "run").iterdir()}
    assert made >= {
        "config.json",
        "log.jsonl",
        "last.safetensors",
        "best.safetensors",
        "resume.safetensors",
    }
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 2


def test_a_dry_run_prints_a_config_that_can_be_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(wmr("train", "--eps", "8/255", "--defense", "pgd", "--dry-run").stdout)
    assert json.loads(config.read_text())["eps"] == 8 / 255
    assert wmr("train", "--config", config, "--dry-run").stdout == config.read_text()
    assert list(tmp_path.iterdir()) == [config]


def test_a_dry_run_prints_the_config_even_where_the_data_are_missing(tmp_path: Path) -> None:
    result = wmr("train", "--dataset", f"folder:path={tmp_path}/nowhere", "--dry-run", status=2)
    assert json.loads(result.stdout)["dataset"].startswith("folder:path=")
    assert "nowhere" in result.stderr


def test_a_dry_run_estimates_the_time_of_the_run() -> None:
    assert re.search(r"[\d.]+ (s|min|h)\b", wmr("train", "--dry-run", "--steps", 1).stderr)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--logger", "cvs"), "'csv'"),
        (("--milestones", "5,x"), "--milestones"),
        (("--warmup", "1.5"), "--warmup"),
        (("--max-weight", "0"), "--max-weight"),
        (("--alpha-ramp", "0.5", "--kernel", "none"), "'none'"),
        (("--devices", "0"), "--devices"),
        (("--precision", "16", "--device", "cpu"), "precision"),
        (("--defense", "trades:terms=all"), "terms"),
    ],
)
def test_invalid_settings_of_training_are_refused(
    words: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    assert problem in wmr("train", *words, status=2).stderr
    assert not list(tmp_path.iterdir())


def test_on_a_machine_without_accelerator_the_preset_for_it_is_suggested(tmp_path: Path) -> None:
    """The suggestion comes before the data are downloaded."""
    suggested = wmr(
        "train", "--dataset", "mnist", "--data-dir", tmp_path / "none", "--device", "cpu", status=2
    ).stderr
    assert "--preset cpu/mnist" in suggested
    chosen = wmr(
        "train",
        "--preset",
        "cpu/mnist",
        "--data-dir",
        tmp_path / "none",
        "--device",
        "cpu",
        status=2,
    ).stderr
    assert "--preset cpu/mnist" not in chosen


def test_resuming_a_complete_run_changes_no_weights(run: Path) -> None:
    before = (run / "last.safetensors").read_bytes()
    wmr("train", "--out", run, "--resume", "--config", run / "config.json", "-q")
    assert (run / "last.safetensors").read_bytes() == before


def test_the_same_settings_give_the_same_weights(run: Path, trained: Path) -> None:
    wmr("train", "--out", run, "--overwrite", "--config", trained / "config.json", "-q")
    assert checkpoints.load(run).sha256 == checkpoints.load(trained).sha256
    assert checkpoints.load(run).epoch == 1


def test_quiet_leaves_stderr_empty(run: Path, tmp_path: Path) -> None:
    assert (
        wmr("train", "--epochs", 1, "--steps", 1, "--out", tmp_path / "new", "--quiet").stderr == ""
    )
    assert wmr("evaluate", run, *TINY, "--quiet").stderr == ""
    assert wmr("evaluate", run, *TINY, "--quiet").stderr == ""  # shown as recorded
    assert (
        wmr("attack", run, *TINY, "--save", tmp_path / "images.safetensors", "--quiet").stderr == ""
    )
    assert wmr("report", run, "--out", tmp_path / "table.md", "--quiet").stderr == ""


def test_evaluate_prints_nothing_but_json_with_the_place_of_the_rows(run: Path) -> None:
    result = wmr("evaluate", run, *TINY, "--alpha-test", "1,2", "--format", "json")
    (record,) = json.loads(result.stdout)
    assert record["checkpoint"]["path"] == str(run / "last.safetensors")
    assert [row["alpha_test"] for row in record["by_alpha"]] == [1.0, 2.0]
    assert record["dataset"]["n"] == len(record["dataset"]["indices"]) == 20
    assert record["attack"]["spec"] == "pgd:steps=2,step=0.015"
    assert Path(record["rows"]).is_absolute()
    rows = load_file(record["rows"])
    assert rows["index"].tolist() == record["dataset"]["indices"]
    assert record["a_nat"]["value"] == np.mean(rows["clean/prediction"] == rows["label"])
    assert record["a_rob"]["value"] == np.mean(rows["uniform/prediction"] == rows["label"])
    stored = json.loads((run / "evaluations" / f"{record['id']}.json").read_text())
    assert {**stored, "rows": record["rows"]} == record


def test_evaluate_makes_a_record_for_every_attack_and_eps(run: Path) -> None:
    flags = (
        "--attack",
        "fgsm",
        "--attack",
        "pgd-margin:steps=1",
        "--eps",
        "0.1",
        "--eps",
        "8/255",
        "--limit",
        20,
    )
    records = json.loads(wmr("evaluate", run, *flags, "--format", "json").stdout)
    facts = [
        (record["attack"]["spec"].split(":")[0], record["threat"]["eps"]) for record in records
    ]
    attacks = ("fgsm", "pgd-margin", "worst")
    assert facts == [(attack, eps) for attack in attacks for eps in (0.1, 8 / 255)]
    assert len({record["id"] for record in records}) == 6


def test_evaluate_computes_only_the_chosen_metrics(run: Path) -> None:
    (record,) = json.loads(
        wmr("evaluate", run, *TINY, "--metrics", "nat,rob", "--format", "json").stdout
    )
    assert record["a_rob"] is not None
    assert [(row["a_sa"], row["a_tr"]) for row in record["by_alpha"]] == [(None, None)] * len(
        record["by_alpha"]
    )


def test_repeating_an_evaluation_shows_the_record(run: Path) -> None:
    (first,) = json.loads(wmr("evaluate", run, *TINY, "--format", "json").stdout)
    again = wmr("evaluate", run, *TINY, "--format", "json")
    assert json.loads(again.stdout) == [first]
    assert f"{run}/evaluations/{first['id']}.json" in again.stderr
    (other,) = json.loads(wmr("evaluate", run, *TINY, "--seed", 1, "--format", "json").stdout)
    assert other["id"] != first["id"]


def test_evaluations_of_a_bare_file_are_stored_beside_it_or_in_out(
    trained: Path, tmp_path: Path
) -> None:
    shutil.copy(trained / "last.safetensors", tmp_path / "net.safetensors")
    wmr("evaluate", tmp_path / "net.safetensors", *TINY, "-q")
    wmr("evaluate", tmp_path / "net.safetensors", *TINY, "--out", tmp_path / "elsewhere", "-q")
    (beside,) = (tmp_path / "net.evaluations").glob("*.json")
    (elsewhere,) = (tmp_path / "elsewhere").glob("*.json")
    assert beside.name == elsewhere.name


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_report_in_csv_holds_the_numbers_of_the_record(evaluated: Path) -> None:
    (record,) = json.loads(wmr("report", evaluated, "--format", "json").stdout)
    lines = read_csv(wmr("report", evaluated, "--format", "csv").stdout)
    assert len(lines) == len(record["by_alpha"]) == 2
    for line, row in zip(lines, record["by_alpha"], strict=True):
        measured = {
            "a_nat": record["a_nat"],
            "a_rob": record["a_rob"],
            "a_sa": row["a_sa"],
            "a_tr": row["a_tr"],
        }
        parts = {"": "value", "_low": "low", "_high": "high"}
        assert {(share, part): float(line[share + part]) for share in SHARES for part in parts} == {
            (share, part): measured[share][name] for share in SHARES for part, name in parts.items()
        }
        assert (line["run"], line["id"], line["attack"]) == (
            "tiny",
            record["id"],
            record["attack"]["spec"],
        )
        assert (float(line["alpha_test"]), float(line["eps"])) == (
            row["alpha_test"],
            record["threat"]["eps"],
        )
        assert float(line["ess"]) == row["a_sa"]["ess"]


def test_report_in_json_is_what_evaluate_printed(evaluated: Path) -> None:
    printed = wmr("evaluate", evaluated, *TINY, "--alpha-test", "1,2", "--format", "json").stdout
    assert json.loads(wmr("report", evaluated, "--format", "json").stdout) == json.loads(printed)


def test_report_in_markdown_is_one_table_with_a_line_per_alpha(evaluated: Path) -> None:
    lines = wmr("report", evaluated, "--format", "markdown").stdout.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 2
    assert {line.count(" | ") for line in table} == {11}
    assert [line.split(" | ")[3] for line in table[2:]] == ["pgd:steps=2,step=0.015"] * 2


def test_off_a_terminal_no_line_of_a_table_is_cut(run: Path) -> None:
    long = "pgd-margin:start=gauss:0.00123456789,keep=best,steps=1,step=0.0123456789"
    printed = wmr("evaluate", run, "--limit", 20, "--attack", long)
    (spec,) = [
        record["attack"]["spec"]
        for record in json.loads(wmr("report", run, "--format", "json").stdout)
    ]
    for text in (printed.stdout, wmr("report", run).stdout):
        # the title has what all rows share
        titles = [line for line in text.splitlines() if spec in line]
        assert [("trades:beta=6" in title, "n 20" in title) for title in titles] == [(True, True)]
        assert "…" not in text


@pytest.mark.parametrize("output", ["table", "markdown", "csv", "json"])
def test_a_report_in_a_file_is_the_report_on_stdout(
    evaluated: Path, tmp_path: Path, output: str
) -> None:
    printed = wmr("report", evaluated, "--format", output).stdout
    result = wmr("report", evaluated, "--format", output, "--out", tmp_path / "made" / "report")
    assert result.stdout == ""
    assert str(tmp_path / "made" / "report") in result.stderr
    assert (tmp_path / "made" / "report").read_text() == printed


def test_report_rescored_at_alpha_0_is_the_unweighted_accuracy(evaluated: Path) -> None:
    (record,) = json.loads(
        wmr("report", evaluated, "--alpha-test", "0,1", "--format", "json").stdout
    )
    (stored,) = json.loads(wmr("report", evaluated, "--format", "json").stdout)
    at_0, at_1 = record["by_alpha"]
    assert (at_0["alpha_test"], at_1["alpha_test"]) == (0.0, 1.0)
    assert at_0["a_sa"]["value"] == record["a_rob"]["value"]
    assert at_0["a_sa"]["ess"] == record["dataset"]["n"]
    assert at_0["a_tr"] is None  # its attack was not run at alpha 0
    assert at_1 == stored["by_alpha"][0]


def test_report_finds_records_in_folders_and_by_name_once_each(evaluated: Path) -> None:
    (file,) = (evaluated / "evaluations").glob("*.json")
    by_path = [
        wmr("report", path, "--format", "json").stdout
        for path in (evaluated.parent, evaluated, file.parent, file)
    ]
    assert len(set(by_path)) == 1
    assert len(json.loads(wmr("report", evaluated, file, "--format", "json").stdout)) == 1


@pytest.mark.parametrize("damage", ["{", "", "[]", '{"schema": 1}', "\x00" * 9])
def test_a_broken_record_is_named_and_the_others_are_shown(
    evaluated: Path, tmp_path: Path, damage: str
) -> None:
    folder = shutil.copytree(evaluated, tmp_path / "tiny")
    (folder / "evaluations" / "broken.json").write_text(damage)
    result = wmr("report", folder, "--format", "json", status=1)
    assert len(json.loads(result.stdout)) == 1
    assert f"{folder}/evaluations/broken.json" in result.stderr


def test_a_record_of_another_schema_is_refused_by_name(evaluated: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(evaluated, tmp_path / "tiny")
    (file,) = (folder / "evaluations").glob("*.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 2}))
    result = wmr("report", folder, "--format", "json", status=1)
    assert json.loads(result.stdout) == []
    assert str(file) in result.stderr
    assert "schema" in result.stderr


def test_a_record_without_its_rows_can_be_shown_but_not_rescored(
    evaluated: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(evaluated, tmp_path / "tiny")
    (rows,) = (folder / "evaluations").glob("*.safetensors")
    rows.unlink()
    assert "tiny" in wmr("report", folder).stdout
    assert rows.name in wmr("report", folder, "--alpha-test", "0", status=1).stderr


def test_attack_sums_up_in_json_and_in_a_table(trained: Path) -> None:
    summary = json.loads(wmr("attack", trained, *TINY, "--format", "json").stdout)
    assert summary["images"] == 20
    assert summary["attack"] == "pgd:steps=2,step=0.015"
    assert 0 <= summary["fooled"] <= summary["right_before"] <= 20
    assert summary["success_rate"]["value"] == summary["fooled"] / summary["right_before"]
    table = wmr("attack", trained, *TINY).stdout
    assert {"20", str(summary["right_before"])} <= set(re.findall(r"\d+", table))
    assert str(trained / "last.safetensors") in table


def clean_images(index: np.ndarray) -> np.ndarray:
    """Return the digits at these positions, (N, 1, H, W) in [0, 1]."""
    from sklearn.datasets import load_digits

    pixels: np.ndarray = load_digits().images[index, None] / 16
    return pixels.astype(np.float32)


def test_saved_images_are_in_the_eps_ball(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "images.safetensors"
    summary = json.loads(wmr("attack", trained, *TINY, "--save", file, "--format", "json").stdout)
    saved = load_file(file)
    change = np.abs(saved["images"] - clean_images(saved["index"]))
    assert saved["images"].shape == (20, 1, 8, 8)
    assert 0 < change.max() <= 0.15 + 1e-6
    assert saved["images"].min() >= 0
    assert saved["images"].max() <= 1
    was_right = saved["prediction_clean"] == saved["label"]
    assert np.sum(was_right & (saved["prediction"] != saved["label"])) == summary["fooled"]


def test_images_saved_in_8_bits_are_in_the_eps_ball(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "images.safetensors"
    wmr("attack", trained, *TINY, "--save", file, "--save-uint8", "-q")
    saved = load_file(file)
    assert saved["images"].dtype == np.uint8
    change = np.abs(saved["images"] / 255 - clean_images(saved["index"]).astype(np.float64))
    assert 0 < change.max() <= 0.15 + 1e-6


def test_the_weighted_attack_is_another_attack(trained: Path, tmp_path: Path) -> None:
    plain, weighted, at_0 = (
        tmp_path / f"{name}.safetensors" for name in ("plain", "weighted", "at-0")
    )
    wmr("attack", trained, *TINY, "--save", plain, "-q")
    wmr("attack", trained, *TINY, "--save", weighted, "--alpha", 50, "-q")
    wmr("attack", trained, *TINY, "--save", at_0, "--alpha", 0, "-q")
    assert not np.array_equal(load_file(plain)["images"], load_file(weighted)["images"])
    assert np.array_equal(load_file(plain)["images"], load_file(at_0)["images"])


def test_the_grid_is_a_png(trained: Path, tmp_path: Path) -> None:
    result = wmr("attack", trained, "--limit", 3, "--steps", 1, "--grid", tmp_path / "grid.png")
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert str(tmp_path / "grid.png") in result.stderr


def test_text_of_the_user_in_a_table_is_not_markup(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "[bold]x[")
    assert "[bold]x[" in wmr("evaluate", folder, *TINY).stdout
    assert "[bold]x[" in wmr("report", folder).stdout
    assert "[bold]x[/last.safetensors" in wmr("attack", folder, *TINY).stdout


@pytest.mark.parametrize(
    "program",
    [[sys.executable, "-m", "wmr_cli"], [str(Path(sys.executable).with_name("wmr"))]],
    ids=["module", "script"],
)
def test_wmr_runs_as_a_program(program: list[str], evaluated: Path) -> None:
    flags = ("--alpha-test", "1000", "--format", "json")
    done = subprocess.run(
        [*program, "report", str(evaluated), *flags], capture_output=True, text=True, check=True
    )
    assert len(json.loads(done.stdout)) == 1
    assert done.stderr.startswith("warning: ")
    refused = subprocess.run(
        [*program, "report", "/nowhere"], capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stdout) == (2, "")
    assert re.fullmatch(r"error: .*/nowhere.*\nhint: .*\n", refused.stderr)


def test_one_bad_checkpoint_is_skipped_and_the_others_are_shown(
    trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    flags = ("--metrics", "nat", "--limit", 10, "--out", tmp_path / "records", "--format", "json")
    done = wmr("evaluate", tmp_path / "empty", trained, *flags, status=1)
    assert len(json.loads(done.stdout)) == 1
    assert f"{tmp_path}/empty" in done.stderr
    wmr("evaluate", tmp_path / "empty", tmp_path / "none", *flags, status=2)


def test_a_dry_run_that_passes_could_start(tmp_path: Path) -> None:
    resolved = json.loads(
        wmr("train", "--dry-run", "--dataset", "digits", "--kernel", "exp").stdout
    )
    assert resolved["alpha"] == 2.0
    wmr("train", "--dry-run", "--defense", "trades:bta=3", status=2)
    assert not list(tmp_path.iterdir())


def test_weights_nearly_all_on_one_image_are_not_degenerate(evaluated: Path) -> None:
    shown = wmr("report", evaluated, "--alpha-test", 100000)
    assert "none correct" not in shown.stdout
    assert shown.stderr.startswith("warning: ")
