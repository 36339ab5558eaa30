"""Critical radii: the smallest measured eps at which each image is misclassified."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .accuracy import Floats


def critical_eps(
    correct: Mapping[float, NDArray[np.bool_]], clean: NDArray[np.bool_] | None = None
) -> Floats:
    """Return the smallest eps at which each image is misclassified, (N,).

    `correct` has a mask (N,) of correct images per eps, `clean` that of clean images, whose eps is
    0. An image that is correct at every measured eps has infinity. The ball of a larger eps
    contains that of a smaller one, so an image counts as misclassified from its critical eps on,
    whatever an attack finds at larger ones.
    """
    if not correct:
        raise ValueError("no radius was measured")
    masks = {**({} if clean is None else {0.0: clean}), **correct}
    radii = sorted(masks)
    misclassified = ~np.stack([masks[eps] for eps in radii])
    found = misclassified.any(axis=0)
    # the position of the first True; 0 without any
    first = misclassified.argmax(axis=0)
    return np.where(found, np.array(radii)[first], np.inf)
