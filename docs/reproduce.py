"""Write the tables and pictures of `reproduction.md` from the records in `studies/records`: `python docs/reproduce.py`.

With `--check`, compare the text and exit 1. A study has its place in the page between `<!-- study: NAME -->` and `<!-- end -->`,
the verdicts of all between `<!-- verdicts -->` and the same; nothing there is written by hand. Pictures go to
`pictures/reproduction`.
"""

import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from claims import findings
from judging import Finding, Found, by_alpha, is_own_ball, name_of, under

from wmr_cli.plugins import installed
from wmr_cli.reporting.figures import FigureFiles, draw_figures
from wmr_cli.reporting.report import GatheredRecords, build_report, gather_records
from wmr_cli.reporting.tables import main as tables
from wmr_cli.spec import format_number
from wmr_cli.storage.records import Record
from wmr_cli.storage.runs import RunFolder
from wmr_cli.sweeps.ledger import list_records
from wmr_cli.sweeps.study import Study, read_study

DOCS = Path(__file__).parent
STUDIES = DOCS.parent / "studies"
PAGE, PICTURES = DOCS / "reproduction.md", DOCS / "pictures" / "reproduction"
BLOCK = re.compile(
    r"(?P<begin><!-- (?:study: (?P<study>[\w-]+)|verdicts) -->\n).*?(?P<end><!-- end -->\n)",
    re.DOTALL,
)


@cache
def records_of(name: str) -> tuple[Study, dict[str, list[Path]]]:
    """A study and the record files of each of its runs, of those that are done."""
    study = read_study(STUDIES / f"{name}.toml", installed().registry)
    files = {run.name: list_records(study, run) for run in study.runs}
    return study, {run: mine for run, mine in files.items() if mine}


@cache
def found_in(name: str) -> tuple[tuple[Path, Record], ...]:
    """The records of a study."""
    _, files = records_of(name)
    return (
        tuple(gather_records([file for mine in files.values() for file in mine]).found)
        if files
        else ()
    )


@cache
def findings_in(name: str) -> tuple[Finding, ...]:
    """What the records of a study say about the paper's claims."""
    return tuple(findings(found_in(name)))


def verdicts(names: Sequence[str]) -> Iterator[str]:
    """Every claim, and what came of it in each study with each defense."""
    said = {
        (name, each.about, each.claim): each.verdict for name in names for each in findings_in(name)
    }
    columns = list(dict.fromkeys((name, defense) for name, defense, _ in said))
    heads = [f"{name}, {defense}, {seeds(name, defense)}" for name, defense in columns]
    claims = dict.fromkeys(claim for _, _, claim in said)
    yield table(
        ["claim", *heads],
        ([claim, *(said.get((*column, claim), "-") for column in columns)] for claim in claims),
    )


def seeds(name: str, defense: str) -> str:
    """With how many seeds a study has trained by a defense, at every alpha."""
    number = min(
        map(len, by_alpha([one for one in found_in(name) if name_of(one[1]) == defense]).values())
    )
    return f"{number} seed{'s' * (number != 1)}"


def mean_weights(name: str) -> str:
    """What weights did to the strength of the losses: their mean in the last epoch, which nothing divides out."""
    study, files = records_of(name)
    means: dict[tuple[str, float], list[float]] = {}
    for run in study.runs:
        if run.name in files and run.config.alpha:
            last = RunFolder(files[run.name][0].parents[1]).read_log()[-1]
            means.setdefault((run.config.defense, run.config.alpha), []).append(last["weight_mean"])
    told = (
        f"{defense}, α {format_number(alpha)}: {fmean(mean):.2f}"
        for (defense, alpha), mean in means.items()
    )
    return f"Weights are not normalised; their mean in the last epoch: {'; '.join(told) or '-'}.\n"


def section(name: str) -> Iterator[str]:
    """What a study found, or that there is nothing yet."""
    study, files = records_of(name)
    yield f"{study.summary}.\n\n```sh\nwmr sweep studies/{name}.toml\n```\n"
    yield f"{len(files)} of {len(study.runs)} runs are done.\n"
    if not files:
        return
    found = found_in(name)
    yield spent(found)
    yield mean_weights(name)
    yield f"{INTERVALS}\n"
    rows = [
        (each.claim, each.about, each.found, f"**{each.verdict}**") for each in findings_in(name)
    ]
    yield table(("claim", "defense", "found", "verdict"), rows)
    document, problems = build_report(
        GatheredRecords([one for one in found if is_own_ball(one[1])], [])
    )
    assert not problems, problems
    yield tables.make_ranked_table(document.groups, document.resampled or {}).to_markdown()
    yield from (
        f"![{picture.stem}]({picture.relative_to(DOCS).as_posix()})\n" for picture in pictures(name)
    )


INTERVALS = (
    "Differences to training without weights, unless said otherwise, in percentage points: in brackets the 95 % interval over"
    " test images, resampled in pairs, then that over seeds of training. [The rules](#how-it-was-judged) say which of them count."
)


def spent(found: Found) -> str:
    """On what, with what and for how long."""
    hours = sum(each.seconds for _, each in found if each.attack.of is None) / 3600
    makers = " and by ".join(dict.fromkeys(maker(record) for _, record in found))
    return f"{len(found)} records, made by {makers}; the attacks took {hours:.1f} hours.\n"


def maker(record: Record) -> str:
    """The program that made a record, what it was built on, and where."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return f"wmr {record.wmr} ({versions}) on {record.device}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))


def pictures(name: str) -> list[Path]:
    """The pictures of a study that are there."""
    return sorted((PICTURES / name).glob("*.png"))


def draw(name: str) -> None:
    """The paper's figures from the records of a study: its Figure 3 in every ball, 4 under both losses, and 5 to 7."""
    target = PICTURES / name
    found = [one for one in found_in(name) if one[1].attack.of is None]
    usual = [one for one in found if is_own_ball(one[1])]
    of_kind = {"curves": under(found, "pgd"), "weights": under(usual, "pgd")}
    of_kind["worst-case"] = [*of_kind["weights"], *under(usual, "pgd-margin")]
    shutil.rmtree(target, ignore_errors=True)
    for kind, shown in of_kind.items():
        with tempfile.TemporaryDirectory() as folder:
            for part in draw_figures(shown, Path(folder), [kind]):
                if isinstance(part, FigureFiles):
                    target.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(part.files[0], target / part.files[0].name)


def studies(page: str) -> list[str]:
    """The studies of the page, in its order."""
    return [block["study"] for block in BLOCK.finditer(page) if block["study"]]


def rebuilt(page: str) -> str:
    """The page with every study as its records have it."""

    def block_of(old: re.Match[str]) -> str:
        parts = section(old["study"]) if old["study"] else verdicts(studies(page))
        return old["begin"] + "\n" + "\n".join(parts) + "\n" + old["end"]

    return BLOCK.sub(block_of, page)


def main() -> None:
    """Write the page, or compare it."""
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        if rebuilt(page) != page:
            raise SystemExit("out of date: reproduction.md; run `python docs/reproduce.py`")
        return
    for name in studies(page):
        draw(name)
    PAGE.write_text(rebuilt(page), encoding="utf-8")


if __name__ == "__main__":
    main()
