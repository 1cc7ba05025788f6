"""The model of a GPU's memory that the presets plan with, against what trainings hold on the pretended GPU."""

from pathlib import Path

import pytest

from fake_cuda.conftest import share_trials
from fake_cuda.training import RUNS, STOP, train
from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.data.colmap import write_colmap
from fieldwatch.recon.pipelines.splats.gpu_memory import GIB, most_gaussians, peak_memory
from fieldwatch.recon.pipelines.splats.presets import PRESETS
from fieldwatch.recon.render.splats import kernels

SIDE = 80
POINTS = 1500
OTHERS = 200_000  # bytes of a training that depend on neither Gaussians nor photos


@pytest.fixture
def fake_cuda(fake_cuda):
    """The device, on which kernels were tried."""
    return share_trials(fake_cuda)


@pytest.fixture
def scene(tmp_path):
    """Photos and points of a size that the model was not fitted to."""
    return write_colmap(tmp_path / "scene", solid_photos(views=6, size=SIDE, held_out=2, points=POINTS))


@pytest.mark.pretended
@pytest.mark.parametrize("growth", ["none", "adaptive"])
def test_the_model_is_above_what_a_training_holds_and_not_far(fake_cuda, growth, scene, tmp_path, monkeypatch):
    peaks = []
    pairs = []
    needed = kernels._Room.needed
    monkeypatch.setattr(kernels._Room, "needed", lambda *given: pairs.append(given[-1]) or needed(*given))

    def note(_, optimizers):
        gaussians = len(optimizers[0].param_groups[0]["params"][0])
        peaks.append((fake_cuda.memory.peak - OTHERS, gaussians))
        fake_cuda.memory.reset_peak()

    words = [*RUNS["splats-planar"](scene, tmp_path), "--degree", "3", "--growth", growth, "--growth-pull", "1e-6"]
    train(words, tmp_path / "run", stop=STOP + 4, at_step=note)
    peak, gaussians = max(peaks[1:])  # the first is the start of the run
    predicted = peak_memory(gaussians=gaussians, pixels=SIDE * SIDE, pairs=max(pairs))
    assert peak <= predicted <= 1.4 * peak


@pytest.mark.parametrize("memory", [8, 12, 24, 80])
def test_presets_fit_into_their_cards(memory):
    config = PRESETS[f"gpu-{memory}"]()
    cap = config.growth_options.growth_cap
    pixels = config.longer_side**2 * 3 // 4
    assert (
        peak_memory(gaussians=cap, pixels=pixels)
        <= 0.8 * memory * GIB
        < peak_memory(gaussians=cap + 200_000, pixels=pixels)
    )


def test_less_memory_or_more_pixels_hold_fewer():
    assert most_gaussians(8 * GIB, pixels=2_000_000) > most_gaussians(8 * GIB, pixels=8_000_000) > 1_000_000
    assert most_gaussians(GIB, pixels=100_000_000) == 0


def test_the_documentation_names_the_caps():
    page = (Path(__file__).parents[2] / "docs" / "splats.md").read_text()
    for name in ("gpu-8", "gpu-12", "gpu-24", "gpu-80"):
        assert f"{PRESETS[name]().growth_options.growth_cap:,}" in page
