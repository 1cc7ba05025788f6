"""Bars, sparklines and lines in any width, with and without Unicode."""

import numpy as np
import pytest
from rich.cells import cell_len

from fieldwatch.monitor.age import age
from fieldwatch.monitor.watch.canvas import ASCII_LEVELS, LEVELS, Canvas
from fieldwatch.monitor.watch.text_format import clock, measured, sanitized, share

PEN = Canvas(width=80)
PLAIN = Canvas(width=80, ascii_only=True)


def trend(low, high=None, bad=None):
    low = np.asarray(low, float)
    return np.stack((low, low if high is None else np.asarray(high, float), np.zeros(len(low)) if bad is None else bad))


def sparkline(told, cells=40, pen=PEN):
    return "".join(words for words, _ in pen.sparkline(told, cells))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00118, "0.00118"), (33.03, "33"), (999.6, "1,000"), (60_000.0, "60,000"), (1.23e-7, "1.23e-07"),
        (float("nan"), "nan"), (float("-inf"), "-inf"), (0.0, "0"), (-12.34, "-12.3"), (3.25e8, "325,000,000"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits(value, text):
    assert measured(value) == text


def test_times_and_sizes_in_words():
    assert [clock(s) for s in (9, 3723, 90_061)] == ["0:09", "1:02:03", "1 d 1:01:01"]
    assert [age(s) for s in (12, 200, 7500, 400_000)] == ["12 s", "3 min", "2 h 5 min", "4 d"]
    assert [share(s) for s in (0.584, None, float("nan"))] == ["58%", "", ""]


def test_a_strangers_text_can_only_be_read():
    hostile = "a\x1b[31mred\x07\n\tb\u202e[bold]\u4e2d\udc80"
    assert sanitized(hostile) == "a\\x1b[31mred\\x07 b\\u202e[bold]\u4e2d\\udc80"
    assert sanitized(hostile, ascii_only=True).isascii()


def test_a_falling_loss_falls():
    line = sparkline(trend(np.linspace(10, 9, 256)), 32)
    assert len(line) == 32
    assert line[0] == LEVELS[-1]
    assert line[-1] == LEVELS[0]
    assert [LEVELS.index(sign) for sign in line] == sorted((LEVELS.index(sign) for sign in line), reverse=True)


@pytest.mark.parametrize("spike", [50.0, 0.0001])
def test_one_odd_step_stands_out(spike):
    rng = np.random.default_rng(0)
    low = 1 - 0.1 * rng.random(256)
    high = 1 + 0.1 * rng.random(256)
    calm = set(sparkline(trend(low, high)))
    low[100], high[100] = min(low[100], spike), max(high[100], spike)
    line = sparkline(trend(low, high))
    odd = LEVELS[-1] if spike > 1 else LEVELS[0]
    assert line.count(odd) == 1
    assert line.index(odd) == 100 * 40 // 256
    assert len(calm) > 2
    assert sparkline(trend(low, high), pen=PLAIN).count(ASCII_LEVELS[-1 if spike > 1 else 0]) == 1


def test_what_is_not_finite_is_marked_and_what_is_not_there_is_empty():
    bad = np.zeros(40)
    bad[20] = 1
    low = np.ones(40)
    low[:10] = low[20] = low[30:35] = np.nan
    line = sparkline(trend(low, bad=bad))
    assert line[:10] == " " * 10
    assert line[20] == "!"
    assert set(line[10:20] + line[21:]) == {LEVELS[0]}
    assert sparkline(trend([np.nan, np.nan], bad=np.ones(2))) == "!"
    assert sparkline(trend([])) == ""


def test_huge_values_do_not_overflow():
    assert len(sparkline(trend([-1.7e308, 1.7e308, 0.0]))) == 3


@pytest.mark.parametrize(("part", "filled"), [(None, 0), (float("nan"), 0), (0.0, 0), (0.001, 1), (0.5, 10), (7.0, 20)])
def test_a_bar_fills_its_cells(part, filled):
    full, empty = PEN.bar(part, 20)
    assert (len(full), len(full) + len(empty)) == (filled, 20)


def test_a_stack_fills_its_cells_and_tells_its_parts_without_colors():
    parts = PLAIN.stacked_bar([0.5, -0.25, 0.25, float("nan")], 40)
    assert [len(words) for words, _ in parts] == [20, 10, 10, 0]
    assert len({words[0] for words, _ in parts if words}) == 3
    assert PEN.stacked_bar([0.0, 0.0], 40) == []


def test_a_line_keeps_whole_parts_only():
    line = PEN.line([("step 1,000,000 of 2,000,000", ""), ("", ""), ("ETA 1:02:03", ""), ("x" * 60, ""), ("end", "")])
    assert line.plain == "step 1,000,000 of 2,000,000  ETA 1:02:03  end"


@pytest.mark.parametrize("width", [1, 2, 7, 20])
@pytest.mark.parametrize(
    "text", ["", "a", "\u4e2d\u6587\u4e2d\u6587", "runs/very/long/path/of/a/run", "1234567890123456789012"]
)
def test_nothing_is_wider_than_its_room(width, text):
    assert cell_len(PEN.truncated(text, width)) <= width
    assert cell_len(PEN.end_of(text, width)) <= width
    assert cell_len(PEN.padded(text, width)) == width
    assert all(cell_len(line) <= width for line in PEN.wrapped(text, width, 9))


def test_long_text_is_broken_between_words():
    lines = PEN.wrapped("Loss/total was 52.44, 1298 times its baseline 0.0404 and more", 20, 2)
    assert lines == ["Loss/total was", "52.44, 1298 times …"]
