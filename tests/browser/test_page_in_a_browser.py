"""The page in Chromium, opened from disk without a network."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from support.page_data import (
    make_logit_rows,
    resample,
    save_evaluation,
    save_images,
    save_seeds,
)
from support.typed import not_none
from wmr_cli import measures
from wmr_cli.config import EvaluateConfig
from wmr_cli.reporting.grouping import group_by_setting
from wmr_cli.reporting.html.report import render_report
from wmr_cli.reporting.report import Report
from wmr_cli.reporting.rescoring import rescore_file
from wmr_cli.reporting.rows import run_name
from wmr_cli.reporting.tables import main
from wmr_cli.reporting.tables.escaping import printable
from wmr_cli.reporting.tables.formatting import format_estimate
from wmr_cli.storage import records
from wmr_cli.storage.records import Record, Rows

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Request

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright drives the browser: pip install -e '.[browser]'"
)
CHROMIUM = os.environ.get("WMR_CHROMIUM") or next(
    filter(
        None,
        map(
            shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
        ),
    ),
    None,
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None, reason="Chromium is not installed; WMR_CHROMIUM may name one"
    ),
]

Found = dict[str, tuple[Path, Record]]
"""The records of a page by model."""

TIMEOUT_MS = 120_000
# pixels of A4 between the margins of the page
PAPER_WIDTH = 688
HOSTILE = "<b>bold</b><script>alert(1)</script>\"'[x]\nline"
CONFIG = EvaluateConfig(metrics=("nat", "rob", "sa", "dro"), rho=(0.01, 0.1, 1.0), per_class=True)
NO_WEBGL = """const usual = HTMLCanvasElement.prototype.getContext;
HTMLCanvasElement.prototype.getContext = function (kind, ...more) {
  return kind.startsWith("webgl") ? null : usual.call(this, kind, ...more);
};"""


class OpenPage:
    """An opened page with its network requests and error messages."""

    def __init__(self, browser: "Browser", path: Path, **context: Any) -> None:
        self.context = browser.new_context(
            offline=True, **{"viewport": {"width": 1400, "height": 900}, **context}
        )
        self.context.set_default_timeout(TIMEOUT_MS)
        self.page = self.context.new_page()
        self.path = path
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", self.record_request)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(dialog.message))
        self.page.on("console", self.record_message)

    def record_request(self, request: "Request") -> None:
        # the page makes a blob of an image that is saved
        if not request.url.startswith("blob:"):
            self.requests.append(request.url)

    def record_message(self, message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning") and "GL Driver Message" not in message.text:
            self.errors.append(message.text)

    def open(self) -> "OpenPage":
        self.page.goto(self.path.as_uri())
        self.page.wait_for_selector("html[data-ready]")
        return self

    def settle(self) -> None:
        """Wait for the frame that updates the table and the timer that updates the plots."""
        self.page.evaluate(
            """() => new Promise((done) => requestAnimationFrame(() =>
                 requestAnimationFrame(() => setTimeout(done, 20))))"""
        )

    def slide(self, id: str, value: float) -> None:
        """Move a slider to one of its values."""
        position = self.page.evaluate(
            """([id, value]) => {
              const range = document.getElementById(id);
              const box = document.getElementById(`${id}-exact`);
              for (let i = Number(range.min); i <= Number(range.max); i += 1) {
                range.value = i;
                range.dispatchEvent(new Event("input", { bubbles: true }));
                if (Number(box.value) === value) return i;
              }
              return null;
            }""",
            [id, value],
        )
        assert position is not None, f"the slider {id} has no {value}"
        self.settle()

    def type(self, id: str, value: float) -> None:
        box = self.page.locator(f"#{id}-exact")
        box.fill(repr(value))
        box.press("Enter")
        self.settle()

    def cell(self, model: str, name: str) -> "Locator":
        return self.page.locator(f"#numbers tr[data-model={json.dumps(model)}] [data-cell={name}]")

    def text(self, model: str, name: str) -> str:
        text: str = self.cell(model, name).inner_text()
        return text.replace("\n", " ").strip()

    def value(self, model: str, name: str) -> float:
        return float(not_none(self.cell(model, name).get_attribute("data-value")))

    def computed_a_sa(self, model: str) -> dict[str, Any]:
        text = not_none(self.cell(model, "a_sa").get_attribute("data-computed"))
        computed: dict[str, Any] = json.loads(text)
        return computed

    @property
    def models(self) -> list[str]:
        names: list[str] = self.page.locator("#numbers tbody tr").evaluate_all(
            "(rows) => rows.map((row) => row.dataset.model)"
        )
        return names

    def choose_classes(self, *labels: int) -> None:
        self.page.locator("#classes-field").evaluate("(field) => { field.open = true; }")
        self.page.locator("#classes-none").click()
        for label in labels:
            self.page.locator("#classes input").nth(label).check()
        self.settle()


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
            timeout=TIMEOUT_MS,
        )
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Three runs under one attack, one of them under a second attack that stops early."""
    folder = tmp_path_factory.mktemp("evaluations")
    resampled = msgspec.structs.replace(CONFIG, ci="bootstrap")
    plain = save_evaluation(folder, "plain", make_logit_rows(0, 400), CONFIG)
    save_images(
        plain[0].parent / "saved.safetensors", plain[1], make_logit_rows(0, 400), 400, (1, 8, 8)
    )
    return {
        "plain": plain,
        "other": save_evaluation(
            folder, "other", make_logit_rows(1, 400, skill=2.3), CONFIG, alphas=[1 / 3, 2.0, 7.0]
        ),
        "resampled": save_evaluation(
            folder, "resampled", make_logit_rows(2, 400, skill=1.8), resampled
        ),
        "early": save_evaluation(
            folder, "plain", make_logit_rows(5, 400, stops_early=True), CONFIG, attack="autoattack"
        ),
    }


@pytest.fixture(scope="module")
def path(found: Found, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("page") / "report.html"
    made.write_text(render_report(list(found.values()))[0], encoding="utf-8")
    return made


@pytest.fixture
def report(browser: "Browser", path: Path) -> Iterator[OpenPage]:
    opened = OpenPage(browser, path).open()
    yield opened
    opened.context.close()
    assert opened.errors == []
    assert opened.requests == [path.as_uri()]


def rows_of(pair: tuple[Path, Record]) -> Rows:
    return records.load_rows(records.rows_path(pair[0]))


@pytest.mark.parametrize("name", ["plain", "other", "resampled"])
def test_recorded_numbers_are_shown_at_every_recorded_alpha(
    report: OpenPage, found: Found, name: str
) -> None:
    record = found[name][1]
    for row in record.by_alpha:
        report.slide("alpha", not_none(row.alpha_test))
        assert report.text(name, "a_sa") == format_estimate(row.a_sa)
        assert report.text(name, "ess").removesuffix(" few") == f"{not_none(row.a_sa).ess:.0f}"
        ours = report.computed_a_sa(name)
        assert ours["value"] == pytest.approx(not_none(row.a_sa).value, abs=1e-12)
        assert ours["ess"] == pytest.approx(not_none(row.a_sa).ess, rel=1e-12)


def test_other_alphas_agree_with_python(report: OpenPage, found: Found) -> None:
    for alpha in (0.0, 0.7, 3.95, 2.0001, 30.0):
        report.type("alpha", alpha)
        for name in ("plain", "other"):
            ours = measures.sampled_accuracy(rows_of(found[name]), "exp", alpha)
            assert report.text(name, "a_sa") == format_estimate(ours)
            assert report.value(name, "ess") == pytest.approx(not_none(ours).ess, rel=1e-12)


@pytest.mark.parametrize("name", ["plain", "resampled"])
def test_recorded_numbers_are_shown_at_every_recorded_rho(
    report: OpenPage, found: Found, name: str
) -> None:
    for row in found[name][1].dro:
        report.slide("rho", row.rho)
        assert report.text(name, "dro") == f"{100 * row.accuracy:.1f}"
        assert report.value(name, "dro") == pytest.approx(row.accuracy, abs=1e-9)
        assert report.value(name, "least") == pytest.approx(row.worst_accuracy, abs=1e-9)


def test_computed_numbers_are_compared_with_the_records(report: OpenPage) -> None:
    assert report.page.locator("#checked").inner_text().startswith("18 recorded numbers")
    assert report.page.locator("#problem").is_hidden()


def test_record_that_does_not_follow_from_its_rows_is_a_problem(
    browser: "Browser", found: Found, tmp_path: Path
) -> None:
    file, record = found["plain"]
    first = record.by_alpha[0]
    a_sa = not_none(first.a_sa)
    better = msgspec.structs.replace(
        first, a_sa=msgspec.structs.replace(a_sa, value=a_sa.value + 0.01)
    )
    changed = tmp_path / "changed.html"
    changed.write_text(
        render_report([(file, msgspec.structs.replace(record, by_alpha=[better]))])[0],
        encoding="utf-8",
    )
    opened = OpenPage(browser, changed).open()
    assert opened.page.locator("#problem").is_visible()
    opened.context.close()


def test_selected_classes_agree_with_python(report: OpenPage, found: Found) -> None:
    report.type("alpha", 1.5)
    report.slide("rho", 0.1)
    report.choose_classes(0, 3, 7)
    for name in ("plain", "other", "resampled"):
        rows = rows_of(found[name])
        chosen = np.isin(rows["label"], (0, 3, 7))
        selected = {key: values[chosen] for key, values in rows.items()}
        assert report.text(name, "a_nat") == format_estimate(measures.accuracy(selected, "clean"))
        assert report.text(name, "a_rob") == format_estimate(measures.accuracy(selected, "uniform"))
        assert report.text(name, "a_sa") == format_estimate(
            measures.sampled_accuracy(selected, "exp", 1.5)
        )
        worst = measures.worst_case(not_none(measures.attacked_losses(selected, "ce")), 0.1)
        assert report.value(name, "dro") == pytest.approx(
            worst.accuracy(measures.is_correct(selected, "uniform")), abs=1e-9
        )
    assert report.page.locator("#classes-count").inner_text() == "3 of 10"
    report.choose_classes()
    assert report.text("plain", "a_sa") == "-"


def bold_methods(report: OpenPage, name: str) -> list[str]:
    """Return the methods whose cell of this name is bold."""
    return [method for method in report.models if report.cell(method, name).locator("b").count()]


def table_rows(found: Sequence[tuple[Path, Record]], alpha: float) -> dict[str, dict[str, Any]]:
    """Return the texts of the main table at an alpha by method and column; bold ones in stars."""
    groups = group_by_setting([record for _, record in found])
    table = main.make_ranked_table(groups, resample(found))
    place = table.headings.index("α_test")
    return {
        row[0]: {
            heading: f"*{value}*{rest}" if is_bold else value + rest
            for position, heading in enumerate(table.headings)
            for value, rest, is_bold in [table.split_cell(number, position)]
        }
        for number, row in enumerate(table.rows)
        if row[place] == f"{alpha:g}"
    }


def live_rows(report: OpenPage) -> dict[str, dict[str, str]]:
    """Return the same texts of the live table."""
    shown = {"A_nat": "a_nat", "A_rob": "a_rob", "A_sa": "a_sa", "ESS": "ess"}
    cells = {**shown, "defense": "defense", "α_train": "α_train", "seeds": "seeds"}
    found = {
        method: {
            heading: report.text(method, name).removesuffix(" few")
            for heading, name in cells.items()
        }
        for method in report.models
    }
    for heading, name in shown.items():
        for method in bold_methods(report, name):
            value, bracket, rest = found[method][heading].partition(" [")
            found[method][heading] = f"*{value}*{bracket}{rest}"
    return found


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Record]]:
    """Three trainings of two seeds: a good one, one whose seeds disagree, a bad one."""
    folder = tmp_path_factory.mktemp("seeds")
    skills = {"good": (3.4, 3.45), "doubtful": (3.3, 1.0), "bad": (1.0, 1.05)}
    return [
        pair
        for number, (name, some) in enumerate(skills.items())
        for pair in save_seeds(folder, name, some, alpha_train=float(number))
    ]


@pytest.fixture
def seeds_report(
    browser: "Browser", seeds: list[tuple[Path, Record]], tmp_path: Path
) -> Iterator[OpenPage]:
    made = tmp_path / "seeds.html"
    made.write_text(render_report(seeds, resampled=resample(seeds))[0], encoding="utf-8")
    opened = OpenPage(browser, made).open()
    yield opened
    opened.context.close()
    assert opened.errors == []


def test_methods_are_those_of_the_tables(
    seeds_report: OpenPage, seeds: list[tuple[Path, Record]]
) -> None:
    assert seeds_report.models == ["good-s*", "doubtful-s*", "bad-s*"]
    for alpha in (1.0, 1.5, 2.0):
        seeds_report.type("alpha", alpha)
        ours = table_rows(seeds, alpha)
        shown = live_rows(seeds_report)
        assert {name: {key: ours[name][key] for key in row} for name, row in shown.items()} == shown
    # much worse on average, but its seeds disagree
    assert bold_methods(seeds_report, "a_sa") == ["good-s*", "doubtful-s*"]


def test_methods_at_other_alphas_are_those_of_rescored_tables(
    seeds_report: OpenPage, seeds: list[tuple[Path, Record]]
) -> None:
    for alpha in (0.7, 3.0):
        rescored = [(file, rescore_file(file, one, [alpha], None)) for file, one in seeds]
        seeds_report.type("alpha", alpha)
        ours = table_rows(rescored, alpha)
        shown = live_rows(seeds_report)
        assert {name: {key: ours[name][key] for key in row} for name, row in shown.items()} == shown


def test_selected_methods_are_compared_by_themselves(
    seeds_report: OpenPage, seeds: list[tuple[Path, Record]]
) -> None:
    seeds_report.type("alpha", 2.0)
    seeds_report.page.get_by_role("checkbox", name="doubtful-s*").uncheck()
    seeds_report.settle()
    ours = table_rows([pair for pair in seeds if "doubtful" not in str(pair[0])], 2.0)
    assert ours["good-s*"]["A_sa"].startswith("*")
    assert [live_rows(seeds_report)[name]["A_sa"] for name in ours] == [
        row["A_sa"] for row in ours.values()
    ]


def test_seeds_are_shown_singly_in_the_colour_of_their_method(seeds_report: OpenPage) -> None:
    def lines() -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = seeds_report.page.evaluate(
            """() => document.getElementById("plot-alpha").data
                 .filter((one) => one.mode === "lines+markers")
                 .map((one) => [one.name, one.line.color, one.line.dash])"""
        )
        return found

    pooled = {name: colour for name, colour, _ in lines()}
    assert len(set(pooled.values())) == len(pooled) == 3
    folded = seeds_report.page.locator("#recorded .seeds")
    assert folded.get_attribute("open") is None
    seeds_report.page.check("#seeds")
    seeds_report.settle()
    single = lines()
    assert [name for name, _, _ in single] == seeds_report.models
    assert seeds_report.models == [
        f"{name}-s{seed}" for name in ("good", "doubtful", "bad") for seed in (0, 1)
    ]
    assert all(colour == pooled[f"{name[:-1]}*"] for name, colour, _ in single)
    assert len({(colour, dash) for _, colour, dash in single}) == 6
    assert folded.get_attribute("open") is not None
    assert seeds_report.page.locator("#numbers td b").count() == 0
    assert seeds_report.page.locator("[data-cell=seeds]").count() == 0
    seeds_report.page.uncheck("#seeds")
    seeds_report.settle()
    assert seeds_report.models == list(pooled)


def test_page_without_repeated_trainings_has_no_switch(report: OpenPage) -> None:
    assert report.page.locator("#seeds").is_hidden()


def test_legend_is_beside_the_first_table(report: OpenPage) -> None:
    assert report.page.locator("#numbers ~ dl, .answers > dl").is_visible()
    assert report.page.locator("#legend dt").all_inner_texts()[:4] == [
        "A_nat", "A_rob", "A_sa", "A_tr",
    ]  # fmt: skip


def test_details_are_those_of_a_selected_model(report: OpenPage) -> None:
    def model_options() -> list[str]:
        texts: list[str] = report.page.locator("#detail-model option").all_inner_texts()
        return texts

    assert model_options() == ["plain", "other", "resampled"]
    assert report.page.locator("em.detail-name").first.inner_text() == "plain"
    report.page.get_by_role("checkbox", name="plain").uncheck()
    report.settle()
    assert model_options() == ["other", "resampled"]
    assert report.page.locator("em.detail-name").first.inner_text() == "other"
    report.page.locator("#detail-model").select_option(label="resampled")
    report.page.get_by_role("checkbox", name="plain").check()
    report.settle()
    assert (
        report.page.locator("#detail-model").evaluate("(box) => box.selectedOptions[0].text")
        == "resampled"
    )
    for name in ("plain", "other", "resampled"):
        report.page.get_by_role("checkbox", name=name).uncheck()
    report.settle()
    assert [
        report.page.locator(f"#figure-{name}").is_visible()
        for name in ("classes", "weights", "images")
    ] == [False] * 3
    report.page.get_by_role("checkbox", name="other").check()
    report.settle()
    assert report.page.locator("#figure-images").is_visible()
    assert report.page.locator("em.detail-name").first.inner_text() == "other"


def test_images_contain_nothing_focusable(report: OpenPage) -> None:
    assert report.page.locator(":is([role=img]) :is(a, button, [tabindex])").count() == 0
    assert report.page.locator("#plot-alpha").get_attribute("role") == "group"


def test_models_differ_in_dashes_and_marks(report: OpenPage) -> None:
    for plot in ("alpha", "temperature", "dro"):
        lines = report.page.evaluate(
            """(name) => document.getElementById(`plot-${name}`).data
                 .filter((one) => one.mode === "lines+markers")
                .filter((one) => !one.marker.symbol.endsWith("-open"))
                 .map((one) => [one.name, one.line.dash, one.marker.symbol])""",
            plot,
        )
        assert [name for name, *_ in lines] == ["plain", "other", "resampled"]
        assert len({dash for _, dash, _ in lines}) == len({symbol for *_, symbol in lines}) == 3
        assert report.page.locator(f"#key-{plot} span").all_inner_texts() == [
            "plain",
            "other",
            "resampled",
        ]
    signs = report.page.locator("#numbers .swatch").evaluate_all(
        "(signs) => signs.map((sign) => sign.innerHTML)"
    )
    assert len(set(signs)) == 3


def test_calibrated_accuracies_agree_with_python(report: OpenPage, found: Found) -> None:
    report.slide("alpha", 2.0)
    report.page.check("#calibrated")
    report.page.wait_for_selector("[data-cell=temperature]")
    for name in report.models:
        rows = rows_of(found[name])
        ours = measures.calibrated_accuracy(rows, 2.0)
        assert report.value(name, "a_sa_t") == pytest.approx(ours.value, abs=2e-4)
        shown = float(report.text(name, "temperature"))
        assert shown == pytest.approx(not_none(measures.calibrate(rows).temperature), rel=5e-3)
    assert report.page.inner_text("#curve-title").startswith("A_cal")
    first = report.models[0]
    expected = 100 * measures.calibrated_accuracy(rows_of(found[first]), 2.0).value
    # the plot is drawn after the table
    report.page.wait_for_function(
        """([name, expected]) => document.getElementById("plot-alpha").data
             .filter((one) => one.mode === "lines+markers" && one.name === name)
             .some((one) => Math.abs(one.y[one.x.indexOf(2)] - expected) < 0.02)""",
        arg=[first, expected],
    )
    assert report.page.is_disabled("#temperature")
    report.page.uncheck("#calibrated")
    # the table is drawn again after the event
    report.page.wait_for_selector("[data-cell=temperature]", state="detached")


def test_temperature_agrees_with_python(report: OpenPage, found: Found) -> None:
    report.slide("alpha", 2.0)
    assert report.cell("plain", "a_sa_t").count() == 0  # it would repeat A_sa
    for temperature in (0.25, 0.5, 2.0, 4.0):
        report.slide("temperature", temperature)
        ours = {
            name: measures.tempered_accuracy(rows_of(found[name]), 2.0, temperature).value
            for name in report.models
        }
        for name, value in ours.items():
            assert report.value(name, "a_sa_t") == pytest.approx(value, abs=2e-4)
        best = max(ours, key=lambda name: ours[name])
        assert (bold_methods(report, "a_sa_t") or [best]).count(best) == 1
    assert report.text("plain", "a_sa") == format_estimate(found["plain"][1].by_alpha[2].a_sa)


def test_each_attack_has_a_panel(report: OpenPage, found: Found) -> None:
    assert report.page.locator("#panel option").count() == 2
    report.page.locator("#panel").select_option("1")
    report.settle()
    assert report.models == ["plain"]
    assert report.text("plain", "a_rob") == format_estimate(found["early"][1].a_rob)
    assert report.text("plain", "a_sa") == "-"
    assert report.page.locator("#figure-alpha").is_hidden()
    assert report.page.locator("#figure-dro").is_visible()
    report.page.locator("#panel").select_option("0")
    report.settle()
    assert report.models == ["plain", "other", "resampled"]


def test_sliders_move_by_keyboard(report: OpenPage, found: Found) -> None:
    report.slide("alpha", 2.0)
    slider = report.page.get_by_role("slider", name="α")
    slider.focus()
    slider.press("ArrowRight")
    report.settle()
    assert report.page.locator("#alpha-exact").input_value() == "2.05"
    slider.press("ArrowLeft")
    report.settle()
    assert slider.get_attribute("aria-valuetext") == "α 2, recorded"
    slider.press("Home")
    report.settle()
    assert report.value("plain", "a_sa") == pytest.approx(
        not_none(found["plain"][1].a_rob).value, abs=1e-12
    )
    for id in ("rho", "temperature"):
        before = report.page.locator(f"#{id}-exact").input_value()
        report.page.locator(f"#{id}").press("ArrowLeft")
        report.settle()
        assert report.page.locator(f"#{id}-exact").input_value() != before


def test_all_controls_are_reached_by_keyboard(report: OpenPage) -> None:
    report.page.keyboard.press("Tab")
    assert report.page.evaluate("document.activeElement.className") == "skip"
    report.page.keyboard.press("Enter")
    reached: set[str] = set()
    while "larger" not in reached and len(reached) < 60:
        report.page.keyboard.press("Tab")
        reached.add(
            report.page.evaluate(
                "document.activeElement.id || document.activeElement.outerHTML.slice(0, 80)"
            )
        )
    assert {
        "panel",
        "alpha",
        "alpha-exact",
        "rho",
        "temperature",
        "detail-model",
        "axis",
        "image",
        "smaller",
        "larger",
    } <= reached


def test_every_control_has_a_name(report: OpenPage) -> None:
    nameless = report.page.evaluate(
        """() => [...document.querySelectorAll("input, select, button")].filter((one) =>
             !one.labels?.length && !one.getAttribute("aria-label")
            && !one.textContent.trim()).map((one) => one.outerHTML)"""
    )
    assert nameless == []


def test_new_numbers_are_announced_to_screen_readers(report: OpenPage, found: Found) -> None:
    report.slide("alpha", 1.0)
    announcement = report.page.locator("#announcement")
    assert announcement.get_attribute("aria-live") == "polite"
    report.page.wait_for_function(
        "document.getElementById('announcement').textContent.startsWith('α 1,')"
    )
    text = not_none(announcement.text_content())
    assert f"plain: A_sa {format_estimate(found['plain'][1].by_alpha[0].a_sa)}" in text


def press_save(report: OpenPage, plot: str) -> None:
    place = report.page.locator(f"#plot-{plot}")
    place.scroll_into_view_if_needed()
    place.hover()
    place.locator("[data-title^='Download as PNG']").click()


def saved_image(report: OpenPage, plot: str) -> dict[str, Any]:
    """Return heading, legend and options of the image that the button would save."""
    report.page.evaluate(
        """() => {
             window.saved = null;
             Plotly.downloadImage = ({ data, layout }, options) => {
               const key = data.filter((one) => one.showlegend).map((one) => one.name);
               window.saved = { heading: layout.title.text, key, options };
             };
           }"""
    )
    press_save(report, plot)
    saved: dict[str, Any] = report.page.evaluate("window.saved")
    return saved


@pytest.mark.parametrize("plot", ["alpha", "temperature", "dro"])
def test_saved_plot_has_title_legend_and_settings(report: OpenPage, plot: str) -> None:
    report.slide("alpha", 2.0)
    report.slide("rho", 0.1)
    saved = saved_image(report, plot)
    assert saved["key"] == ["plain", "other", "resampled"]
    title = report.page.locator(f"#figure-{plot} figcaption b").inner_text()
    first, *others = saved["heading"].split("<br>")
    assert first == f"<b>{title}</b>"
    assert "digits test, 400 images · linf ε-ball, ε 0.1 · pgd:steps=20" in " ".join(others)
    settings = {
        "alpha": "dotted line: α 2",
        "temperature": "α 2 · dotted line: T 1",
        "dro": "loss: cross-entropy · dotted line: ρ 0.1",
    }
    assert others[-1] == settings[plot]
    assert saved["options"]["filename"] == f"wmr-{plot}"
    report.page.get_by_role("checkbox", name="other").uncheck()
    report.choose_classes(1, 2)
    assert saved_image(report, plot)["key"] == ["plain", "resampled"]
    assert saved_image(report, plot)["heading"].endswith(" · 2 of 10 classes")


@pytest.mark.parametrize(
    ("plot", "key"),
    [
        ("classes", ["A_rob", "A_sa at α 2"]),
        ("weights", ["weight", "images"]),
        ("images", ["correct", "misclassified"]),
    ],
)
def test_saved_plot_of_one_model_has_its_name(report: OpenPage, plot: str, key: list[str]) -> None:
    report.slide("alpha", 2.0)
    saved = saved_image(report, plot)
    assert saved["key"] == key
    assert "of plain" in saved["heading"]
    assert saved["heading"].endswith("α 2 · T 1")


@pytest.mark.parametrize("plot", ["alpha", "images"])
def test_saved_plot_is_an_opaque_image_with_heading_and_legend(
    report: OpenPage, plot: str, tmp_path: Path
) -> None:
    with report.page.expect_download() as download:
        press_save(report, plot)
    assert download.value.suggested_filename == f"wmr-{plot}.png"
    download.value.save_as(tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as image:
        assert image.width >= 1440
        pixels = np.asarray(image.convert("RGBA"))
    assert (pixels[..., 3] == 255).all()  # no transparent background
    assert (pixels[:60, :400, :3].min(axis=2) < 100).any()  # the heading
    assert (pixels[-60:, :400, :3].min(axis=2) < 100).any()  # the legend


def test_image_is_shown_on_hover(report: OpenPage, found: Found) -> None:
    rows = rows_of(found["plain"])
    place = report.page.locator("#plot-images")
    place.scroll_into_view_if_needed()
    spot, position = place.evaluate(
        """(plot) => {
          const trace = plot.data[1];
          const { xaxis, yaxis } = plot._fullLayout;
          const box = plot.getBoundingClientRect();
          const at = trace.x.indexOf(Math.min(...trace.x));
          const x = box.left + xaxis._offset + xaxis.d2p(trace.x[at]);
          const y = box.top + yaxis._offset + yaxis.d2p(trace.y[at]);
          return [[x, y], trace.customdata[at]];
        }"""
    )
    report.page.mouse.move(spot[0] + 40, spot[1])
    report.page.mouse.move(*spot, steps=4)
    card = report.page.locator("#card")
    start = f"index {rows['index'][position]}:"  # the pointer crosses other images on its way
    report.page.wait_for_function(
        "(start) => document.getElementById('card').textContent.startsWith(start)", arg=start
    )
    assert position == rows["uniform/margin"].argmin()
    text = card.inner_text()
    assert f"label {rows['label'][position]}," in text
    assert f"predicted {rows['uniform/prediction'][position]}," in text
    assert f"margin {rows['uniform/margin'][position]:.4f}" in text
    report.page.locator("#thumbnail").wait_for(state="visible")
    pixels = report.page.locator("#thumbnail").evaluate(
        """(canvas) => [...canvas.getContext("2d")
             .getImageData(0, 0, canvas.width, canvas.height).data]"""
    )[::4]
    saved = np.random.default_rng(1).random((400, 1, 8, 8), dtype=np.float32)[position]
    np.testing.assert_array_equal(pixels, np.rint(255 * saved).ravel())


def test_images_are_selected_by_index_and_by_margin(report: OpenPage, found: Found) -> None:
    rows = rows_of(found["plain"])
    order = np.argsort(rows["uniform/margin"], kind="stable")
    image = report.page.locator("#image")
    image.fill(str(order[5]))
    image.press("Enter")
    assert report.page.locator("#card").inner_text().startswith(f"index {order[5]}:")
    report.page.locator("#larger").click()
    assert image.input_value() == str(order[6])
    for _ in range(2):
        report.page.locator("#smaller").click()
    assert image.input_value() == str(order[4])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_theme_follows_the_system_and_the_button(
    browser: "Browser", path: Path, scheme: str
) -> None:
    opened = OpenPage(browser, path, color_scheme=scheme).open()

    def is_dark() -> bool:
        opened.settle()
        ground = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        ink = opened.page.evaluate("document.getElementById('plot-alpha')._fullLayout.font.color")
        dark = [int(part) < 128 for part in ground.strip("rgb()").split(", ")]
        assert len(set(dark)) == 1
        assert (ink == "#e8eaec") == dark[0]
        return dark[0]

    assert is_dark() == (scheme == "dark")
    opened.page.locator("#theme").click()
    assert is_dark() == (scheme != "dark")
    opened.context.close()
    assert opened.errors == []


@pytest.mark.parametrize("width", [390, 768, 1400])
def test_page_is_not_wider_than_the_screen(browser: "Browser", path: Path, width: int) -> None:
    opened = OpenPage(
        browser, path, viewport={"width": width, "height": 844}, has_touch=width < 800
    ).open()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.context.close()


def test_printed_page_has_tables_and_no_controls(report: OpenPage) -> None:
    report.type("alpha", 1.5)
    report.choose_classes(1, 2)
    report.page.get_by_role("checkbox", name="other").uncheck()
    report.settle()
    assert report.page.locator("#settings-text").is_hidden()
    report.page.emulate_media(media="print")
    assert report.page.locator("#settings").is_hidden()
    assert report.page.locator("#theme").is_hidden()
    assert report.page.locator("#recorded table").first.is_visible()
    text = report.page.locator("#settings-text").inner_text()
    assert text == "α 1.5 · ρ 0.1 · T 1 · 2 of 10 classes · 2 of 3 methods"
    assert len(report.page.pdf()) > 10_000


@pytest.mark.parametrize("width", [390, 1400])
def test_plots_fit_on_paper_and_return_to_the_screen(
    browser: "Browser", path: Path, width: int
) -> None:
    opened = OpenPage(browser, path, viewport={"width": width, "height": 844}).open()

    def plot_widths() -> list[int]:
        widths: list[int] = opened.page.evaluate(
            "[...document.querySelectorAll('.plot')].map((one) => one._fullLayout.width)"
        )
        return widths

    before = plot_widths()
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.page.emulate_media(media="print")
    opened.page.set_viewport_size({"width": PAPER_WIDTH, "height": 1000})
    opened.settle()
    places = opened.page.evaluate(
        "[...document.querySelectorAll('.plot')].map((one) => one.clientWidth)"
    )
    assert all(plot <= place for plot, place in zip(plot_widths(), places, strict=True))
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= PAPER_WIDTH
    opened.page.emulate_media(media="screen")
    opened.page.set_viewport_size({"width": width, "height": 844})
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    opened.page.wait_for_function(
        """(before) => [...document.querySelectorAll(".plot")]
             .every((one, i) => one._fullLayout.width === before[i])""",
        arg=before,
    )
    opened.context.close()
    assert opened.errors == []


def test_hostile_names_are_shown_as_text(browser: "Browser", found: Found, tmp_path: Path) -> None:
    file, record = found["plain"]
    checkpoint = msgspec.structs.replace(record.checkpoint, path=f"{HOSTILE}.safetensors")
    names = [msgspec.structs.replace(row, name=HOSTILE) for row in record.per_class]
    hostile = msgspec.structs.replace(record, checkpoint=checkpoint, per_class=names)
    made = tmp_path / "hostile.html"
    made.write_text(render_report([(file, hostile), found["other"]])[0], encoding="utf-8")
    opened = OpenPage(browser, made).open()
    assert opened.models[0] == printable(run_name(hostile))
    shown = opened.page.locator("#plot-classes .xtick text").first.inner_html()
    assert "<b>" not in shown
    assert "&lt;b&gt;" in shown
    assert opened.page.locator("b:text-is('bold')").count() == 0
    assert "<b>bold" not in json.dumps([saved_image(opened, plot) for plot in ("alpha", "classes")])
    opened.context.close()
    assert opened.errors == []


def test_without_webgl_some_images_are_drawn(browser: "Browser", path: Path) -> None:
    opened = OpenPage(browser, path)
    opened.page.add_init_script(NO_WEBGL)
    opened.open()
    assert opened.page.locator("#plot-images .scatterlayer .point").count() > 100
    opened.context.close()
    assert opened.errors == []


def test_recorded_numbers_need_no_javascript(browser: "Browser", path: Path, found: Found) -> None:
    opened = OpenPage(browser, path, java_script_enabled=False)
    opened.page.goto(path.as_uri())
    text = opened.page.locator("#recorded").inner_text()
    assert all(
        format_estimate(row.a_sa).partition(" ")[0] in text for row in found["plain"][1].by_alpha
    )
    assert opened.page.locator("#live").is_hidden()
    opened.context.close()


def test_page_of_the_paper_alone_has_no_controls(browser: "Browser", tmp_path: Path) -> None:
    path = tmp_path / "paper.html"
    path.write_text(render_report((), Report(shows_paper=True).tables())[0], encoding="utf-8")
    opened = OpenPage(browser, path).open()
    assert opened.page.locator("#comparison table").count() == 12
    assert opened.page.locator("#live").is_hidden()
    assert opened.page.locator("#skip-settings").is_hidden()
    opened.page.locator("#theme").click()
    assert opened.page.locator("html").get_attribute("data-theme") == "dark"
    assert open_tables(opened) == [True] + [False] * 11
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert open_tables(opened) == [True] * 12
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert open_tables(opened) == [True] + [False] * 11
    opened.context.close()
    assert opened.errors == []


def open_tables(opened: OpenPage) -> list[bool]:
    are_open: list[bool] = opened.page.locator("main section details").evaluate_all(
        "(parts) => parts.filter((one) => !one.closest('#live')).map((one) => one.open)"
    )
    return are_open


def test_printed_page_has_all_tables_open(browser: "Browser", found: Found, tmp_path: Path) -> None:
    path = tmp_path / "both.html"
    path.write_text(
        render_report([found["plain"]], Report(shows_paper=True).tables())[0],
        encoding="utf-8",
    )
    opened = OpenPage(browser, path).open()
    before = open_tables(opened)
    assert before.count(False) > 10
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(open_tables(opened))
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert open_tables(opened) == before
    opened.context.close()
    assert opened.errors == []
