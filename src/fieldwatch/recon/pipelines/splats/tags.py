"""Every tag a splats run records beyond the toolkit's: those of the original tool, with what they said wrongly mended.

`GB` and `MB` are GiB and MiB, as in the original tool. What does not apply is absent, never zero instead.
"""

from collections.abc import Iterator

from fieldwatch import Catalogue, Metric
from fieldwatch.pipeline import Better
from fieldwatch.recon.pipelines.splats.mesh_tags import MESH

ACTIVE = 0.01
"""Opacity above which a Gaussian counts as active."""
TRANSPARENT = 0.005
"""Opacity below which a Gaussian is transparent: density control prunes it (Kerbl 2023, section 5.2)."""
GIANT = 0.1
"""Standard deviation, in shares of the scene's size, above which a Gaussian is giant."""
NEEDLE = 10.0
"""Longest axis over the second one: beyond it a Gaussian is a needle, its effective rank below 1.12 (Hyung 2024)."""
REST_EVERY = 5
"""`Stats/sh_rest_*` and `Population/non_finite` are taken at every fifth look only: they read every coefficient."""

_RARELY = f"taken at every {REST_EVERY}th look"
_PARTS = {
    "points": "the centres, world units",
    "scales": "the standard deviations along the axes, world units (after the exponential; without the 3D filter)",
    "quaternions": "the quaternions as they are held, before they are normalised",
    "sh_dc": "the constant colour coefficients",
    "sh_rest": f"the coefficients of what changes with the direction; {_RARELY}",
    "opacities": "the opacities, 0 to 1",
}


def _metric(name: str, unit: str, meaning: str, better: Better = "none", expected: str = "") -> Metric:
    return Metric(name=name, unit=unit, meaning=meaning, better=better, expected=expected)


TRAIN = (
    _metric(
        "Train/PSNR",
        "dB",
        "PSNR of this step's training photo, where it is not masked, before the update.",
        "higher",
        "rises; photos differ by several dB, so read its mean, or one photo's visits",
    ),
)

TEST = (
    _metric(
        "Test/psnr",
        "dB",
        "Mean PSNR over the held-out photos, colours clamped to 0 .. 1; over training photos where none is held out.",
        "higher",
        "rises",
    ),
    _metric("Test/loss", "", "Mean absolute error over the held-out photos: Test/l1 under its old name.", "lower"),
    _metric("Test/l1", "", "Mean absolute error over the held-out photos.", "lower", "falls"),
    _metric("Test/ssim", "", "Mean SSIM (11 x 11 Gaussian window) over the held-out photos.", "higher", "towards 1"),
    _metric(
        "Test/lpips",
        "",
        "Mean LPIPS over the held-out photos; absent where the network's weights are not on disk.",
        "lower",
        "falls; it sees blur that PSNR forgives",
    ),
    _metric("Test/render_time_ms", "ms", "Mean time to draw one held-out photo, all harmonics.", "lower"),
    _metric("Test/num_gaussians_K", "", "Gaussians at the evaluation, in thousands."),
    _metric(
        "Test/psnr_as_drawn",
        "dB",
        "Test/psnr without any colour map; only with --exposure, where Test/psnr, ssim, l1 and lpips are of images "
        "under the mean map of the training photos before and after by name: the held-out photo is not looked at.",
        "higher",
        "below Test/psnr: no photo is exposed as their mean is",
    ),
    _metric(
        "Test/psnr_fitted",
        "dB",
        "Test/psnr after a colour map was fitted to each held-out photo itself, by tiles: each under a map that the "
        "others gave; only with --exposure.",
        "higher",
        "at least Test/psnr: the difference is exposure, not geometry",
    ),
    _metric("Test/ssim_fitted", "", "Test/ssim after that colour map; only with --exposure.", "higher", "towards 1"),
    _metric(
        "Test/train_psnr",
        "dB",
        "Mean PSNR over up to 8 training photos at the evaluation, under their colour maps with --exposure.",
        "higher",
        "rises",
    ),
    _metric(
        "Test/psnr_gap",
        "dB",
        "Test/train_psnr minus Test/psnr; absent when nothing is held out.",
        "lower",
        "below 3 dB generalises, above 5 dB memorises",
    ),
)

SURFACE = (
    _metric(
        "Surface/mean_distance",
        "",
        "Mean distance of the opaque Gaussians' centres to the true surface, world units; absent where that is not "
        "known, as the others here.",
        "lower",
        "falls when the surface terms begin; it follows strays, which the median does not",
    ),
    _metric(
        "Surface/median_distance",
        "",
        "Median distance of the opaque Gaussians' centres to the true surface, world units.",
        "lower",
        "falls",
    ),
    _metric(
        "Surface/within_1_percent",
        "",
        "Share of the opaque Gaussians whose centre lies within 1 % of the extent of the true surface.",
        "higher",
        "rises towards 1",
    ),
)

CLOCK = (
    _metric(
        "Time/minutes_per_iter",
        "min",
        "Minutes per iteration since the last look (the original tool wrote the total time under this name).",
        "lower",
    ),
    _metric("Time/elapsed_minutes", "min", "Training time so far, over all segments of the run."),
    _metric("Performance/iterations_per_sec", "1/s", "Iterations per second since the last look.", "higher"),
    _metric(
        "Performance/eta_minutes",
        "min",
        "Iterations to come at the mean speed of the last looks, pauses for evaluations counted in.",
        "lower",
    ),
)

MACHINE = (
    _metric("VRAM/allocated_GB", "GiB", "Held by this process's tensors; absent on a CPU.", "lower"),
    _metric("VRAM/reserved_GB", "GiB", "Taken from the device by this process's allocator; absent on a CPU.", "lower"),
    _metric(
        "VRAM/percent",
        "%",
        "VRAM/reserved_GB of what the device has; this process alone, absent on a CPU.",
        "lower",
        "below 90: a growth step needs room",
    ),
    _metric("System/RAM_percent", "%", "Main memory of the machine that is not available.", "lower"),
    _metric("System/CPU_percent", "%", "Use of all processors of the machine since the last look."),
)


def _statistics() -> Iterator[Metric]:
    for name, meaning in _PARTS.items():
        yield _metric(f"Stats/{name}_mean", "", f"Mean over all entries of {meaning}.", "steady")
        spread = f"Sample standard deviation over all entries of {meaning}."
        yield _metric(f"Stats/{name}_std", "", spread, "steady", "moves slowly but for growth, prunes and resets")
    yield _metric("Stats/n_active_gaussians", "", f"Gaussians with an opacity above {ACTIVE}.")
    yield _metric(
        "Stats/n_gaussians_sdf_sampling",
        "",
        "Gaussians that the density or SDF term draws its samples from; absent while the term is off.",
    )


STATISTICS = tuple(_statistics())

HISTOGRAMS = (
    Metric(
        name="Histograms/scales",
        unit="",
        meaning="Distribution of the standard deviations along the axes, world units.",
        kind="histogram",
        expected="one hump; a second one on the left are discs",
    ),
    Metric(
        name="Histograms/opacities",
        unit="",
        meaning="Distribution of the opacities.",
        kind="histogram",
        expected="the entropy term drives it to 0 and 1",
    ),
)

PICTURES = tuple(
    Metric(name=f"Test/{name}", unit="", meaning=meaning, kind="image", expected=expected)
    for name, meaning, expected in (
        ("worst_views", "Photo, drawing and error of the held-out photos with the lowest PSNR.", "errors turn dark"),
        ("normals", "Drawn normals of a held-out view, in camera axes, as colours.", "smooth where the surface is"),
        ("depth", "Drawn depth of a held-out view.", "edges where objects end, and nowhere else"),
    )
)

POPULATION = (
    _metric(
        "Population/transparent",
        "",
        f"Share of the Gaussians with an opacity below {TRANSPARENT}: they cost, and show nothing.",
        "lower",
        "small but after a reset, and in the entropy phase until its prune",
    ),
    _metric(
        "Population/giant",
        "",
        f"Share of the Gaussians with a standard deviation above {GIANT} of the scene's size: the cameras' extent, or "
        "the median distance of the points from the nearest camera where that is longer.",
        "lower",
        "below 0.05; a far background needs some",
    ),
    _metric(
        "Population/needle",
        "",
        f"Share of the Gaussians whose longest axis is over {NEEDLE:g} times the second one: no surface, no volume.",
        "lower",
        "below 0.3; discs, with two long axes, are no needles",
    ),
    _metric(
        "Population/never_visible",
        "",
        "Share of the Gaussians that no step has shown for two rounds of the training photos; absent until their "
        "number has stood still for so long.",
        "lower",
        "below 0.05 after growth: nothing trains these",
    ),
    _metric(
        "Population/non_finite",
        "",
        f"Share of the Gaussians with a value that is not finite; {_RARELY}.",
        "lower",
        "0",
    ),
    _metric("Population/visible", "", "Share of the Gaussians that this step's photo showed.", "none", "0.1 to 0.9"),
)

GUIDE = (
    Metric(
        name="Training_Guide",
        unit="",
        meaning="What this run does when, and what to look at first; shown at the start.",
        kind="text",
    ),
)

SPLATS_METRICS = Catalogue(
    (
        *TRAIN,
        *TEST,
        *SURFACE,
        *POPULATION,
        *STATISTICS,
        *HISTOGRAMS,
        *CLOCK,
        *MACHINE,
        *PICTURES,
        *GUIDE,
        *MESH,
    )
)
"""Every tag of a splats run beyond the toolkit's."""
