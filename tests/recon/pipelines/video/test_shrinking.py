"""Networks that are trained on for a smaller file: its size, its quality, and what is refused."""

from dataclasses import replace

import pytest
import torch
from torch.distributions import Laplace

from fieldwatch import InputError
from fieldwatch.recon.data import synthetic_clip, write_video
from fieldwatch.recon.pipelines.video import VideoConfig, open_run, prepare_scene, shrinking, train_video
from fieldwatch.recon.pipelines.video.bitstream import CodecOptions, read_bitstream
from fieldwatch.recon.pipelines.video.models import ModelOptions
from fieldwatch.recon.pipelines.video.objective import video_terms
from fieldwatch.recon.pipelines.video.products import export_bitstream
from fieldwatch.recon.pipelines.video.shrinking import laplace_bits, shrink

OPTIONS = ModelOptions(
    grid_cells=(4, 2),
    grid_widths=(8, 8),
    grid_channels=(4, 2),
    grid_periods=(1, 2),
    grid_static=(4, 0),
    grid_blocks=(1, 1),
    grid_kernel=3,
)
DROP = 1.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small network, trained for pixels only."""
    folder = tmp_path_factory.mktemp("video")
    film = write_video(folder / "film.mp4", iter(synthetic_clip(8, 32, 64)), rate=8)
    config = VideoConfig(
        data=film, cache=folder / "cache", rows=2, columns=2, teacher="descriptor", model="grid", options=OPTIONS,
        data_split="3_3_4", clip_loss_weight=0.0, between_weight=0.0, batch=2, epochs=60, eval_freq=60, lr=1e-2,
        checkpoint_epochs=60, threads=1, device="cpu",
    )  # fmt: skip
    train_video(config, prepare_scene(config), folder / "run", sinks=())
    return open_run(folder / "run")


def test_a_shrunk_file_is_smaller_than_one_of_fewer_bits_and_spends_the_drop(run, tmp_path):
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    fewer = export_bitstream(run, tmp_path / "fewer.fwv", CodecOptions(), psnr_drop=DROP)
    passes = []
    shrunk = export_bitstream(
        run, tmp_path / "shrunk.fwv", CodecOptions(), psnr_drop=DROP, shrink_epochs=120, stage=passes.append
    )
    # Half to two thirds, with other seeds, too.
    assert shrunk.written.bytes < 0.75 * fewer.written.bytes
    # The price aims at the drop, and may miss it a little in so few steps; `fieldwatch export` then ends with 1.
    assert abs(shrunk.drop - DROP) < 0.15
    assert sum("pass" in each for each in passes) == 120
    # The run keeps its weights.
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.model.state_dict().items())
    # What was written is what is read.
    state = read_bitstream(tmp_path / "shrunk.fwv").state
    for name, step in shrunk.options.steps.items():
        multiples = state[name] / step
        assert torch.allclose(multiples, multiples.round(), atol=1e-2)


def test_shrinking_repeats_to_the_bit(run):
    one, other = (shrink(run, epochs=2, psnr_drop=DROP) for _ in range(2))
    assert one.steps == other.steps
    assert all(torch.equal(tensor, other.state[name]) for name, tensor in one.state.items())


def test_interpolated_frames_stay_part_of_the_training(run, monkeypatch):
    """Without them, the frames that are held out would get worse."""
    seen = []

    def watched(config, prediction, batch):
        seen.extend(batch.stands_in)
        return video_terms(config, prediction, batch)

    monkeypatch.setattr(shrinking, "video_terms", watched)
    shrink(replace(run, config=replace(run.config, between_weight=1.0)), epochs=1, psnr_drop=DROP)
    assert any(seen)
    assert not all(seen)


@pytest.mark.parametrize("scale", [0.05, 0.4, 3.0, 200.0])
def test_the_bits_are_those_of_the_distribution(scale):
    torch.manual_seed(0)
    multiples = Laplace(0.0, scale).sample((10_000,)).double()
    fitted = Laplace(0.0, multiples.abs().mean())
    expected = -torch.log2(fitted.cdf(multiples + 0.5) - fitted.cdf(multiples - 0.5))
    # Far out, the difference of two values of the distribution is rounding.
    near = multiples.abs() < 12 * scale
    assert torch.allclose(laplace_bits(multiples)[near], expected[near], rtol=1e-3, atol=1e-6)
    assert bool(torch.isfinite(laplace_bits(1e4 * multiples)).all())


def test_what_cannot_be_shrunk_is_refused_before_anything_is_written(run, tmp_path, monkeypatch):
    path = tmp_path / "clip.fwv"
    with pytest.raises(InputError, match="--no-clip-head"):
        export_bitstream(replace(run, head_trained=True), path, CodecOptions(), shrink_epochs=1)
    with pytest.raises(InputError, match="at least 0, got -1"):
        export_bitstream(run, path, CodecOptions(), shrink_epochs=-1)
    monkeypatch.setattr(type(run.model), "needs_frames", True)
    with pytest.raises(InputError, match="encodes frames"):
        export_bitstream(run, path, CodecOptions(), shrink_epochs=1)
    assert not path.exists()


def test_a_loss_that_is_not_finite_stops(run):
    broken = replace(run, config=replace(run.config, lr=1e35))
    with pytest.raises(FloatingPointError, match="pass 1 of --shrink-epochs 3"):
        shrink(broken, epochs=3, psnr_drop=DROP)
