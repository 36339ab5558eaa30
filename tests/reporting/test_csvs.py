"""CSV that a spreadsheet reads as values, and never runs."""

import csv
import io

import pytest

from wmr_cli.reporting.csvs import csv_text


def cells(*values: object) -> list[str]:
    return list(csv.reader(io.StringIO(csv_text(["x"] * len(values), [values]))))[1]


FORMULAS = ["=1+1", "+1+1", "-cmd|' /C calc'!A0", "@SUM(A1)", "  =1+1", "'=1+1", '"=1+1"', ' "=1+1', "＝1+1", "-run"]


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe(text):
    assert cells(text) == [f"'{text}"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_heading_that_a_spreadsheet_would_run_gets_an_apostrophe(text):
    assert next(csv.reader(io.StringIO(csv_text([text], [])))) == [f"'{text}"]


def test_a_formula_behind_a_semicolon_gets_an_apostrophe():
    """Where a comma is the mark of decimals, spreadsheets cut cells at semicolons."""
    assert cells("a;=1+1; b") == ["a;'=1+1; b"]


@pytest.mark.parametrize(
    ("text", "written"),
    [("\t=1", r"\t=1"), ("\r=1", r"\r=1"), ("a\x1b[31m", r"a\x1b[31m"), ("a\nb", r"a\nb")],
)
def test_control_characters_are_written_as_escapes(text, written):
    assert cells(text) == [written]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (-1.5, "-1.5"),
        (3, "3"),
        (None, ""),
        (True, "True"),
        ("-1.5", "-1.5"),
        ("+2e-3", "+2e-3"),
        ("a-b", "a-b"),
    ],
)
def test_numbers_and_other_text_stay_as_they_are(value, written):
    assert cells(value) == [written]
