"""Invalid values with a short description: numbers, specs, paths, and the content of files.

A maker is a function of a path that creates an invalid file there. Makers of runs, records and
checkpoints copy the valid ones in the parent of the current folder and change one thing.
"""

import io
import json
import os
import random
import shutil
import socket
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
import safetensors.torch
import torch
from numpy.typing import ArrayLike

from wmr_cli.config import EvaluateConfig, EvaluationSettings, TrainConfig, list_settings
from wmr_cli.storage import checkpoints, records
from wmr_cli.sweeps.study import Machine, ReportSettings

Maker = Callable[[Path], object]

# valid input, which the makers copy and change
RUN = Path("../run")
RECORDS = Path("../records")
"""A run folder with one record."""
WEIGHTS = Path("../weights.safetensors")
STUDY = Path("../study.toml")
"""A study of one run."""
CODE = Path("../code.py")
"""A local class."""
LAST = RUN / "last.safetensors"

DEEP = 100_000
HUGE = "1" + "0" * 400
NOISE = random.Random(0).randbytes(10_000)

# ---- numbers ----

NOT_NUMBERS = {
    "empty": "",
    "blank": " ",
    "word": "ten",
    "nan": "nan",
    "inf": "inf",
    "minus-inf": "-inf",
    "minus-one": "-1",
    "thirty-digits": "9" * 30,
    "ten-to-400": HUGE,
    "five-thousand-digits": "9" * 5_000,
    "1e309": "1e309",
    "one-over-zero": "1/0",
    "hexadecimal": "0x10",
    "superscript": "²",
    "digit-of-another-script": "٣",
    "code": "__import__('os').getcwd()",
}
"""Refused wherever one number that is not negative is expected."""
NOT_COUNTS = {**NOT_NUMBERS, "thousands": "1,000", "two-and-a-half": "2.5", "two-over-one": "2/1"}
NOT_SIZES = {
    **NOT_NUMBERS,
    "thousands": "1,000",
    "two-slashes": "1/2/3",
    "minus-a-fraction": "-1/255",
}
NOT_LISTS = {
    **NOT_NUMBERS,
    "no-number-between": "1,,2",
    "commas": ",",
    "one-is-a-word": "1,x",
    "one-is-negative": "1,-2",
    "one-is-nan": "1,nan",
}

# ---- text and specs ----

NOT_NAMES = {
    "empty": "",
    "unknown": "no-such-name",
    "colon": ":",
    "no-name": ":steps=1",
    "equals": "=",
    "comma": ",",
    "open-parentheses": "pgd:(((",
    "closed-parentheses": "pgd:)))",
    "five-hundred-parentheses": "pgd:" + "(" * 500 + ")" * 500,
    "five-hundred-specs": "awp:base=(" * 500 + ")" * 500,
    "open-quote": "pgd:steps='",
    "hundred-thousand-characters": "a" * 100_000,
    "hundred-thousand-items": "pgd:" + "a=1," * 100_000,
    "nul": "pgd\0",
    "control-characters": "\a\b\r\tpgd",
    "ansi-escape": "\x1b[31mpgd\x1b[0m",
    "markup": "[bold]x[/x]",
    "newline": "pgd\nerror: x\nhint: y",
    "surrogate": "pgd\udcff",
    "right-to-left": "\u202epgd",
}
"""Refused wherever one of a few names, or a component, is expected."""
NOT_PATTERNS = {
    name: NOT_NAMES[name]
    for name in ("unknown", "nul", "ansi-escape", "markup", "newline", "surrogate")
}
NOT_FLAGS = (
    "--no-such-flag",
    "--[bold]",
    "--initial",
    "-x",
    "--eps=",
    "--=",
    "--\udcff",
    "--a\nerror: b",
    "-\x1b[31m",
    "---",
)
NOT_PLUGINS = {
    **{name: text for name, text in NOT_NAMES.items() if name != "unknown"},
    "above": "..",
    "path": "a/b",
    "absolute": "/tmp/wmr-escape",
    "flag": "--x",
    "capitals": "Mine",
    "spaces": "my own",
    "digit-first": "1st",
    "taken": "pgd",
    "300-characters": "a" * 300,
    "template": "${x}",
}
NOT_PGD = {
    "fraction-of-a-step": "pgd:steps=2.5",
    "steps-twice": "pgd:steps=1,steps=2",
    "negative-steps": "pgd:steps=-1",
    "steps-nan": "pgd:steps=nan",
    "steps-thirty-digits": f"pgd:steps={'9' * 30}",
    "steps-ten-to-400": f"pgd:steps={HUGE}",
    "steps-nothing": "pgd:steps=",
    "steps-in-parentheses": "pgd:steps=(fgsm)",
    "misspelt-key": "pgd:stps=1",
    "two-values": "pgd:1,2",
    "eps-nan": "pgd:eps=nan",
    "eps-negative": "pgd:eps=-1",
    "eps-over-zero": "pgd:eps=1/0",
    "unknown-norm": "pgd:norm=l3",
    "step-infinite": "pgd:step=inf",
    "markup-key": "pgd:[bold]=1",
    "newline-in-value": "pgd:start=a\nb",
    "escape-in-value": "pgd:start=\x1b[31m",
}
NOT_COMPONENTS = {
    "trades-beta-nan": ("--defense", "trades:beta=nan"),
    "trades-beta-negative": ("--defense", "trades:beta=-1"),
    "trades-beta-ten-to-400": ("--defense", f"trades:beta={HUGE}"),
    "awp-of-nothing": ("--defense", "awp:base="),
    "awp-of-unknown": ("--defense", "awp:base=(no-such)"),
    "awp-of-itself-500-times": ("--defense", "awp:base=(" * 500 + "trades" + ")" * 500),
    "exp-alpha-nan": ("--kernel", "exp:alpha=nan"),
    "exp-alpha-infinite": ("--kernel", "exp:alpha=1e309"),
    "exp-alpha-in-parentheses": ("--kernel", "exp:alpha=(exp)"),
    "table-without-path": ("--kernel", "table"),
    "table-of-an-empty-path": ("--kernel", "table:path=''"),
    "table-missing": ("--kernel", "table:path=none.csv"),
    "table-of-a-device": ("--kernel", "table:path=/dev/zero"),
    "cnn-of-no-width": ("--model", "digits-cnn:width=0"),
    "cnn-of-thirty-digits": ("--model", f"digits-cnn:width={'9' * 30}"),
    "cnn-beyond-memory": ("--model", "digits-cnn:width=1000000000"),
    "cnn-of-three-classes": ("--model", "digits-cnn:num_classes=3"),
    "cnn-with-std-zero": ("--model", "digits-cnn:std=0"),
    "cnn-with-mean-nan": ("--model", "digits-cnn:mean=nan"),
    "timm-without-name": ("--model", "timm"),
    "timm-unknown": ("--model", "timm:no_such_model"),
    "arrays-without-path": ("--dataset", "arrays"),
    "folder-without-path": ("--dataset", "folder"),
    "folder-of-an-empty-path": ("--dataset", "folder:path=''"),
    "folder-of-nul": ("--dataset", 'folder:path="a\\u0000b"'),
    "folder-of-a-surrogate": ("--dataset", 'folder:path="a\\ud800b"'),
    "folder-of-an-unknown-home": ("--dataset", "folder:path=~no-such-user/x"),
}

# ---- paths ----


def nothing(path: Path) -> None:
    """Create nothing."""


def file_with(given: str | bytes) -> Maker:
    """Return a maker of a file with this content."""
    data = given.encode() if isinstance(given, str) else given
    return lambda path: path.write_bytes(data)


def in_order(*makers: Maker) -> Maker:
    """Return a maker that calls these makers one after the other."""

    def make(path: Path) -> None:
        for maker in makers:
            maker(path)

    return make


def folder(path: Path) -> None:
    path.mkdir()
    (path / "inside.txt").write_text("of the user")


def link_loop(path: Path) -> None:
    path.with_name("other-link").symlink_to(path.name)
    path.symlink_to("other-link")


def dangling_link(path: Path) -> None:
    path.symlink_to("no-such-target")


def link_to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


NOT_PATHS = {
    "empty": "",
    "300-characters": "x" * 300,
    "5000-characters": "x/" * 2_500,
    "nul": "a\0b",
    "surrogate": "a\udcffb",
}
"""Refused wherever a path is expected, whatever it is for."""
NOT_INPUTS = {
    **NOT_PATHS,
    "missing": "missing",
    "below-a-file": "precious.txt/x",
    "device": "/dev/zero",
    "null-device": "/dev/null",
    "root": "/",
    "markup": "[bold]x[/x]",
    "newline": "a\nerror: x\nhint: y",
    "ansi-escape": "\x1b[31mred",
    "user-file": "precious.txt",
    "unknown-home": "~no-such-user/x",
}
"""Refused wherever a file of a certain format, or a run, is expected."""
NOT_FOLDERS = {
    **NOT_PATHS,
    "below-a-file": "precious.txt/x",
    "user-file": "precious.txt",
    "device": "/dev/full",
    "system": "/proc/wmr",
}
"""Refused wherever a folder is written."""
NOT_FILES = {
    **{name: text for name, text in NOT_PATHS.items() if text},
    "below-a-file": "precious.txt/x",
    "below-a-device": "/dev/null/x",
}
"""Refused wherever a file is written, with any ending."""
IRREGULAR: Mapping[str, Maker] = {
    "fifo": os.mkfifo,
    "folder": folder,
    "socket": listening_socket,
    "link-to-zero": link_to_zero,
    "link-loop": link_loop,
    "dangling-link": dangling_link,
    "empty-file": file_with(b""),
    "noise": file_with(NOISE),
}

# ---- settings and studies ----


WRONG_TYPE: list[dict[str, list[object]]] = [{"x": []}]
"""A list of tables: no setting is one."""


def nested(opening: str, closing: str, before: str = "", after: str = "") -> str:
    return before + opening * DEEP + closing * DEEP + after


NOT_JSON: Mapping[str, str | bytes] = {
    "empty": "",
    "blank": " \n",
    "deep-lists": nested("[", "]"),
    "deep-tables": nested('{"a":', "}").replace(":}", ":1}", 1),
    "open-lists": "[" * DEEP,
    "deep-value": nested("[", "]", before='{"eps": ', after="}"),
    "list": "[]",
    "number": "3",
    "ten-to-5000": "1" + "0" * 5_000,
    "null": "null",
    "text": '"text"',
    "cut-short": '{"eps": ',
    "two-values": "{} {}",
    "noise": NOISE,
    "not-utf8": b'{"preset": "\xff"}',
    "utf16": '{"epochs": 1}'.encode("utf-16"),
    "nul": "\0" * 100,
    "unknown-key": '{"no_such_key": 1}',
    "markup-key": '{"[bold]x[/x]": 1}',
    "newline-key": '{"a\\nerror: b": 1}',
    "surrogate-key": '{"\\ud800": 1}',
    "surrogate-value": '{"model": "\\ud800"}',
    "nan": '{"eps": NaN}',
    "infinity": '{"lr": Infinity}',
    "huge-integer": f'{{"epochs": {HUGE}}}',
    "huge-number": '{"eps": 1e400}',
    "float-for-a-count": '{"epochs": 2.5}',
    "truth-for-a-count": '{"epochs": true}',
    "text-for-a-count": '{"epochs": "2"}',
    "negative-seed": '{"seed": -1}',
    "empty-name": '{"model": ""}',
    "milestones-of-text": '{"milestones": ["x"]}',
    "empty-alphas": '{"evaluate": {"alpha_test": []}}',
    "unknown-key-below": '{"evaluate": {"no_such_key": 1}}',
}
"""Content of a config file that ends in .json."""
BROKEN_JSON = (
    "empty",
    "deep-lists",
    "deep-tables",
    "open-lists",
    "list",
    "number",
    "null",
    "cut-short",
    "noise",
    "not-utf8",
    "nan",
)
NOT_TOML: Mapping[str, str | bytes] = {
    "deep-lists": nested("[", "]", before="eps = "),
    "open-lists": "eps = " + "[" * DEEP,
    "deep-tables": nested("{a=", "}", before="eps = ").replace("=}", "=1}", 1),
    "dotted-key": "a." * DEEP + "b = 1",
    "noise": NOISE,
    "not-utf8": b'preset = "\xff"',
    "nul": "\0" * 100,
    "cut-short": "eps = ",
    "key-twice": "eps = 0.1\neps = 0.2",
    "unknown-key": "no_such_key = 1",
    "markup-key": '"[bold]x[/x]" = 1',
    "nan": "eps = nan",
    "infinity": "lr = -inf",
    "huge-integer": f"epochs = {HUGE}",
    "ten-to-5000": "epochs = 1" + "0" * 5_000,
    "huge-number": "eps = 1e400",
    "date": "epochs = 2020-01-01",
}
"""Content of a config file that ends in .toml."""
CONFIGS: Mapping[str, tuple[str, str | bytes]] = {
    **{f"json-{name}": ("c.json", text) for name, text in NOT_JSON.items()},
    **{f"toml-{name}": ("c.toml", text) for name, text in NOT_TOML.items()},
    **{
        f"type-of-{key}": ("c.json", json.dumps({key: WRONG_TYPE}))
        for key in get_type_hints(TrainConfig)
    },
    **{
        f"type-of-evaluate-{key}": ("c.json", json.dumps({"evaluate": {key: WRONG_TYPE}}))
        for key in get_type_hints(EvaluationSettings)
    },
}

TINY_STUDY = """
[train]
model = "digits-cnn"
epochs = 1
steps = 1
validate_every = 0
[evaluate]
limit = 10
steps = 1
[machine]
device = "cpu"
"""


def wrong_type(name: str, key: str) -> str:
    """Return a study with `WRONG_TYPE` as one setting of a table."""
    return f"[{name}]\n{key} = [{{x = []}}]"


THOUSAND = list(range(1, 1_001))
STUDY_KEYS = (
    "summary",
    "folder",
    "keep",
    "train",
    "grid",
    "evaluate",
    "report",
    "machine",
    "slurm",
)
NOT_STUDIES = {
    **{f"toml-{name}": text for name, text in NOT_TOML.items()},
    **{
        f"type-of-evaluate-{key}": wrong_type("evaluate", key)
        for key in (*list_settings(EvaluateConfig), "checkpoint", "only")
    },
    **{
        f"type-of-report-{key}": wrong_type("report", key) for key in get_type_hints(ReportSettings)
    },
    **{f"type-of-machine-{key}": wrong_type("machine", key) for key in get_type_hints(Machine)},
    **{f"type-of-{key}": f"{key} = 3" for key in STUDY_KEYS},
    "million-runs": f"[[grid]]\nseed = {THOUSAND}\nepochs = {THOUSAND}",
    "ten-to-15-runs": "[[grid]]\n"
    + "\n".join(f"{key} = {THOUSAND}" for key in ("seed", "epochs", "steps", "batch_size", "lr")),
    "empty-grid": "grid = []",
    "grid-without-values": "[[grid]]\nseed = []",
    "same-run-twice": "[[grid]]\nseed = [0, 0]",
    "long-name": f"[[grid]]\ndefense = ['trades:beta={'0' * 300}1']",
    "unknown-table": "[no-such-table]\nx = 1",
    "unknown-key-of-grid": "[[grid]]\nno_such_key = [1]",
    "unknown-key-of-only": "[evaluate]\nonly = {no_such_key = 1}",
    "unknown-attack": "[evaluate]\nattack = 'no-such-attack'",
    "nested-attack": f"[evaluate]\nattack = 'pgd:{'(' * 500}'",
    "negative-eps": "[evaluate]\neps = -1",
    "eps-nan": "[evaluate]\neps = [nan]",
    "no-eps": "[evaluate]\neps = []",
    "no-limit": "[evaluate]\nlimit = 0",
    "huge-limit": f"[evaluate]\nlimit = {'9' * 30}",
    "no-repeats": "[evaluate]\nrepeats = 0",
    "infinite-rho": "[evaluate]\nrho = [inf]",
    "huge-devices": f"[machine]\ndevices = {'9' * 30}",
    "no-threads": "[machine]\nthreads = 0",
    "minutes-nan": "[machine]\nsave_minutes = nan",
    "report-above-its-folder": "[report]\nout = '../escape.md'",
    "report-far-above-its-folder": "[report]\nout = 'x/../../../escape.md'",
    "report-at-an-absolute-path": "[report]\nout = '/tmp/wmr-escape.md'",
    "report-of-an-unknown-format": "[report]\nout = 'report.exe'",
    "report-empty": "[report]\nout = ['']",
    "report-nul": '[report]\nout = ["a\\u0000.md"]',
    "figures-above-its-folder": "[report]\nfigures = '../escape'",
    "figures-at-an-absolute-path": "[report]\nfigures = '/tmp/wmr-escape'",
    "folder-empty": "folder = ''",
    "folder-nul": 'folder = "a\\u0000b"',
    "folder-of-5000-characters": f"folder = '{'x/' * 2_500}'",
    "folder-below-a-file": "folder = 'precious.txt/runs'\n" + TINY_STUDY,
    "folder-is-a-file": "folder = 'precious.txt'\n" + TINY_STUDY,
    "untrusted-code": f"[train]\nmodel = '{CODE}:Net'",
}

# ---- local classes ----

NOT_CODE: Mapping[str, Maker] = {
    "missing": nothing,
    "folder": folder,
    "fifo": os.mkfifo,
    "link-to-zero": link_to_zero,
    "link-loop": link_loop,
    "empty": file_with(""),
    "noise": file_with(NOISE),
    "not-utf8": file_with(b"B = '\xff'"),
    "nul": file_with(b"B = 1\0"),
    "syntax-error": file_with("class B(:"),
    "deep-parentheses": file_with("B = " + "(" * 10_000 + ")" * 10_000),
    "exits-with-0": file_with("raise SystemExit(0)"),
    "exits-with-text": file_with("raise SystemExit('error: x')"),
    "divides-by-zero": file_with("1 / 0"),
    "recursion": file_with("def f():\n    f()\nf()"),
    "text-of-two-lines": file_with("raise ValueError('a\\nerror: b\\nhint: c')"),
    "missing-import": file_with("import no_such_module_anywhere"),
    "none": file_with("B = None"),
    "number": file_with("B = 3"),
    "module": file_with("import os as B"),
    "needs-arguments": file_with("class B:\n    def __init__(self, first, second): pass"),
    "raises-when-made": file_with("class B:\n    def __init__(self): raise KeyError('x')"),
    "exits-when-made": file_with("class B:\n    def __init__(self): raise SystemExit(0)"),
    "returns-none": file_with("def B():\n    return None"),
    "returns-itself": file_with("def B():\n    return B"),
    "abstract": file_with(
        "import abc\nclass B(abc.ABC):\n    @abc.abstractmethod\n    def x(self): ..."
    ),
}
ATTACK = "from wmr_cli.core import AttackTraits\nclass B:\n    traits = AttackTraits()\n"
ATTACK += "    def __call__(self, model, batch, objective, *, seed, need_logits=True):\n        "
MODEL = "import torch\nclass B(torch.nn.Module):\n    def forward(self, images):\n        "
NOT_ATTACKS: Mapping[str, Maker] = {
    "returns-none": file_with(ATTACK + "return None"),
    "returns-text": file_with(ATTACK + "return 'images'"),
    "returns-images": file_with(ATTACK + "return batch.images"),
    "raises": file_with(ATTACK + "raise IndexError('x')"),
    "raises-two-lines": file_with(ATTACK + "raise RuntimeError('a\\nerror: b')"),
    "exits": file_with(ATTACK + "raise SystemExit(0)"),
    "recursion": file_with(ATTACK + "return self(model, batch, objective, seed=seed)"),
}
NOT_MODELS: Mapping[str, Maker] = {
    "returns-none": file_with(MODEL + "return None"),
    "returns-images": file_with(MODEL + "return images"),
    "returns-nan": file_with(MODEL + "return torch.full((len(images), 10), torch.nan)"),
    "returns-three-classes": file_with(MODEL + "return torch.zeros(len(images), 3)"),
    "returns-a-tuple": file_with(MODEL + "return (torch.zeros(len(images), 10),)"),
    "returns-integers": file_with(MODEL + "return torch.zeros(len(images), 10, dtype=torch.int64)"),
    "raises": file_with(MODEL + "raise IndexError('x')"),
    "exits": file_with(MODEL + "raise SystemExit(0)"),
    "beyond-memory-in-forward": file_with(MODEL + "return torch.empty(2**60)"),
}
SOURCE = "from types import SimpleNamespace as S\nimport torch\ndef B():\n    return "
NOT_SOURCES: Mapping[str, Maker] = {
    "none": file_with(SOURCE + "None"),
    "empty": file_with(SOURCE + "S()"),
    "without-splits": file_with(SOURCE + "S(num_classes=10, input_shape=(1, 8, 8), splits={})"),
    "splits-of-none": file_with(
        SOURCE
        + "S(num_classes=10, input_shape=(1, 8, 8), "
        + "splits={'train': None, 'val': None, 'test': None})"
    ),
    "no-classes": file_with(SOURCE + "S(num_classes=None, input_shape=(1, 8, 8), splits={})"),
    "no-shape": file_with(SOURCE + "S(num_classes=10, input_shape=None, splits={})"),
}

# ---- checkpoints ----


def checkpoint_with(changes: Mapping[str, str | None]) -> Maker:
    """Return a maker of the valid weights with changed header values; None removes a key."""

    def make(path: Path) -> None:
        tensors, header = checkpoints.load_tensors(LAST)
        header.pop("content_sha256")
        edited = {**header, **changes}
        kept = {key: value for key, value in edited.items() if value is not None}
        checkpoints.save_tensors(path, tensors, kept)

    return make


def checkpoint_with_tensors(change: Callable[[torch.Tensor], torch.Tensor]) -> Maker:
    """Return a maker of the valid checkpoint with changed tensors."""

    def make(path: Path) -> None:
        tensors, header = checkpoints.load_tensors(LAST)
        header.pop("content_sha256")
        edited = {name: change(tensor) for name, tensor in tensors.items()}
        checkpoints.save_tensors(path, edited, header)

    return make


def truncated_copy(source: Path, length: int) -> Maker:
    return lambda path: path.write_bytes(source.read_bytes()[:length])


def header_only(text: bytes, size: int | None = None) -> Maker:
    """Return a maker of a safetensors file of a header alone, with `size` as its stated length."""
    if size is None:
        size = len(text)
    return file_with(size.to_bytes(8, "little") + text)


def config_json(**changes: Any) -> str:
    return json.dumps({**msgspec.to_builtins(TrainConfig()), **changes})


NOT_WHOLE = {
    "negative": "-1",
    "ten-to-30": str(10**30),
    "ten-to-400": HUGE,
    "fraction": "2.5",
    "text": "x",
    "empty": "",
    "missing": None,
}
HEADERS: Mapping[str, Mapping[str, str | None]] = {
    "eps": {
        "nan": "nan",
        "infinite": "inf",
        "negative": "-1",
        "huge": "1e300",
        "text": "x",
        "empty": "",
        "missing": None,
    },
    "num_classes": {**NOT_WHOLE, "zero": "0", "one": "1", "three": "3", "ten-to-18": str(10**18)},
    "epoch": NOT_WHOLE,
    "seed": NOT_WHOLE,
    "alpha_train": {
        "nan": "NaN",
        "infinite": "1e400",
        "text": '"2"',
        "list": "[2]",
        "table": "{}",
        "truth": "true",
        "not-json": "x",
        "ten-to-400": HUGE,
        "deep": nested("[", "]"),
        "missing": None,
    },
    "input_shape": {
        "empty": "[]",
        "of-two-sides": "[8, 8]",
        "of-four-sides": "[1, 1, 8, 8]",
        "zero": "[0, 8, 8]",
        "negative": "[1, -8, 8]",
        "ten-to-36": f"[1, {10**18}, {10**18}]",
        "fraction": "[1, 8.5, 8]",
        "nan": "[NaN, 8, 8]",
        "text": '"abc"',
        "table": "{}",
        "null": "null",
        "not-json": "(1, 8, 8)",
        "deep": nested("[", "]"),
        "of-other-images": "[3, 32, 32]",
        "missing": None,
    },
    "class_names": {
        "too-few": '["a"]',
        "numbers": json.dumps(list(range(10))),
        "text": '"0123456789"',
        "table": "{}",
        "deep": nested("[", "]"),
    },
    "config": {
        "empty": "",
        "not-json": "x",
        "list": "[]",
        "null": "null",
        "deep": nested("[", "]"),
        "deep-value": nested("[", "]", before='{"model": ', after="}"),
        "unknown-key": config_json(no_such_key=1),
        "epochs-of-text": config_json(epochs="x"),
        "negative-eps": config_json(eps=-1),
        "unknown-attack": config_json(evaluate={"attack": "no-such"}),
        "nested-attack": config_json(evaluate={"attack": "pgd:((("}),
        "negative-steps": config_json(evaluate={"steps": -1}),
        "missing": None,
    },
    "model": {
        "empty": "",
        "unknown": "no-such-model",
        "nested": "a:b=(" * 500 + ")" * 500,
        "markup": "[bold]x[/x]",
        "newline": "a\nerror: b",
        "untrusted-code": f"{CODE}:Net",
        "beyond-memory": "digits-cnn:width=1000000000",
    },
    "dataset": {"unknown": "no-such-data", "untrusted-code": f"{CODE}:data"},
    "norm": {"unknown": "l3"},
    "wmr.schema": {"later": "2", "ten-to-400": HUGE},
    "drawn": {"list": "[]"},
}
NOT_CHECKPOINTS: Mapping[str, Maker] = {
    **{
        f"{key}-{name}": checkpoint_with({key: value})
        for key, values in HEADERS.items()
        for name, value in values.items()
    },
    "cut-after-4-bytes": truncated_copy(LAST, 4),
    "cut-in-the-header": truncated_copy(LAST, 100),
    "cut-in-the-tensors": truncated_copy(LAST, 50_000),
    "header-of-nothing": header_only(b""),
    "header-of-2-to-63-bytes": header_only(b"{}", size=2**63),
    "header-of-99-mb": header_only(b"{}", size=99_000_000),
    "header-deep": header_only(nested("[", "]").encode()),
    "header-not-json": header_only(b"abcd"),
    "header-list": header_only(b"[]"),
    "offsets-beyond-the-end": header_only(
        b'{"a": {"dtype": "F32", "shape": [9999], "data_offsets": [0, 39996]}}'
    ),
    "shape-that-overflows": header_only(
        b'{"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}}'
    ),
    "weights-nan": checkpoint_with_tensors(lambda tensor: torch.full_like(tensor, torch.nan)),
    "weights-empty": checkpoint_with_tensors(lambda tensor: tensor[:0]),
    "weights-of-another-shape": checkpoint_with_tensors(lambda tensor: tensor.reshape(-1)),
    "weights-of-one-number": checkpoint_with_tensors(lambda tensor: tensor.reshape(-1)[0]),
}


def bare_safetensors(**tensors: torch.Tensor) -> Maker:
    """Return a maker of a safetensors file without the header of a checkpoint."""
    return lambda path: safetensors.torch.save_file(tensors, path)


def zip_of(members: Mapping[str, bytes]) -> Maker:
    """Return a maker of a zip archive of these members."""

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as packed:
            for name, given in members.items():
                packed.writestr(name, given)

    return make


CODE_IN_A_PICKLE = b"cos\nsystem\n(S'touch escaped'\ntR."
NOT_WEIGHTS: Mapping[str, tuple[str, Maker]] = {
    "no-tensors": ("w.safetensors", bare_safetensors()),
    "wrong-names": ("w.safetensors", bare_safetensors(a=torch.zeros(3))),
    "cut-short": ("w.safetensors", truncated_copy(WEIGHTS, 50_000)),
    "our-checkpoint": ("w.safetensors", lambda path: shutil.copy(LAST, path)),
    "safetensors-called-pt": ("w.pt", lambda path: shutil.copy(WEIGHTS, path)),
    "noise-called-pt": ("w.pt", file_with(NOISE)),
    "empty-pt": ("w.pt", file_with(b"")),
    "page": ("w.pt", file_with("<!doctype html><html>Please log in</html>")),
    "lfs-pointer": ("w.pt", file_with("version https://git-lfs.github.com/spec/v1\n")),
    "pickle-of-code": ("w.pt", file_with(CODE_IN_A_PICKLE)),
    "zip-of-nothing": ("w.pt", zip_of({})),
    "zip-of-code": ("w.pt", zip_of({"a/data.pkl": CODE_IN_A_PICKLE})),
    "saved-number": ("w.pt", lambda path: torch.save(3, path)),
    "saved-list": ("w.pt", lambda path: torch.save([torch.zeros(3)], path)),
    "saved-numbers-by-name": ("w.pt", lambda path: torch.save({"a": 3}, path)),
    "saved-numbered-tensors": ("w.pt", lambda path: torch.save({1: torch.zeros(3)}, path)),
    "nan": (
        "w.safetensors",
        lambda path: safetensors.torch.save_file(
            {
                name: torch.full_like(tensor, torch.nan)
                for name, tensor in safetensors.torch.load_file(WEIGHTS).items()
            },
            path,
        ),
    ),
}

# ---- records and their rows ----

IMAGES = 40
"""Images of the valid record."""


def valid_record() -> Path:
    return next(RECORDS.glob("*/evaluations/*.json"))


def replace_at(values: dict[str, Any], place: str, value: object) -> dict[str, Any]:
    """Return the same values with another one at a place such as `dataset/n`."""
    key, _, rest = place.partition("/")
    if rest:
        value = replace_at(values[key], rest, value)
    return {**values, key: value}


def record_with(place: str, value: object) -> Maker:
    """Return a maker of the valid record with another value at one place."""

    def make(path: Path) -> None:
        copy_record(path)
        file = next(path.glob("*.json"))
        valid = json.loads(file.read_text())
        file.write_text(json.dumps(replace_at(valid, place, value)))

    return make


def record_with_text(text: str | bytes) -> Maker:
    def make(path: Path) -> None:
        copy_record(path)
        file_with(text)(next(path.glob("*.json")))

    return make


def copy_record(path: Path) -> None:
    shutil.copytree(valid_record().parent, path)


def record_with_rows(change: Callable[[records.Rows], object]) -> Maker:
    """Return a maker of the valid record with changed rows and their correct hash."""

    def make(path: Path) -> None:
        copy_record(path)
        file = next(path.glob("*.safetensors"))
        given = records.load_rows(file)
        change(given)
        records.save_rows(file, given)

    return make


def record_with_rows_file(change: Maker) -> Maker:
    """Return a maker of the valid record in which `change` rewrites the file of the rows."""

    def make(path: Path) -> None:
        copy_record(path)
        change(next(path.glob("*.safetensors")))

    return make


INVALID_RECORD_VALUES: Mapping[str, Mapping[str, Any]] = {
    "dataset/n": {
        "zero": 0,
        "negative": -1,
        "ten-to-18": 10**18,
        "ten-to-30": 10**30,
        "text": "40",
        "fraction": 40.5,
    },
    "dataset/indices": {"of-others": [1, 2, 3], "negative": [-1] * IMAGES},
    "dataset/name": {"empty": ""},
    "threat/eps": {"negative": -0.1, "huge": 1e300, "text": "0.1"},
    "a_nat/value": {"two": 2.0},
    "a_rob": {
        "negative": {"value": -1.0, "low": -1.0, "high": 0.5},
        "outside-its-interval": {"value": 0.5, "low": 0.9, "high": 0.1},
    },
    "checkpoint/alpha_train": {"infinite": float("inf"), "text": "2"},
    "checkpoint/defense": {"nested": "a:b=(" * 500 + ")" * 500},
    "attack/spec": {"nested": "pgd:(((", "empty": ""},
    "attack/of": {"numbers": [1]},
    "schema": {"later": 2, "text": "1", "ten-to-30": 10**30},
    "no_such_key": {"of-any-value": 1},
    "config": {"list": []},
    "config/metrics": {"number": 3},
}
RECORD_KEYS = (
    "id",
    "kernel",
    "checkpoint",
    "dataset",
    "threat",
    "attack",
    "a_nat",
    "a_rob",
    "by_alpha",
    "dro",
    "per_class",
)
NOT_RECORDS: Mapping[str, Maker] = {
    **{f"json-{name}": record_with_text(NOT_JSON[name]) for name in BROKEN_JSON},
    **{
        f"{place}-{name}": record_with(place, value)
        for place, values in INVALID_RECORD_VALUES.items()
        for name, value in values.items()
    },
    **{
        f"type-of-{key}": record_with(key, {"x": []})
        for key in (*RECORD_KEYS, "checks", "repeats", "seconds", "versions")
    },
}


def set_array(name: str, values: ArrayLike) -> Callable[[records.Rows], object]:
    """Return a function that replaces one array of the rows."""
    return lambda given: given.update({name: np.asarray(values)})


NOT_ROWS: Mapping[str, Maker] = {
    "no-images": record_with_rows(
        lambda given: given.update({name: values[:0] for name, values in given.items()})
    ),
    "fewer-images": record_with_rows(
        lambda given: given.update({name: values[:7] for name, values in given.items()})
    ),
    "nothing": record_with_rows(lambda given: given.clear()),
    "no-label": record_with_rows(lambda given: given.pop("label")),
    "no-clean": record_with_rows(lambda given: given.pop("clean/prediction")),
    "margin-nan": record_with_rows(set_array("uniform/margin", np.full(IMAGES, np.nan))),
    "margin-infinite": record_with_rows(set_array("uniform/margin", np.full(IMAGES, np.inf))),
    "margin-integers": record_with_rows(
        set_array("uniform/margin", np.ones(IMAGES, dtype=np.int64))
    ),
    "margin-short": record_with_rows(set_array("uniform/margin", np.zeros(3))),
    "margin-of-two-dimensions": record_with_rows(
        set_array("uniform/margin", np.zeros((IMAGES, 2)))
    ),
    "loss-nan": record_with_rows(
        set_array("uniform/loss", np.full(IMAGES, np.nan, dtype=np.float32))
    ),
    "loss-minus-infinity": record_with_rows(
        set_array("uniform/loss", np.full(IMAGES, -np.inf, dtype=np.float32))
    ),
    "logits-empty": record_with_rows(
        set_array("uniform/logits", np.zeros((IMAGES, 0), dtype=np.float32))
    ),
    "logits-of-one-class": record_with_rows(
        set_array("uniform/logits", np.zeros((IMAGES, 1), dtype=np.float32))
    ),
    "logits-nan": record_with_rows(
        set_array("clean/logits", np.full((IMAGES, 10), np.nan, dtype=np.float32))
    ),
    "label-negative": record_with_rows(set_array("label", np.full(IMAGES, -1))),
    "label-huge": record_with_rows(set_array("label", np.full(IMAGES, 2**62))),
    "label-float": record_with_rows(set_array("label", np.zeros(IMAGES))),
    "label-number": record_with_rows(set_array("label", np.int64(3))),
    "prediction-huge": record_with_rows(set_array("uniform/prediction", np.full(IMAGES, 2**62))),
    "cut-short": record_with_rows_file(lambda path: os.truncate(path, 300)),
    "other-hash": record_with_rows_file(bare_safetensors(label=torch.zeros(3))),
}
"""Bad rows of a valid record. Reports read rows for other alphas, for rho and for figures."""

# ---- arrays ----


def npz(**arrays: Any) -> Maker:
    def make(path: Path) -> None:
        values: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
        np.savez(path, **values)

    return make


def npz_with_header(shape: str, descr: str = "|u1", length: int = 100) -> Maker:
    """Return a maker of an archive whose arrays state this shape, and have `length` bytes."""
    fields = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}"
    header = (fields.ljust(117) + "\n").encode()
    magic = b"\x93NUMPY\x01\x00"
    array = magic + len(header).to_bytes(2, "little") + header + bytes(length)

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr("images.npy", array)
            packed.writestr("labels.npy", array)

    return make


PIXELS = np.zeros((30, 8, 8), np.uint8)
CLASSES = np.arange(30) % 10
NOT_ARRAYS: Mapping[str, Maker] = {
    "no-arrays": npz(),
    "other-names": npz(a=PIXELS, b=CLASSES),
    "images-alone": npz(images=PIXELS),
    "labels-alone": npz(labels=CLASSES),
    "no-images": npz(images=PIXELS[:0], labels=CLASSES[:0]),
    "no-pixels": npz(images=np.zeros((30, 0, 8), np.uint8), labels=CLASSES),
    "no-channels": npz(images=np.zeros((30, 8, 8, 0), np.uint8), labels=CLASSES),
    "image-number": npz(images=np.uint8(3), labels=CLASSES),
    "label-number": npz(images=PIXELS, labels=np.int64(3)),
    "both-numbers": npz(images=np.uint8(3), labels=np.int64(3)),
    "fewer-labels": npz(images=PIXELS, labels=CLASSES[:7]),
    "images-uint64": npz(images=PIXELS.astype(np.uint64), labels=CLASSES),
    "images-of-text": npz(images=PIXELS.astype(str), labels=CLASSES),
    "images-complex": npz(images=PIXELS.astype(complex), labels=CLASSES),
    "images-truths": npz(images=PIXELS.astype(bool), labels=CLASSES),
    "images-nan": npz(images=np.full((30, 8, 8), np.nan), labels=CLASSES),
    "images-infinite": npz(images=np.full((30, 8, 8), np.inf), labels=CLASSES),
    "images-of-objects": npz(images=np.array([None] * 30), labels=CLASSES),
    "images-of-dates": npz(images=PIXELS.astype("datetime64[s]"), labels=CLASSES),
    "images-of-records": npz(images=np.zeros(30, [("a", "u1")]), labels=CLASSES),
    "images-of-five-dimensions": npz(images=np.zeros((30, 1, 1, 8, 8), np.uint8), labels=CLASSES),
    "labels-huge": npz(images=PIXELS, labels=np.full(30, 2**64 - 1, np.uint64)),
    "labels-ten-to-18": npz(images=PIXELS, labels=np.full(30, 10**18)),
    "labels-negative": npz(images=PIXELS, labels=np.full(30, -1)),
    "labels-nan": npz(images=PIXELS, labels=np.full(30, np.nan)),
    "labels-of-text": npz(images=PIXELS, labels=CLASSES.astype(str)),
    "labels-of-objects": npz(images=PIXELS, labels=np.array([None] * 30)),
    "one-class": npz(images=PIXELS, labels=np.zeros(30, np.int64)),
    "splits-of-two-shapes": npz(
        train_images=PIXELS,
        train_labels=CLASSES,
        test_images=np.zeros((30, 9, 9), np.uint8),
        test_labels=CLASSES,
    ),
    "claims-ten-to-12": npz_with_header("(1000000000000,)"),
    "claims-ten-to-24": npz_with_header("(1000000000000, 1000000000000)"),
    "claims-negative-sides": npz_with_header("(-1, -100)"),
    "claims-code": npz_with_header("__import__('os').system('touch escaped')"),
    "claims-deep-shape": npz_with_header("(" * 1_000),
    "claims-objects": npz_with_header("(100,)", descr="|O"),
    "claims-more-than-there-is": npz_with_header("(200,)"),
    "cut-short": in_order(npz(images=PIXELS, labels=CLASSES), lambda path: os.truncate(path, 500)),
    "single-array": lambda path: path.write_bytes(_npy(PIXELS)),
    "page": file_with("<!doctype html><html>Please log in</html>"),
}


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


# ---- run folders ----


def run_with(change: Maker, name: str) -> Maker:
    """Return a maker of the valid run in which `change` replaces one file."""

    def make(path: Path) -> None:
        shutil.copytree(RUN, path)
        (path / name).unlink(missing_ok=True)
        change(path / name)

    return make


def resume_state_with(**changes: str) -> Maker:
    """Return a maker of the resume state of the valid run with changed header values."""

    def make(path: Path) -> None:
        tensors, header = checkpoints.load_tensors(RUN / "resume.safetensors")
        header.pop("content_sha256")
        checkpoints.save_tensors(path, tensors, {**header, **changes})

    return make


LOGS: Mapping[str, str | bytes] = {
    "tables": "{}\n",
    "lists": "[]\n",
    "numbers": "3\n",
    "nulls": "null\n",
    "epoch-of-text": '{"epoch": "x"}\n',
    "epoch-negative": '{"epoch": -1}\n',
    "epoch-fraction": '{"epoch": 1.5}\n',
    "epoch-truth": '{"epoch": true}\n',
    "deep": nested("[", "]") + "\n",
    "not-json": "x\n",
    "noise": NOISE + b"\n",
    "blank-lines": "\n\n\n",
}
NOT_STATES = {
    "text": "x",
    "list": "[]",
    "negative": "-1",
    "ten-to-400": HUGE,
    "deep": nested("[", "]"),
}
NOT_RUNS: Mapping[str, Maker] = {
    **{f"log-of-{name}": run_with(file_with(text), "log.jsonl") for name, text in LOGS.items()},
    **{
        f"config-{name}": run_with(file_with(NOT_JSON[name]), "config.json")
        for name in ("empty", "deep-lists", "list", "noise", "unknown-key")
    },
    **{
        f"{name.partition('.')[0]}-is-a-{kind}": run_with(IRREGULAR[kind], name)
        for name in ("config.json", "resume.safetensors", "log.jsonl")
        for kind in ("fifo", "folder", "link-to-zero", "link-loop", "dangling-link")
    },
    **{
        f"lock-is-a-{kind}": run_with(IRREGULAR[kind], ".lock")
        for kind in ("fifo", "folder", "link-to-zero", "dangling-link")
    },
    "config-missing": run_with(nothing, "config.json"),
    "state-missing": run_with(nothing, "resume.safetensors"),
    "config-and-state-missing": in_order(
        run_with(nothing, "config.json"), lambda path: (path / "resume.safetensors").unlink()
    ),
    "state-cut-short": run_with(
        truncated_copy(RUN / "resume.safetensors", 50_000), "resume.safetensors"
    ),
    "state-empty": run_with(file_with(b""), "resume.safetensors"),
    "state-is-a-checkpoint": run_with(lambda path: shutil.copy(LAST, path), "resume.safetensors"),
    **{
        f"state-{key}-{name}": run_with(resume_state_with(**{key: value}), "resume.safetensors")
        for key, names in {
            "epoch": NOT_STATES,
            "step": NOT_STATES,
            "best": ("text", "list", "ten-to-400"),
            "drawn": NOT_STATES,
        }.items()
        for name, value in NOT_STATES.items()
        if name in names
    },
}
"""Runs that `wmr train --resume` must refuse and leave unchanged."""
