import io
import json
import math
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.util import tensor_util

from fieldwatch.record import Block
from fieldwatch.record.charts import Chart, Layout, Margin, Tab
from fieldwatch.record.sinks import TensorBoard
from fieldwatch.record.sinks.event_files import EventFiles, frame, read_records
from fieldwatch.record.sinks.summaries import Scalars, ScalarTags, scalar_events


def read(folder):
    accumulator = EventAccumulator(
        str(folder), size_guidance={"scalars": 0, "tensors": 0, "images": 0, "histograms": 0}
    )
    accumulator.Reload()
    return accumulator


def raw_events(folder):
    """Parse the records with struct only, and verify TensorBoard's checksums."""
    for path in sorted(Path(folder).glob("events.out.tfevents.*")):
        data = path.read_bytes()
        at = 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            assert struct.unpack_from("<I", data, at + 8)[0] == masked_crc32c(data[at : at + 8])
            record = data[at + 12 : at + 12 + length]
            assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc32c(record)
            at += length + 16
            yield event_pb2.Event.FromString(record)


def steps_of(folder, tag="Loss/total"):
    found = [event.step for event in raw_events(folder) if any(value.tag == tag for value in event.summary.value)]
    assert [one.step for one in read(folder).Scalars(tag)] == found
    return found


def test_one_event_per_row_equals_what_protobuf_would_write(tmp_path, make_block):
    block = make_block(120, 140, [f"Gradients/group{i}_norm" for i in range(26)])
    sink = TensorBoard(tmp_path, clock=lambda: 1000.0)
    sink(block)
    sink.close()
    first, *events = raw_events(tmp_path)
    assert first.file_version == "brain.Event:2"
    assert len(events) == 20
    for row, event in zip(block.rows(), events, strict=True):
        assert event.step == row.step
        assert event.wall_time == 1000.0 - block.seconds[-1] + row.seconds
        assert {value.tag: value.simple_value for value in event.summary.value} == row.values
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("events.out.tfevents.0000001000.")
    assert path.name.endswith(".fieldwatch.0000")
    loaded = [event for event in EventFileLoader(str(path)).Load() if event.HasField("summary")]
    assert [tensor_util.make_ndarray(event.summary.value[1].tensor) for event in loaded] == list(block.values[:, 1])


@pytest.mark.parametrize("step", [0, 1, 127, 128, 16384, 2**31, 2**35 - 1])
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, math.inf, -math.inf, 1e300, 1e-45])
def test_every_number_keeps_its_place(step, value):
    tags = ScalarTags(("a", "bb", "c" * 300))
    (record,) = scalar_events([Scalars(tags, np.array([1.5]), np.array([step]), np.array([[value, 2.0, 3.0]]))])
    event = event_pb2.Event.FromString(record[12:-4])
    assert event.step == step
    assert event.wall_time == 1.5
    with np.errstate(over="ignore"):
        assert [one.simple_value for one in event.summary.value] == [float(np.float32(value)), 2.0, 3.0]
    assert frame(record[12:-4]) == record


def test_rows_of_many_sets_of_tags_are_what_each_block_would_write(tmp_path, make_block):
    rng = np.random.default_rng(0)
    widths = rng.integers(1, 30, 40)
    widths[7] = 3000
    firsts = np.cumsum([0, *rng.integers(1, 100, 40)])
    blocks = [make_block(firsts[i], firsts[i + 1], [f"{i % 7}/v{k}" for k in range(widths[i])]) for i in range(40)]
    together = TensorBoard(tmp_path / "together", clock=lambda: 1000.0)
    together.extend(blocks)
    alone = TensorBoard(tmp_path / "alone", clock=lambda: 1000.0)
    for block in blocks:
        alone(block)
    (one,), (other,) = (list((tmp_path / name).iterdir()) for name in ("together", "alone"))
    assert one.read_bytes() == other.read_bytes()
    assert len(list(raw_events(tmp_path / "together"))) == 1 + firsts[-1]


def test_nan_is_written_as_it_is(tmp_path, make_block):
    block = make_block(0, 3)
    block.values[1] = math.nan
    with_nan = TensorBoard(tmp_path)
    with_nan(block)
    assert [math.isnan(one.value) for one in read(tmp_path).Scalars("Loss/total")] == [False, True, False]


@pytest.mark.parametrize("step", [-1, 2**35])
def test_step_outside_the_range_is_refused(step):
    with pytest.raises(ValueError, match=f"from 0 to [0-9]+, got steps {step} to {step}"):
        list(scalar_events([Scalars(ScalarTags(("a",)), np.array([0.0]), np.array([step]), np.array([[1.0]]))]))


def test_bookkeeping_is_left_out_and_epochs_stand_on_their_position(tmp_path, make_block):
    sink = TensorBoard(tmp_path)
    sink(make_block(0, 2, ["Loss/total", "Sample/0/loss", "Guard/refused"]))
    sink(make_block(2, 4, ["Guard/refused"]))
    sink(make_block(100, 102, ["Eval/psnr"], axis="epoch", positions=[1, 2]))
    sink(make_block(5, 5))
    scalars = read(tmp_path)
    assert scalars.Tags()["scalars"] == ["Loss/total", "Eval/psnr"]
    assert [one.step for one in scalars.Scalars("Eval/psnr")] == [1, 2]


def test_three_resumes_show_one_clean_curve(tmp_path, make_block):
    sink = TensorBoard(tmp_path)
    sink(make_block(0, 40))
    marks = {40: sink.mark()}
    sink(make_block(40, 57))
    for first, last in ((40, 90), (40, 61), (40, 80)):
        sink.close()
        sink = TensorBoard(tmp_path)
        sink.rewind(json.loads(json.dumps(marks[40])))
        sink(make_block(first, last, ["Loss/total", "new"]))
        assert steps_of(tmp_path) == list(range(last))
        assert len(list(tmp_path.iterdir())) == 1
    marks[80] = sink.mark()
    sink(make_block(80, 99))
    sink.close()
    last = TensorBoard(tmp_path)
    last.rewind(marks[80])
    assert steps_of(tmp_path) == list(range(80))
    last.rewind(marks[40])
    assert steps_of(tmp_path) == list(range(40))
    last.rewind(None)
    assert list(tmp_path.iterdir()) == []


def test_mark_of_several_files_is_kept_in_order(tmp_path, make_block):
    for first in (0, 10, 20):
        sink = TensorBoard(tmp_path)
        sink(make_block(first, first + 10))
        sink.close()
    mark = sink.mark()
    assert len(mark) == 3
    for last in (35, 33):
        sink = TensorBoard(tmp_path)
        sink.rewind(mark)
        sink(make_block(30, last))
        assert steps_of(tmp_path) == list(range(last))


def test_torn_tail_is_dropped(tmp_path, make_block):
    sink = TensorBoard(tmp_path)
    sink(make_block(0, 5))
    mark = sink.mark()
    sink.close()
    ((name, size),) = mark.items()
    for cut in (1, 3, 17, 40):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / name).write_bytes((tmp_path / name).read_bytes()[: size - cut])
        sink = TensorBoard(folder)
        sink.rewind(mark)
        sink(make_block(5, 7))
        assert steps_of(folder) == [0, 1, 2, 3, 5, 6]


def test_flipped_bit_ends_the_walk(tmp_path, make_block):
    sink = TensorBoard(tmp_path)
    sink(make_block(0, 5))
    (path,) = tmp_path.iterdir()
    whole = bytearray(path.read_bytes())
    ends = [end for end, _ in read_records(path)]
    whole[ends[2] + 20] ^= 1
    path.write_bytes(whole)
    assert [end for end, _ in read_records(path)] == ends[:3]
    whole[ends[1]] ^= 1
    path.write_bytes(whole)
    assert [end for end, _ in read_records(path)] == ends[:2]


def test_files_of_others_and_left_over_drafts(tmp_path, make_block):
    other = tmp_path / "events.out.tfevents.1.host.7.0"
    other.write_bytes(b"not ours")
    draft = tmp_path / ".events.out.tfevents.1.host.7.fieldwatch.0000.part"
    draft.write_bytes(b"torn")
    sink = TensorBoard(tmp_path)
    sink(make_block(0, 5))
    sink.rewind(None)
    assert list(tmp_path.iterdir()) == [other]


def test_lost_file_of_a_mark_is_told(tmp_path, make_block):
    sink = TensorBoard(tmp_path)
    with pytest.warns(UserWarning, match=r"fieldwatch\.0009 no longer exists"):
        sink.rewind({"events.out.tfevents.1.host.7.fieldwatch.0009": 100})
    sink(make_block(0, 2))
    assert steps_of(tmp_path) == [0, 1]


def test_images_histograms_and_text(tmp_path):
    sink = TensorBoard(tmp_path)
    buffer = io.BytesIO()
    Image.new("RGB", (7, 5), (255, 0, 0)).save(buffer, "PNG")
    sink.image("Render/view", 3, buffer.getvalue(), 7, 5)
    values = np.array([0.0, 1.0, 1.0, 30.0, np.nan, np.inf], np.float32)
    sink.histogram("Eval/Histogram/psnr", 4, values)
    sink.histogram("Eval/Histogram/none", 4, np.array([np.nan]))
    sink.text("Notes", 5, "**bold** \u2603")
    seen = read(tmp_path)
    (image,) = seen.Images("Render/view")
    assert (image.step, image.width, image.height) == (3, 7, 5)
    assert Image.open(io.BytesIO(image.encoded_image_string)).getpixel((0, 0)) == (255, 0, 0)
    (histogram,) = seen.Histograms("Eval/Histogram/psnr")
    assert histogram.step == 4
    told = histogram.histogram_value
    assert (told.min, told.max, told.num, told.sum) == (0, 30, 4, 32)
    assert len(told.bucket) == len(told.bucket_limit) == 30
    assert told.bucket[:2] == [1, 2]
    assert seen.Tags()["histograms"] == ["Eval/Histogram/psnr"]
    assert seen.summary_metadata["Notes"].plugin_data.plugin_name == "text"
    (text,) = seen.Tensors("Notes")
    assert tensor_util.make_ndarray(text.tensor_proto).item().decode() == "**bold** \u2603"


def test_bytes_that_are_not_a_png_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"image 'a': .*PNG, got 4"):
        TensorBoard(tmp_path).image("a", 0, b"JPEG", 1, 1)


def test_hyperparameters_come_back(tmp_path, make_block):
    sink = TensorBoard(tmp_path, clock=lambda: 50.0)
    config = {"optimizer.lr": 0.01, "steps": 300, "fast": True, "name": "bear", "views": (1, 2), "none": None}
    sink.config(config, {})
    sink(make_block(0, 10))
    sink.config(config, {"psnr": 31.5})
    seen = read(tmp_path)
    start = metadata.parse_session_start_info_plugin_data(
        seen.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data.content
    )
    told = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert told == {"optimizer.lr": 0.01, "steps": 300, "fast": True, "name": "bear", "views": "(1, 2)", "none": "None"}
    end = metadata.parse_session_end_info_plugin_data(
        seen.summary_metadata[metadata.SESSION_END_INFO_TAG].plugin_data.content
    )
    assert (end.status, end.end_time_secs) == (api_pb2.STATUS_SUCCESS, 50.0)
    assert [(one.step, one.value) for one in seen.Scalars("Final/psnr")] == [(9, 31.5)]


def test_layout_comes_back(tmp_path):
    layout = Layout(
        tabs=(
            Tab(
                title="Overview",
                charts=(
                    Chart(title="PSNR", tags=("Train/PSNR$", "Eval/Frame/val_psnr$")),
                    Chart(title="Spread", margins=(Margin(value="mean", lower="min", upper="max"),)),
                ),
            ),
            Tab(title="Gradients", charts=(Chart(title="all", tags=("Train/Gradients/.*",)),), closed=True),
        )
    )
    TensorBoard(tmp_path).layout(layout)
    (event,) = read(tmp_path).Tensors("custom_scalars__config__")
    told = layout_pb2.Layout.FromString(tensor_util.make_ndarray(event.tensor_proto).item())
    assert [(tab.title, tab.closed) for tab in told.category] == [("Overview", False), ("Gradients", True)]
    psnr, spread = told.category[0].chart
    assert list(psnr.multiline.tag) == ["Train/PSNR$", "Eval/Frame/val_psnr$"]
    assert [(one.value, one.lower, one.upper) for one in spread.margin.series] == [("mean", "min", "max")]


@pytest.mark.usefixtures("unchecked")
def test_hundred_thousand_rows_in_flat_memory(tmp_path, make_block):
    sink = TensorBoard(tmp_path)
    sink(make_block(0, 1000))
    tracemalloc.start()
    for first in range(1000, 100_000, 1000):
        sink(make_block(first, first + 1000))
    grown, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 100_000
    assert peak < 2_000_000
    (path,) = tmp_path.iterdir()
    assert sum(1 for _ in read_records(path)) == 100_001


def test_append_starts_a_file_of_the_next_number(tmp_path):
    files = EventFiles(tmp_path, clock=lambda: 5.0)
    files.append(b"")
    files.close()
    files.append(b"")
    assert [name.rpartition(".")[2] for name in files.mark()] == ["0000", "0001"]


def test_blocks_without_rows_or_columns_write_no_file(tmp_path, make_block):
    sink = TensorBoard(tmp_path)
    sink(make_block(0, 0))
    sink(
        Block(
            axis="step",
            columns=(),
            steps=np.array([0]),
            seconds=np.zeros(1),
            positions=np.array([0]),
            values=np.zeros((1, 0)),
        )
    )
    sink.flush()
    assert list(tmp_path.iterdir()) == []


def test_full_disk_leaves_whole_records(tmp_path, make_block, full_disk):
    sink = TensorBoard(tmp_path)
    sink(make_block(0, 5))
    with full_disk(sum(sink.mark().values()) + 100), pytest.raises(OSError, match="File too large"):
        sink(make_block(5, 10))
    sink(make_block(10, 12))
    assert steps_of(tmp_path) == [0, 1, 2, 3, 4, 10, 11]
