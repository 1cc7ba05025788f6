"""Event files of other programs: TF1 and TF2 scalars, restarts, repeated steps, damaged ends, and real files."""

import re
import struct

import numpy as np
import pytest
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from fieldwatch.report.foreign import (
    NoEventFiles,
    event_folders,
    holds_event_files,
    read_event_file,
    read_foreign_run,
)


def scalar(tag, value, step, wall):
    """Return a scalar event as TF1 and PyTorch write it."""
    return event_pb2.Event(
        step=step, wall_time=wall, summary=summary_pb2.Summary(value=[{"tag": tag, "simple_value": value}])
    )


def tensor(tag, value, step, wall, *, plugin="scalars", **how):
    """Return a scalar event as TF2 writes it; only the first value of a tag names its plugin."""
    metadata = {"plugin_data": {"plugin_name": plugin}} if plugin else {}
    held = how or {"dtype": types_pb2.DT_FLOAT, "float_val": [value]}
    made = tensor_pb2.TensorProto(tensor_shape=tensor_shape_pb2.TensorShapeProto(), **held)
    return event_pb2.Event(
        step=step,
        wall_time=wall,
        summary=summary_pb2.Summary(value=[{"tag": tag, "tensor": made, "metadata": metadata}]),
    )


def start(step, wall):
    log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    return event_pb2.Event(step=step, wall_time=wall, session_log=log)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write an event file with TensorBoard's writer; files are written in order of age."""
    counted = iter(range(100))

    def make(events, folder="logs"):
        number = next(counted)
        begun = min((event.wall_time for event in events), default=1000.0 + number)
        monkeypatch.setattr("time.time", lambda: begun)
        writer = EventFileWriter(str(tmp_path / folder), filename_suffix=f".{number}")
        for event in events:
            writer.add_event(event)
        writer.close()
        monkeypatch.undo()
        return max((tmp_path / folder).iterdir(), key=lambda path: int(path.name.rpartition(".")[2]))

    return make


def test_scalars_of_both_kinds_are_read_in_order(write):
    path = write([scalar("a", 0.5, 0, 10.0), scalar("a", 0.25, 1, 12.0), tensor("b", 3.0, 1, 12.0)])
    run = read_foreign_run(path.parent)
    assert list(run.series) == ["a", "b"]
    assert run.series["a"].values.tolist() == [0.5, 0.25]
    assert run.series["a"].steps.tolist() == run.series["a"].positions.tolist() == [0, 1]
    assert run.series["a"].seconds.tolist() == [0, 2]
    assert (run.repeated, run.restarts, run.notes) == (0, 0, ())


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ({"dtype": types_pb2.DT_FLOAT, "tensor_content": struct.pack("<f", 1.5)}, 1.5),
        ({"dtype": types_pb2.DT_DOUBLE, "tensor_content": struct.pack("<d", 0.1)}, 0.1),
        ({"dtype": types_pb2.DT_DOUBLE, "double_val": [0.1]}, 0.1),
        ({"dtype": types_pb2.DT_INT64, "int64_val": [7]}, 7),
        ({"dtype": types_pb2.DT_HALF, "half_val": [0x3E00]}, 1.5),
        ({"dtype": types_pb2.DT_FLOAT}, 0.0),
    ],
)
def test_tensors_of_every_type_of_number_are_read(write, how, value):
    run = read_foreign_run(write([tensor("x", 0, 0, 10.0, **how)]).parent)
    assert run.series["x"].values.tolist() == [value]


def test_only_the_first_value_of_a_tag_has_to_name_its_plugin(write):
    run = read_foreign_run(write([tensor("x", 1, 0, 10.0), tensor("x", 2, 1, 11.0, plugin="")]).parent)
    assert run.series["x"].values.tolist() == [1, 2]


def test_what_is_no_scalar_is_left_out_and_told(write):
    texts = {"dtype": types_pb2.DT_STRING, "string_val": [b"hello"]}
    several = {"dtype": types_pb2.DT_FLOAT, "float_val": [1.0, 2.0]}
    events = [tensor("note", 0, 0, 10.0, plugin="text", **texts), tensor("x", 0, 0, 10.0, **several)]
    run = read_foreign_run(write([*events, scalar("a", 1, 0, 10.0)]).parent)
    assert list(run.series) == ["a"]
    assert [note.rpartition(": ")[2] for note in run.notes] == ["1 text, 1 scalars"]


def test_hyperparameters_are_the_config(write):
    told = plugin_data_pb2.HParamsPluginData()
    told.session_start_info.hparams["lr"].number_value = 0.5
    told.session_start_info.hparams["model"].string_value = "small"
    data = {"plugin_name": "hparams", "content": told.SerializeToString()}
    held = summary_pb2.Summary(value=[{"tag": "_hparams_/session_start_info", "metadata": {"plugin_data": data}}])
    events = [event_pb2.Event(step=0, wall_time=10.0, summary=held), scalar("a", 1, 0, 10.0)]
    assert read_foreign_run(write(events).parent).config == {"lr": 0.5, "model": "small"}


def test_the_later_value_of_a_repeated_step_stands_and_repeats_are_counted(write):
    steps = [*range(6), *range(4, 8)]
    run = read_foreign_run(write([scalar("a", i, step, 10.0 + i) for i, step in enumerate(steps)]).parent)
    assert run.series["a"].values.tolist() == [0, 1, 2, 3, 6, 7, 8, 9]
    assert (run.repeated, run.repeated_steps) == (2, 2)
    assert [note.startswith("2 values at 2 steps") for note in run.notes] == [True]


def test_a_later_file_that_goes_back_wins_and_pauses_do_not_count(write):
    write([scalar("a", 1, step, 100.0 + step) for step in range(6)])
    path = write([scalar("a", 2, step, 5000.0 + step) for step in range(4, 8)])
    run = read_foreign_run(path.parent)
    assert run.series["a"].values.tolist() == [1, 1, 1, 1, 2, 2, 2, 2]
    assert run.restarts == 1
    assert "step 4 after step 5" in run.notes[0]
    seconds = run.series["a"].seconds
    assert (np.diff(seconds) >= 0).all()
    assert seconds[-1] < 20  # not the 4,900 seconds of the pause


def test_a_mark_of_a_restart_takes_back_what_came_after_its_step(write):
    write([scalar("a", 1, step, 100.0 + step) for step in range(10)])
    path = write([start(4, 200.0), *(scalar("a", 2, step, 201.0 + step) for step in (4, 5))])
    run = read_foreign_run(path.parent)
    assert run.series["a"].steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert run.voided == 6
    assert "from step 4" in run.notes[0]
    assert "6 values" in run.notes[1]


def test_files_written_at_the_same_time_share_one_clock(write):
    write([scalar("a", 1, step, 100.0 + step) for step in range(4)])
    path = write([scalar("b", 1, step, 100.5 + step) for step in range(4)])
    run = read_foreign_run(path.parent)
    assert run.series["b"].seconds.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert run.restarts == 0


@pytest.mark.parametrize("cut", [1, 5, 17])
def test_a_torn_end_is_kept_up_to_there_and_told(write, cut):
    path = write([scalar("a", 1, step, 10.0) for step in range(3)])
    path.write_bytes(path.read_bytes()[:-cut])
    run = read_foreign_run(path.parent)
    assert run.series["a"].steps.tolist() == [0, 1]
    assert "its end" in run.notes[0]


def test_a_damaged_record_ends_the_file_and_is_told(write):
    path = write([scalar("a", 1, step, 10.0) for step in range(3)])
    data = bytearray(path.read_bytes())
    data[-8] ^= 0xFF
    path.write_bytes(bytes(data))
    file = read_event_file(path)
    assert file.steps["a"].tolist() == [0, 1]
    assert "damaged record" in file.damage


def test_a_file_without_scalars_and_an_empty_file_are_runs_without_series(write):
    path = write([])
    (note,) = read_foreign_run(path.parent).notes
    assert re.fullmatch(r".* no scalars: nothing .*logged", note)
    path.write_bytes(b"")
    assert "is empty" in read_foreign_run(path.parent).notes[0]


def test_folders_below_are_runs_of_their_own(write, tmp_path):
    for folder in ("logs/b", "logs/a/deep"):
        write([scalar("a", 1, 0, 10.0)], folder)
    assert event_folders(tmp_path) == [tmp_path / "logs/a/deep", tmp_path / "logs/b"]
    assert not holds_event_files(tmp_path / "logs")


def test_a_folder_without_event_files_is_refused_clearly(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(NoEventFiles, match=r"TensorBoard folder.*--logdir"):
        event_folders(tmp_path)
    with pytest.raises(NoEventFiles, match=r"contains? no .*\(\*tfevents\*\)"):
        read_foreign_run(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        event_folders(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("place", "records", "held", "repeated"),
    [
        ("wandb", 105, [17] * 6, 0),
        *((f"tensorboard-reducer/duplicate_steps/run_{i}", 421, [200] * 2, 20) for i in (1, 2, 3)),
        *((f"tensorboard-reducer/lax/run_{i}", 301 + 30 * i, [100 + 10 * i] * 3, 0) for i in (1, 2, 3)),
        *((f"tensorboard-reducer/strict/run_{i}", 101, [100], 0) for i in (1, 2, 3)),
        ("empty", 1, [], 0),
    ],
)
def test_real_folders_hold_what_their_source_counts(real_data, place, records, held, repeated):
    run = read_foreign_run(real_data / "tfevents" / place)
    assert [file.records for file in run.files] == [records]
    assert [file.damage for file in run.files] == [""]
    assert [len(series) for series in run.series.values()] == held
    assert run.repeated == repeated


def test_all_real_folders_are_found(real_data):
    assert len(event_folders(real_data / "tfevents")) == 11
