"""A network of the zoo by its name, with the weights of a local file."""

import tempfile
from pathlib import Path
from typing import Literal

from torch import nn

from wmr_cli import read_saved
from wmr_cli.errors import BadFile, BadInput, MissingData, UnknownName, did_you_mean

from .zoo import CLASSES, FETCHES_ITSELF, Listed, listed, loaded

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
    """The network that the zoo calls `name`, made for the data set and the threat model named; images are in [0, 1].

    The data set is told from the number of classes unless it is named. Weights are read from
    `models/DATASET/THREAT/NAME.pt` under the data folder, or from `path`: the file, or a folder with robustbench's layout.
    With `pretrained=false` the architecture is built with random weights and nothing is read.
    """
    network = find(name, dataset or _dataset_of(num_classes), threat)
    if CLASSES[network.dataset] != num_classes:
        problem = f"{name} tells {CLASSES[network.dataset]} classes of {network.dataset} apart, the data set has {num_classes}"
        raise BadInput(problem, hint=f"write --dataset {network.dataset}")
    if not network.drive_ids:
        raise BadInput(f"{name} cannot be used: {FETCHES_ITSELF}", hint="choose another; `python -m wmr_robustbench` lists them")
    if not pretrained:
        return network.make()
    if path is not None and path.is_file():
        return _from_file(network, path)
    return _from_folder(network, path or (root or Path()) / "models")


def find(name: str, dataset: str, threat: str) -> Listed:
    """A network by its name, or where else that name is to be found."""
    networks = listed(dataset, threat)
    if name in networks:
        return networks[name]
    elsewhere = [f"dataset={other},threat={kind}" for other in CLASSES for kind in THREATS if name in listed(other, kind)]
    hint = f"write robustbench:{name},{elsewhere[0]}" if elsewhere else did_you_mean(name, networks)
    raise UnknownName(f"RobustBench has no network {name!r} of {dataset} and {threat}", hint=hint)


def _dataset_of(num_classes: int) -> str:
    known = {classes: dataset for dataset, classes in CLASSES.items()}
    if num_classes not in known:
        problem = f"RobustBench has networks for 10, 100 or 1000 classes, the data set has {num_classes}"
        raise BadInput(problem, hint="use cifar10, cifar100 or a folder of ImageNet's pictures")
    return known[num_classes]


def _from_folder(network: Listed, folder: Path) -> nn.Module:
    files = network.files(folder)
    for file, drive_id in zip(files, network.drive_ids, strict=True):
        if not file.is_file():
            problem = f"the weights of {network.name} are not there: {file}"
            raise MissingData(problem, hint=f"fetch them: mkdir -p {file.parent} && gdown {drive_id} -O {file}")
    for file in files:
        read_saved(file)  # refuses pickled code, web pages and damaged files, and says which it is
    try:
        return loaded(network, folder)
    except (RuntimeError, KeyError, AttributeError, TypeError) as error:  # torch's and robustbench's words for other contents
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadFile(f"{files[0]} does not hold the weights of {network.name}: {reason}", hint="fetch the file again") from error


def _from_file(network: Listed, path: Path) -> nn.Module:
    if network.is_ensemble:
        problem = f"{network.name} has its weights in {len(network.drive_ids)} files"
        raise BadInput(problem, hint=f"let path name a folder that has them as {network.files(Path())[0]} and so on")
    with tempfile.TemporaryDirectory() as folder:
        (file,) = network.files(Path(folder))
        file.parent.mkdir(parents=True)
        file.symlink_to(path.absolute())
        try:
            return _from_folder(network, Path(folder))
        except BadFile as error:  # the user knows the file by its own name
            raise BadFile(str(error).replace(str(file), str(path)), hint=error.hint) from error
