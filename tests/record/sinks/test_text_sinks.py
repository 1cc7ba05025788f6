import csv
import io
import math
import tracemalloc

import numpy as np
import pytest
from rich.console import Console as RichConsole

from fieldwatch.record import derive_block
from fieldwatch.record.sinks import Console, Csv, Log

LOSSES = ("Loss/total", "Loss/component_pixel", "Loss/weight_pixel", "Gradients/total_norm")


def losses(make_block, first, last, *, scale=1.0):
    block = make_block(first, last, LOSSES)
    block.values[:] = [0.012 * scale, 0.01 * scale, 1.0, 0.4]
    return derive_block(block)


def test_log_lines_are_greppable(tmp_path, make_block):
    log = Log(tmp_path / "log.txt", every=100, window=50, clock=lambda: 1_795_226_584.0)
    log.event({"kind": "phase", "step": 0, "seconds": 0.0, "name": "coarse"})
    log.event({"kind": "phase", "step": 7000, "seconds": 0.0, "name": "later"})
    log(losses(make_block, 0, 64))
    log(losses(make_block, 64, 128, scale=0.5))
    log.event(
        {
            "kind": "finding",
            "step": 127,
            "rule": "spike",
            "message": 'view "a" jumped',
            "value": 0.5,
            "more": {"a b": 1},
        }
    )
    log.event({"kind": "refusal", "step": 127, "message": "", "views": ["a", "b"], "x": np.float32(0.5)})
    log(make_block(128, 129, ("Eval/psnr", "Guard/streak"), axis="epoch", positions=[2]))
    log.close()
    assert (tmp_path / "log.txt").read_text().splitlines() == [
        "2026-11-21T02:03:04Z step=0 event=phase name=coarse",
        "2026-11-21T02:03:04Z step=7000 event=phase name=later",
        "2026-11-21T02:03:04Z step=0 phase=coarse loss=0.012 pixel=0.01 pixel_share=83.3% grad_norm=0.4",
        (
            "2026-11-21T02:03:04Z step=100 phase=coarse loss=0.006 loss_trend=-50.0% "
            "pixel=0.005 pixel_share=83.3% pixel_trend=-50.0% grad_norm=0.4"
        ),
        '2026-11-21T02:03:04Z step=127 event=finding rule=spike message="view \\"a\\" jumped" value=0.5 more={"a b":1}',
        '2026-11-21T02:03:04Z step=127 event=refusal message="" views=["a","b"] x=0.5',
        "2026-11-21T02:03:04Z step=128 epoch=2 Eval/psnr=128",
    ]


def test_statistics_stand_in_the_line_by_their_names(tmp_path, make_block):
    names = ("Loss/total", "Statistics/s", "Statistics/samples_per_ray", "Statistics/pose_change_rotation")
    block = make_block(0, 1, names)
    block.values[:] = [0.5, 0.6, 3.125, math.nan]
    log = Log(tmp_path / "log.txt", clock=lambda: 1_795_226_584.0)
    log(block)
    log.close()
    line = (tmp_path / "log.txt").read_text().strip()
    assert line == "2026-11-21T02:03:04Z step=0 loss=0.5 grad_norm=nan s=0.6 samples_per_ray=3.125"


def test_log_reports_every_due_step_of_a_block_and_each_once(tmp_path, make_block):
    log = Log(tmp_path / "log.txt", every=10)
    for first in range(0, 96, 32):
        log(losses(make_block, first, first + 32))
    log(make_block(0, 0))
    log.close()
    steps = [line.split()[1] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert steps == [f"step={step}" for step in range(0, 96, 10)]


def test_an_evaluation_at_a_due_step_does_not_replace_the_report_of_the_training_step(tmp_path, make_block):
    """The evaluation's row is recorded before that of the training step, with the same step."""
    text = io.StringIO()
    log = Log(tmp_path / "log.txt", every=10)
    console = Console(RichConsole(file=text, width=200), every=0, window=4)
    evaluated = make_block(10, 11, ("Eval/mae", "Eval/seconds"), positions=[11])
    for block in (losses(make_block, 0, 10), evaluated, losses(make_block, 10, 12)):
        log(block)
        console(block)
    log.close()
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["step=0", "step=10"]
    assert "loss=0.012" in lines[1]
    assert "nan" not in "".join(lines) + text.getvalue()
    assert [line.split()[1] for line in text.getvalue().splitlines()] == ["9", "11"]


def test_log_shows_non_finite_values_and_mends_a_torn_line(tmp_path, make_block):
    path = tmp_path / "log.txt"
    path.write_text("2026 step=1 torn")
    block = losses(make_block, 0, 1)
    block.values[0, 0] = math.nan
    block.values[0, 1] = math.inf
    log = Log(path)
    log(block)
    log.close()
    torn, line = path.read_text().splitlines()
    assert torn == "2026 step=1 torn"
    assert "loss=nan pixel=inf" in line


@pytest.mark.parametrize("kind", [Log, Csv])
def test_text_sinks_rewind_to_a_mark_and_to_nothing(tmp_path, make_block, kind):
    path = tmp_path / "out"
    sink = kind(path)
    empty = path.read_text()
    sink(losses(make_block, 0, 3))
    kept = path.read_text()
    mark = sink.mark()
    sink(losses(make_block, 200, 209))
    assert len(path.read_text()) > len(kept)
    sink.close()
    again = kind(path)
    again.rewind(mark)
    assert path.read_text() == kept
    again(losses(make_block, 300, 301))
    assert path.read_text().startswith(kept)
    again.rewind(None)
    assert path.read_text() == empty
    again.rewind({"out": 10**6})
    again.close()
    assert path.read_text() == empty


def test_bounds_of_the_reports(tmp_path):
    with pytest.raises(ValueError, match=r"every .* 1 step, got 0"):
        Log(tmp_path / "log.txt", every=0)
    with pytest.raises(ValueError, match=r"window .* 1 value, got 0"):
        Log(tmp_path / "log.txt", window=0)
    with pytest.raises(ValueError, match=r"every .* 0 seconds, got -1"):
        Console(every=-1)


def test_csv_takes_new_columns_and_every_number(tmp_path, make_block):
    path = tmp_path / "metrics.csv"
    sink = Csv(path)
    sink(make_block(0, 2, ("Loss/total", "Sample/0/loss")))
    late = make_block(2, 3, ("Loss/total", 'odd,"name'))
    late.values[0] = [math.nan, 0.1]
    sink(late)
    sink(make_block(299, 300, ("Eval/psnr",), axis="epoch", positions=[3]))
    sink.close()
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["step", "axis", "position", "seconds", "metric", "value"],
        ["0", "step", "0", "0.000000", "Loss/total", "0.0"],
        ["1", "step", "1", "0.500000", "Loss/total", "1.0"],
        ["2", "step", "2", "1.000000", "Loss/total", "nan"],
        ["2", "step", "2", "1.000000", 'odd,"name', "0.1"],
        ["299", "epoch", "3", "149.500000", "Eval/psnr", "299.0"],
    ]


@pytest.mark.usefixtures("unchecked")
def test_csv_memory_is_flat(tmp_path, make_block):
    sink = Csv(tmp_path / "metrics.csv")
    sink(make_block(0, 500, ("a",)))
    tracemalloc.start()
    for first in range(500, 40_000, 500):
        sink(make_block(first, first + 500, ("a",)))
    grown, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sink.close()
    assert grown < 50_000
    assert peak < 500_000


def test_console_prints_a_line_when_due_and_findings_at_once(make_block):
    text = io.StringIO()
    now = [0.0]
    console = Console(RichConsole(file=text, width=200), every=10, window=8, clock=lambda: now[0])
    console.event({"kind": "phase", "step": 0, "name": "coarse"})
    console(losses(make_block, 0, 16))
    now[0] = 5.0
    console(losses(make_block, 16, 32))
    now[0] = 10.0
    console(losses(make_block, 32, 40, scale=0.5))
    console(make_block(40, 41, ("Eval/psnr",), axis="epoch", positions=[1]))
    console.event({"kind": "checkpoint", "step": 40})
    console.event(
        {"kind": "finding", "step": 40, "severity": "error", "message": "[spike] in view a", "remedy": "look"}
    )
    assert text.getvalue().splitlines() == [
        "step 0  phase  coarse",
        "step 15  coarse  loss 0.012 →  pixel 0.01 83% →  |grad| 0.4",
        "step 39  coarse  loss 0.006 ↓50.0%  pixel 0.005 83% ↓50.0%  |grad| 0.4",
        "step 40  finding  [spike] in view a  look",
    ]


def test_console_shows_a_rise_and_leaves_out_what_is_unknown(make_block):
    text = io.StringIO()
    console = Console(RichConsole(file=text, width=200), every=0, window=4)
    block = make_block(0, 8, ("Loss/total",))
    block.values[:] = [[1.0]] * 4 + [[2.0]] * 4
    console(block)
    console(make_block(8, 8))
    assert text.getvalue() == "step 7  loss 2 ↑100.0%\n"


def test_full_disk_leaves_whole_lines(tmp_path, make_block, full_disk):
    path = tmp_path / "metrics.csv"
    sink = Csv(path)
    sink(make_block(0, 2))
    before = path.read_text()
    with full_disk(len(before) + 30), pytest.raises(OSError, match="File too large"):
        sink(make_block(2, 9))
    assert path.read_text() == before
    sink.close()
