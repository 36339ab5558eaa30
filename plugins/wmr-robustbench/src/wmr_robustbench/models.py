"""Build a model of the zoo by name, with weights from local files."""

import tempfile
from pathlib import Path
from typing import Literal

from torch import nn

from wmr_cli import BadFile, BadInput, MissingData, UnknownName, did_you_mean, read_saved

from .zoo import NUM_CLASSES, ZooModel, list_models, load_model

Dataset = Literal["cifar10", "cifar100", "imagenet"]
Threat = Literal["Linf", "L2", "corruptions"]
THREATS: tuple[Threat, ...] = ("Linf", "L2", "corruptions")


def robustbench(
    num_classes: int,
    input_shape: tuple[int, int, int],
    name: str,
    dataset: Dataset | None = None,
    threat: Threat = "Linf",
    path: Path | None = None,
    pretrained: bool = True,
    root: Path | None = None,
) -> nn.Module:
    """Return the zoo's model `name` for a dataset and a threat model. It takes images in [0, 1].

    Without `dataset`, the number of classes decides. Weights are read from `path` (a file, or a
    folder in robustbench's layout), or from `models/DATASET/THREAT/NAME.pt` under the data folder.
    With `pretrained=false` the weights are random and no file is read.
    """
    model = find_model(name, dataset or _dataset_of(num_classes), threat)
    expected = NUM_CLASSES[model.dataset]
    if expected != num_classes:
        raise BadInput(
            f"{name} has {expected} classes ({model.dataset}), the dataset has {num_classes}",
            hint=f"write --dataset {model.dataset}",
        )
    if not model.has_files:
        raise BadInput(
            f"{name} cannot be used: building it downloads weights of another library",
            hint="choose another model; `python -m wmr_robustbench` lists them",
        )
    if not pretrained:
        return model.make()
    if path is not None and path.is_file():
        return _load_from_file(model, path)
    return _load_from_folder(model, path or (root or Path()) / "models")


def find_model(name: str, dataset: str, threat: str) -> ZooModel:
    """Look up a model; if the name belongs to another dataset or threat, the hint says which."""
    models = list_models(dataset, threat)
    if name in models:
        return models[name]
    elsewhere = [
        f"write robustbench:{name},dataset={other_dataset},threat={other_threat}"
        for other_dataset in NUM_CLASSES
        for other_threat in THREATS
        if name in list_models(other_dataset, other_threat)
    ]
    hint = elsewhere[0] if elsewhere else did_you_mean(name, models)
    raise UnknownName(f"RobustBench has no model {name!r} for {dataset} and {threat}", hint=hint)


def _dataset_of(num_classes: int) -> str:
    for dataset, count in NUM_CLASSES.items():
        if count == num_classes:
            return dataset
    raise BadInput(
        f"RobustBench has models for 10, 100 or 1000 classes, the dataset has {num_classes}",
        hint="use cifar10, cifar100 or an image folder of ImageNet",
    )


def _load_from_folder(model: ZooModel, folder: Path) -> nn.Module:
    files = model.files(folder)
    for file, drive_id in zip(files, model.drive_ids, strict=True):
        if not file.is_file():
            raise MissingData(
                f"the weights of {model.name} are missing: {file}",
                hint=f"download them: mkdir -p {file.parent} && gdown {drive_id} -O {file}",
            )
    for file in files:
        read_saved(file)  # refuses pickled code, web pages and damaged files, each with its reason
    try:
        return load_model(model, folder)
    # what torch and robustbench raise for a file with other contents
    except (RuntimeError, KeyError, AttributeError, TypeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadFile(
            f"{files[0]} does not hold the weights of {model.name}: {reason}",
            hint="download the file again",
        ) from error


def _load_from_file(model: ZooModel, path: Path) -> nn.Module:
    if model.is_ensemble:
        example = model.files(Path())[0]
        raise BadInput(
            f"{model.name} has its weights in {len(model.drive_ids)} files",
            hint=f"set path to a folder that contains {example} and the others",
        )
    # robustbench reads its own folder layout only
    with tempfile.TemporaryDirectory() as folder:
        (link,) = model.files(Path(folder))
        link.parent.mkdir(parents=True)
        link.symlink_to(path.absolute())
        try:
            return _load_from_folder(model, Path(folder))
        except BadFile as error:  # name the user's file, not the link to it
            raise BadFile(str(error).replace(str(link), str(path)), hint=error.hint) from error
