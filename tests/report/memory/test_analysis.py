import io
import json
import re
import time

import numpy as np
import pytest
from rich.console import Console

from fieldwatch.report.memory import analyze, read_trace, report
from fieldwatch.report.memory.page import memory_account


@pytest.fixture
def printed():
    def show(analysis) -> str:
        console = Console(file=io.StringIO(), width=80)
        report(analysis, console)
        return console.file.getvalue()

    return show


def test_the_report_starts_as_people_know_it(log_file, printed):
    allocated = np.linspace(8073.4, 8156.2, 201)
    text = printed(analyze(read_trace(log_file(allocated, first=40000))))
    rule = "=" * 80
    assert text.startswith(
        f"{rule}\nTENSOR PROFILING SUMMARY\n{rule}\n\nIteration Range: 40000 - 50000\nTotal Snapshots: 201\n"
    )
    assert "\nMemory Allocated:         Start: 8073.4 MB  →  End: 8156.2 MB\n" in text
    assert "\nFragmentation:            Start: 32.7%  →  End: 32.0%\n" in text
    assert "\nTotal Tensors:            Start: 1267  →  End: 1267\n" in text
    assert "\nTensor Categories (at end):\n  parameters     :   4893.7 MB  ( 60.0%)\n" in text
    assert "\nData Types (at end):\n  float32        :   8156.2 MB  (100.0%)\n" in text
    assert "\nLarge Tensors (>100MB): 0\n" in text
    assert "TREND ANALYSIS" in text


def test_everything_but_the_original_part_is_in_mebibytes(run_folder, printed):
    analysis = analyze(read_trace(run_folder(leak=0.02)))
    original, ours = printed(analysis).split("\nACCOUNT")
    assert " MB" in original
    assert "MiB" not in original
    for text in (ours, json.dumps(memory_account([analysis]))):
        assert "MiB" in text
        assert re.search(r"\bMB\b", text) is None


def test_every_row_of_the_report_fits_eighty_columns(run_folder, printed):
    text = printed(analyze(read_trace(run_folder(leak=0.02))))
    tables = text.split("JUMPS")[0]
    assert max(len(line) for line in tables.splitlines() if "shape=" not in line) <= 80  # with an owner it is longer
    for word in ("ACCOUNT", "LEAK SUSPECTED", "FRAGMENTATION", "MEMORY TIMELINE", "by chance", "= allocated"):
        assert word in text


def test_the_timeline_always_has_the_first_and_the_last_row(trace_of):
    for count in (1, 2, 19, 20, 21, 199, 200, 201):
        rows = analyze(trace_of(np.full(count, 8000.0))).timeline
        assert (rows[0], rows[-1], len(rows)) == (0, count - 1, min(20, count))


def test_the_answer_for_scripts_is_json_with_the_numbers(run_folder):
    answer = json.loads(json.dumps(analyze(read_trace(run_folder(leak=0.02))).as_json(), allow_nan=False))
    assert (answer["first"], answer["last"], answer["snapshots"]) == (49, 9999, 200)
    assert answer["leak"]["verdict"] == "suspected"
    assert answer["categories"]["other"]["trend"]["per_1000"] == pytest.approx(20, rel=0.05)
    assert answer["findings"][0]["rule"] == "memory leak suspected"
    assert len(answer["timeline"]) == 20
    assert {link["kind"] for link in answer["links"]} == {"growth", "evaluation", "loss spike"}


def test_sudden_rises_without_a_reason_are_a_finding_and_those_of_an_evaluation_are_not(trace_of):
    values = 8000 + np.random.default_rng(0).normal(0, 5, 300)
    values[[100, 200]] += 2000
    told = {"evaluation": np.array([4990, 9990])}
    (finding,) = analyze(trace_of(values)).findings
    assert (finding.rule, finding.step, finding.severity) == ("memory rose suddenly", 5000, "warning")
    assert analyze(trace_of(values, events=told)).findings == ()


def test_memory_in_pieces_is_told_by_what_cannot_be_returned_not_by_the_idle_share(trace_of):
    values = np.full(100, 5000.0)
    reserved = np.full(100, 10000.0)
    idle = np.full(100, 50.0)
    whole = {"returnable": np.full(100, 5000.0), "not_returnable": np.zeros(100)}
    assert analyze(trace_of(values, reserved=reserved, fragmentation=idle, fragments=whole)).findings == ()
    pieces = {"returnable": np.zeros(100), "not_returnable": np.full(100, 5000.0)}
    (finding,) = analyze(trace_of(values, reserved=reserved, fragmentation=idle, fragments=pieces)).findings
    assert finding.rule == "memory in pieces"
    assert "empty_cache" not in finding.remedy


def test_a_damaged_log_is_a_note(log_file):
    path = log_file([8000.0] * 20)
    path.write_text(path.read_text()[:-100])
    (finding,) = analyze(read_trace(path)).findings
    assert (finding.rule, finding.severity) == ("log damaged", "note")


def test_numbers_that_are_not_finite_do_not_stop_the_report(log_file, printed):
    path = log_file([8000.0] * 30)
    path.write_text(path.read_text().replace("Allocated: 8000.00", "Allocated: nan"))
    analysis = analyze(read_trace(path))
    json.dumps(analysis.as_json(), allow_nan=False)
    assert "not finite in 30 snapshots" in " ".join(printed(analysis).split())


def test_control_characters_in_a_log_do_not_reach_the_terminal(log_file, printed):
    path = log_file([8000.0] * 10)
    path.write_bytes(path.read_bytes().replace(b"activations    ", b"evil\x1b[31m\x07     "))
    assert "\x1b" not in printed(analyze(read_trace(path)))


@pytest.mark.machine
def test_a_long_log_is_analyzed_quickly(log_file, tmp_path):
    text = log_file([8000.0] * 200).read_text()
    path = tmp_path / "long.log"
    with path.open("w") as file:
        for part in range(50):  # 10,000 snapshots
            file.write(text.replace("Iteration ", f"Iteration {part + 1}0"))
    before = time.process_time()
    analysis = analyze(read_trace(path))
    assert time.process_time() - before < 4  # about 0.2 s; 200,000 snapshots take 3 s for the whole command
    assert len(analysis.trace) + analysis.trace.replaced == 10_000
