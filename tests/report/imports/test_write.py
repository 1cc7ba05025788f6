"""The run folder that an import writes: rows, pictures, config and the findings of the rules."""

import math
import re

import numpy as np
import pytest

from fieldwatch.base import ExistingPathError
from fieldwatch.record import Series, read_events, read_history, read_manifest
from fieldwatch.report.account import account_of
from fieldwatch.report.imports import SourcePicture, SourceRun, refuse_target, write_run


def series(steps, values):
    at = np.array(steps, np.float64)
    return Series(steps=at, seconds=at / 2, positions=at.copy(), values=np.array(values, np.float64))


@pytest.fixture
def source(tmp_path):
    """A run of which each series has other steps."""
    values = {"loss": series(range(100), [math.nan if i == 50 else 1 / (1 + i) for i in range(100)])}
    values |= {"val": series([9, 49, 200], [3, 2, 1]), "none": series([], [])}
    return SourceRun(tool="X", name="x", place=tmp_path, series=values, config={"a": {"b": 1}}, began=1.5e9)


def test_every_value_is_in_the_record(source, tmp_path):
    written = write_run(source, {"loss": "Loss/total", "val": "val", "none": "none"}, tmp_path / "new" / "run")
    history = read_history(written.folder, None)
    assert set(history.names()) == {"Loss/total", "val"}
    for name, kept in (("loss", "Loss/total"), ("val", "val")):
        for field in ("steps", "seconds", "positions", "values"):
            np.testing.assert_array_equal(getattr(history[kept], field), getattr(source.series[name], field))
    manifest = read_manifest(written.folder)
    assert manifest.state == "finished"
    assert manifest.config == {"a": {"b": 1}}
    assert manifest.about["imported"]["tool"] == "X"
    assert manifest.segments[0]["started"] == "2017-07-14T02:40:00+00:00"
    assert (written.steps, written.first, written.last) == (101, 0, 200)
    # The report reads findings from the record, and a NaN in the loss is one.
    (finding,) = [event for event in read_events(written.folder) if event["kind"] == "finding"]
    assert finding["step"] == 50


def test_empty_panels_say_what_the_source_did_not_record(source, tmp_path):
    """Nobody can call `run.track` in a training that another tool has recorded."""
    written = write_run(source, {name: name for name in source.series}, tmp_path / "run")
    account = account_of(written.folder)
    empty = {panel["id"]: panel["why"] for panel in account["panels"] if panel["kind"] == "empty"}
    assert {"losses", "gradients", "conflicts", "memory", "timing", "quality", "growth", "checkpoints"} <= empty.keys()
    for why in empty.values():
        assert " X " in why
        assert not re.search(r"(run|step|Run)[.(]|observe\(", why)
    assert "--map NAME=Loss/total" in empty["losses"]
    is_empty = [panel["kind"] == "empty" for panel in account["panels"]]
    assert is_empty == sorted(is_empty)
    assert False in is_empty


def test_a_picture_that_cannot_be_read_is_noted(source, tmp_path):
    pictures = [SourcePicture(name="broken", step=3, content=b"\x89PNG")]
    written = write_run(
        SourceRun(tool="X", name="x", place=tmp_path, series=source.series, pictures=lambda: pictures),
        {name: name for name in source.series},
        tmp_path / "run",
    )
    assert written.pictures == 0
    assert any("broken" in note for note in written.notes)


def test_nothing_remains_of_an_import_that_fails(source, tmp_path):
    def broken():
        raise KeyError("a bug")

    run = SourceRun(tool="X", name="x", place=tmp_path, series=source.series, pictures=broken)
    with pytest.raises(KeyError):
        write_run(run, {name: name for name in source.series}, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["source", "source/run", "file/run"])
def test_a_target_that_exists_or_lies_in_the_source_is_refused(tmp_path, place):
    (tmp_path / "source").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ExistingPathError):
        refuse_target(tmp_path / "source", tmp_path / place)
