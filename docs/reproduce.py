"""Write the tables and figures of `reproduction.md` from the records in `studies/records`.

Usage: `python docs/reproduce.py`. With `--check`, only compare the text, and exit with 1 if it
differs. The page has a block `<!-- study: NAME -->` … `<!-- end -->` for each study, a block
`<!-- controls: NAME of STUDY -->` for controls of a study, which are a study of their own, and a
block `<!-- verdicts -->`. Their content is overwritten. Figures are written to
`images/reproduction`.
"""

import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from claims import check_claims
from controls import ACCURACY_NAMES, tabulate_controls
from verdicts import (
    Finding,
    RecordFile,
    RecordFiles,
    defense_name,
    group_by_alpha,
    has_training_eps,
    select_attack,
)
from wmr_cli.plugins import load_plugins
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
PAGE = DOCS / "reproduction.md"
FIGURES = DOCS / "images" / "reproduction"
BLOCK = re.compile(
    r"(?P<begin><!-- (?:study: (?P<study>[\w-]+)|controls: (?P<controls>[\w-]+) of (?P<of>[\w-]+)"
    r"|verdicts) -->\n).*?(?P<end><!-- end -->\n)",
    re.DOTALL,
)
INTERVALS = (
    "Differences to training without weights, unless said otherwise, in percentage points: in"
    " brackets the 95 % interval over test images, resampled in pairs, then that over seeds of"
    " training. [The rules](#how-it-was-judged) say which of them count."
)


@cache
def load_study(name: str) -> tuple[Study, dict[str, list[Path]]]:
    """Return a study and the record files of its finished runs by run name."""
    study = read_study(STUDIES / f"{name}.toml", load_plugins().registry)
    files = {run.name: list_records(study, run) for run in study.runs}
    return study, {run: of_run for run, of_run in files.items() if of_run}


@cache
def load_records(name: str) -> tuple[RecordFile, ...]:
    """Return the records of a study with their files."""
    _, files = load_study(name)
    if not files:
        return ()
    return tuple(gather_records([file for of_run in files.values() for file in of_run]).found)


@cache
def find_results(name: str) -> tuple[Finding, ...]:
    """Return the findings of a study on the paper's claims."""
    return tuple(check_claims(load_records(name)))


def verdict_table(names: Sequence[str]) -> Iterator[str]:
    """Yield a table of the verdicts on all claims, by study and defense."""
    verdicts = {
        (name, finding.defense, finding.claim): finding.verdict
        for name in names
        for finding in find_results(name)
    }
    columns = list(dict.fromkeys((name, defense) for name, defense, _ in verdicts))
    heads = [f"{name}, {defense}, {count_seeds(name, defense)}" for name, defense in columns]
    claims = dict.fromkeys(claim for _, _, claim in verdicts)
    yield format_table(
        ["claim", *heads],
        ([claim, *(verdicts.get((*column, claim), "-") for column in columns)] for claim in claims),
    )


def count_seeds(name: str, defense: str) -> str:
    """Return the number of training seeds at each alpha, such as `3 seeds`."""
    of_defense = [one for one in load_records(name) if defense_name(one[1]) == defense]
    number = min(len(members) for members in group_by_alpha(of_defense).values())
    return "1 seed" if number == 1 else f"{number} seeds"


def describe_mean_weights(name: str) -> str:
    """Return the mean weight in the last epoch, as weights also scale the loss."""
    study, files = load_study(name)
    means: dict[tuple[str, float], list[float]] = {}
    for run in study.runs:
        if run.name in files and run.config.alpha:
            last = RunFolder(files[run.name][0].parents[1]).read_log()[-1]
            means.setdefault((run.config.defense, run.config.alpha), []).append(last["weight_mean"])
    parts = (
        f"{defense}, α {format_number(alpha)}: {fmean(of_seeds):.2f}"
        for (defense, alpha), of_seeds in means.items()
    )
    return f"Weights are not normalised; their mean in the last epoch: {'; '.join(parts) or '-'}.\n"


def study_section(name: str) -> Iterator[str]:
    """Yield the paragraphs, tables and figures of a study."""
    study, files = load_study(name)
    yield f"{study.summary}.\n\n```sh\nwmr sweep studies/{name}.toml\n```\n"
    yield f"{len(files)} of {len(study.runs)} runs are done.\n"
    if not files:
        return
    found = load_records(name)
    yield describe_cost(found)
    yield describe_mean_weights(name)
    yield f"{INTERVALS}\n"
    rows = [
        (finding.claim, finding.defense, finding.found, f"**{finding.verdict}**")
        for finding in find_results(name)
    ]
    yield format_table(("claim", "defense", "found", "verdict"), rows)
    of_training_eps = [one for one in found if has_training_eps(one[1])]
    document, problems = build_report(GatheredRecords(of_training_eps, []))
    assert not problems, problems
    yield tables.make_ranked_table(document.groups, document.resampled or {}).to_markdown()
    for figure in sorted((FIGURES / name).glob("*.png")):
        yield f"![{figure.stem}]({figure.relative_to(DOCS).as_posix()})\n"


def controls_section(name: str, study: str) -> Iterator[str]:
    """Yield the table of a study and its controls; no table until all of these are trained."""
    controls, files = load_study(name)
    yield f"{controls.summary}.\n\n```sh\nwmr sweep studies/{name}.toml\n```\n"
    yield f"{len(files)} of {len(controls.runs)} runs are done.\n"
    if len(files) < len(controls.runs):
        return
    found = [*load_records(study), *load_records(name)]
    head = ("attack", "differs in", "training", *ACCURACY_NAMES.values())
    yield format_table(head, tabulate_controls(found))


def describe_cost(found: RecordFiles) -> str:
    """Return the number of records, the software and the time of the attacks."""
    seconds = sum(record.seconds for _, record in found if record.attack.of is None)
    software = " and by ".join(dict.fromkeys(describe_software(record) for _, record in found))
    return (
        f"{len(found)} records, made by {software}; the attacks took {seconds / 3600:.1f} hours.\n"
    )


def describe_software(record: Record) -> str:
    """Return the version of `wmr`, those of its dependencies, and the device."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return f"wmr {record.wmr} ({versions}) on {record.device}"


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))


def draw_study(name: str) -> None:
    """Draw the paper's Figures 3 to 7 from the records of a study.

    Figure 3 is drawn for each eps, Figure 4 for both losses.
    """
    target = FIGURES / name
    found = [one for one in load_records(name) if one[1].attack.of is None]
    of_training_eps = [one for one in found if has_training_eps(one[1])]
    of_pgd = select_attack(of_training_eps, "pgd")
    records_by_kind = {
        "curves": select_attack(found, "pgd"),
        "weights": of_pgd,
        "worst-case": [*of_pgd, *select_attack(of_training_eps, "pgd-margin")],
    }
    shutil.rmtree(target, ignore_errors=True)
    for kind, shown in records_by_kind.items():
        with tempfile.TemporaryDirectory() as folder:
            for part in draw_figures(shown, Path(folder), [kind]):
                if isinstance(part, FigureFiles):
                    target.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(part.files[0], target / part.files[0].name)


def list_studies(page: str) -> list[str]:
    """Return the studies of the page in its order."""
    return [block["study"] for block in BLOCK.finditer(page) if block["study"]]


def rebuild(page: str) -> str:
    """Return the page with the content of all blocks replaced."""

    def replace_block(old: re.Match[str]) -> str:
        if old["study"]:
            parts = study_section(old["study"])
        elif old["controls"]:
            parts = controls_section(old["controls"], old["of"])
        else:
            parts = verdict_table(list_studies(page))
        return old["begin"] + "\n" + "\n".join(parts) + "\n" + old["end"]

    return BLOCK.sub(replace_block, page)


def main() -> None:
    """Write the page, or compare it."""
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        if rebuild(page) != page:
            raise SystemExit("out of date: reproduction.md; run `python docs/reproduce.py`")
        return
    for name in list_studies(page):
        draw_study(name)
    PAGE.write_text(rebuild(page), encoding="utf-8")


if __name__ == "__main__":
    main()
