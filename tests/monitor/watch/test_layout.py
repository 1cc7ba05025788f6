"""The view fits into any terminal size, and numbers are never truncated."""

import io
import re

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from fieldwatch.monitor.watch import Watcher, render_run

SIZES = [(80, 24), (160, 50), (40, 12), (20, 3), (119, 24), (120, 10), (250, 100), (80, 1)]


def drawn(view, width=80, height=24, **options):
    return render_run(view, width=width, height=height, **options).plain.split("\n")


def look(recorded):
    with Watcher(recorded.folder) as watcher:
        return watcher.refresh()


@pytest.fixture(scope="module")
def busy(record_in, tmp_path_factory):
    """A run with all kinds of records."""
    recorded = record_in(tmp_path_factory.mktemp("busy") / "runs" / "bear")
    recorded.begin(about={"pipeline": "splats"}).rows(0, 600)
    for step in range(8):
        recorded.finding(step=step, severity=("note", "warning", "error")[step % 3], subject=f"term_{step}")
    recorded.event(kind="checkpoint", step=499, path="checkpoints/step_0000000500", metrics={"psnr": 25.5})
    recorded.event(kind="checkpoint_failed", step=550, reason="No space left on device")
    recorded.beats(600)
    return look(recorded)


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_it_fits(busy, width, height, ascii_only):
    lines = drawn(busy, width, height, ascii_only=ascii_only)
    assert 1 <= len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    assert all(line.isascii() for line in lines) or not ascii_only
    assert lines[0].startswith("RUNNING")


def test_what_matters_is_there_at_80_by_24(busy):
    lines = drawn(busy)
    text = "\n".join(lines)
    for words in (
        "splats", "step 600 of 1,000", "60%", "ETA 0:08", "phase fine", "Loss/total", "0.102", "color", "flatness",
        "9%", "gradients", "Train/PSNR", "26 ", "60,000", "2.9 GiB of 3.9 GiB", "75%", "50 steps/s",
        "checkpoint  step 500", "1 saves failed", "error  step 5  LossSpike (term_5)", "2 errors  3 warnings  3 notes",
    ):  # fmt: skip
        assert words in text
    assert len(lines) == 24


def test_wide_terminals_have_two_columns_and_the_remedies(busy):
    text = "\n".join(drawn(busy, 160, 50))
    assert re.search(r"Loss/total .* Train/PSNR", text)
    assert text.count("-> Clip.") == 8
    assert "step 550  checkpoint failed  No space left" in text


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_numbers_are_whole_or_absent(busy, width, height):
    whole = set(re.findall(r"\d[\d,.:]*", " ".join(drawn(busy, 250, 100))))
    for line in drawn(busy, width, height):
        assert set(re.findall(r"\d[\d,.:]*", line)) <= whole


def test_a_spike_of_one_step_is_seen(recorded):
    loss = np.ones(20_000)
    loss[13_000] = 40.0
    recorded.begin(steps=20_000).rows(0, 20_000, **{"Loss/total": loss, "Train/PSNR": 1.0})
    line = next(line for line in drawn(look(recorded)) if line.startswith("Loss/total"))
    assert line.count("█") == 1
    assert line.index("█") - line.index("▁") == pytest.approx(13_000 / 20_000 * 41, abs=1)


def test_a_run_without_a_row_says_so(recorded):
    recorded.begin()
    text = "\n".join(drawn(look(recorded)))
    assert "step 0 of 1,000" in text
    assert "no findings" in text
    assert "Loss" not in text


def test_one_row(recorded):
    recorded.begin(steps=1, state="finished", phases=()).rows(0, 1)
    text = "\n".join(drawn(look(recorded)))
    assert "FINISHED" in text
    assert "step 1 of 1  100%" in text
    assert "so far" not in text
    assert re.search(r"Loss/total +1.1 +▁", text)


def test_no_folder_yet_is_waited_for(tmp_path):
    with Watcher(tmp_path / "nothing") as watcher:
        assert drawn(watcher.refresh())[0].startswith("NOT STARTED")


def test_hostile_words_are_shown_not_obeyed(recorded):
    recorded.begin(about={"pipeline": "\x1b[2J[red]me"}, phases=(("[bold]\x07", 0, None),))
    recorded.rows(0, 3, **{"Loss/component_\x1b]0;title\x07": 1.0, "[link=x]/\x1b[31m": 2.0})
    recorded.finding(subject="</script>\x9b31m", message="[/] \x1b[31mred\r\n[blink]", remedy="\u202e[green]")
    recorded.event(kind="\x1b[5m", step=2, message="\x1b]8;;http://x\x1b\\")
    out = io.StringIO()
    console = Console(file=out, width=160, force_terminal=False, highlight=False)
    for width in (40, 80, 160):
        console.print(render_run(look(recorded), width=width, height=60))
    text = out.getvalue()
    assert not set(text) & {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160), 0x202E)}
    assert "[red]me" in text
    assert "\\x1b[31mred [blink]" in text


def test_colors_say_nothing_that_words_do_not(busy):
    out = io.StringIO()
    console = Console(file=out, width=80, no_color=True, force_terminal=True, color_system="truecolor")
    console.print(render_run(busy))
    assert not re.search(r"\x1b\[[\d;]*3\d", out.getvalue())
    shares = next(line for line in drawn(busy) if line.startswith("share of"))
    assert {"█", "▓"} <= set(shares)
