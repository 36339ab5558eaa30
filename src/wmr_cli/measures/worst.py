"""The worst of several attacks, image by image: the rows of an attacker who tries them all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .score import Rows, correct


def worst_rows(attacks: Sequence[Rows]) -> dict[str, NDArray[Any]]:
    """Rows of several attacks on the same images as one: each image as the attack left it that did it most harm.

    An attack that fooled the image wins over one that did not, then the lower logit margin decides. Where one of the attacks
    gives no margins there are none in the result: it says who was fooled, and no more.
    """
    first = attacks[0]
    for other in attacks[1:]:
        if not np.array_equal(first["index"], other["index"]) or not np.array_equal(first["label"], other["label"]):
            raise ValueError("the attacks were run on different images")
    shared = {name: values for name, values in first.items() if "/" not in name or name.startswith("clean/")}
    prefixes = dict.fromkeys(name.rpartition("/")[0] for name in first if name.endswith("/prediction"))
    for prefix in prefixes:
        if prefix != "clean" and all(f"{prefix}/prediction" in rows for rows in attacks):
            shared |= _worst_of(attacks, prefix)
    return shared


def _worst_of(attacks: Sequence[Rows], prefix: str) -> dict[str, NDArray[Any]]:
    is_right = np.stack([correct(rows, prefix) for rows in attacks])
    names = [name for name in attacks[0] if name.startswith(f"{prefix}/") and all(name in rows for rows in attacks)]
    if f"{prefix}/logit_margin" in names:
        margins = np.stack([rows[f"{prefix}/logit_margin"] for rows in attacks]).astype(np.float64)
        # lexsort's last key counts most: wrong before right, then the lowest margin
        chosen = np.lexsort((margins, is_right), axis=0)[0]
    else:
        names, chosen = [f"{prefix}/prediction"], is_right.argmin(axis=0)
    images = np.arange(len(chosen))
    return {name: np.stack([rows[name] for rows in attacks])[chosen, images] for name in names}
