"""The stored coverage of intervals over real margins is nominal, and can be measured again."""

import json

import pytest

import interval_coverage

RESULTS = json.loads(interval_coverage.OUT.read_text(encoding="utf-8"))
TEST_SETS = 300


def test_all_populations_are_measured_with_all_sizes() -> None:
    sizes = [str(images) for images in interval_coverage.SIZES]
    assert {name: list(by_size) for name, by_size in RESULTS.items()} == dict.fromkeys(
        interval_coverage.POPULATIONS, sizes
    )


def test_intervals_hold_the_truth_as_often_as_they_state() -> None:
    fractions = {
        (population, size, name): fraction
        for population, by_size in RESULTS.items()
        for size, coverage in by_size.items()
        for name, fraction in coverage.items()
    }
    too_low = {key: fraction for key, fraction in fractions.items() if fraction < 0.93}
    # differences that rest on about five images, on which only one of the networks is correct
    assert too_low.keys() == {
        ("mnist", "250", "a_rob difference"),
        ("mnist", "250", "a_cal(1) difference"),
    }
    assert min(too_low.values()) >= 0.92
    assert max(fractions.values()) <= 0.97


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
