"""No device is named in the code, but where devices are chosen; so it runs on any."""

import ast
from pathlib import Path

import wmr_cli

SOURCE = Path(wmr_cli.__file__).parent
NAMES = ("cpu", "cuda", "mps", "xpu", "hip", "xla")
MAY_NAME = {
    "workflows/devices.py": "chooses the device that the user names",
    "cli/doctor.py": "lists the devices of this machine",
    "workflows/study.py": "shares out cores where a study names the processor",
}
ALLOWED = {"storage/foreign.py": ['map_location="cpu"']}
"""A foreign file is read wherever it was written."""


def named(source: str) -> list[str]:
    """Devices that code names: in a string, as a method that moves a tensor there, or as a module of torch's."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.split(":")[0] in NAMES:
            found.append(node.value)
        if isinstance(node, ast.Attribute) and node.attr in NAMES and node.attr != "cpu":
            found.append(f".{node.attr}")
    return found


def test_no_device_is_named():
    guilty = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name, source = file.relative_to(SOURCE).as_posix(), file.read_text(encoding="utf-8")
        for text in ALLOWED.get(name, []):
            assert text in source
            source = source.replace(text, "map_location=None")
        if name not in MAY_NAME and (found := named(source)):
            guilty[name] = found
    assert guilty == {}


def test_the_lint_sees_what_it_looks_for():
    assert named('model.to("cuda:0")') == ["cuda:0"]
    assert named("model.cuda()") == [".cuda"]
    assert named("torch.backends.mps.is_available()") == [".mps"]
    assert named("rows = tensor.cpu().numpy()") == [], "results come back to the processor"
    assert all((SOURCE / name).exists() for name in (*MAY_NAME, *ALLOWED))
