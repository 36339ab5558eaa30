"""The coverage of A_cal's intervals that docs/metrics.md reports."""

import pytest

from support import calibrated_populations as populations

pytestmark = pytest.mark.slow
ALPHAS = (0.5, 1.0, 2.0)


@pytest.mark.parametrize("images", [100, 500, 1000])
@pytest.mark.parametrize("name", populations.POPULATIONS)
def test_intervals_hold_the_truth(name: str, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populations, "TRUTH_IMAGES", 1_000_000)
    populations.find_truth.cache_clear()
    with_fit, _ = populations.measure_coverage(
        populations.POPULATIONS[name], images, ALPHAS, samples=1000
    )
    populations.find_truth.cache_clear()
    assert (with_fit >= 0.92).all()
    assert (with_fit <= 0.975).all()
