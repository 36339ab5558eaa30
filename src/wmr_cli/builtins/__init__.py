"""The built-in plugin. It uses the same entry point and hooks as any other: names and text only."""

from collections.abc import Iterable

from ..hookspecs import hookimpl
from ..registry import Entry

HERE = __name__


@hookimpl
def wmr_models() -> Iterable[Entry]:
    return [
        Entry(
            "digits-cnn",
            f"{HERE}.models.small_cnns:DigitsCnn",
            "two convolutions and a hidden layer, for very small images",
        ),
        Entry(
            "preact-resnet18",
            f"{HERE}.models.resnets:preact_resnet18",
            "pre-activation ResNet-18 for small images",
        ),
        Entry(
            "resnet18",
            f"{HERE}.models.resnets:resnet18",
            "ResNet-18, with a stem for small images unless stem=imagenet",
        ),
        Entry(
            "resnet20",
            f"{HERE}.models.resnets:CifarResNet",
            "the CIFAR ResNet of 20 layers and 269,722 parameters",
        ),
        Entry(
            "resnet50",
            f"{HERE}.models.resnets:resnet50",
            "ResNet-50, with a stem for large images unless stem=cifar",
        ),
        Entry(
            "small-cnn",
            f"{HERE}.models.small_cnns:SmallCnn",
            "the MNIST network of TRADES, 312,202 parameters",
        ),
        Entry(
            "timm",
            f"{HERE}.models.timm_models:from_timm",
            "any network of timm by its name: timm:NAME",
        ),
        Entry(
            "wrn-28-10",
            f"{HERE}.models.resnets:wide_resnet",
            "wide ResNet of 28 layers",
            {"depth": 28, "width": 10},
        ),
        Entry(
            "wrn-34-10",
            f"{HERE}.models.resnets:wide_resnet",
            "wide ResNet of 34 layers",
            {"depth": 34, "width": 10},
        ),
    ]


@hookimpl
def wmr_datasets() -> Iterable[Entry]:
    idx = [
        f"{part}-{what}-ubyte"
        for part in ("train", "t10k")
        for what in ("images-idx3", "labels-idx1")
    ]
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    return [
        Entry(
            "arrays",
            f"{HERE}.datasets.arrays:arrays",
            "your arrays: arrays:path=….npz or .safetensors",
        ),
        Entry(
            "cifar10",
            f"{HERE}.datasets.torchvision_datasets:cifar10",
            "60,000 images in 10 classes, colour, 32x32",
            files=_below("cifar-10-batches-py", *batches, "test_batch", "batches.meta"),
        ),
        Entry(
            "cifar100",
            f"{HERE}.datasets.torchvision_datasets:cifar100",
            "60,000 images in 100 classes, colour, 32x32",
            files=_below("cifar-100-python", "train", "test", "meta"),
        ),
        Entry(
            "digits",
            f"{HERE}.datasets.digits:digits",
            "1,797 handwritten digits of 8x8 pixels, embedded (scikit-learn)",
        ),
        Entry(
            "fashion-mnist",
            f"{HERE}.datasets.torchvision_datasets:fashion_mnist",
            "70,000 pieces of clothing in 10 classes, grey, 28x28",
            files=_below("FashionMNIST/raw", *idx),
        ),
        Entry(
            "folder",
            f"{HERE}.datasets.folder:folder",
            "your image files: folder:path=…, a folder per class",
        ),
        Entry(
            "mnist",
            f"{HERE}.datasets.torchvision_datasets:mnist",
            "70,000 handwritten digits, grey, 28x28",
            files=_below("MNIST/raw", *idx),
        ),
        Entry(
            "svhn",
            f"{HERE}.datasets.torchvision_datasets:svhn",
            "99,289 house numbers in 10 classes, colour, 32x32",
            files=("train_32x32.mat", "test_32x32.mat"),
        ),
        Entry(
            "tiny-imagenet",
            f"{HERE}.datasets.tiny_imagenet:tiny_imagenet",
            "110,000 images in 200 classes, colour, 64x64",
            files=_below("tiny-imagenet-200", "wnids.txt", "train", "val/val_annotations.txt"),
        ),
    ]


def _below(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


@hookimpl
def wmr_defenses() -> Iterable[Entry]:
    return [
        Entry(
            "alp",
            f"{HERE}.defenses.combined:LogitPairing",
            "clean and adversarial images with paired logits (Kannan et al. 2018)",
        ),
        Entry(
            "combined",
            f"{HERE}.defenses.combined:Combined",
            "cross-entropy on clean and adversarial images (Goodfellow et al. 2015)",
        ),
        Entry(
            "fgsm-rs",
            f"{HERE}.defenses.pgd:FastTraining",
            "one attack step from a random start (Wong et al. 2020)",
        ),
        Entry(
            "free",
            f"{HERE}.defenses.free:Free",
            "each batch several times, one gradient for images and weights (Shafahi et al. 2019)",
        ),
        Entry(
            "iaat",
            f"{HERE}.defenses.iaat:InstanceAdaptive",
            "a radius for each image (Balaji et al. 2019)",
        ),
        Entry(
            "mart",
            f"{HERE}.defenses.mart:Mart",
            "more weight on images that are misclassified without attack (Wang et al. 2020)",
        ),
        Entry(
            "natural",
            f"{HERE}.defenses.pgd:Natural",
            "cross-entropy on clean images: no defense",
        ),
        Entry(
            "pgd",
            f"{HERE}.defenses.pgd:PgdTraining",
            "cross-entropy on adversarial images (Madry et al. 2018)",
        ),
        Entry(
            "trades",
            f"{HERE}.defenses.trades:Trades",
            "clean cross-entropy plus beta times a divergence (Zhang et al. 2019)",
        ),
        Entry(
            "yopo",
            f"{HERE}.defenses.yopo:Yopo",
            "attack steps through the first layer only (Zhang et al. 2019)",
        ),
    ]


@hookimpl
def wmr_kernels() -> Iterable[Entry]:
    return [
        Entry(
            "chi2",
            f"{HERE}.kernels.worst_case:ChiSquared",
            "the worst case in a χ² ball around equal weights",
        ),
        Entry(
            "cvar",
            f"{HERE}.kernels.worst_case:Cvar",
            "equal weights for the images of largest loss, 0 for others",
        ),
        Entry("exp", f"{HERE}.kernels.exp:Exponential", "exp(-alpha * margin), the paper's choice"),
        Entry(
            "exp-logit",
            f"{HERE}.kernels.exp:ExponentialOfLogits",
            "exp(-alpha * logit margin), clipped",
        ),
        Entry(
            "focal",
            f"{HERE}.kernels.focal:Focal",
            "the probability of a misclassification, to a power",
        ),
        Entry(
            "gairat",
            f"{HERE}.kernels.gairat:Gairat",
            "by the attack steps that an image survived (training only)",
        ),
        Entry("mail", f"{HERE}.kernels.mail:Mail", "a sigmoid of the margin"),
        Entry("none", f"{HERE}.kernels.exp:Uniform", "equal weights"),
        Entry(
            "table",
            f"{HERE}.kernels.table:Table",
            "your weights: table:path=….csv with the columns index,weight",
        ),
        Entry("tilt", f"{HERE}.kernels.worst_case:Tilt", "exp(t * loss): tilted losses"),
        Entry(
            "wat",
            f"{HERE}.kernels.wat:Wat",
            "by the validation loss of a class (training only)",
        ),
    ]


@hookimpl
def wmr_loggers() -> Iterable[Entry]:
    return [
        Entry("csv", f"{HERE}.loggers.csv_files:CsvLogger", "csv/metrics.csv in the run folder"),
        Entry(
            "mlflow",
            f"{HERE}.loggers.mlflow:MlflowLogger",
            "MLflow; needs `pip install 'wmr-cli[mlflow]'`",
        ),
        Entry(
            "tensorboard",
            f"{HERE}.loggers.tensorboard:TensorBoardLogger",
            "TensorBoard; needs `pip install 'wmr-cli[tensorboard]'`",
        ),
        Entry(
            "trackio",
            f"{HERE}.loggers.trackio:TrackioLogger",
            "Trackio, local or on a Hugging Face Space; needs `pip install 'wmr-cli[trackio]'`",
        ),
        Entry(
            "wandb",
            f"{HERE}.loggers.wandb:WandbLogger",
            "Weights & Biases; needs `pip install 'wmr-cli[wandb]'`",
        ),
    ]


@hookimpl
def wmr_attacks() -> Iterable[Entry]:
    return [
        Entry(
            "apgd-ce",
            f"{HERE}.attacks.apgd:Apgd",
            "Auto-PGD on the cross-entropy, without a step size",
        ),
        Entry(
            "apgd-dlr",
            f"{HERE}.attacks.apgd:Apgd",
            "Auto-PGD on the DLR loss, which ignores the scale of the logits",
            {"loss": "dlr"},
        ),
        Entry(
            "apgd-t",
            f"{HERE}.attacks.apgd:TargetedApgd",
            "Auto-PGD towards each other class; A_rob only",
        ),
        Entry(
            "authors-eval",
            f"{HERE}.attacks.authors_eval:AuthorsEval",
            "the evaluation attack of the paper's code: chained restarts",
        ),
        Entry(
            "autoattack",
            f"{HERE}.attacks.autoattack:AutoAttack",
            "apgd-ce, apgd-t, fab-t and square in order; A_rob only",
        ),
        Entry(
            "fab-t",
            f"{HERE}.attacks.fab_targeted:TargetedFab",
            "the nearest image across each decision boundary; A_rob only",
        ),
        Entry("fgsm", f"{HERE}.attacks.pgd:Fgsm", "one gradient step of length eps"),
        Entry(
            "noise",
            f"{HERE}.attacks.noise:Noise",
            "uniform noise, the strongest of several samples: a sanity check",
        ),
        Entry("pgd", f"{HERE}.attacks.pgd:Pgd", "projected gradient ascent on the cross-entropy"),
        Entry(
            "pgd-margin",
            f"{HERE}.attacks.pgd:Pgd",
            "projected gradient ascent on the logit margin",
            {"loss": "margin"},
        ),
        Entry(
            "square",
            f"{HERE}.attacks.square:Square",
            "random search with squares, without gradients",
        ),
    ]
