"""The interactive page as a file: its contents, links, escaping and size."""

import base64
import gzip
import io
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hatchling.builders.wheel import WheelBuilder
from numpy.typing import NDArray
from PIL import Image

from support.page_data import (
    make_logit_rows,
    resample,
    save_evaluation,
    save_images,
    save_seeds,
)
from support.typed import not_none
from wmr_cli.config import EvaluateConfig
from wmr_cli.measures import RHOS
from wmr_cli.reporting.comparison import find_bold_cells
from wmr_cli.reporting.grouping import group_by_setting
from wmr_cli.reporting.html import payload
from wmr_cli.reporting.html.payload import (
    PackedArrays,
    group_into_panels,
    to_half_logits,
    to_smallest_uint,
)
from wmr_cli.reporting.html.report import SCRIPTS, encode_json, render_report, render_table
from wmr_cli.reporting.report import Report
from wmr_cli.reporting.rows import make_rows, run_name
from wmr_cli.reporting.tables import main
from wmr_cli.reporting.tables.escaping import printable
from wmr_cli.reporting.tables.text_table import TextTable
from wmr_cli.storage import records
from wmr_cli.storage.records import Record

ROOT = Path(__file__).parents[3]
HOSTILE = "<script>alert(1)</script>\"'[bold]</td>&amp;\u2028\u202e\x1b{{script}}"
TYPES = {"f8": "<f8", "f4": "<f4", "f2": "<f2", "u1": "<u1", "u2": "<u2", "u4": "<u4"}


def render(found: Sequence[tuple[Path, Record]]) -> str:
    return render_report(found)[0]


class Page(HTMLParser):
    """The elements of a page with their attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[Any] = []
        self.open: list[Any] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))
        self.open.append(self.found[-1])

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1][2].append(data)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attrs, "".join(texts)) for name, attrs, texts in self.found if name == tag]

    def script(self, id: str) -> str:
        (text,) = [text for attrs, text in self.all("script") if attrs.get("id") == id]
        return text

    @property
    def data(self) -> dict[str, list[dict[str, Any]]]:
        result: dict[str, list[dict[str, Any]]] = json.loads(self.script("data"))
        return result

    def arrays(
        self,
    ) -> list[
        NDArray[np.float16]
        | NDArray[np.float32]
        | NDArray[np.float64]
        | NDArray[np.uint16]
        | NDArray[np.uint8]
    ]:
        content = gzip.decompress(base64.b64decode(self.script("arrays")))
        return [
            np.frombuffer(content, TYPES[part["type"]], part["length"], part["start"])
            for part in self.data["arrays"]
        ]


@pytest.fixture
def two(tmp_path: Path) -> list[tuple[Path, Record]]:
    """Two runs under one attack."""
    return [
        save_evaluation(tmp_path, name, make_logit_rows(seed))
        for seed, name in enumerate(("first", "second"))
    ]


def test_page_makes_no_network_requests(two: list[tuple[Path, Record]]) -> None:
    text = render(two)
    assert re.findall(r"https?:|//www|@import|url\(", text) == []
    made = Page(text)
    assert [
        attrs for _, attrs, _ in made.found if {"src", "srcset", "data", "action"} & set(attrs)
    ] == []
    assert {not_none(attrs["href"])[0] for attrs, _ in made.all("a")} == {"#"}
    assert made.all("link") == made.all("iframe") == []
    policies = [
        attrs["content"]
        for attrs, _ in made.all("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert not_none(policies[0]).startswith("default-src 'none'")


def test_arrays_are_the_rows_exactly(two: list[tuple[Path, Record]]) -> None:
    made = Page(render(two))
    arrays = made.arrays()
    (panel,) = made.data["panels"]
    for (file, _), model in zip(two, panel["models"], strict=True):
        rows = records.load_rows(records.rows_path(file))
        stored = {name: arrays[number] for name, number in model["rows"].items()}
        for name, row in {
            "index": "index",
            "label": "label",
            "prediction": "uniform/prediction",
        }.items():
            np.testing.assert_array_equal(stored[name], rows[row])
        assert stored["margin"].tobytes() == rows["uniform/margin"].tobytes()
        assert stored["loss"].tobytes() == rows["uniform/loss"].tobytes()
        is_correct = np.unpackbits(
            stored["clean"], bitorder="little", count=len(rows["label"])
        ).astype(bool)
        np.testing.assert_array_equal(is_correct, rows["clean/prediction"] == rows["label"])
        logits = rows["uniform/logits"].astype(np.float64)
        near = stored["logits"].reshape(logits.shape).astype(np.float64)
        np.testing.assert_allclose(near, logits - logits.max(axis=1, keepdims=True), rtol=1e-3)
    first, second = (model["rows"] for model in panel["models"])
    assert first["label"] == second["label"]  # shared, so stored once
    assert first["margin"] != second["margin"]


def test_payload_has_the_numbers_of_the_records(two: list[tuple[Path, Record]]) -> None:
    (panel,) = Page(render(two)).data["panels"]
    for (_, record), model in zip(two, panel["models"], strict=True):
        assert msgspec.convert(model["by_alpha"], list[records.AlphaRow]) == record.by_alpha
        assert msgspec.convert(model["dro"], list[records.DroRow]) == record.dro
        assert model["id"] == record.id


def recorded_rows(found: Sequence[tuple[Path, Record]], kind: str) -> list[list[str]]:
    """Return the cells of the first recorded table: those of methods, or of `seeds`."""
    resampled = resample(found)
    text = render_report(found, resampled=resampled)[0].partition('id="recorded"')[2]
    body = text.partition('<details class="seeds">')[2] if kind == "seeds" else text
    table = body.partition("<tbody>")[2].partition("</table>")[0]
    table = table.replace("<b>", "**").replace("</b>", "**")
    return [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", re.sub(r"</?span[^>]*>", "", row))
        for row in table.split("<tr>")[1:]
    ]


@pytest.fixture
def seeds(tmp_path: Path) -> list[tuple[Path, Record]]:
    """Two trainings of two seeds, of which the first is better with both seeds."""
    return [
        *save_seeds(tmp_path, "good", (4.0, 4.05), alpha_train=2.0),
        *save_seeds(tmp_path, "bad", (1.0, 1.05), alpha_train=0.0),
    ]


def test_recorded_table_is_the_main_table(seeds: list[tuple[Path, Record]]) -> None:
    groups = group_by_setting([record for _, record in seeds])
    table = main.make_ranked_table(groups, resample(seeds))
    assert table.bold
    shown = recorded_rows(seeds, "methods")
    positions = [table.headings.index(name) for name in ("A_sa", "A_tr", "ESS")]
    for number, cells in enumerate(shown):
        parts = [table.split_cell(number, position) for position in positions]
        # A_cal is not recorded; cells of merged columns are in the first row of a method only
        assert cells[-3:] == [
            f"**{value}**{rest}" if is_bold else value + rest for value, rest, is_bold in parts
        ]
    assert [row[0] for row in shown if len(row) > 4] == ["good-s*", "bad-s*"]
    assert shown[0][1:4] == ["trades", "2", "2"]


def test_seeds_are_also_shown_by_themselves(seeds: list[tuple[Path, Record]]) -> None:
    shown = recorded_rows(seeds, "seeds")
    names = ["good-s0", "good-s1", "bad-s0", "bad-s1"]
    assert [row[0] for row in shown if len(row) > 4] == names
    assert not any("**" in cell for row in shown for cell in row)
    lines = [main.format_row(line) for _, record in seeds for line in make_rows([record])]
    assert [row[-3] for row in shown] == [line["A_sa"] for line in lines]
    single = [seeds[0], seeds[2]]
    assert 'class="seeds"' not in render(single)


def test_seeds_that_disagree_are_not_ranked(tmp_path: Path) -> None:
    good = save_seeds(tmp_path, "good", (4.0, 1.0), alpha_train=2.0)
    bad = save_seeds(tmp_path, "bad", (1.0, 1.05), alpha_train=0.0)
    found = [*good, *bad]
    assert not any("**" in cell for row in recorded_rows(found, "methods") for cell in row)
    assert any("**" in cell for row in recorded_rows([good[0], bad[0]], "methods") for cell in row)


def test_payload_has_the_bold_cells_of_the_main_table(seeds: list[tuple[Path, Record]]) -> None:
    resampled = resample(seeds)
    (panel,) = Page(render_report(seeds, resampled=resampled)[0]).data["panels"]
    (group,) = group_by_setting([record for _, record in seeds])
    bold = find_bold_cells(group, resampled)
    assert [one["alpha"] for one in panel["bold"]] == [1.0, 1.5, 2.0]
    for place, one in enumerate(panel["bold"]):
        for name, methods in one["methods"].items():
            ours = [method for method in (0, 1) if (3 * method + place, name) in bold]
            assert methods == ours
    assert [method["seeds"] for method in panel["methods"]] == [[[0], [1]], [[2], [3]]]


def test_missing_alphas_have_no_bold_cells(tmp_path: Path) -> None:
    found = [
        *save_seeds(tmp_path, "good", (4.0, 4.05), alpha_train=2.0),
        *save_seeds(tmp_path, "bad", (1.0, 1.05), alpha_train=0.0, alphas=(1.0, 7.0)),
    ]
    (panel,) = Page(render_report(found, resampled=resample(found))[0]).data["panels"]
    assert [one["alpha"] for one in panel["bold"]] == [1.0]


def test_seeds_may_be_evaluated_at_different_alphas(tmp_path: Path) -> None:
    first, second = (
        save_evaluation(
            tmp_path, f"m-s{seed}", make_logit_rows(seed), train_seed=seed, alphas=alphas
        )
        for seed, alphas in enumerate([(1.0,), (2.0,)])
    )
    # the first seed has two records
    again = save_evaluation(tmp_path, "m-s0", make_logit_rows(0), alphas=(2.0,))
    (panel,) = Page(render([first, again, second])).data["panels"]
    (method,) = panel["methods"]
    assert method["seeds"] == [[0, 1], [2]]
    assert method["cells"]["seeds"] == "2"
    assert [one["alpha"] for one in panel["bold"]] == [2.0]


def test_trainings_have_one_style_in_all_panels(seeds: list[tuple[Path, Record]]) -> None:
    folder = seeds[0][0].parents[2]
    other = save_seeds(folder, "good", (4.0, 4.05), alpha_train=2.0, eps=0.3)
    first, second = Page(render([*seeds, *other])).data["panels"]
    styles = {method["name"]: method["style"] for method in first["methods"]}
    assert sorted(styles.values()) == [0, 1]
    assert [method["style"] for method in second["methods"]] == [styles["good-s*"]]


def legend_terms(text: str) -> list[str]:
    return [term for _, term in Page(text).all("dt")]


def test_legend_has_the_terms_of_the_page(seeds: list[tuple[Path, Record]], tmp_path: Path) -> None:
    metrics = ["A_nat", "A_rob", "A_sa", "A_tr"]
    spread = "57.2 ± 0.4"
    full = legend_terms(render(seeds))
    assert full[:4] == metrics
    assert {"A_cal", "ESS", "ε-ball", "χ² ball (ρ)", spread, "bold"} <= set(full)
    assert "bounds" not in full
    plain = EvaluateConfig(metrics=("nat", "rob", "sa"))
    rows = make_logit_rows(0)
    del rows["uniform/logits"]
    one = save_evaluation(tmp_path, "one", rows, plain)
    records.rows_path(one[0]).unlink()
    terms = legend_terms(render_report([one])[0])
    assert terms[:4] == metrics
    assert not {"A_cal", "χ² ball (ρ)", spread, "bold", "bounds"} & set(terms)
    assert legend_terms(render_report((), Report(shows_paper=True).tables())[0]) == []


def test_remarks_are_below_their_value() -> None:
    table = TextTable(
        ("run", "A_nat"),
        [("a; b", "-0.9 [-3.0, +1.3]; <not> sure"), ("c", "0; the same")],
        "",
        interval_columns=("A_nat",),
    )
    text = render_table(table)
    assert (
        '-0.9<span class="interval"> [-3.0, +1.3]</span>'
        '<span class="facts">&lt;not&gt; sure</span></td>' in text
    )
    assert '<td>0<span class="facts">the same</span></td>' in text
    assert ">a; b</th>" in text


@pytest.mark.parametrize("classes", [10, 20])
def test_ten_evaluations_of_ten_thousand_images_are_below_ten_megabytes(
    tmp_path: Path, classes: int
) -> None:
    config = EvaluateConfig(metrics=("nat", "rob", "sa", "dro"), rho=RHOS, per_class=True)
    found = []
    for seed in range(10):
        rows = make_logit_rows(seed, 10_000, classes)
        found.append(save_evaluation(tmp_path, f"run-{seed}", rows, config))
        save_images(
            found[-1][0].parent / "pictures.safetensors", found[-1][1], rows, 300, (3, 32, 32)
        )
    text = render(found)
    assert len(text.encode()) < 10_000_000
    (panel,) = Page(text).data["panels"]
    assert all(
        {"margin", "loss", "logits"} <= set(model["rows"]) and model["tiles"]
        for model in panel["models"]
    )


def test_too_many_logits_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (
        save_evaluation(
            tmp_path, f"of {classes}", make_logit_rows(0, 50, classes), data=str(classes)
        )
        for classes in (20, 21)
    )
    first, second = Page(render([few, many])).data["panels"]
    assert "logits" in first["models"][0]["rows"]
    assert "logits" not in second["models"][0]["rows"]
    monkeypatch.setattr("wmr_cli.reporting.html.payload.MAX_LOGITS", 999)
    assert "logits" not in Page(render([few])).data["panels"][0]["models"][0]["rows"]


def test_hostile_names_are_text_everywhere(tmp_path: Path) -> None:
    names = dict.fromkeys(range(10), HOSTILE)
    config = EvaluateConfig(metrics=("nat", "rob", "sa", "dro"), per_class=True)
    file, record = save_evaluation(tmp_path, "plain", make_logit_rows(0), config, class_names=names)
    checkpoint = msgspec.structs.replace(
        record.checkpoint, path=f"{HOSTILE}\n/x.safetensors", defense=HOSTILE, model=HOSTILE
    )
    hard = msgspec.structs.replace(
        record,
        checkpoint=checkpoint,
        kernel=HOSTILE,
        dataset=msgspec.structs.replace(record.dataset, name=HOSTILE),
        attack=msgspec.structs.replace(record.attack, spec='file.py:A,x="</script>"'),
    )
    # only the margin kernel has logits, and the legend's terms about them
    plain = msgspec.structs.replace(record, kernel="mail")
    made, usual = Page(render([(file, hard)])), Page(render([(file, plain)]))
    assert [attrs for attrs, _ in made.all("script")] == [attrs for attrs, _ in usual.all("script")]
    assert [tag for tag, _, _ in made.found] == [tag for tag, _, _ in usual.found]
    name = run_name(hard)
    assert "\n" in name
    shown = printable(name)
    assert shown in {text for _, text in made.all("th")}
    (panel,) = made.data["panels"]
    assert panel["models"][0]["name"] == shown
    assert panel["classes"][0]["name"] == printable(HOSTILE)
    assert printable(HOSTILE) in made.all("title")[0][1]
    texts = [text for _, _, parts in made.found for text in parts]
    assert not any(
        char in text
        for text in (*texts, json.dumps(made.data, ensure_ascii=False))
        for char in "\x1b\u2028\u202e"
    )
    assert made.all("script")[-1][1] == usual.all("script")[-1][1]  # a name cannot fill a slot


def test_json_in_a_script_element_cannot_end_it() -> None:
    hard = {"</script><!--": "\u2028\u2029&"}
    text = encode_json(hard)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == hard


def test_no_static_script_ends_its_element() -> None:
    for name in SCRIPTS:
        assert "</script" not in (ROOT / "src/wmr_cli/reporting/html/static" / name).read_text(
            encoding="utf-8"
        )


def test_different_settings_have_separate_panels(tmp_path: Path) -> None:
    rows = make_logit_rows(0)
    found = [
        save_evaluation(tmp_path, "a", rows),
        save_evaluation(tmp_path, "b", make_logit_rows(1)),
        save_evaluation(tmp_path, "a", rows, eps=0.2),
        save_evaluation(tmp_path, "a", rows, norm="l2"),
        save_evaluation(tmp_path, "a", rows, attack="pgd:steps=40"),
        save_evaluation(tmp_path, "a", rows, data="other"),
        save_evaluation(tmp_path, "a", rows, indices=list(range(300))),
    ]
    made = group_into_panels(found)
    assert [panel.names for panel in made] == [["a", "b"], *[["a"]] * 5]
    assert len({panel.title for panel in made}) == 6
    sections = [
        attrs for attrs, _ in Page(render(found)).all("section") if attrs.get("class") == "panel"
    ]
    assert len(sections) == 6
    other = (found[1][0], msgspec.structs.replace(found[1][1], kernel="mail"))
    assert [panel.names for panel in group_into_panels([found[0], other])] == [["a"], ["b"]]


def test_worst_cases_are_grouped_by_their_attacks(tmp_path: Path) -> None:
    parts = {
        run: [
            save_evaluation(tmp_path, run, make_logit_rows(seed), attack=attack)
            for attack in ("pgd", "fgsm")
        ]
        for seed, run in enumerate("ab")
    }
    worst = [
        save_evaluation(
            tmp_path,
            run,
            make_logit_rows(seed),
            attack="worst",
            of=[record.id for _, record in parts[run]],
        )
        for seed, run in enumerate("ab")
    ]
    made = group_into_panels([*parts["a"], *parts["b"], *worst])
    assert [panel.names for panel in made] == [["a", "b"]] * 3
    assert "worst of fgsm + pgd" in made[-1].title
    assert [panel.names for panel in group_into_panels(worst)] == [
        ["a"],
        ["b"],
    ]  # the attacks behind them are unknown


def test_models_of_equal_name_get_distinct_names(tmp_path: Path) -> None:
    found = [
        save_evaluation(tmp_path / str(seed), "a", make_logit_rows(seed), seed=seed)
        for seed in (0, 1)
    ]
    again = save_evaluation(tmp_path / "2", "a", make_logit_rows(2), seed=1)
    first, second = group_into_panels([*found, again])
    assert first.names == ["a"]
    assert len(set(second.names)) == 2
    assert second.title == f"{first.title} · attack seed 1"


def test_record_without_rows_keeps_its_numbers(two: list[tuple[Path, Record]]) -> None:
    records.rows_path(two[0][0]).unlink()
    text, (problem,) = render_report(two)
    (panel,) = Page(text).data["panels"]
    assert [model["rows"] is None for model in panel["models"]] == [True, False]
    assert panel["models"][0]["problem"] == str(problem)
    assert text.count('<th scope="rowgroup"') == 2


def test_attack_that_stops_early_has_no_margins(tmp_path: Path) -> None:
    rows = make_logit_rows(0, stops_early=True)
    (panel,) = Page(render([save_evaluation(tmp_path, "a", rows)])).data["panels"]
    assert set(panel["models"][0]["rows"]) == {"index", "label", "clean", "prediction"}


def test_worst_case_over_attacks_has_no_losses(tmp_path: Path) -> None:
    config = EvaluateConfig(metrics=("nat", "rob", "sa"))
    (panel,) = Page(
        render(
            [
                save_evaluation(
                    tmp_path, "a", make_logit_rows(0), config, attack="worst", of=["x", "y"]
                )
            ]
        )
    ).data["panels"]
    assert "loss" not in panel["models"][0]["rows"]


def test_margin_loss_is_minus_the_margin(tmp_path: Path) -> None:
    config = EvaluateConfig(metrics=("nat", "rob", "dro"), dro_loss="margin")
    rows = make_logit_rows(0)
    made = Page(render([save_evaluation(tmp_path, "a", rows, config)]))
    (model,) = made.data["panels"][0]["models"]
    assert model["loss"] == "margin"
    np.testing.assert_array_equal(
        made.arrays()[model["rows"]["loss"]], -rows["uniform/logit_margin"]
    )


def test_equal_records_give_equal_pages(two: list[tuple[Path, Record]]) -> None:
    assert render(two) == render(two)


def test_empty_report_is_a_page() -> None:
    assert Page(render([])).data == {"panels": [], "arrays": []}


def links(made: Page) -> tuple[list[str], set[str]]:
    """Return the targets of links and all ids."""
    ids = {attrs["id"] for _, attrs, _ in made.found if "id" in attrs}
    return [
        not_none(attrs["href"]).removeprefix("#")
        for attrs, _ in made.all("a")
        if "hidden" not in attrs
    ], ids


def test_page_of_tables_alone_has_no_plots_and_no_dead_links() -> None:
    text = render_report((), Report(shows_paper=True).tables())[0]
    made = Page(text)
    targets, ids = links(made)
    assert targets == ["comparison"]
    assert set(targets) <= ids
    assert "plotly" not in ids
    assert len(text) < 300_000
    assert made.all("noscript") == []


def test_records_have_links_and_those_with_rows_have_plots(two: list[tuple[Path, Record]]) -> None:
    made = Page(render_report(two, Report(shows_paper=True).tables())[0])
    targets, ids = links(made)
    assert targets == ["recorded", "comparison"]
    assert {"settings", "plotly", *targets} <= ids
    for file, _ in two:
        records.rows_path(file).unlink()
    assert "plotly" not in links(Page(render(two)))[1]


class TestThumbnails:
    """Thumbnails of images that `wmr attack --save` wrote beside a record."""

    @pytest.fixture
    def found(
        self, tmp_path: Path
    ) -> tuple[
        Path, Record, dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]
    ]:
        rows = make_logit_rows(0)
        file, record = save_evaluation(tmp_path, "a", rows)
        return file, record, rows

    def tiles(self, file: Path, record: Record) -> dict[str, Any]:
        (model,) = Page(render([(file, record)])).data["panels"][0]["models"]
        tiles: dict[str, Any] = model["tiles"]
        return tiles

    @pytest.mark.parametrize("folder", [0, 1], ids=["beside the record", "in the run folder"])
    def test_images_are_sorted_by_margin(
        self,
        found: tuple[
            Path, Record, dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]
        ],
        folder: int,
    ) -> None:
        file, record, rows = found
        path = file.parents[folder] / "saved.safetensors"
        save_images(path, record, rows, 20)
        made = self.tiles(file, record)
        assert made["positions"] == np.argsort(rows["uniform/margin"][:20], kind="stable").tolist()
        sheet = Image.open(io.BytesIO(base64.b64decode(made["sheet"].partition(",")[2])))
        assert sheet.size == (8 * payload.SHEET_COLUMNS, 16)
        pixels = np.random.default_rng(1).random((20, 3, 8, 8), dtype=np.float32)[
            made["positions"][17]
        ]
        np.testing.assert_array_equal(
            np.asarray(sheet)[8:16, 8:16], np.rint(255 * np.moveaxis(pixels, 0, -1))
        )

    @pytest.mark.parametrize(
        "other",
        [
            {"alpha": "2.0"},
            {"eps": "0.2"},
            {"attack": "fgsm"},
            {"checkpoint_sha256": "x"},
            {"seed": "1"},
            {"split": "val"},
        ],
    )
    def test_images_of_another_attack_are_left_out(
        self,
        found: tuple[
            Path, Record, dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]
        ],
        other: dict[str, Any],
    ) -> None:
        file, record, rows = found
        save_images(file.parent / "saved.safetensors", record, rows, 20, **other)
        assert self.tiles(file, record) is None

    def test_image_with_another_prediction_is_left_out(
        self,
        found: tuple[
            Path, Record, dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]
        ],
    ) -> None:
        file, record, rows = found
        save_images(
            file.parent / "saved.safetensors",
            record,
            {**rows, "uniform/prediction": 1 - rows["uniform/prediction"]},
            20,
        )
        assert self.tiles(file, record) is None

    def test_size_and_number_of_images_are_limited(
        self,
        found: tuple[
            Path, Record, dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]
        ],
    ) -> None:
        file, record, rows = found
        save_images(file.parent / "saved.safetensors", record, rows, 200, (3, 64, 128))
        made = self.tiles(file, record)
        assert (made["width"], made["height"]) == (64, 32)
        assert len(made["positions"]) == payload.MAX_TILE_BYTES // (64 * 32 * 3)

    def test_grey_images_stay_grey(
        self,
        found: tuple[
            Path, Record, dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]
        ],
    ) -> None:
        file, record, rows = found
        save_images(file.parent / "saved.safetensors", record, rows, 3, (1, 8, 8))
        sheet = Image.open(
            io.BytesIO(base64.b64decode(self.tiles(file, record)["sheet"].partition(",")[2]))
        )
        assert sheet.mode == "L"


def test_arrays_are_aligned_and_stored_once() -> None:
    arrays = PackedArrays()
    numbers = [
        arrays.add(values)
        for values in (
            np.ones(3, np.uint8),
            np.ones(2),
            np.ones(3, np.uint8),
            np.ones(3, np.uint16),
        )
    ]
    assert numbers == [0, 1, 0, 2]
    assert [part["start"] % 8 for part in arrays.descriptions] == [0, 0, 0]


def test_integers_have_the_smallest_type() -> None:
    assert [to_smallest_uint(np.array([0, most])).dtype for most in (255, 256, 70_000)] == [
        np.uint8,
        np.uint16,
        np.uint32,
    ]
    assert to_smallest_uint(np.array([], np.int64)).dtype == np.uint8


def test_large_logits_do_not_overflow_half_precision() -> None:
    assert np.isfinite(to_half_logits([[1e30, -1e30], [0.0, 1.0]])).all()


def test_wheel_contains_the_static_files() -> None:
    packed = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    own = {"page.html", "licences.html", "page.css", *SCRIPTS}
    assert {f"wmr_cli/reporting/html/static/{name}" for name in own} <= packed
    assert {
        path.name
        for path in (ROOT / "src/wmr_cli/reporting/html/static").iterdir()
        if path.suffix in (".js", ".css", ".html")
    } == own
