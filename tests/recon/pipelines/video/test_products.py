"""Playback of runs and files, and the files of an evaluation and an export, for all four networks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.recon.data import synthetic_clip
from fieldwatch.recon.pipelines.video.bitstream import BitstreamError, CodecOptions, model_config, write_bitstream
from fieldwatch.recon.pipelines.video.config import VideoConfig
from fieldwatch.recon.pipelines.video.evaluation import evaluate, render_frame
from fieldwatch.recon.pipelines.video.models import ModelOptions, build_model
from fieldwatch.recon.pipelines.video.playback import Playback, save_picture
from fieldwatch.recon.pipelines.video.products import (
    ATTEMPTS,
    decoding_speed,
    export_bitstream,
    frames_to_render,
    write_evaluation,
)
from fieldwatch.recon.pipelines.video.start import prepare_scene
from fieldwatch.recon.pipelines.video.stored import StoredVideoRun

FRAMES = 6
ROWS = 2
COLUMNS = 2
OPTIONS = ModelOptions(fc_dim=8, lower_width=4, enc_strds=(4, 4), grid_widths=(8, 8, 8), grid_blocks=(0, 0, 0))
MODELS = ("grid", "dual", "hnerv", "nerv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frames")
    for i, frame in enumerate(synthetic_clip(FRAMES, 32, 64)):
        Image.fromarray(frame.permute(1, 2, 0).numpy()).save(folder / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    """A network with fresh weights per model, as if it had been trained."""

    def opened(name):
        data = {"data": folder, "cache": folder / "cache", "rows": ROWS, "columns": COLUMNS, "teacher": "descriptor"}
        config = VideoConfig(**data, model=name, options=OPTIONS, data_split="2_2_3", device="cpu")
        scene = prepare_scene(config)
        torch.manual_seed(1)
        model = build_model(name, scene.geometry, OPTIONS).eval()
        return StoredVideoRun(folder=folder, config=config, scene=scene, model=model, step=10, head_trained=True)

    return {name: opened(name) for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_playback_draws_what_the_evaluation_scores(runs, name):
    run = runs[name]
    player = Playback.of_run(run)
    embeddings = player.embeddings()
    for index in (0, FRAMES - 1):
        patches, embedding, _ = render_frame(run.model, run.scene, index)
        frame = player.frame(index)
        assert torch.allclose(frame, run.scene.grid.join(patches)[0], atol=1e-6)
        assert torch.equal(player.patch(index, 1, 0), frame[:, 16:, :32])
        assert torch.allclose(embeddings[index], embedding, atol=1e-6)
    assert [tuple(frame.shape) for frame in player.all_frames()] == [(3, 32, 64)] * FRAMES


@pytest.mark.parametrize("name", MODELS)
def test_a_bitstream_draws_and_embeds_alone(runs, name, tmp_path):
    run = runs[name]
    export_bitstream(run, tmp_path / "clip.fwv", CodecOptions(bits=12, embedding_bits=12))
    alone = Playback.of_bitstream(tmp_path / "clip.fwv", "cpu")
    player = Playback.of_run(run)
    assert (alone.targets, alone.frame_at) == (None, None)
    assert alone.origin == player.origin
    assert float((alone.frame(3) - player.frame(3)).abs().max()) < 0.01
    assert float((alone.embeddings() * player.embeddings()).sum(-1).min()) > 0.999


@pytest.mark.parametrize("name", ["grid", "dual", "nerv"])
def test_between_two_frames_something_else_is_drawn(runs, name):
    player = Playback.of_run(runs[name])
    assert not player.whole_frames_only
    drawn = [player.frame(time) for time in (2, 2.5, 3)]
    assert all(bool((one != other).any()) for one, other in ((drawn[0], drawn[1]), (drawn[1], drawn[2])))


def test_what_cannot_be_drawn_is_refused(runs):
    player = Playback.of_run(runs["hnerv"])
    for time in (-1, 6, 5.01, float("nan")):
        with pytest.raises(ValueError, match="whose 6 frames are 0 to 5"):
            player.frame(time)
    with pytest.raises(ValueError, match=r"time 2\.5.*hnerv.*--model grid"):
        player.frame(2.5)
    for row, column in ((2, 0), (0, 2), (-1, 0)):
        with pytest.raises(ValueError, match=r"grid of 2 x 2 patches: rows are 0 to 1, columns 0 to 1"):
            player.patch(0, row, column)
    blind = Playback.of_run(replace(runs["grid"], head_trained=False))
    with pytest.raises(ValueError, match=r"--clip-loss-weight 0.*--pixel-loss-warmup-epochs"):
        blind.index()


def test_a_bitstream_of_somebody_elses_loop_is_refused(runs, tmp_path):
    run = runs["nerv"]
    config = model_config("nerv", run.scene.geometry, run.config.options)
    write_bitstream(tmp_path / "own.fwv", run.model.state_dict(), config)
    with pytest.raises(BitstreamError, match=r"own\.fwv .*'split'"):
        Playback.of_bitstream(tmp_path / "own.fwv")


@pytest.mark.parametrize("name", ["grid", "hnerv"])
@pytest.mark.parametrize("head_trained", [True, False])
def test_an_evaluation_draws_as_often_as_it_says(runs, name, head_trained, tmp_path):
    run = replace(runs[name], head_trained=head_trained)
    before = {key: value.clone() for key, value in run.model.state_dict().items()}
    drawn = []
    evaluated = write_evaluation(run, tmp_path, positions_frames=2, on_frame=lambda: drawn.append(1))
    assert len(drawn) == frames_to_render(run, 2)
    run.model(run.scene.batch("frame", torch.tensor([0]), with_frames=True).query, embed=False)
    assert len(drawn) == frames_to_render(run, 2)  # nobody watches any more
    assert all(torch.equal(value, before[key]) for key, value in run.model.state_dict().items())
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in evaluated.files.values()}
    wanted = evaluate(run.model, run.scene, embed=head_trained).metrics
    assert evaluated.metrics == pytest.approx(wanted | dict(run.scene.references))
    assert (evaluated.report is not None) == head_trained
    assert {row["category"] for row in evaluated.positions} >= {"trained_center", "untrained_corner"}


def test_without_held_out_frames_there_is_no_picture_of_them(runs, tmp_path):
    run = runs["grid"]
    scene = prepare_scene(replace(run.config, data_split="1_1_1"))
    files = write_evaluation(replace(run, scene=scene), tmp_path, positions_frames=0).files
    assert "worst_train_frames" in files
    assert not {"worst_val_frames", "fractional_positions_summary"} & files.keys()
    assert np.asarray(Image.open(files["worst_train_frames"])).shape[0] > 4 * 32


def test_an_export_reports_what_the_file_does(runs, tmp_path):
    run = runs["hnerv"]
    stages = []
    exported = export_bitstream(run, tmp_path / "clip.fwv", CodecOptions(bits=5), stage=stages.append)
    assert stages == ["evaluating the checkpoint", "writing, decoding and evaluating the file"]
    assert exported.before == evaluate(run.model, run.scene).metrics
    player = Playback.of_bitstream(tmp_path / "clip.fwv", "cpu")
    assert exported.after == evaluate(player.model, run.scene).metrics
    assert exported.before != exported.after
    assert exported.plain_bytes == sum(4 * parameter.numel() for parameter in run.model.state_dict().values())
    assert exported.written.bytes == (tmp_path / "clip.fwv").stat().st_size
    assert decoding_speed(player, repeats=1) > 0


def test_bits_are_given_out_until_the_measured_drop_fits(runs, tmp_path):
    run = runs["grid"]
    even = export_bitstream(run, tmp_path / "even.fwv", CodecOptions())
    kept = export_bitstream(run, tmp_path / "kept.fwv", CodecOptions(), psnr_drop=0.2)
    assert kept.drop <= 0.2
    assert kept.written.bytes < even.written.bytes
    names = {name for name, tensor in run.model.state_dict().items() if tensor.numel() >= 3}
    assert kept.options.by_prefix.keys() == {name for name in names if not name.startswith("clip_head.")}
    stages = []
    coarse = CodecOptions(bits=1)
    lost = export_bitstream(run, tmp_path / "lost.fwv", coarse, psnr_drop=1e-9, stage=stages.append)
    assert sum("bits per tensor" in stage for stage in stages) == (ATTEMPTS if lost.drop > 1e-9 else 1)


@pytest.mark.parametrize("drop", [0.0, -1.0, float("nan"), float("inf")])
def test_a_drop_without_meaning_is_refused_before_anything_is_written(runs, tmp_path, drop):
    with pytest.raises(ValueError, match=r"greater than 0, e\.g\. 0\.1"):
        export_bitstream(runs["grid"], tmp_path / "clip.fwv", CodecOptions(), psnr_drop=drop)
    assert list(tmp_path.iterdir()) == []


def test_an_untrained_head_is_left_out_of_the_file(runs, tmp_path):
    run = replace(runs["nerv"], head_trained=False)
    exported = export_bitstream(run, tmp_path / "clip.fwv", CodecOptions(with_clip_head=True))
    assert not exported.options.with_clip_head
    assert not any("clip_head" in part for part in exported.written.breakdown)
    assert "untrained" in Playback.of_bitstream(tmp_path / "clip.fwv").origin.no_head


def test_pictures_are_written_whole(tmp_path):
    image = torch.tensor([[-1.0, 0.5], [1.0, 2.0]]).expand(3, 2, 2)
    path = save_picture(tmp_path / "deep" / "one.png", image)
    assert np.asarray(Image.open(path))[..., 0].tolist() == [[0, 128], [255, 255]]
    pixels = np.zeros((4, 5, 3), np.uint8)
    assert np.asarray(Image.open(save_picture(path, pixels))).shape == (4, 5, 3)
    assert [one.name for one in path.parent.iterdir()] == ["one.png"]
