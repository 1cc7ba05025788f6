"""The messages of event files, byte for byte and field for field those of TensorBoard's own classes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as charts_metadata
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.util import tensor_util

from fieldwatch.base import protobuf
from fieldwatch.record.charts import Chart, Layout, Margin, Tab
from fieldwatch.record.sinks import summaries

names = st.text(max_size=20)
floats = st.floats(allow_nan=False)


def value_of(message):
    return summary_pb2.Summary.Value.FromString(message)


@given(wall=floats, step=st.integers(0, 2**62), tag=names)
def test_an_event_is_the_same_bytes(wall, step, tag):
    value = summary_pb2.Summary.Value(tag=tag, simple_value=2.0)
    wanted = event_pb2.Event(wall_time=wall, step=step, summary=summary_pb2.Summary(value=[value]))
    ours = summaries.event(protobuf.text(1, tag) + protobuf.single(2, 2.0, always=True), wall=wall, step=step)
    assert ours == wanted.SerializeToString()


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), tag=names)
def test_a_histogram_is_the_same_bytes(values, tag):
    array = np.array(values)
    counts, edges = np.histogram(array, summaries.HISTOGRAM_BINS)
    content = summary_pb2.HistogramProto(
        min=array.min(),
        max=array.max(),
        num=len(array),
        sum=array.sum(),
        sum_squares=np.square(array).sum(),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )
    wanted = summary_pb2.Summary.Value(tag=tag, histo=content)
    assert summaries.histogram(tag, array) == wanted.SerializeToString()


def test_an_image_is_the_same_bytes():
    png = b"\x89PNG\r\n\x1a\n" + bytes(17) + bytes([6]) + bytes(5)
    content = summary_pb2.Summary.Image(height=7, width=300, colorspace=4, encoded_image_string=png)
    wanted = summary_pb2.Summary.Value(tag="Eval/view", image=content)
    assert summaries.image("Eval/view", png, 300, 7) == wanted.SerializeToString()


@given(markdown=st.text(max_size=400))
def test_a_text_says_the_same(markdown):
    value = value_of(summaries.text("Guide", markdown))
    assert value.metadata == text_metadata.create_summary_metadata(display_name="", description="")
    assert tensor_util.make_ndarray(value.tensor).item() == markdown.encode()


@given(
    config=st.dictionaries(names, st.one_of(st.booleans(), st.integers(-(2**40), 2**40), floats, names, st.none())),
    started=floats,
)
def test_hyperparameters_say_the_same(config, started):
    value = value_of(summaries.session_start(config, started))
    assert value.tag == hparams_metadata.SESSION_START_INFO_TAG
    assert value.tensor == hparams_metadata.NULL_TENSOR
    info = plugin_data_pb2.SessionStartInfo(start_time_secs=started)
    for name, setting in config.items():
        if isinstance(setting, bool):
            info.hparams[name].bool_value = setting
        elif isinstance(setting, int | float):
            info.hparams[name].number_value = setting
        else:
            info.hparams[name].string_value = str(setting)
    assert hparams_metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content) == info


def test_the_end_of_a_run_says_the_same():
    value = value_of(summaries.session_end(12.5))
    wanted = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=12.5)
    assert hparams_metadata.parse_session_end_info_plugin_data(value.metadata.plugin_data.content) == wanted


def test_charts_say_the_same():
    chart = Chart(title="Loss", tags=("Loss/total", "Loss/.*"))
    band = Chart(title="PSNR", margins=(Margin(value="v", lower="l", upper="u"),))
    value = value_of(summaries.chart_layout(Layout(tabs=(Tab(title="All", charts=(chart, band), closed=True),))))
    assert value.metadata == charts_metadata.create_summary_metadata()
    series = layout_pb2.MarginChartContent.Series(value="v", lower="l", upper="u")
    charts = [
        layout_pb2.Chart(title="Loss", multiline=layout_pb2.MultilineChartContent(tag=["Loss/total", "Loss/.*"])),
        layout_pb2.Chart(title="PSNR", margin=layout_pb2.MarginChartContent(series=[series])),
    ]
    wanted = layout_pb2.Layout(category=[layout_pb2.Category(title="All", chart=charts, closed=True)])
    assert layout_pb2.Layout.FromString(tensor_util.make_ndarray(value.tensor).item()) == wanted


@given(number=st.integers(0, 2**64 - 1))
def test_a_number_that_is_written_is_read_again(number):
    assert protobuf.fields(protobuf.integer(3, number, always=True)) == {3: number}


def test_defaults_are_left_out_unless_they_are_asked_for():
    assert protobuf.integer(1, 0) + protobuf.double(1, 0.0) + protobuf.text(1, "") + protobuf.doubles(1, []) == b""
    assert protobuf.double(1, -0.0) != b""
    assert math.copysign(1, event_pb2.Event.FromString(protobuf.double(1, -0.0)).wall_time) == -1
    assert protobuf.fields(protobuf.sized(1, b"", always=True)) == {1: b""}


@pytest.mark.parametrize("message", [b"\x08", b"\x0a\x05abc", b"\x0b", b"\x08" + b"\xff" * 11])
def test_bytes_that_are_no_message_are_refused(message):
    with pytest.raises((IndexError, ValueError)):
        protobuf.fields(message)
