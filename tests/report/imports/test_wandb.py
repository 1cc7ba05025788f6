"""A recorded W&B run: values, steps, config, pictures and damage."""

import json
import math
import shutil
import struct
import zlib

import pytest

from fieldwatch.base import protobuf
from fieldwatch.report.imports import BadSource, find_runs

STEPS = [0, 10, 20, 30, 40, 50]


@pytest.fixture
def copied(recorded, tmp_path):
    """The file of a copied run."""
    shutil.copytree(recorded / "wandb", tmp_path / "wandb")
    return tmp_path / "wandb" / "offline-run-toy" / "run-toy.wandb"


def test_a_run_is_read_with_its_own_steps(recorded):
    (found,) = find_runs(recorded / "wandb")
    run = found.read(False)
    assert (run.tool, run.name) == ("W&B", "toy-run")
    # The framework's step, not the count of the calls.
    assert run.series["train/loss"].steps.tolist() == STEPS
    assert run.series["train/loss"].values.tolist() == [1 / (1 + number) for number in range(6)]
    assert run.series["part.deep"].values[0] == 2
    assert run.series["val/loss"].steps.tolist() == [20, 50]
    assert math.isnan(run.series["odd"].values[0])
    assert run.config == {"lr": 0.05, "model": {"width": 32}}
    assert set(run.series) == {"train/loss", "part.deep", "val/loss", "odd"}
    assert math.isfinite(run.began)
    (note,) = run.notes
    assert "histogram" in note


def test_pictures_come_from_the_folder_of_the_run(recorded, copied):
    (found,) = find_runs(recorded / "wandb")
    pictures = list(found.read(False).pictures())
    assert [(picture.name, picture.step) for picture in pictures] == [("picture", 20), ("picture", 50)]
    assert all(picture.content.startswith(b"\x89PNG") for picture in pictures)
    shutil.rmtree(copied.parent / "files")
    assert [picture.content for picture in find_runs(copied)[0].read(False).pictures()] == [b"", b""]


def test_a_damaged_file_is_refused_or_read_up_to_the_damage(copied):
    data = copied.read_bytes()
    at = data.rindex(b"val/loss")
    copied.write_bytes(data[:at] + b"X" + data[at + 1 :])
    (found,) = find_runs(copied)
    with pytest.raises(BadSource, match="checksum"):
        found.read(False)
    run = found.read(True)
    assert run.series["train/loss"].steps.tolist() == STEPS[: len(run.series["train/loss"])]
    assert len(run.series["train/loss"]) < len(STEPS)
    assert any("checksum" in note for note in run.notes)


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(copied, size):
    copied.write_bytes(copied.read_bytes()[:size])
    with pytest.raises(BadSource):
        find_runs(copied)[0].read(False)


def test_a_run_without_an_end_says_so(copied):
    # The record of the exit is the last one that matters; without it, the run was killed.
    data = copied.read_bytes()
    for end in range(len(data) - 1, 7, -1):
        copied.write_bytes(data[:end])
        run = find_runs(copied)[0].read(True)
        if any("not recorded" in note for note in run.notes):
            break
    assert run.series["train/loss"].steps.tolist() == STEPS


def logged(path, axis, rows):
    """Write a file with an axis that is declared for evaluations, and rows."""
    records = [protobuf.sized(12, protobuf.text(1, "val") + protobuf.text(4, axis))]
    for row in rows:
        items = [protobuf.text(1, key) + protobuf.text(16, json.dumps(value)) for key, value in row.items()]
        records.append(protobuf.sized(2, b"".join(protobuf.sized(1, item) for item in items)))
    framed = [struct.pack("<IHB", zlib.crc32(record, zlib.crc32(b"\1")), len(record), 1) + record for record in records]
    path.write_bytes(struct.pack("<4sHB", b":W&B", 0xBEE1, 0) + b"".join(framed))
    return find_runs(path)[0].read(False)


@pytest.mark.parametrize(("every", "steps"), [(1, [0, 10, 20]), (3, [0, 1, 2])])
def test_a_declared_axis_counts_if_most_rows_have_it(tmp_path, every, steps):
    rows = [{"loss": 1, "_step": i} | ({"at": 10 * i} if i % every == 0 else {}) for i in range(3)]
    assert logged(tmp_path / "run-a.wandb", "at", rows).series["loss"].steps.tolist() == steps
