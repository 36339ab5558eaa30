"""Draw the terminal of the README anew, from commands that are really run: `python docs/screenshot.py`. Minutes; needs tmux."""

import io
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).parent / "pictures" / "terminal.svg"
COMMANDS = (
    "wmr train",
    "wmr train --alpha 0 --quiet",
    "wmr evaluate runs/* --alpha-test 2 --quiet",
    "wmr report --compare",
)
WIDTH, HEIGHT = 128, 60
PROMPT = "$ "
# rich's own frame would fetch a font
FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>Two trainings with wmr, their evaluation, and a report</title>
<style>
.{unique_id}-matrix {{
font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px;
line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


class Terminal:
    """A terminal of tmux with a plain shell in a folder, and `wmr` of this Python. One thread: pages agree in rounding."""

    def __init__(self, folder: str) -> None:
        self.socket = f"wmr-{Path(folder).name}"
        path = f"PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        shell = shlex.join(
            ["env", path, "OMP_NUM_THREADS=1", f"PS1={PROMPT}", "bash", "--norc", "--noprofile"]
        )
        self.tmux(
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            str(WIDTH),
            "-y",
            str(HEIGHT),
            "-c",
            folder,
            shell,
        )
        self.wait(prompts=1)

    def tmux(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-L", self.socket, *words], check=True, capture_output=True, text=True
        ).stdout

    def run(self, command: str) -> None:
        prompts = self.prompts()
        self.tmux("send-keys", command, "Enter")
        self.wait(prompts + 1)

    def prompts(self) -> int:
        return sum(
            line.startswith(PROMPT.strip())
            for line in self.tmux("capture-pane", "-p", "-S", "-").splitlines()
        )

    def wait(self, prompts: int) -> None:
        while self.prompts() < prompts:
            time.sleep(0.5)

    def screen(self) -> str:
        """All that was written, with its colours, without the last prompt."""
        return (
            self.tmux("capture-pane", "-p", "-e", "-S", "-")
            .rstrip()
            .removesuffix(PROMPT.strip())
            .rstrip()
        )


def main() -> None:
    """Run the commands in a folder that is thrown away, and keep what the terminal showed."""
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(folder)
        try:
            for command in COMMANDS:
                terminal.run(command)
            shown = terminal.screen()
        finally:
            terminal.tmux("kill-server")
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi(shown), soft_wrap=True)
    PICTURE.write_text(
        console.export_svg(title="wmr", theme=MONOKAI, code_format=FRAME, unique_id="wmr"),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
