"""Healthy runs stay silent under the rules of every pipeline."""

import numpy as np
import pytest

from fieldwatch.health import Examiner
from fieldwatch.health.rules import finite
from fieldwatch.recon.pipelines.normals import NORMALS_RULES
from fieldwatch.recon.pipelines.splats import SPLATS_RULES
from fieldwatch.recon.pipelines.video import VIDEO_RULES

STEPS = np.arange(4096)
EVAL = {"stride": 50, "axis": "epoch"}


@pytest.fixture
def rng():
    return np.random.default_rng(20_240_611)


def views(rng, count=4000, noise=None):
    """Losses of 40 views that differ by factors; all fall slowly, each wobbles."""
    who = rng.integers(0, 40, count)
    wobble = 1 + 0.03 * rng.standard_normal(count) if noise is None else noise
    return rng.lognormal(0, 0.7, 40)[who] * np.exp(-np.arange(count) / 3000) * wobble, [f"view_{i}" for i in who]


@pytest.mark.parametrize("kind", ["normal", "wide", "lognormal", "heavy tails"])
def test_noise_of_any_kind_is_no_warning(make, rng, kind):
    """Views that differ, with noise of 3 %, 15 %, 30 % and Student's t: nothing above a note in all rule sets."""
    draws = {
        "normal": 1 + 0.03 * rng.standard_normal(4000),
        "wide": np.abs(1 + 0.15 * rng.standard_normal(4000)),
        "lognormal": rng.lognormal(0, 0.3, 4000),
        "heavy tails": np.abs(1 + 0.05 * rng.standard_t(3, 4000)),
    }
    losses, names = views(rng, noise=draws[kind])
    history = make(({"Loss/total": losses}, {"samples": names}))
    found = Examiner((*VIDEO_RULES, *NORMALS_RULES, *SPLATS_RULES)).examine(history)
    assert [finding for finding in found if finding.severity != "note"] == []
    assert len(found) <= 3


def test_a_healthy_run_with_everything_recorded_is_silent(make, rng):
    """A steep start, a term that begins at 1500, a learning rate that decays to 0, evaluations, memory, times."""
    wobble = 1 + 0.05 * rng.standard_normal(4096)
    fall = (0.2 + 0.8 * np.exp(-STEPS / 300)) * wobble
    late = STEPS >= 1500
    rate = 1e-3 * np.cos(STEPS / 4096 * np.pi / 2) ** 4
    columns = {
        "Loss/total": 8 * fall + 2 * late,
        "Loss/component_rgb": fall,
        "Loss/weighted_rgb": 8 * fall,
        "Gradients/total_norm": 30 * fall,
        "Gradients/sdf_norm": 20 * fall,
        "Gradients/update_ratio_sdf": 2 * rate,
        "LearningRate/sdf": rate,
        "Guard/refused": (STEPS == 3) * 1.0,
        "Time/step": 40 * np.abs(wobble),
        "Time/data": 3 * np.abs(wobble),
        "samples_per_ray": 3 * np.abs(wobble),
        "occupied_frac": np.where(STEPS < 300, 1.0, 0.1),
    }
    term = {"Loss/component_clip": 0.2 * fall[late], "Loss/weighted_clip": fall[late] * 2}
    psnr = 30 - 18 * np.exp(-np.arange(80) / 10)
    epochs = {
        "Train/PSNR": psnr + 0.1 * rng.standard_normal(80),
        "Train/Loss/total_loss": np.exp(-np.arange(80) / 20),
        "Eval/Frame/train_psnr": psnr,
        "Eval/Frame/val_psnr": psnr - 2.5,
        "Eval/Gap/psnr_gap": np.full(80, 2.5),
        "Eval/Frame/val_clip_sim": np.where(np.arange(80) < 30, -0.02, 0.95),
        "Eval/Info/num_val_frames": np.full(80, 4.0),
        "Model/Params/clip_head_mean": np.where(np.arange(80) < 30, 0.1, 0.1 + 1e-3 * np.arange(80)),
        "Model/Params/clip_head_std": np.full(80, 0.02),
        "TensorProfiling/Tensor_Category/activations_MB": 900 + 90 * rng.standard_normal(80),
        "TensorProfiling/Tensor_Category/parameters_MB": np.full(80, 300.0),
        "TensorProfiling/fragmentation_percent": np.full(80, 24.0),
    }
    reference = {"Reference/train_mean_frame": [19.7]}
    parts = (columns, (term, {"first": 1500}), (epochs, EVAL), reference)
    history = make(*parts, windows={"rgb": (0, 9999), "clip": (1500, 9999)})
    assert Examiner((*VIDEO_RULES, *NORMALS_RULES, *SPLATS_RULES)).examine(history) == [
        finding for finding in finite.NonFinite()(history) if finding.severity == "note"
    ]
