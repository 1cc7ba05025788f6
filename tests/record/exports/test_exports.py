"""Exports contain all valid rows exactly once, with missing and non-finite values preserved."""

import csv
import math
import subprocess
import sys

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fieldwatch.record import Block, EventLog, Journal, Manifest, NotARun, new_segment, read_history
from fieldwatch.record.exports import TARGETS, export_record

HOSTILE = 'a,"b"\n<script>'


def a_block(steps, columns, value, *, samples=(), axis="step", positions=None):
    steps = np.asarray(steps, np.int64)
    return Block(
        axis=axis,
        columns=columns,
        steps=steps,
        seconds=steps * 0.5,
        positions=steps if positions is None else np.asarray(positions, np.int64),
        values=np.add.outer(steps + value, np.zeros(len(columns))),
        samples=samples,
    )


@pytest.fixture
def folder(tmp_path):
    """Write a run of 3000 steps: resume at 2000, NaN at 7, a term every 100 steps, two late rows, two epochs."""
    run = tmp_path / "run"
    run.mkdir()
    Manifest(config={"lr": 0.1, "note": HOSTILE}, segments=(new_segment(0), new_segment(2000))).write(run)
    names = ("Loss/total", HOSTILE)
    with Journal(run) as journal, EventLog(run) as events:
        first = a_block(range(1000), names, 0.25, samples=(("view",),) * 1000)
        first.values[7] = math.nan, math.inf
        journal.append(first)
        journal.append(a_block(range(1000, 2500), names, 0.1))
        events.append({"kind": "note", "step": 2300})
        journal.segment(2000)
        events.segment(2000)
        journal.append(a_block(range(2000, 3000), names, 0.5))
        for step in range(0, 3000, 100):
            journal.append(a_block([step], ("rare", "step"), 0.0))
        journal.append(a_block([5], ("Loss/total",), 10.0))
        journal.append(a_block([500, 999], ("Eval/psnr",), 30.0, axis="epoch", positions=[1, 2]))
        found = {"kind": "finding", "step": 2100, "rule": "NonFinite", "severity": "warning"}
        events.append({**found, "message": HOSTILE, "value": 3})
    return run


def test_parquet_holds_what_the_history_holds(folder, tmp_path):
    written = export_record(folder, "parquet", tmp_path / "out")
    assert written.rows == {"steps": 3000, "epochs": 2, "events": 1}
    assert written.columns == {"steps": 4, "epochs": 1}
    assert sorted(written.files) == ["epochs.parquet", "events.parquet", "steps.parquet"]
    table = pq.read_table(tmp_path / "out" / "steps.parquet")
    history = read_history(folder)
    assert table["step"].to_pylist() == list(range(3000))
    assert table["seconds"].to_pylist() == [step / 2 for step in range(3000)]
    assert table["segment"].to_pylist() == [1] * 2000 + [2] * 1000
    assert table["samples"].to_pylist() == [["view"]] * 1000 + [[]] * 2000
    for name, column in (("Loss/total", "Loss/total"), (HOSTILE, HOSTILE), ("rare", "rare"), ("step", "step (metric)")):
        there = table[column].is_valid().to_numpy()
        assert np.flatnonzero(there).tolist() == history[name].steps.tolist()
        np.testing.assert_array_equal(table[column].to_numpy()[there], history[name].values)
    assert table["Loss/total"].null_count == 0
    assert np.isnan(table["Loss/total"][7].as_py())
    assert table["Loss/total"][5].as_py() == 15.0
    assert table[HOSTILE][7].as_py() == math.inf
    about = table.schema.field("Loss/total").metadata
    assert about[b"better"] == b"lower"
    assert b"Weighted sum of all active loss terms" in about[b"meaning"]
    assert orjson.loads(table.schema.metadata[b"config"])["lr"] == 0.1
    findings = orjson.loads(table.schema.metadata[b"findings"])
    assert findings == {"errors": 0, "warnings": 1, "notes": 0}
    epochs = pq.read_table(tmp_path / "out" / "epochs.parquet").to_pydict()
    assert (epochs["epoch"], epochs["step"], epochs["Eval/psnr"]) == ([1, 2], [500, 999], [530.0, 1029.0])
    (event,) = pq.read_table(tmp_path / "out" / "events.parquet").to_pylist()
    assert (event["step"], event["rule"], event["message"], event["name"]) == (2100, "NonFinite", HOSTILE, None)
    assert orjson.loads(event["event"])["value"] == 3


def test_csv_has_the_columns_of_parquet(folder, tmp_path):
    export_record(folder, "csv", tmp_path / "csv")
    export_record(folder, "parquet", tmp_path / "parquet")
    for name in ("steps", "epochs", "events"):
        wanted = pq.read_table(tmp_path / "parquet" / f"{name}.parquet")
        with (tmp_path / "csv" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
        assert head == wanted.column_names
        for texts, column in zip(zip(*rows, strict=True), wanted.columns, strict=True):
            for text, value in zip(texts, column.to_pylist(), strict=True):
                if value is None:
                    assert text == ""
                elif isinstance(value, float):
                    np.testing.assert_equal(float(text), value)
                else:
                    assert text == (";".join(value) if isinstance(value, list) else str(value))


def test_tensorboard_shows_one_clean_curve(folder, tmp_path):
    export_record(folder, "tensorboard", tmp_path / "out")
    shown = EventAccumulator(str(tmp_path / "out"), size_guidance={"scalars": 0})
    shown.Reload()
    history = read_history(folder)
    for name in ("Loss/total", "rare", "Eval/psnr"):
        points = shown.Scalars(name)
        assert [point.step for point in points] == history[name].positions.tolist()
        np.testing.assert_array_equal([point.value for point in points], np.float32(history[name].values))
    began = shown.Scalars("Loss/total")[0].wall_time
    assert shown.Scalars("Loss/total")[-1].wall_time == pytest.approx(began + 1499.5)
    assert "custom_scalars__config__" in shown.Tags()["tensors"]
    assert any("hparams" in tag for tag in shown.summary_metadata)


def test_many_batches_and_late_rows_among_them(tmp_path, monkeypatch):
    monkeypatch.setattr("fieldwatch.record.exports.wide._BATCH_CELLS", 1)
    Manifest(config={}).write(tmp_path)
    late = np.arange(0, 6000, 7)
    with Journal(tmp_path) as journal:
        journal.append(a_block(range(0, 6000, 2), ("a",), 0.0))
        journal.append(a_block(late[::-1], ("b",), 0.5, samples=(("x",),) * len(late)))
    assert export_record(tmp_path, "parquet", tmp_path / "out").rows == {"steps": len({*range(0, 6000, 2), *late})}
    table = pq.read_table(tmp_path / "out" / "steps.parquet")
    assert table["step"].to_pylist() == sorted({*range(0, 6000, 2), *late.tolist()})
    assert [row["step"] + 0.5 for row in table.to_pylist() if row["b"] is not None] == (late + 0.5).tolist()
    assert all(row["samples"] == ["x"] for row in table.to_pylist() if row["step"] % 7 == 0)
    assert pq.ParquetFile(tmp_path / "out" / "steps.parquet").num_row_groups > 3


@pytest.mark.parametrize("to", TARGETS)
def test_a_folder_that_is_there_is_replaced_only_when_told_and_ours(folder, tmp_path, to):
    out = tmp_path / "out"
    export_record(folder, to, out)
    with pytest.raises(FileExistsError, match="--overwrite"):
        export_record(folder, to, out)
    names = sorted(path.name for path in out.iterdir())
    again = export_record(folder, to, out, overwrite=True)
    assert len(again.files) == len(names)
    (out / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"contains 'mine.txt'"):
        export_record(folder, to, out, overwrite=True)
    assert (out / "mine.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


@pytest.mark.parametrize("to", TARGETS)
def test_an_export_leaves_damaged_lines_out_and_says_so(folder, tmp_path, to):
    whole = export_record(folder, to, tmp_path / "whole")
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b"[0,1\n[0,1\n")
    written = export_record(folder, to, tmp_path / "out")
    assert written.rows == whole.rows
    assert [(one.file, one.lines) for one in written.damage] == [("journal.jsonl", 2)]
    assert whole.damage == ()


@pytest.mark.parametrize("to", TARGETS)
def test_nothing_is_left_where_an_export_fails(folder, tmp_path, to):
    (folder / "journal.jsonl").write_bytes(b"")
    (folder / "events.jsonl").write_bytes(b'{"kind":2}\n')
    with pytest.raises(ValueError, match="no recorded rows"):
        export_record(folder, to, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_cannot_be_exported_is_named(tmp_path):
    with pytest.raises(NotARun, match="holds no run"):
        export_record(tmp_path, "csv", tmp_path / "out")
    Manifest(config={}).write(tmp_path)
    with pytest.raises(ValueError, match="no recorded rows"):
        export_record(tmp_path, "csv", tmp_path / "out")
    with pytest.raises(FileExistsError, match=r"out\.csv is a file"):
        export_record(tmp_path, "csv", tmp_path / "out.csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="not a folder"):
        export_record(tmp_path, "csv", tmp_path / "file")


def test_the_command_needs_no_torch_and_no_pyarrow_for_csv(folder, tmp_path):
    words = ["export", str(folder), "--to", "csv", "-o", str(tmp_path / "out")]
    code = (
        "import sys; from fieldwatch.cli import main; code = main(sys.argv[1:]); "
        "print(*(name in sys.modules for name in ('torch', 'pyarrow'))); sys.exit(code)"
    )
    ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "False False"
    assert "steps: 3,000 rows of 4 metrics" in ended.stdout


def test_names_that_a_spreadsheet_would_take_for_formulas_become_text_and_numbers_stay(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    Manifest(config={}, segments=(new_segment(0),)).write(run)
    with Journal(run) as journal, EventLog(run) as events:
        journal.append(
            a_block(range(2), ('=HYPERLINK("http://evil","x")', "Loss/total"), -7.0, samples=(("@view",),) * 2)
        )
        events.append({"kind": "finding", "step": 1, "rule": "+cmd", "message": "=1+1", "value": -3})
    export_record(run, "csv", tmp_path / "out")
    with (tmp_path / "out" / "steps.csv").open(newline="") as file:
        head, first, _ = csv.reader(file)
    assert '\'=HYPERLINK("http://evil","x")' in head
    assert "'@view" in first
    assert "-7.0" in first
    text = (tmp_path / "out" / "events.csv").read_text()
    assert "'+cmd" in text
    assert "'=1+1" in text
    texts = [path.read_text() for path in (tmp_path / "out").iterdir()]
    cells = [cell for text in texts for row in csv.reader(text.splitlines()) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]
