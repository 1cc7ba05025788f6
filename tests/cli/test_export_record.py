"""fieldwatch export --to parquet, csv, tensorboard: any run, also a loop of one's own."""

import re
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from fieldwatch.record import Block, Journal, Manifest, Metric


@pytest.fixture
def own(tmp_path):
    """Ten steps of somebody's own loop."""
    folder = tmp_path / "own"
    begin_run(folder)
    steps = np.arange(10)
    with Journal(folder) as journal:
        journal.append(
            Block(
                axis="step",
                columns=("Loss/total", "mine"),
                steps=steps,
                seconds=steps / 2,
                positions=steps,
                values=np.add.outer(steps * 1.0, [0.0, 0.5]),
            )
        )
    return folder


def begin_run(folder, **about):
    folder.mkdir()
    mine = Metric(name="mine", unit="dB", meaning="how much of mine")
    Manifest(config={}, about=about, metrics=(mine,)).write(folder)


@pytest.mark.parametrize("to", ["parquet", "csv", "tensorboard"])
def test_a_loop_of_ones_own_goes_to_its_products(own, fieldwatch, answer, to):
    code, out, message = fieldwatch("export", own, "--to", to)
    place = own / "products" / f"record-{to}"
    assert (code, message) == (0, "")
    assert "steps: 10 rows of 2 metrics" in out
    assert str(place) in out
    got = answer("export", own, "--to", to, "--overwrite")
    assert got["rows"] == {"steps": 10}
    assert got["files"] == {path.name: path.stat().st_size for path in place.iterdir()}
    assert got["folder"] == str(place)


def test_what_is_written_is_what_was_recorded(own, tmp_path, answer):
    answer("export", own, "--to", "parquet", "-o", tmp_path / "deep" / "out")
    table = pq.read_table(tmp_path / "deep" / "out" / "steps.parquet")
    assert table["mine"].to_pylist() == [step + 0.5 for step in range(10)]
    assert table.schema.field("mine").metadata[b"unit"] == b"dB"


def test_bad_input_is_named_and_nothing_is_written(own, tmp_path, refused):
    for words, message in {
        ("--to", "ply"): "a run of a loop of your own: use --to parquet or --to csv or --to tensorboard",
        ("--to", "csv", "--bits", "4"): "--bits 4: it applies to the model",
        ("--to", "csv", "--checkpoint", "last"): "--checkpoint last: it applies to the model",
        ("--to", "parquet", "-o", "x.parquet"): "x.parquet is a file name",
    }.items():
        assert message in refused("export", own, *words)
    assert "holds no run" in refused("export", tmp_path, "--to", "csv")
    begin_run(tmp_path / "splats", pipeline="splats")
    found = refused("export", tmp_path / "splats", "--to", "obj")
    targets = re.findall(r"--to ([\w-]+)", found)
    assert {"ply", "3dgs", "pt", "compressed-ply", "spz", "splat", "parquet"} <= set(targets)
    assert "--overwrite applies" in refused("export", tmp_path / "splats", "--to", "ply", "--overwrite")
    assert not (own / "products").exists()


def test_without_pyarrow_the_extra_is_named(own, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'fieldwatch[parquet]'" in refused("export", own, "--to", "parquet")
    assert [path.name for path in own.iterdir() if path.name == "products" and any(path.iterdir())] == []
