"""Run the commands of a page, save its files, and compare its output blocks with the real output.

On a page
* each command of an `sh` block is run, in the order of the page, in one shell, so that `cd` has
  an effect on later commands;
* a block with a `title` is a file that the reader saves under that name;
* a `text` block shows the output of the `sh` block before it without numbers, or a file tree;
  `…` stands for omitted text;
* `<!-- this fails -->` before an `sh` block marks commands that must fail.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from support.virtualenvs import ROOT

FAILS = "<!-- this fails -->"
FENCE = re.compile(
    rf"(?P<fails>^{FAILS}\n+)?"
    r"^(?P<indent> *)(?P<mark>```+)(?P<language>\S*)(?P<rest>[^\n]*)\n"
    r"(?P<text>.*?)^(?P=indent)(?P=mark)$",
    re.MULTILINE | re.DOTALL,
)
INCLUDE = re.compile(r'^--8<-- "(?P<path>[^":]+)"$', re.MULTILINE)
LANGUAGES = {"sh", "text", "python", "toml", "json", "bibtex"}
WRITES = ("--out", "--save", "--grid", "--figures")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. `fails` is true if its commands must fail."""

    language: str
    title: str | None
    text: str
    fails: bool
    line: int


@dataclass(frozen=True)
class Step:
    """A command to run or a file to save. `block` is the number of its block on the page."""

    words: tuple[str, ...]
    script: str
    block: int
    line: int
    fails: bool = False

    @property
    def command(self) -> str:
        """The command on one line without its comment. Empty if a file is saved."""
        return shlex.join(self.words)


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page. Raise for a block that this module cannot read."""
    found = [_block(page, match) for match in FENCE.finditer(page)]
    unknown = {block.language for block in found} - LANGUAGES
    assert not unknown, (
        f"blocks of {', '.join(sorted(unknown))!r}: a reader's shell block is called sh"
    )
    assert page.count("```") == 2 * len(found), "a fence that is not closed"
    return found


def _block(page: str, match: re.Match[str]) -> Block:
    text = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
    title = re.fullmatch(r'\s+title="([^"]+)"', match["rest"])
    assert title or not match["rest"].strip(), f"what does {match['rest']!r} of a fence mean?"
    line = page.count("\n", 0, match.start("mark")) + 1
    return Block(match["language"], title and title[1], included(text), bool(match["fails"]), line)


def included(text: str) -> str:
    """Return a text with its included files, as on the site."""
    return INCLUDE.sub(
        lambda match: (ROOT / match["path"]).read_text(encoding="utf-8").rstrip("\n"), text
    )


def steps(page: list[Block]) -> list[Step]:
    """Return the commands and files of a page, in order."""
    return [step for number, block in enumerate(page) for step in _steps(number, block)]


def _steps(number: int, block: Block) -> Iterator[Step]:
    if block.title:
        folder, path = shlex.quote(str(Path(block.title).parent)), shlex.quote(block.title)
        save = f"mkdir -p {folder}\ncat >{path} <<'END OF FILE'\n{block.text}END OF FILE"
        yield Step((), save, number, block.line)
    elif block.language == "sh":
        for offset, text in commands(block.text):
            yield Step(
                tuple(shlex.split(text, comments=True)),
                text,
                number,
                block.line + offset,
                block.fails,
            )


def commands(text: str) -> Iterator[tuple[int, str]]:
    """Yield each command of a block with its line number. bash decides where a command ends."""
    pending: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        pending.append(line)
        command = "\n".join(pending)
        read = subprocess.run(
            ["bash", "-n", "-c", command], capture_output=True, text=True, check=False
        )
        if read.returncode == 0 and not read.stderr and not command.endswith("\\"):
            if shlex.split(command, comments=True):
                yield number - len(pending) + 1, command
            pending = []
    assert not pending, f"bash cannot read {pending}"


def written(words: tuple[str, ...]) -> list[str]:
    """Return the paths that the flags of a command name as output."""
    if words[:1] != ("wmr",) or "--dry-run" in words:
        return []
    return [path for flag, path in pairwise(words) if flag in WRITES]


def run(
    chosen: list[Step], folder: Path, logs: Path, variables: dict[str, str]
) -> tuple[dict[Step, str], Path]:
    """Run these steps in one shell. Return the output of each, and the last working folder.

    A failing step raises `AssertionError`.
    """
    logs.mkdir()
    lines = [f"trap 'pwd >{logs / 'folder'}' EXIT"]
    lines += [
        f"exec >{logs / str(number)} 2>&1\n{_guarded(step)}" for number, step in enumerate(chosen)
    ]
    script = logs.with_suffix(".sh")
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    bash = ["bash", "-euo", "pipefail", str(script)]
    status = subprocess.run(
        bash, cwd=folder, env=variables, stdin=subprocess.DEVNULL, check=False
    ).returncode
    printed = {
        step: path.read_text(encoding="utf-8")
        for number, step in enumerate(chosen)
        if (path := logs / str(number)).exists()
    }
    if status or len(printed) < len(chosen):
        last = chosen[len(printed) - 1]
        raise AssertionError(
            f"line {last.line}: {last.script}\nexit status {status}\n{printed[last]}"
        )
    return printed, Path((logs / "folder").read_text(encoding="utf-8").rstrip("\n"))


def _guarded(step: Step) -> str:
    if step.fails:
        return (
            f"if {step.script}\nthen echo 'this command must fail, but exited with 0'; exit 97; fi"
        )
    checks = [
        f"[ -e {path} ] || {{ echo {path} was not written; exit 98; }}"
        for path in map(shlex.quote, written(step.words))
    ]
    return "\n".join([step.script, *checks])


def missing(page: list[Block], printed: dict[Step, str], folder: Path) -> list[str]:
    """List what the text blocks of the page show but the commands did not print or write."""
    lost: list[str] = []
    for number, block in enumerate(page):
        if block.language != "text" or block.title:
            continue
        if is_tree(block.text):
            lost += [
                f"line {block.line}: {path} is not there"
                for path in tree(block.text)
                if not (folder / path).exists()
            ]
            continue
        source = max(
            (step.block for step in printed if step.words and step.block < number), default=None
        )
        seen = masked("\n".join(text for step, text in printed.items() if step.block == source))
        lost += [
            f"line {block.line}: not printed: {line}"
            for line in block.text.splitlines()
            if not is_shown(line, seen)
        ]
    return lost


def is_shown(line: str, seen: str) -> bool:
    """Return whether a line is in masked text. `…` matches anything. Verdicts depend on numbers."""
    parts = masked(re.sub(r"not distinguishable|few images", "…", line)).split("…")
    return re.search(".*?".join(re.escape(part.strip()) for part in parts), seen) is not None


def masked(text: str) -> str:
    """Remove what depends on the length of a run: numbers, intervals, times, verdicts, layout."""
    text = re.sub(r"(?<!\w)[-+−]?\d[\d,.]*|\d+", "#", text.replace("*", " "))
    text = re.sub(r"\[# ?#\]|#…#|\((few|all correct|none correct)\)|─+", " ", text)
    text = re.sub(r"\b(pass|fail)\b", "verdict", re.sub(r"# ?(s|min|h)\b", "# s", text))
    return " ".join(text.split())


def is_tree(text: str) -> bool:
    return "├── " in text or "└── " in text


def tree(text: str) -> list[str]:
    """Return the paths of a drawn tree. The first line is the root."""
    root, *lines = text.splitlines()
    parents, paths = [root.split()[0]], []
    for line in lines:
        drawn = re.match(r"(?P<depth>(?:│   |    )*)[├└]── (?P<name>\S+)", line)
        assert drawn, f"no line of a tree: {line}"
        del parents[1 + len(drawn["depth"]) // 4 :]
        parents.append(drawn["name"])
        paths.append("/".join(parent.rstrip("/") for parent in parents))
    return paths
