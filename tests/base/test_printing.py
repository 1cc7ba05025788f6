"""Untrusted text is escaped."""

import pytest

from fieldwatch.base import printable, spreadsheet_cell


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Loss/total", "Loss/total"),
        ("bär\u3000 1", "bär\u3000 1"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("a\rb", "a\\rb"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        (7, "7"),
    ],
)
def test_terminal_control_characters_are_escaped(text, shown):
    assert printable(text) == shown


def test_newlines_can_be_kept():
    assert printable("a\nb", keep="") == "a\\nb"


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+a", "-a", "@SUM(1)", "\tx", "\rx", "=1"])
def test_formulas_become_text(text):
    assert spreadsheet_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["Loss/total", "-1.5", "+1e3", "-inf", -1.5, 7, ""])
def test_numbers_and_other_cells_are_unchanged(value):
    assert spreadsheet_cell(value) == value


def test_none_is_an_empty_cell():
    assert spreadsheet_cell(None) == ""
