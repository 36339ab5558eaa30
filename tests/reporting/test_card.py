"""The robustness card: metadata that the Hugging Face parser reads, and safe Markdown."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from markdown_it import MarkdownIt

from support import synthetic
from support.cli_runner import wmr
from wmr_cli import BadFile, BadInput, make_card
from wmr_cli.config import EvaluateConfig
from wmr_cli.reporting.card import hide_folders, render_card, to_yaml
from wmr_cli.storage.records import AttackFacts, Check, Record

HOSTILE = (
    "x\n---\nlicense: mit",
    "a: [b, {c",
    "<script>alert(1)</script>",
    "| cell | `code` ![](http://x/y.png)",
    "# heading\n\n* item [link](http://x)",
    "\"quote' \\ back # comment & *anchor !tag \u2028 \x7f \x1b[31m \ufeff",
    "1e5",
    "null",
)


def make_record(**given: Any) -> Record:
    return synthetic.make_record(synthetic.make_rows(), **given)


def read_metadata(card: str) -> dict[str, Any]:
    # no annotations in huggingface_hub
    data: Any = ModelCard(card).data
    content: dict[str, Any] = data.to_dict()
    return content


def read_results(card: str) -> list[EvalResult]:
    data = ModelCard(card).data
    assert isinstance(data, ModelCardData)
    assert data.eval_results is not None
    return data.eval_results


def gaps_of(card: str) -> str:
    return card.partition("## What was not tested")[2].partition("\n## ")[0]


def test_the_metadata_holds_every_accuracy_with_its_interval() -> None:
    record = make_record()
    results = read_results(render_card([record]))
    assert len(results) == 2 + 2 * len(synthetic.ALPHAS)
    by_name = {result.metric_name: result for result in results}
    assert record.a_rob is not None
    assert by_name["A_nat"].metric_value == record.a_nat.value
    row = record.by_alpha[1]
    assert row.a_tr is not None
    found = by_name["A_tr(2), linf ε 0.15, pgd:steps=20,step=0.015"]
    assert found.metric_value == row.a_tr.value
    assert found.metric_args == {
        "low": row.a_tr.low,
        "high": row.a_tr.high,
        "images": 400,
        "record": record.id,
        "alpha": 2.0,
        "norm": "linf",
        "eps": 0.15,
        "attack": "pgd:steps=20,step=0.015",
    }
    assert {result.dataset_type for result in results} == {"digits"}
    assert {result.metric_type for result in results} == {"accuracy"}


def test_the_parser_writes_the_same_metadata_again() -> None:
    card = render_card([make_record(), make_record(eps=0.3, dataset="hf:owner/name,split=x")])
    again = f"---\n{ModelCard(card).data}\n---\n"
    assert read_metadata(again) == read_metadata(card)
    kinds = {result.dataset_type for result in read_results(card)}
    assert kinds == {"digits", "owner/name"}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_is_text_in_yaml_and_in_markdown(text: str) -> None:
    card = render_card([make_record(model=f'net:x="{text}"')], name=text)
    metadata = read_metadata(card)
    assert set(metadata) == {"library_name", "pipeline_tag", "tags", "metrics", "model-index"}
    name = metadata["model-index"][0]["name"]
    assert isinstance(name, str)
    if text.isprintable():
        assert name == text
    body = ModelCard(card).text
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(body)
    inline = [child for token in tokens for child in token.children or ()]
    kinds = {token.type for token in (*tokens, *inline)}
    assert not kinds & {"html_block", "html_inline", "image", "link_open"}
    headings = [inner.content for token, inner in pairwise(tokens) if token.type == "heading_open"]
    assert len(headings) == 6
    assert headings[1:] == [
        "Model",
        "Threat model",
        "Results",
        "What was not tested",
        "How it was measured",
    ]


@pytest.mark.parametrize(
    "value",
    [1e-05, 1e22, 0.1, 0, 1, True, None, "yes", "- x", "", [], {}, "a\tb", "é∞", "1_000", "0x1f"],
    ids=repr,
)
def test_yaml_scalars_are_read_back(value: object) -> None:
    text = to_yaml({"a": [{"b": value, "c": [value]}], "d": value})
    expected = value.replace("\t", "\\t") if isinstance(value, str) else value
    assert yaml.safe_load(text) == {"a": [{"b": expected, "c": [expected]}], "d": expected}


def test_a_card_describes_one_checkpoint() -> None:
    with pytest.raises(BadInput, match="belong to 2: one, other"):
        render_card([make_record(name="one"), make_record(name="other")])
    with pytest.raises(BadInput, match="no evaluations"):
        render_card([])


def test_folders_of_the_user_are_not_published() -> None:
    record = make_record(
        dataset="folder:path=/home/me/images",
        model="/home/me/net.py:Net,width=2",
        attack="/home/me/mine.py:Attack,steps=20",
        training={"dataset": "folder:path=/home/me/images"},
    )
    check = Check("gradients are there", 0.0, "pass", "fraction")
    record = msgspec.structs.replace(
        record,
        checks=[check],
        plugins={"/home/me/net.py": "sha256"},
        dataset=msgspec.structs.replace(record.dataset, sha256="0" * 64),
    )
    card = render_card([record])
    assert "/home" not in card
    assert "net.py:Net,width=2" in card
    assert "mine.py:Attack" in card


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pgd:steps=20", "pgd:steps=20"),
        ("awp:base=(/a/b.py:C,x=/d/e)", "awp:base=(b.py:C,x=e)"),
        ("arrays:/a/b.npz", "arrays:b.npz"),
        ("/a/b.npz", "b.npz"),
        ("worst of all (2)", "worst of all (2)"),
    ],
)
def test_paths_in_specs_lose_their_folder(text: str, expected: str) -> None:
    assert hide_folders(text) == expected


def test_the_gaps_follow_from_the_records() -> None:
    record = make_record()
    gaps = gaps_of(render_card([record]))
    for text in ("AutoAttack", "without gradients", "sanity checks", "verifier", "linf 0.15"):
        assert text in gaps
    assert "400 images of digits test" in gaps
    check = Check("gradients are there", 0.0, "pass", "fraction")
    strong = msgspec.structs.replace(make_record(attack="autoattack", eps=0.3), checks=[check])
    gaps = gaps_of(render_card([record, strong]))
    for text in ("AutoAttack", "without gradients", "sanity checks", "linf 0.15"):
        assert text not in gaps
    assert "linf 0.3" in gaps


def test_an_attack_behind_a_worst_case_counts() -> None:
    attack = AttackFacts(spec="worst", seed=0, restarts=1, of=["a" * 16, "b" * 16])
    record = msgspec.structs.replace(
        make_record(), attack=attack, config={"attacks": ["pgd", "autoattack"]}
    )
    card = render_card([record])
    assert "AutoAttack" not in gaps_of(card)
    assert "autoattack + pgd" in card


def test_a_subset_and_missing_metrics_are_gaps() -> None:
    rows = synthetic.make_rows()
    record = synthetic.make_record(rows, evaluation=EvaluateConfig(metrics=("nat", "rob")))
    data = msgspec.structs.replace(record.dataset, indices=np.arange(400).tolist())
    gaps = gaps_of(render_card([msgspec.structs.replace(record, dataset=data)]))
    assert "400 were chosen at random" in gaps
    assert "A\\_sa: no record has it" in gaps
    assert "A\\_tr: no record has it" in gaps
    assert "A\\_nat: no" not in gaps


def test_failed_checks_are_at_the_top() -> None:
    failed = Check("noise does not win", 0.1, "fail", "accuracy under noise")
    card = render_card([msgspec.structs.replace(make_record(), checks=[failed])])
    top = card.partition("## Model")[0]
    assert "**Sanity checks failed: noise does not win.**" in top
    assert "| noise does not win | 0.1 | fail |" in card


@pytest.mark.parametrize("kernel", ["exp", "focal:gamma=2"])
def test_every_accuracy_has_one_definition(kernel: str) -> None:
    record = msgspec.structs.replace(make_record(), kernel=kernel)
    results = render_card([record]).partition("## Results")[2].partition("## What")[0]
    for name in ("A\\_nat", "A\\_rob", "A\\_sa", "A\\_tr"):
        assert results.count(f"* {name}: ") == 1
    assert "A\\_cal" not in results
    assert ("exp(−α·m)" in results) == (kernel == "exp")


def test_the_command_and_the_function_make_the_same_card(tmp_path: Path) -> None:
    synthetic.save_run_record(tmp_path / "runs", synthetic.make_rows())
    run = tmp_path / "runs" / "digits-trades-a2-s0"
    result = wmr("report", run, "--format", "card")
    assert result.stdout == make_card([run])
    wmr("report", run, "--format", "card", "--out", tmp_path / "README.md", "-q")
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == result.stdout
    assert ModelCard.load(tmp_path / "README.md").data.to_dict() == read_metadata(result.stdout)
    renamed = make_card([run], name="owner/name")
    assert read_metadata(renamed)["model-index"][0]["name"] == "owner/name"


def test_a_card_refuses_comparisons_and_damaged_records(tmp_path: Path) -> None:
    synthetic.save_run_record(tmp_path / "runs", synthetic.make_rows())
    run = tmp_path / "runs" / "digits-trades-a2-s0"
    refused = wmr("report", run, "--format", "card", "--compare", status=2)
    assert "--compare" in refused.stderr
    (run / "evaluations" / f"{'0' * 16}.json").write_text("{}")
    with pytest.raises(BadFile):
        make_card([run])
