"""torchvision and timm load whatever torch they stand beside, and only through one door."""

import re
import subprocess
import sys
from pathlib import Path

import wmr_cli

SOURCES = Path(wmr_cli.__file__).parent


def test_torchvision_and_timm_import_in_a_fresh_process() -> None:
    code = (
        "from wmr_cli.core.torchvision_compat import torchvision, timm\n"
        "import torchvision.datasets, torchvision.transforms\n"
        "model = timm.create_model('resnet10t', num_classes=3)\n"
        "print(torchvision.__version__, timm.__version__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_operators_that_do_load_are_not_declared_again() -> None:
    code = (
        "from wmr_cli.core import torchvision_compat as vision\n"
        "vision.compiled_operators_load = lambda: True\n"
        "vision.importlib.import_module = lambda name: name\n"
        "assert vision.torchvision == 'torchvision' and vision._library is None"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_no_other_module_imports_torchvision_or_timm() -> None:
    direct = re.compile(r"^\s*(import|from)\s+(torchvision|timm)\b", re.MULTILINE)
    assert [file for file in SOURCES.rglob("*.py") if direct.search(file.read_text())] == []
