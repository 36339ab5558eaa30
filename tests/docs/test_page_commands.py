"""The page runner skips nothing and reports every failure."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.page_commands import (
    Step,
    blocks,
    commands,
    included,
    masked,
    missing,
    run,
    steps,
    tree,
)
from support.repository_copy import smaller
from support.virtualenvs import ROOT

PAGE = """\
```sh
echo one; echo two  # a comment

# nothing but a comment
cd inside
```

```python title="deep/hello.py"
print("hello")
```

<!-- this fails -->
```sh
python3 -c 'raise SystemExit(3)'
```

```sh
python3 deep/hello.py
echo a \\
  b
```
"""


RunPage = Callable[[str], tuple[dict[Step, str], Path]]


@pytest.fixture
def run_page(tmp_path: Path) -> RunPage:
    """Run a page. Return the output of each step and the last working folder."""

    def run_in_folder(page: str) -> tuple[dict[Step, str], Path]:
        folder = tmp_path / "folder"
        (folder / "inside").mkdir(parents=True)
        return run(steps(blocks(page)), folder, tmp_path / "logs", dict(os.environ))

    return run_in_folder


def test_commands_are_run_and_files_saved_in_the_order_of_the_page(run_page: RunPage) -> None:
    printed, folder = run_page(PAGE)
    assert list(printed.values()) == ["one\ntwo\n", "", "", "", "hello\n", "a b\n"]
    assert [step.line for step in printed] == [2, 5, 8, 14, 18, 19]
    assert (folder / "deep" / "hello.py").is_file()
    assert folder.name == "inside"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (
            "```sh\ntrue\necho why; false\ntrue\n```",
            r"line 3: echo why; false\nexit status 1\nwhy\n",
        ),
        ("```sh\nno-such-program\n```", r"line 2: no-such-program\nexit status 127\n.*not found"),
        ("```sh\nfalse | cat\n```", r"line 2: false \| cat\nexit status 1"),
        ("```sh\necho $nowhere\n```", r"exit status \d+\n.*nowhere: unbound variable"),
        ("```sh\nexit\n```\n```sh\ntrue\n```", r"line 2: exit\nexit status 0"),
        ("<!-- this fails -->\n```sh\ntrue\n```", r"exit status 97\nthis command must fail"),
        (
            "```sh\nwmr() { :; }\nwmr report --out table.csv\n```",
            r"exit status 98\ntable.csv was not written",
        ),
    ],
)
def test_a_failing_command_is_reported_with_status_and_output(
    page: str, message: str, run_page: RunPage
) -> None:
    with pytest.raises(AssertionError, match=message):
        run_page(page)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("```bash\ntrue\n```", "blocks of 'bash'"),
        ("```\ntrue\n```", "blocks of ''"),
        ("```sh\ntrue\n", "not closed"),
        ("```sh linenums\ntrue\n```", "what does ' linenums' of a fence mean"),
        ("```sh\necho 'a\n```", "bash cannot read"),
    ],
)
def test_a_block_that_cannot_be_read_is_refused(page: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        steps(blocks(page))


def test_an_indented_block_is_run_too() -> None:
    (step,) = steps(blocks("* do this:\n\n  ```sh\n  echo a\n  ```\n"))
    assert step.words == ("echo", "a")


def test_a_command_ends_where_bash_ends_it() -> None:
    text = "for i in 1 2\ndo echo $i\ndone\ncat <<E\nhello\nE\necho 'a\nb'\n"
    assert [number for number, _ in commands(text)] == [1, 4, 7]


def test_an_include_is_replaced_by_the_file() -> None:
    assert included('--8<-- "LICENSE"\n') == (ROOT / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "shown",
    [
        "n  60 · A_rob 81.3 [70, 90]*",
        "n 1,234 … A_rob 8",
        "A_rob 81 70…90",
        "…",
        "not distinguishable",
        "· A_rob",
    ],
)
def test_shown_output_matches_printed_output_apart_from_numbers(
    shown: str, run_page: RunPage
) -> None:
    page = f"```sh\necho 'n 550 · A_rob  82.0 [-1.5, +3]'\n```\n\n```text\n{shown}\n```\n"
    printed, folder = run_page(page)
    assert missing(blocks(page), printed, folder) == []


@pytest.mark.parametrize(
    "shown", ["n 550 · A_sa 82.0 [1, 2]", "n 550 A_rob 82.0", "A_sa …", "… A_rob … n 550"]
)
def test_shown_output_that_was_not_printed_is_reported(shown: str, run_page: RunPage) -> None:
    page = f"```sh\necho 'n 550 · A_rob 82.0 [1.5, 3]'\n```\n\n```text\n{shown}\n```\n"
    printed, folder = run_page(page)
    assert missing(blocks(page), printed, folder) == [f"line 5: not printed: {shown}"]


def test_a_drawn_tree_lists_files(run_page: RunPage) -> None:
    drawn = "runs/  all\n├── a/     one\n│   ├── b  two words\n│   └── c\n└── d\n"
    page = f"```sh\nmkdir -p runs/a\ntouch runs/a/b\n```\n```text\n{drawn}```\n"
    printed, folder = run_page(page)
    assert tree(drawn) == ["runs/a", "runs/a/b", "runs/a/c", "runs/d"]
    assert missing(blocks(page), printed, folder) == [
        "line 5: runs/a/c is not there",
        "line 5: runs/d is not there",
    ]


def test_masking_removes_numbers_and_units_only() -> None:
    assert masked(" digits-trades-a2-s0 *  trained in 1.3 min ──── ") == masked(
        "digits-trades-a0-s1 trained in 48 s ──"
    )


@pytest.mark.parametrize(
    ("words", "added"),
    [
        ("train", "--epochs 1"),
        ("train --resume --epochs 50", "--epochs 1"),
        ("train --dry-run", ""),
        ("train --dataset cifar10", "--dry-run"),
        ("evaluate runs/a --alpha-test 1,2", "--limit 60 --alpha-test 2"),
        ("attack runs/a --limit 20", ""),
        ("report", ""),
        ("", ""),
    ],
)
def test_commands_are_shortened(words: str, added: str) -> None:
    assert smaller(words.split()) == [*words.split(), *added.split()]


def test_long_attacks_are_shortened() -> None:
    few = ["--limit", "60", "--alpha-test", "2"]
    assert smaller(["evaluate", "a", "--attack", "square"]) == [
        "evaluate",
        "a",
        "--attack",
        "square:queries=100",
        *few,
    ]
