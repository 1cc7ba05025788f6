"""Event files as sources: scalars, pictures of both kinds, hyperparameters in PyTorch's folders, and damage."""

import io

import numpy as np
import pytest
from PIL import Image
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter

from fieldwatch.report.imports import BadSource, find_runs


def png(shade):
    out = io.BytesIO()
    Image.fromarray(np.full((4, 5), shade, np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def logs(tmp_path):
    """A run as PyTorch writes it."""
    folder = tmp_path / "logs"
    with SummaryWriter(str(folder)) as writer:
        for step in range(4):
            writer.add_scalar("train/loss", 1 / (1 + step), step)
        writer.add_image("picture", np.full((4, 5), 0.5), 3, dataformats="HW")
        writer.add_hparams({"lr": 0.5}, {"final": 1.0})
    return folder


def test_a_run_of_pytorch_is_one_run_with_its_hyperparameters(logs):
    (found,) = find_runs(logs)
    run = found.read(False)
    assert run.series["train/loss"].steps.tolist() == [0, 1, 2, 3]
    assert run.config == {"lr": 0.5}
    (picture,) = run.pictures()
    assert (picture.name, picture.step) == ("picture", 3)
    assert Image.open(io.BytesIO(picture.content)).size == (5, 4)


def test_pictures_of_tensorflow_are_read(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    made = tensor_pb2.TensorProto(
        dtype=types_pb2.DT_STRING,
        tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=[{"size": 3}]),
        string_val=[b"5", b"4", png(9)],
    )
    # Only the first value of a tag names its plugin.
    for step, metadata in ((1, {"plugin_data": {"plugin_name": "images"}}), (2, {})):
        value = {"tag": "picture", "tensor": made, "metadata": metadata}
        writer.add_event(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=[value])))
    writer.close()
    pictures = list(find_runs(tmp_path)[0].read(False).pictures())
    assert [(picture.step, picture.content) for picture in pictures] == [(1, png(9)), (2, png(9))]


def test_a_truncated_file_is_refused_or_read_up_to_there(logs):
    (path,) = (each for each in logs.iterdir() if each.is_file())
    path.write_bytes(path.read_bytes()[:-20])
    (found,) = find_runs(logs)
    with pytest.raises(BadSource, match=path.name):
        found.read(False)
    assert found.read(True).series["train/loss"].steps.tolist() == [0, 1, 2, 3]


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "events.out.tfevents.1").touch()
    with pytest.raises(BadSource):
        find_runs(tmp_path)[0].read(False)
