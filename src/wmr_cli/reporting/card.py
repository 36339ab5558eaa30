"""The robustness card of one model: Markdown behind the metadata of a Hugging Face model card.

The card names every model, dataset and file without its folder, so that it can be published.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import msgspec

from ..errors import BadInput
from ..measures import MARGIN_KERNEL, Estimate
from ..spec import Spec, Value, format_number
from ..storage.records import Record
from .report import gather_records
from .rows import (
    ALL_ACCURACIES,
    AttackNames,
    ReportRow,
    list_accuracies,
    make_rows,
    name_attacks,
    run_name,
)
from .tables import details, main
from .tables.escaping import markdown_paragraph, markdown_text, printable
from .tables.text_table import TextTable

NORM_NAMES = {"linf": "L∞ (largest change of any pixel value)", "l2": "L2 (Euclidean length)"}
GRADIENT_FREE_ATTACKS = frozenset({"square", "autoattack"})
SMALL_SAMPLE = 1000
"""With fewer images, a 95 % interval of an accuracy near one half is wider than 6 points."""
DEFINITIONS = {
    "a_nat": "the fraction of clean images that are classified correctly.",
    "a_rob": "the fraction that is still classified correctly after the attack has changed every"
    " image within its ε-ball.",
    "a_sa": "A_rob of an attacker that also selects its images: {weight}. α = 0 gives A_rob.",
    "a_cal": "A_sa after all logits were divided by the temperature T that fits the attacked images"
    " best. It does not depend on the scale of the logits.",
    "a_tr": "the same weighted fraction, under an attack that maximises weight times loss.",
}
MARGIN_WEIGHT = (
    "image i counts exp(−α·m) times, where m is the probability of its true class minus the"
    " largest other one, under attack"
)
GAPS = {
    "checks": "Whether the attack was weak rather than the model robust: no record has sanity"
    " checks (--checks).",
    "autoattack": "AutoAttack, the usual ensemble of four attacks: there is no record of it.",
    "gradient_free": "Attacks without gradients, which masked gradients cannot stop.",
    "gradient_free_subset": "Attacks without gradients on all images: only a sanity check used"
    " one.",
    "bounds": "Guarantees: no verifier was run, so stronger attacks can reduce every number except"
    " A_nat.",
    "adaptive": "Attacks that were designed for this model (adaptive attacks).",
    "shift": "Common corruptions such as noise, blur and weather, and images from other sources.",
    "per_class": "Differences between classes.",
    "attack_seeds": "Variation between random seeds of the attack: one seed was used.",
    "training_seeds": "Variation between trainings: this is one network, trained with one seed.",
}


def make_card(paths: Sequence[Path | str], name: str | None = None) -> str:
    """Return the robustness card of a model from its records, as Markdown.

    `paths` are run folders, folders of records, or records of one checkpoint. `name` replaces the
    name of the run. A record that cannot be read raises BadFile.
    """
    gathered = gather_records(map(Path, paths))
    if gathered.problems:
        raise gathered.problems[0]
    return render_card(gathered.records, name)


def render_card(records: Sequence[Record], name: str | None = None) -> str:
    """Return the card of these records, which are those of one checkpoint."""
    if not records:
        raise BadInput("no evaluations found", hint="make one with `wmr evaluate runs/NAME`")
    checkpoints = {record.checkpoint.sha256: run_name(record) for record in records}
    if len(checkpoints) > 1:
        raise BadInput(
            f"a card describes one checkpoint, these records belong to {len(checkpoints)}:"
            f" {', '.join(sorted(checkpoints.values()))}",
            hint="name one run folder, or the records of one checkpoint",
        )
    name = name or run_name(records[0])
    records = [_without_folders(record) for record in records]
    attacks = name_attacks(records)
    sections = [
        f"---\n{to_yaml(_make_metadata(records, name, attacks))}---",
        f"# {markdown_text(name)}",
        *_introduce(records),
        "## Model",
        _make_fact_table(_list_model_facts(records[0])),
        "## Threat model",
        *_describe_threats(records, attacks),
        "## Results",
        _make_result_table(records, attacks).to_markdown().rstrip("\n"),
        _define_metrics(records),
        *_show_details(records),
        "## What was not tested",
        _make_list(_list_gaps(records, attacks)),
        "## How it was measured",
        _make_fact_table(_list_measurement_facts(records)),
    ]
    return "\n\n".join(sections) + "\n"


# ---- metadata ----


def _make_metadata(records: Sequence[Record], name: str, attacks: AttackNames) -> dict[str, Any]:
    """Return the front matter, with one result per dataset in `model-index`."""
    by_data: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        by_data.setdefault((record.dataset.name, record.dataset.split), []).append(record)
    results = [
        {
            "task": {"type": "image-classification", "name": "Image classification under attack"},
            "dataset": {
                "name": dataset,
                "type": _dataset_id(dataset),
                "split": split,
            },
            "metrics": list(_list_metrics(found, attacks)),
        }
        for (dataset, split), found in by_data.items()
    ]
    return {
        "library_name": "wmr",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "adversarial-robustness", "wmr"],
        "metrics": ["accuracy"],
        "model-index": [{"name": name, "results": results}],
    }


def _dataset_id(dataset: str) -> str:
    """Return the name of a dataset on the hub, or its name in `wmr`."""
    spec = Spec.parse(dataset)
    # an unnamed value of the form owner/name is an id of the hub
    is_id = spec.value is not None and spec.value.count("/") == 1 and spec.value[0] not in "./~"
    return spec.value if is_id and spec.value is not None else spec.short


def _list_metrics(records: Sequence[Record], attacks: AttackNames) -> Iterator[dict[str, Any]]:
    """Yield every accuracy once, with its interval and its conditions."""
    seen: set[str] = set()
    for row in make_rows(records):
        for key, heading in list_accuracies(records).items():
            estimate = row.accuracy(key)
            if estimate is None:
                continue
            metric = _make_metric(row, key, heading, estimate, attacks)
            # A_nat does not depend on the attack, nor A_rob on alpha
            identity = json.dumps({**metric, "args": {**metric["args"], "record": None}})
            if identity not in seen:
                seen.add(identity)
                yield metric


def _make_metric(
    row: ReportRow, key: str, heading: str, estimate: Estimate, attacks: AttackNames
) -> dict[str, Any]:
    record = row.record
    args: dict[str, Any] = {
        "low": estimate.low,
        "high": estimate.high,
        "images": record.dataset.n,
        "record": record.id,
    }
    name = heading
    if key not in ("a_nat", "a_rob") and row.alpha_test is not None:
        args["alpha"] = row.alpha_test
        name += f"({format_number(row.alpha_test)})"
    if key != "a_nat":
        attack = attacks.name(record)
        args |= {"norm": record.threat.norm, "eps": record.threat.eps, "attack": attack}
        if record.kernel != MARGIN_KERNEL:
            args["kernel"] = record.kernel
        name += f", {record.threat.norm} ε {format_number(record.threat.eps)}, {attack}"
    return {"type": "accuracy", "name": name, "value": estimate.value, "args": args}


def to_yaml(value: Mapping[str, Any] | Sequence[Any], indent: str = "") -> str:
    """Return nested mappings and lists as YAML blocks; keys are ours, and texts are quoted."""
    lines = []
    pairs = value.items() if isinstance(value, Mapping) else (("-", item) for item in value)
    for key, item in pairs:
        lead = f"{indent}{key}" if key == "-" else f"{indent}{key}:"
        if isinstance(item, Mapping | list) and item:
            block = to_yaml(item, indent + "  ")
            # the first key of a mapping in a list is on the line of its dash
            joint = " " + block.lstrip(" ") if key == "-" else "\n" + block
            lines.append(lead + joint)
        else:
            lines.append(f"{lead} {_to_scalar(item)}\n")
    return "".join(lines)


def _to_scalar(value: object) -> str:
    """Return a scalar as JSON, which is YAML as well; control characters are escaped visibly."""
    text = printable(value) if isinstance(value, str) else value
    # YAML 1.1 reads `1e-05` as text, because it has no dot
    if isinstance(text, float) and "." not in repr(text):
        return repr(text).replace("e", ".0e")
    return json.dumps(text, ensure_ascii=False)


# ---- sections ----


def _introduce(records: Sequence[Record]) -> Iterator[str]:
    images = sorted({record.dataset.n for record in records})
    counts = " and ".join(f"{count:,}" for count in images[:3])
    yield (
        f"The robustness of this image classifier, measured on {counts} images by `wmr`"
        f" {markdown_text(records[0].wmr)}. The numbers hold for the threat models and attacks"
        " below, and for no others."
    )
    failed = {
        check.name: None for record in records for check in record.checks if check.verdict == "fail"
    }
    if failed:
        names = "; ".join(map(markdown_text, failed))
        yield (
            f"**Sanity checks failed: {names}.** The attack may have been weak rather than the"
            " model robust, so that its accuracy under attack is overestimated."
        )


def _list_model_facts(record: Record) -> dict[str, str]:
    checkpoint = record.checkpoint
    facts = {
        "architecture": checkpoint.model,
        "defense": checkpoint.defense,
        "kernel in training": checkpoint.kernel,
    }
    if checkpoint.alpha_train is not None:
        facts["α in training"] = format_number(checkpoint.alpha_train)
    config = checkpoint.config or {}
    # for weights of another program, the config holds values that its training did not use
    if checkpoint.epoch and {"norm", "eps", "attack", "dataset"} <= config.keys():
        facts["trained on"] = str(config["dataset"])
        ball = f"{config['norm']}, ε {format_number(float(config['eps']))}"
        facts["attack in training"] = f"{config['attack']}; {ball}"
        facts["epoch"] = str(checkpoint.epoch)
        facts["seed"] = str(checkpoint.seed)
    facts["SHA-256"] = checkpoint.sha256
    return facts


def _describe_threats(records: Sequence[Record], attacks: AttackNames) -> Iterator[str]:
    yield (
        "The attacker knows the network and its weights, changes every image within an ε-ball"
        " (pixel values are from 0 to 1), and chooses how often each image occurs."
    )
    by_threat: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        by_threat.setdefault((record.threat.norm, record.threat.eps), []).append(record)
    rows: list[tuple[str, ...]] = []
    for (norm, eps), found in by_threat.items():
        names = dict.fromkeys(attacks.name(record) for record in found)
        rows.append((NORM_NAMES.get(norm, norm), format_number(eps), "; ".join(names)))
    notes = tuple(attacks.notes(records))
    headings = ("norm", "ε", "attacks")
    yield TextTable(headings=headings, rows=rows, caption="", notes=notes).to_markdown().rstrip()


def _make_result_table(records: Sequence[Record], attacks: AttackNames) -> TextTable:
    rows = []
    for row in make_rows(records):
        record = row.record
        cells = main.format_row(row)
        cells["attack"] = attacks.name(record)
        cells["data"] = f"{record.dataset.name} {record.dataset.split}"
        cells["kernel_test"] = record.kernel
        rows.append({**cells, "record": record.id})
    accuracies = tuple(list_accuracies(records).values())
    hidden = set()
    for name, usual in {"kernel_test": MARGIN_KERNEL, "T": "-"}.items():
        if all(row[name] == usual for row in rows):
            hidden.add(name)
    names = ("data", "attack", "ε", "kernel_test", "α_test", *accuracies, "n", "ESS", "T", "record")
    headings = tuple(name for name in names if name not in hidden)
    return TextTable(
        headings=headings,
        rows=[tuple(row[name] for name in headings) for row in rows],
        caption=main.make_caption(records),
        interval_columns=accuracies,
    )


def _define_metrics(records: Sequence[Record]) -> str:
    """Return one definition of every accuracy in the table."""
    kernels = sorted({record.kernel for record in records} - {MARGIN_KERNEL})
    weight = MARGIN_WEIGHT
    if kernels:
        names = ", ".join(kernels)
        weight = f"images count by the weights of the kernel ({names})"
        if any(record.kernel == MARGIN_KERNEL for record in records):
            weight += f"; with {MARGIN_KERNEL}, {MARGIN_WEIGHT}"
    return _make_list(
        f"{ALL_ACCURACIES[key]}: {DEFINITIONS[key].format(weight=weight)}"
        for key in list_accuracies(records)
    )


def _show_details(records: Sequence[Record]) -> Iterator[str]:
    """Yield bounds, worst cases over weights, classes and sanity checks, if there are any."""
    tables = [table.to_markdown().rstrip() for table in details.make_detail_tables(records)]
    if tables:
        yield "## Bounds, classes and sanity checks"
        yield from tables


def _list_gaps(records: Sequence[Record], attacks: AttackNames) -> Iterator[str]:
    """Yield what the records do not show."""
    names = {
        text.partition(":")[0]
        for record in records
        for text in (attacks.combined_attacks(record) or (record.attack.spec,))
    }
    has_checks = any(record.checks for record in records)
    norms = sorted({record.threat.norm for record in records})
    largest = {
        norm: max(record.threat.eps for record in records if record.threat.norm == norm)
        for norm in norms
    }
    limits = ", ".join(f"{norm} {format_number(eps)}" for norm, eps in largest.items())
    yield f"Larger perturbations than ε = {limits}."
    yield (
        f"Other perturbations than those bounded in {' and '.join(norms)}: other norms, patches,"
        " rotations, changes of colour."
    )
    if "autoattack" not in names:
        yield GAPS["autoattack"]
    if not names & GRADIENT_FREE_ATTACKS:
        yield GAPS["gradient_free_subset" if has_checks else "gradient_free"]
    yield GAPS["adaptive"]
    if not has_checks:
        yield GAPS["checks"]
    if not any(record.bounds for record in records):
        yield GAPS["bounds"]
    yield from _list_unmeasured(records)
    yield from _list_sample_limits(records)
    yield GAPS["shift"]


def _list_unmeasured(records: Sequence[Record]) -> Iterator[str]:
    """Yield accuracies and attackers that no record has."""
    rows = list(make_rows(records))
    for key, heading in list_accuracies(records).items():
        if all(row.accuracy(key) is None for row in rows):
            yield f"{heading}: no record has it."
    alphas = [row.alpha_test for row in rows if row.alpha_test is not None]
    if alphas:
        yield f"Attackers with a stronger preference for weak images than α = {max(alphas):g}."
    if not any(record.per_class for record in records):
        yield GAPS["per_class"]
    if not any(record.repeats for record in records):
        yield GAPS["attack_seeds"]
    yield GAPS["training_seeds"]


def _list_sample_limits(records: Sequence[Record]) -> Iterator[str]:
    """Yield how the images limit the numbers."""
    for record in _first_by_data(records):
        data = f"{record.dataset.name} {record.dataset.split}"
        count = f"{record.dataset.n:,}"
        if record.dataset.indices is not None:
            yield f"The other images of {data}: {count} were chosen at random by class."
        elif record.dataset.n < SMALL_SAMPLE:
            yield f"More than the {count} images of {data}: see the width of the intervals."


def _first_by_data(records: Sequence[Record]) -> Iterable[Record]:
    """Return one record for each set of images."""
    return {
        (record.dataset.name, record.dataset.split, record.dataset.n): record for record in records
    }.values()


def _list_measurement_facts(records: Sequence[Record]) -> dict[str, str]:
    facts = {}
    for record in _first_by_data(records):
        data = f"{record.dataset.name} {record.dataset.split}"
        facts[f"images: {data}"] = f"{record.dataset.n:,}, SHA-256 of the split"
        facts[f"images: {data}"] += f" {record.dataset.sha256}"
    facts["device"] = _join(f"{one.device}, precision {one.precision}" for one in records)
    states = {True: "yes", False: "no", None: "not known"}
    facts["deterministic"] = _join(states[record.deterministic] for record in records)
    facts["attack seeds"] = _join(str(record.attack.seed) for record in records)
    facts["date"] = _join(record.created.partition("T")[0] for record in records)
    versions = {"wmr": "wmr", **{name: name for one in records for name in one.versions}}
    facts["software"] = ", ".join(
        f"{name} {_join(one.versions.get(name, one.wmr) for one in records)}" for name in versions
    )
    plugins = _join(
        f"{name} {version}" for record in records for name, version in record.plugins.items()
    )
    if plugins:
        facts["plugins and local code"] = plugins
    facts["records"] = _join(record.id for record in records)
    return facts


# ---- text ----


def _without_folders(record: Record) -> Record:
    """Return the record with every absolute path in a spec reduced to its last part."""
    checkpoint = record.checkpoint
    config = {
        key: hide_folders(value) if isinstance(value, str) else value
        for key, value in (checkpoint.config or {}).items()
    }
    attacks = record.config.get("attacks")
    shown = list(map(hide_folders, map(str, attacks))) if isinstance(attacks, list) else attacks
    return msgspec.structs.replace(
        record,
        checkpoint=msgspec.structs.replace(
            checkpoint,
            model=hide_folders(checkpoint.model),
            defense=hide_folders(checkpoint.defense),
            kernel=hide_folders(checkpoint.kernel),
            config=config,
        ),
        dataset=msgspec.structs.replace(record.dataset, name=hide_folders(record.dataset.name)),
        attack=msgspec.structs.replace(record.attack, spec=hide_folders(record.attack.spec)),
        kernel=hide_folders(record.kernel),
        plugins={hide_folders(name): version for name, version in record.plugins.items()},
        config={**record.config, "attacks": shown},
    )


def hide_folders(text: str) -> str:
    """Return a spec or path with every absolute path in it reduced to its last part."""
    if PurePath(text).is_absolute() and ":" not in text:
        return PurePath(text).name
    try:
        return str(_shorten_paths(Spec.parse(text)))
    except BadInput:
        return text


def _shorten_paths(spec: Spec) -> Spec:
    def shorten(value: Value) -> Value:
        if isinstance(value, Spec):
            return _shorten_paths(value)
        return PurePath(value).name if PurePath(value).is_absolute() else value

    name = spec.name
    if spec.is_local:
        path, _, attribute = name.rpartition(":")
        name = f"{PurePath(path).name}:{attribute}"
    value = spec.value
    if value is not None and PurePath(value).is_absolute():
        value = PurePath(value).name
    return Spec(name, value, {key: shorten(param) for key, param in spec.params.items()})


def _join(values: Iterable[str]) -> str:
    """Return the distinct values, in order."""
    return ", ".join(dict.fromkeys(values))


def _make_fact_table(facts: Mapping[str, str]) -> str:
    rows = [f"| {markdown_text(name)} | {markdown_text(fact)} |" for name, fact in facts.items()]
    return "\n".join(("| | |", "| --- | --- |", *rows))


def _make_list(items: Iterable[str]) -> str:
    return "\n".join(f"* {markdown_paragraph(item)}" for item in items)
