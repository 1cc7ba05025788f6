"""Pictures from event files, with scalars and damage around them."""

import base64
import io
import struct
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fieldwatch.record import Catalogue, Metric, read_manifest
from fieldwatch.record.sinks import TensorBoard
from fieldwatch.report.account import account_of
from fieldwatch.report.account.event_pictures import newest_pictures
from fieldwatch.report.account.pictures import picture_of

METRICS = Catalogue(
    (
        Metric(name="Eval/psnr", unit="dB", meaning="How | alike.", better="higher", axis="epoch"),
        Metric(name="Stats/<group>_x", unit="", meaning="Plain."),
    )
)


def items(account):
    quality = next(panel for panel in account["panels"] if panel["id"] == "quality")
    return next((part["items"] for part in quality["parts"] if part["kind"] == "images"), [])


def test_the_newest_picture_of_each_tag_is_found(run_folder, rows, png):
    folder = run_folder(rows.block(rows.training(30)))
    board = TensorBoard(folder / "tensorboard")
    board(rows.block(rows.training(5)))
    for position in (3, 9):
        board.image("Eval/a", position, png(20, 10, seed=position), 20, 10)
        board.image("b", position + 1, png(8, 8), 8, 8)
        board(rows.block(rows.training(50), first=100 * position))
    board.close()
    found = newest_pictures(folder, 8)
    assert [(one.tag, one.position) for one in found] == [("b", 10), ("Eval/a", 9)]
    assert found[1].png == png(20, 10, seed=9)
    assert [one.tag for one in newest_pictures(folder, 1)] == ["b"]
    told = items(account_of(folder))
    assert [(one["title"], one["step"]) for one in told] == [("Eval/a", 9), ("b", 10)]
    assert told[0]["caption"].endswith(", step 9, 20 x 10")


def test_a_picture_of_an_epoch_stands_at_its_step(run_folder, rows, png):
    epochs = rows.block({"Eval/psnr": [1.0, 2.0]}, first=31, axis="epoch", positions=[1, 2])
    folder = run_folder(epochs)
    replace(read_manifest(folder), metrics=tuple(METRICS)).write(folder)
    board = TensorBoard(folder / "tensorboard")
    board.image("Eval/worst", 2, png(8, 8), 8, 8)
    board.close()
    account = account_of(folder)
    assert items(account)[0]["step"] == 32
    assert "epoch 2 (step 32)" in items(account)[0]["caption"]
    told = account["series"]["Eval/psnr"]
    assert (told["unit"], told["meaning"], told["better"]) == ("dB", "How | alike.", "higher")


@pytest.mark.parametrize("seed", range(20))
def test_damaged_event_files_are_passed_over(run_folder, png, seed):
    random = np.random.default_rng(seed)
    folder = run_folder()
    board = TensorBoard(folder / "tensorboard")
    board.text("Guide/metrics", 0, METRICS.markdown())
    board.image("a", 1, png(9, 9), 9, 9)
    board.close()
    (path,) = (folder / "tensorboard").iterdir()
    data = bytearray(path.read_bytes())
    for place in random.integers(0, len(data), 12).tolist():
        data[place] = int(random.integers(0, 256))
    path.write_bytes(bytes(data[: int(random.integers(1, len(data)))]))
    assert len(newest_pictures(folder, 8)) <= 1


def test_a_large_picture_is_made_to_fit(png):
    made = picture_of(png(900, 700), 60_000)
    assert made is not None
    assert len(made.source) <= 60_100
    assert (made.width, made.height) == (900, 700)
    image = Image.open(io.BytesIO(base64.b64decode(made.source.removeprefix("data:image/jpeg;base64,"))))
    assert max(image.size) < 900


def test_a_small_picture_stays_as_it_is(png):
    data = png(30, 30)
    made = picture_of(data, 100_000)
    assert made is not None
    assert base64.b64decode(made.source.removeprefix("data:image/png;base64,")) == data


def test_what_would_fill_the_memory_or_is_no_picture_is_left_out(png):
    data = bytearray(png(30, 30))
    data[16:24] = struct.pack(">II", 100_000, 100_000)
    assert picture_of(bytes(data), 100_000) is None
    assert picture_of(b"\x89PNG\r\n\x1a\n" + bytes(50_000), 100_000) is None
    assert picture_of(b"GIF89a", 100_000) is None
    assert picture_of(png(300, 300)[:20_000], 100_000) is None
