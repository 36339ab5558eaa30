"""Hooks of wmr-huggingface: models, datasets and runs of the hub, and the commands push and pull.

`wmr list` imports this module, so it imports nothing heavy.
"""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl


@hookimpl
def wmr_models() -> Iterable[Entry]:
    return [
        Entry(
            "hf",
            "wmr_huggingface.models:from_hub",
            "image classifier of transformers or timm: hf:owner/name or a folder",
            pin="wmr_huggingface.hub:pin_model",
        )
    ]


@hookimpl
def wmr_datasets() -> Iterable[Entry]:
    return [
        Entry(
            "hf",
            "wmr_huggingface.datasets:from_hub",
            "images with labels: hf:owner/name or a folder that `datasets` reads",
            pin="wmr_huggingface.hub:pin_dataset",
        )
    ]


@hookimpl
def wmr_checkpoints() -> Iterable[Entry]:
    return [
        Entry(
            "hf",
            "wmr_huggingface.runs:find",
            "run that `wmr push` has uploaded, or a model: hf:owner/name or a folder",
        )
    ]


@hookimpl
def wmr_commands() -> Iterable[Entry]:
    return [
        Entry(
            "push",
            "wmr_huggingface.commands:push",
            "Upload a run with its records and robustness card to the Hugging Face hub.",
        ),
        Entry(
            "pull",
            "wmr_huggingface.commands:pull",
            "Download a run that `wmr push` has uploaded.",
        ),
    ]
