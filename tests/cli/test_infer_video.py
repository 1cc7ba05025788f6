"""fieldwatch infer video: pictures from a run and from a file alone, search, and one message for each bad input."""

import json
import shutil

import av
import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.cli import main

WORDS = ("a", "rabbit", "tree", "meadow")


def pixels(path):
    return np.asarray(Image.open(path))


@pytest.fixture(scope="session")
def bitstream(trained, tmp_path_factory):
    """A file, with nothing of its run beside it."""
    path = tmp_path_factory.mktemp("file") / "clip.fwv"
    assert main(["export", str(trained), "--to", "bitstream", "-o", str(path), "--bits", "12"]) == 0
    return path


@pytest.fixture(scope="session")
def hnerv_bitstream(trained_hnerv, tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "hnerv.fwv"
    assert main(["export", str(trained_hnerv), "--to", "bitstream", "-o", str(path)]) == 0
    return path


@pytest.fixture
def picture(frames, tmp_path):
    """Row 1, column 0 of the 2 x 2 patches of frame 2."""
    path = tmp_path / "query.png"
    Image.fromarray(pixels(frames / "frame_002.png")[16:, :32]).save(path)
    return path


def test_frames_patches_and_moments_of_a_run(run, answer):
    got = answer("infer", "video", run, "--frames", 0, 7, "--patch", 7, 1, 0, "--time", 6.5, 7)
    files = got["files"]
    assert set(files) == {"frame 0", "frame 7", "patch", "time 6.5", "time 7"}
    assert all(str(run / "products" / "infer-6") in path for path in files.values())
    last = pixels(files["frame 7"])
    assert last.shape == (32, 64, 3)
    assert np.array_equal(pixels(files["patch"]), last[16:, :32])
    assert np.array_equal(pixels(files["time 7"]), last)
    assert not np.array_equal(pixels(files["time 6.5"]), last)


def test_a_network_trained_with_curved_motion_draws_from_its_file_alone(frames, tmp_path, answer, fieldwatch):
    clip = shutil.copytree(frames, tmp_path / "frames")
    words = ("--between-weight", 1, "--between-motion", "curved", "--teacher", "descriptor", "--epochs", 1)
    small = ("--grid-widths", 4, 4, 4, "--grid-blocks", 0, 0, 0, "--data-split", "3_3_4", "--clip-loss-weight", 0)
    line = ("train", "video", "--data", clip, "--out", tmp_path / "run", "--cache", tmp_path / "cache", *words, *small)
    assert fieldwatch(*line)[0] in {0, 1}
    # Opening the run estimates no motion, which only training needs.
    wanted = answer("infer", "video", tmp_path / "run", "--frames", 3)
    export = ("export", tmp_path / "run", "--to", "bitstream", "-o", tmp_path / "clip.fwv", "--bits", 12)
    assert fieldwatch(*export)[0] == 0
    shutil.rmtree(clip)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    drawn = answer("infer", "video", tmp_path / "clip.fwv", "--frames", 3)
    difference = pixels(drawn["files"]["frame 3"]).astype(int) - pixels(wanted["files"]["frame 3"])
    assert np.abs(difference).max() <= 2


def test_a_file_draws_alone_what_the_run_draws(run, bitstream, tmp_path, answer):
    alone = shutil.copy(bitstream, tmp_path / "clip.fwv")
    drawn = answer("infer", "video", alone, "--frames", 3, "--time", 3.5)
    assert {path.name for path in (tmp_path / "clip-drawn").iterdir()} == {"frame_00003.png", "time_00003.500.png"}
    wanted = answer("infer", "video", run, "--frames", 3, "--time", 3.5)
    for name in ("frame 3", "time 3.5"):
        assert np.abs(pixels(drawn["files"][name]).astype(int) - pixels(wanted["files"][name])).max() <= 2
    assert (drawn["step"], drawn["teacher"]) == (6, "image-descriptor-512")


def test_the_whole_clip_as_a_video(bitstream, tmp_path, fieldwatch):
    code, out, _ = fieldwatch("infer", "video", bitstream, "--mp4", "--fps", 12, "--out", tmp_path / "here")
    assert code == 0
    path = tmp_path / "here" / "clip.mp4"
    assert str(path) in out
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert float(stream.average_rate) == 12
        assert [(frame.height, frame.width) for frame in container.decode(stream)] == [(32, 64)] * 8


def test_search_by_picture_in_a_run(run, picture, answer, fieldwatch):
    got = answer("infer", "video", run, "--image", picture, "--top-k", 3)
    found = got["search"]
    assert [hit["rank"] for hit in found["hits"]] == [1, 2, 3]
    best = found["by_target"][0]
    assert (best["frame"], best["row"], best["column"]) == (2, 1, 0)
    assert best["similarity"] == pytest.approx(1, abs=1e-3)
    assert set(found["agreement"]["recall"]) == {"1", "5", "10"}
    assert pixels(got["files"]["search"]).ndim == 3
    code, out, _ = fieldwatch("infer", "video", run, "--image", picture)
    assert code == 0
    assert "by chance" in out
    assert "rank correlation" in out


def test_search_in_a_file_says_what_it_cannot_compare(bitstream, picture, tmp_path, answer, fieldwatch):
    words = ("infer", "video", bitstream, "--image", picture, "--out", tmp_path / "out")
    found = answer(*words)["search"]
    assert len(found["hits"]) == 10
    assert (found["by_target"], found["agreement"]) == (None, None)
    _, out, _ = fieldwatch(*words)
    assert "predicted embeddings only" in " ".join(out.split())


def test_an_hnerv_file_draws_its_stored_frames_only(hnerv_bitstream, trained_hnerv, tmp_path, answer, refused):
    drawn = answer("infer", "video", hnerv_bitstream, "--frames", 5, "--out", tmp_path / "file")
    wanted = answer("infer", "video", trained_hnerv, "--frames", 5, "--out", tmp_path / "run")
    difference = pixels(drawn["files"]["frame 5"]).astype(int) - pixels(wanted["files"]["frame 5"])
    assert np.abs(difference).max() <= 8
    for source in (hnerv_bitstream, trained_hnerv):
        message = refused("infer", "video", source, "--time", 5.5, "--out", tmp_path / "none")
        assert "time 5.5" in message
        assert "this hnerv model" in message
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to render: give --frames, --time, --patch, --mp4, --text or --image"),
        (("--frames", "0", "8"), "frame 8 is not in the clip, whose 8 frames are 0 to 7"),
        (("--frames", "-1"), "frame -1 is not in the clip"),
        (("--time", "7.2"), "frame 7.2 is not in the clip"),
        (("--time", "nan"), "frame nan is not in the clip"),
        (("--patch", "9", "0", "0"), "frame 9 is not in the clip"),
        (("--patch", "0", "2", "0"), "patch row 2, column 0 is not in the grid of 2 x 2 patches: rows are 0 to 1"),
        (("--mp4", "--fps", "0"), "--fps must be greater than 0 and at most 1000, got 0"),
        (("--text", "a rabbit"), "--text needs CLIP, but the targets of this run come from image-descriptor-512"),
        (("--text", " "), "--text must not be empty"),
        (("--text", "a", "--image", "b.png"), "--text and --image are two searches"),
        (("--image", "nowhere.png"), "nowhere.png cannot be read as an image"),
        (("--frames", "0", "--top-k", "0"), "--top-k must be at least 1, got 0"),
        (("--frames", "0", "--checkpoint", "4"), "there is no checkpoint of step 4"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(trained, refused, words, message):
    assert message in refused("infer", "video", trained, *words)
    assert not (trained / "products").exists()


@pytest.mark.parametrize("words", [("--frames", "0", "8"), ("--text", "a rabbit"), ("--patch", "0", "0", "2")])
def test_bad_input_for_a_file_writes_nothing(bitstream, refused, words):
    refused("infer", "video", bitstream, *words)
    assert [path.name for path in bitstream.parent.iterdir() if path.name.endswith("-drawn")] == []


def test_a_picture_that_is_none_is_refused(trained, tmp_path, refused):
    (tmp_path / "note.png").write_text("not a picture")
    assert "as an image" in refused("infer", "video", trained, "--image", tmp_path / "note.png")


def test_sources_that_are_neither_run_nor_bitstream_are_refused(bitstream, tmp_path, refused):
    path = tmp_path / "clip.fwv"
    assert "does not exist" in refused("infer", "video", path, "--frames", 0)
    assert "holds no run" in refused("infer", "video", tmp_path, "--frames", 0)
    content = bytearray(bitstream.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "checksum" in refused("infer", "video", path, "--frames", 0)
    path.write_bytes(bitstream.read_bytes()[:100])
    assert "is truncated" in refused("infer", "video", path, "--frames", 0)
    path.write_text("something else")
    assert "fieldwatch video bitstream" in refused("infer", "video", path, "--frames", 0)
    assert [one.name for one in tmp_path.iterdir()] == ["clip.fwv"]


def test_search_needs_a_trained_head(run, picture, tmp_path, refused, fieldwatch):
    words = ("--image", picture)
    assert "checkpoint is untrained" in refused("infer", "video", run, "--checkpoint", 3, *words)
    path = tmp_path / "blind.fwv"
    fieldwatch("export", run, "--to", "bitstream", "--no-clip-head", "-o", path)
    assert "no semantic head" in refused("infer", "video", path, *words)
    fieldwatch("export", run, "--to", "bitstream", "--checkpoint", 3, "-o", path)
    assert "checkpoint is untrained" in refused("infer", "video", path, *words)


def write_clip(folder, seed):
    """A tiny CLIP with random weights, and a byte-pair vocabulary of letters."""
    transformers = pytest.importorskip("transformers")
    folder.mkdir()
    letters = sorted(set("".join(WORDS)))
    entries = [*letters, *(f"{letter}</w>" for letter in letters), "ab", "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({entry: place for place, entry in enumerate(entries)}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    size = len(entries)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": size - 2, "eos_token_id": size - 1, "pad_token_id": size - 1}
    config = transformers.CLIPConfig(
        text_config={**tower, **ends, "vocab_size": size, "max_position_embeddings": 12},
        vision_config={**tower, "image_size": 32, "patch_size": 8},
        projection_dim=8,
    )
    torch.manual_seed(seed)
    transformers.CLIPModel(config).save_pretrained(folder)
    return folder


def test_search_by_text_asks_the_clip_that_made_the_targets(train, tmp_path, answer, refused):
    clip = write_clip(tmp_path / "clip", 0)
    other = write_clip(tmp_path / "other", 1)
    run = train("--teacher", str(clip), "--clip-dim", "8")
    got = answer("infer", "video", run, "--text", "a rabbit", "--top-k", 2)
    assert len(got["search"]["hits"]) == 2
    assert got["files"]["search"].endswith("search_a_rabbit.png")
    path = tmp_path / "clip.fwv"
    answer("export", run, "--to", "bitstream", "-o", path)
    alone = answer("infer", "video", path, "--text", "a rabbit", "--teacher", clip)
    assert alone["search"]["agreement"] is None
    message = refused("infer", "video", path, "--text", "a rabbit", "--teacher", other)
    assert "here is clip-8-" in message
    shutil.copytree(other, clip, dirs_exist_ok=True)
    assert "targets by clip-8-" in refused("infer", "video", run, "--text", "a rabbit")


def test_help_shows_an_example(fieldwatch):
    code, out, _ = fieldwatch("infer", "video", "--help")
    assert code == 0
    assert "fieldwatch infer video" in out
