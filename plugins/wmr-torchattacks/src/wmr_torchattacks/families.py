"""What torchattacks 3.5.1 does not say of its attacks itself: which ball they fit, which stop early, which see the batch."""

from wmr_cli import BadInput, UnknownName, did_you_mean

LINF = (
    *(
        "BIM",
        "DIFGSM",
        "EOTPGD",
        "FFGSM",
        "FGSM",
        "Jitter",
        "MIFGSM",
        "NIFGSM",
        "PGD",
        "PGDRS",
        "PIFGSM",
        "PIFGSMPP",
    ),
    *("RFGSM", "SINIFGSM", "SPSA", "TIFGSM", "TPGD", "UPGD", "VMIFGSM", "VNIFGSM"),
)
L2 = ("CW", "DeepFool", "EADEN", "PGDL2", "PGDRSL2")
EITHER = ("APGD", "APGDT", "AutoAttack", "FAB", "GN", "Square", "VANILA")

REFUSED = {
    "EADL1": "it keeps the sum of all changes small (L1)",
    "JSMA": "it changes a few pixels by any amount (L0)",
    "OnePixel": "it changes a few pixels by any amount (L0)",
    "Pixle": "it changes a few pixels by any amount (L0)",
    "SparseFool": "it changes a few pixels by any amount (L0)",
    "MultiAttack": "it is made of other attacks; give `wmr evaluate` several --attack instead",
    "LGV": "it trains networks of its own first",
}

STOP_EARLY = ("APGD", "APGDT", "AutoAttack", "CW", "DeepFool", "EADEN", "FAB", "Square")
"""They leave an image alone once it is fooled: right or wrong, but no margins."""
NEAREST = ("CW", "DeepFool", "EADEN")
"""They look for the nearest image that fools the model, and know no radius."""
SEE_THE_BATCH = ("APGDT", "AutoAttack", "CW", "EADEN", "Square")
"""Their random numbers, or the step at which they give up, may depend on the other images of the batch."""


def check_fits(name: str, norm: str) -> None:
    """Refuse an attack that does not exist, or whose changes are not measured by this norm."""
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
        problem = f"torchattacks' {name} keeps its changes small in {own}, the ball is {norm}"
        raise BadInput(
            problem,
            hint=f"{_others(norm)}; or evaluate in another ball: torchattacks:{name},norm={own},eps=…",
        )


def _others(norm: str) -> str:
    return (
        f"for {norm} there are: {', '.join(sorted((*EITHER, *(LINF if norm == 'linf' else L2))))}"
    )
