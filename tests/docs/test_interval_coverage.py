"""The stored coverage of intervals over real margins is nominal, and can be measured again."""

import json

import pytest

import interval_coverage

RESULTS = json.loads(interval_coverage.OUT.read_text(encoding="utf-8"))
TEST_SETS = 300


def test_intervals_hold_the_truth_as_often_as_they_state() -> None:
    fractions = [
        fraction
        for by_size in RESULTS.values()
        for coverage in by_size.values()
        for fraction in coverage.values()
    ]
    assert min(fractions) >= 0.93
    assert max(fractions) <= 0.97


@pytest.mark.parametrize("population", RESULTS)
def test_a_shorter_measurement_agrees_with_the_stored_one(population: str) -> None:
    images = interval_coverage.SIZES[0]
    stored = RESULTS[population][str(images)]
    measured = interval_coverage.measure_coverage(population, images, TEST_SETS)
    # four standard deviations of a fraction of 300
    assert measured == pytest.approx(stored, abs=0.05)


def test_the_page_states_the_number_of_test_sets() -> None:
    page = interval_coverage.STUDIES.parent / "docs" / "metrics.md"
    assert f"{interval_coverage.TEST_SETS:,} test sets" in page.read_text(encoding="utf-8")
