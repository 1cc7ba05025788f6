"""Histograms from event files, among everything else in them and whatever happened to them."""

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fieldwatch.base import protobuf
from fieldwatch.record.sinks import TensorBoard, stored_histograms
from fieldwatch.record.sinks.event_files import frame
from fieldwatch.record.sinks.summaries import event


@pytest.fixture
def write(tmp_path, make_block):
    """Write histograms (tag, position, values) between rows, an image and a text."""

    def write(*histograms):
        board = TensorBoard(tmp_path)
        board(make_block(0, 50))
        board.text("Guide/metrics", 0, "# Guide")
        for number, (tag, position, values) in enumerate(histograms, 1):
            board.histogram(tag, position, np.asarray(values, float))
            board(make_block(50 * number, 50 * number + 50))
        board.close()
        return tmp_path

    return write


def append(folder, record):
    (path,) = folder.glob("*tfevents*")
    with path.open("ab") as file:
        file.write(frame(record))


def test_what_was_written_is_read(write):
    values = np.random.default_rng(0).normal(30, 2, 400)
    folder = write(("Eval/psnr", 4, values), ("Eval/psnr", 8, values + 1), ("scales", 9, [0, 0, 1]))
    found = stored_histograms(folder)
    assert {tag: [one.position for one in histograms] for tag, histograms in found.items()} == {
        "Eval/psnr": [4, 8],
        "scales": [9],
    }
    counts, edges = np.histogram(values, 30)
    np.testing.assert_array_equal(found["Eval/psnr"][0].counts, counts)
    np.testing.assert_allclose(found["Eval/psnr"][0].edges, edges, rtol=1e-12)


def test_tensorboard_reads_the_same(write):
    folder = write(("a", 3, np.arange(100.0)))
    told = EventAccumulator(str(folder), size_guidance={"histograms": 0}).Reload().Histograms("a")[0]
    (read,) = stored_histograms(folder)["a"]
    assert read.position == told.step
    assert read.edges[1:].tolist() == told.histogram_value.bucket_limit
    assert read.counts.tolist() == told.histogram_value.bucket


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.5, 0.95, 1.0])
def test_quantiles_are_those_of_the_values_within_a_bin(write, fraction):
    values = np.random.default_rng(1).gamma(2, 3, 5000)
    (read,) = stored_histograms(write(("a", 0, values)))["a"]
    width = np.ptp(values) / 30
    assert read.quantile(fraction) == pytest.approx(np.quantile(values, fraction), abs=width)
    assert values.min() - 1e-9 <= read.quantile(fraction) <= values.max() + 1e-9


def test_equal_values_have_their_value_as_every_quantile(write):
    (read,) = stored_histograms(write(("a", 0, np.full(9, 5.0))))["a"]
    assert [read.quantile(fraction) for fraction in (0, 0.5, 1)] == pytest.approx([5, 5, 5], abs=1 / 30)


def test_the_later_histogram_of_a_position_is_valid_also_after_a_resume(write, tmp_path):
    folder = write(("a", 5, [1, 2]), ("a", 5, [3, 4]))
    assert stored_histograms(folder)["a"][0].quantile(0) == pytest.approx(3)
    board = TensorBoard(folder)
    board.rewind(board.mark())
    board.histogram("a", 5, np.array([7.0, 8.0]))
    board.histogram("b", 6, np.array([7.0, 8.0]))
    board.close()
    found = stored_histograms(folder)
    assert [one.position for one in found["a"]] == [5]
    assert found["a"][0].quantile(0) == pytest.approx(7)
    assert list(found) == ["a", "b"]


def test_no_folder_and_no_histogram_are_nothing(tmp_path, make_block):
    assert stored_histograms(tmp_path / "none") == {}
    board = TensorBoard(tmp_path)
    assert stored_histograms(tmp_path) == {}
    board(make_block(0, 5))
    board.close()
    assert stored_histograms(tmp_path) == {}


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_record_is_skipped_and_never_read_wrong(write, seed):
    values = np.arange(100.0)
    folder = write(("a", 1, values), ("a", 2, values))
    whole = {one.position: one.counts.tolist() for one in stored_histograms(folder)["a"]}
    (path,) = folder.glob("*tfevents*")
    data = bytearray(path.read_bytes())
    random = np.random.default_rng(seed)
    for place in random.integers(0, len(data), 12).tolist():
        data[place] = int(random.integers(0, 256))
    path.write_bytes(bytes(data[: int(random.integers(len(data) // 2, len(data)))]))
    for one in stored_histograms(folder).get("a", ()):
        assert one.counts.tolist() == whole[one.position]


@pytest.mark.parametrize(
    ("edges", "counts"),
    [
        (np.full(30, np.nan), np.ones(30)),
        (np.arange(30.0)[::-1], np.ones(30)),
        (np.array([-1.7e308] + [1.7e308] * 29), np.ones(30)),
        (np.arange(30.0), np.zeros(30)),
        (np.arange(30.0), np.full(30, -1.0)),
        (np.arange(30.0), np.full(30, 1e308)),
        (np.arange(30.0), np.full(30, np.inf)),
    ],
)
def test_numbers_that_no_histogram_has_are_skipped(write, edges, counts):
    folder = write(("a", 1, [1, 2]))
    content = protobuf.doubles(6, edges.tolist()) + protobuf.doubles(7, counts.tolist())
    append(folder, event(protobuf.text(1, "forged") + protobuf.sized(5, content), wall=1.0, step=3))
    assert list(stored_histograms(folder)) == ["a"]


@pytest.mark.parametrize("tag", [b"\xff\xfe", b""])
def test_a_record_that_only_looks_like_a_histogram_is_skipped(write, tag):
    folder = write(("a", 1, [1, 2]))
    content = protobuf.doubles(6, range(30)) + protobuf.doubles(7, [1.0] * 30)
    append(folder, event(protobuf.sized(1, tag) + protobuf.sized(5, content), wall=1.0))
    append(folder, event(protobuf.text(1, "text") + protobuf.sized(8, content), wall=1.0))
    append(folder, event(protobuf.text(1, "late") + protobuf.sized(5, content), wall=1.0, step=1 << 62))
    assert list(stored_histograms(folder)) == ["a"]
