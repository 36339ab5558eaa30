"""Properties of the attacks of torchattacks 3.5.1 that the package does not declare."""

from wmr_cli import BadInput, UnknownName, did_you_mean

# fmt: off
LINF = (
    "BIM", "DIFGSM", "EOTPGD", "FFGSM", "FGSM", "Jitter", "MIFGSM", "NIFGSM", "PGD", "PGDRS",
    "PIFGSM", "PIFGSMPP", "RFGSM", "SINIFGSM", "SPSA", "TIFGSM", "TPGD", "UPGD", "VMIFGSM",
    "VNIFGSM",
)
# fmt: on
L2 = ("CW", "DeepFool", "EADEN", "PGDL2", "PGDRSL2")
EITHER = ("APGD", "APGDT", "AutoAttack", "FAB", "GN", "Square", "VANILA")

REFUSED = {
    "EADL1": "it bounds the sum of all changes (L1)",
    "JSMA": "it changes a few pixels by any amount (L0)",
    "OnePixel": "it changes a few pixels by any amount (L0)",
    "Pixle": "it changes a few pixels by any amount (L0)",
    "SparseFool": "it changes a few pixels by any amount (L0)",
    "MultiAttack": "it consists of other attacks; repeat --attack of `wmr evaluate` instead",
    "LGV": "it trains its own networks first",
}

STOP_EARLY = ("APGD", "APGDT", "AutoAttack", "CW", "DeepFool", "EADEN", "FAB", "Square")
"""They stop at an image once it is misclassified: they give A_rob, but no margins."""
NEAREST = ("CW", "DeepFool", "EADEN")
"""They search for the nearest misclassified image, without a radius."""
DEPEND_ON_BATCH = ("APGDT", "AutoAttack", "CW", "EADEN", "Square")
"""Their random numbers, or their number of steps, may depend on the other images of the batch."""


def check_fits(name: str, norm: str) -> None:
    """Refuse an attack that does not exist, or does not support this norm."""
    known = (*LINF, *L2, *EITHER)
    if name in REFUSED:
        raise BadInput(
            f"torchattacks' {name} fits neither an Linf nor an L2 ball: {REFUSED[name]}",
            hint=_others(norm),
        )
    if name not in known:
        same = next((other for other in known if other.lower() == name.lower()), None)
        hint = f"did you mean {same!r}?" if same else did_you_mean(name, known)
        raise UnknownName(f"torchattacks has no attack {name!r}", hint=hint)
    if name not in (*EITHER, *(LINF if norm == "linf" else L2)):
        own = "linf" if name in LINF else "l2"
        raise BadInput(
            f"torchattacks' {name} does not support the norm {norm}",
            hint=f"{_others(norm)}; or change the norm: torchattacks:{name},norm={own},eps=…",
        )


def _others(norm: str) -> str:
    names = sorted((*EITHER, *(LINF if norm == "linf" else L2)))
    return f"attacks for {norm}: {', '.join(names)}"
