"""Draw the terminal of the README from commands that are run in tmux.

Usage: `python docs/screenshot.py`. It takes some minutes.
"""

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

PICTURE = Path(__file__).parent / "images" / "terminal.svg"
COMMANDS = (
    "wmr train",
    "wmr train --alpha 0 --quiet",
    "wmr evaluate runs/* --alpha-test 2 --quiet",
    "wmr report --compare",
)
WIDTH = 128  # characters
HEIGHT = 60
PROMPT = "$ "
# the frame of rich would load a font from the network
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
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
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
    """A shell in tmux, in a folder, with the `wmr` of this Python."""

    def __init__(self, folder: str) -> None:
        self.socket = f"wmr-{Path(folder).name}"
        path = f"PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        # one thread, so that sums are rounded as in the other generated pages
        shell = shlex.join(
            ["env", path, "OMP_NUM_THREADS=1", f"PS1={PROMPT}", "bash", "--norc", "--noprofile"]
        )
        size = ("-x", str(WIDTH), "-y", str(HEIGHT))
        self.tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", folder, shell)
        self.wait_for(prompts=1)

    def tmux(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-L", self.socket, *words], check=True, capture_output=True, text=True
        ).stdout

    def run(self, command: str) -> None:
        prompts = self.count_prompts()
        self.tmux("send-keys", command, "Enter")
        self.wait_for(prompts + 1)

    def count_prompts(self) -> int:
        return sum(
            line.startswith(PROMPT.strip())
            for line in self.tmux("capture-pane", "-p", "-S", "-").splitlines()
        )

    def wait_for(self, prompts: int) -> None:
        while self.count_prompts() < prompts:
            time.sleep(0.5)

    def read_screen(self) -> str:
        """Return all output with its colours, without the last prompt."""
        output = self.tmux("capture-pane", "-p", "-e", "-S", "-").rstrip()
        return output.removesuffix(PROMPT.strip()).rstrip()


def main() -> None:
    """Run the commands in a temporary folder and draw the output."""
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(folder)
        try:
            for command in COMMANDS:
                terminal.run(command)
            shown = terminal.read_screen()
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
