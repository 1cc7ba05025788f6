"""The progress bar: the last values, short, and never at the cost of the step's number."""

import io

import pytest
from rich.console import Console

from fieldwatch.cli.progress import ProgressBar
from fieldwatch.record import Block, Row


def drawn(total, values, width=80):
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    shown = {"Loss/total": "loss {}", "Train/PSNR": "{} dB", "Model/size": "{} Gaussians", "Test/psnr": "test {} dB"}
    with ProgressBar(total, shown, console) as bar:
        bar(Block.of(Row(step=total - 1, seconds=1.0, values=values)))
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.0, "loss 1,234,567"),
        (657.0, "loss 657"),
        (0.0, "loss 0"),
        (29.456, "loss 29.46"),
        (0.05601, "loss 0.05601"),
        (0.000123, "loss 0.000123"),
        (2.5e10, "loss 2.5e+10"),
        (float("nan"), "loss nan"),
    ],
)
def test_values_are_written_short(value, text):
    assert text in drawn(10, {"Loss/total": value})


def test_a_narrow_terminal_cuts_values_and_not_the_step():
    values = {"Loss/total": 0.05601, "Train/PSNR": 29.456, "Model/size": 60_000.0, "Test/psnr": 24.04}
    assert "15000/15000" in drawn(15_000, values, width=80)
    assert "60,000 Gaussians" in drawn(15_000, values, width=100)
