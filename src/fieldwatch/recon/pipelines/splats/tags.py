"""Metrics that splats runs record in addition to the toolkit's: the original tool's tags, with corrected meanings.

The suffixes `GB` and `MB` of tags stand for GiB and MiB, as in the original tool. A metric that does not apply is
absent, never zero.
"""

from collections.abc import Iterator

from fieldwatch import Catalogue, Metric
from fieldwatch.pipeline import Better
from fieldwatch.recon.pipelines.splats.mesh_tags import MESH

ACTIVE = 0.01
"""Opacity above which a Gaussian counts as active."""
TRANSPARENT = 0.005
"""Opacity below which a Gaussian is transparent and density control prunes it (Kerbl 2023, section 5.2)."""
GIANT = 0.1
"""Standard deviation, as a fraction of the scene's size, above which a Gaussian is giant."""
NEEDLE = 10.0
"""Ratio of longest to second axis above which a Gaussian is a needle: an effective rank below 1.12 (Hyung 2024)."""
REST_EVERY = 5
"""Interval, in recordings, of `Stats/sh_rest_*` and `Population/non_finite`, which read every coefficient."""

_RARELY = f"recorded at every {REST_EVERY}th interval"
# The part of the tag `Stats/<part>_mean`, and what the statistic is taken over.
_PARTS = {
    "points": "the centers, world units",
    "scales": "the standard deviations along the axes, world units (after the exponential; without the 3D filter)",
    "quaternions": "the stored quaternions, before normalization",
    "sh_dc": "the SH coefficients of degree 0",
    "sh_rest": f"the SH coefficients of degree 1 and above; {_RARELY}",
    "opacities": "the opacities, 0 to 1",
}


def _metric(name: str, unit: str, meaning: str, better: Better = "none", expected: str = "") -> Metric:
    return Metric(name=name, unit=unit, meaning=meaning, better=better, expected=expected)


TRAIN = (
    _metric(
        "Train/PSNR",
        "dB",
        "PSNR of this step's training photo over its unmasked pixels, before the update; NaN if all are masked.",
        "higher",
        "rises; photos differ by several dB, so compare means or the values of a single photo",
    ),
)

TEST = (
    _metric(
        "Test/psnr",
        "dB",
        "Mean PSNR over the held-out photos, colors clamped to 0 .. 1; over training photos if none is held out.",
        "higher",
        "rises",
    ),
    _metric(
        "Baseline/Test/psnr",
        "dB",
        "Test/psnr of a constant image in the mean color of up to 8 training photos: the baseline without training.",
        "none",
        "Test/psnr is far above it",
    ),
    _metric("Test/loss", "", "Mean absolute error over the held-out photos; the old name of Test/l1.", "lower"),
    _metric("Test/l1", "", "Mean absolute error over the held-out photos.", "lower", "falls"),
    _metric("Test/ssim", "", "Mean SSIM (11 x 11 Gaussian window) over the held-out photos.", "higher", "toward 1"),
    _metric(
        "Test/lpips",
        "",
        "Mean LPIPS over the held-out photos; absent if the network's weights are not on disk.",
        "lower",
        "falls; it penalizes blur that PSNR tolerates",
    ),
    _metric("Test/render_time_ms", "ms", "Mean time to render one held-out photo at the full SH degree.", "lower"),
    _metric("Test/num_gaussians_K", "", "Number of Gaussians at the evaluation, in thousands."),
    _metric(
        "Test/psnr_as_drawn",
        "dB",
        "Test/psnr without color transforms; only with --exposure, where Test/psnr, ssim, l1 and lpips are computed "
        "under the mean transform of the training photos before and after by name; the held-out photo is not used.",
        "higher",
        "below Test/psnr: photos are exposed differently than their mean",
    ),
    _metric(
        "Test/psnr_fitted",
        "dB",
        "Test/psnr with a color transform fitted to each held-out photo, cross-validated by tiles: each tile uses the "
        "transform fitted to the others; only with --exposure.",
        "higher",
        "at least Test/psnr: the difference is exposure, not geometry",
    ),
    _metric("Test/ssim_fitted", "", "Test/ssim with the fitted transform; only with --exposure.", "higher", "rises"),
    _metric(
        "Test/train_psnr",
        "dB",
        "Mean PSNR over up to 8 training photos at the evaluation, under their color transforms with --exposure.",
        "higher",
        "rises",
    ),
    _metric(
        "Test/psnr_gap",
        "dB",
        "Test/train_psnr minus Test/psnr; absent if no photo is held out.",
        "lower",
        "below 3 dB generalizes, above 5 dB memorizes",
    ),
)

SURFACE = (
    _metric(
        "Surface/mean_distance",
        "",
        "Mean distance of the opaque Gaussians' centers to the true surface, world units; like all Surface metrics, "
        "absent if the true surface is unknown.",
        "lower",
        "falls when the surface terms begin; unlike the median, sensitive to strays",
    ),
    _metric(
        "Surface/median_distance",
        "",
        "Median distance of the opaque Gaussians' centers to the true surface, world units.",
        "lower",
        "falls",
    ),
    _metric(
        "Surface/within_1_percent",
        "",
        "Fraction of the opaque Gaussians whose center is within 1 % of the scene's extent of the true surface.",
        "higher",
        "rises toward 1",
    ),
)

CLOCK = (
    _metric(
        "Time/minutes_per_iter",
        "min",
        "Minutes per iteration since the last recording (the original tool recorded the total time under this name).",
        "lower",
    ),
    _metric("Time/elapsed_minutes", "min", "Training time so far, over all segments of the run."),
    _metric("Performance/iterations_per_sec", "1/s", "Iterations per second since the last recording.", "higher"),
    _metric(
        "Performance/eta_minutes",
        "min",
        "Remaining time, at the mean speed of the last recordings including pauses for evaluations.",
        "lower",
    ),
)

MACHINE = (
    _metric("VRAM/allocated_GB", "GiB", "Device memory of this process's tensors; absent on a CPU.", "lower"),
    _metric("VRAM/reserved_GB", "GiB", "Device memory reserved by this process's allocator; absent on a CPU.", "lower"),
    _metric(
        "VRAM/percent",
        "%",
        "VRAM/reserved_GB as a percentage of the device's memory; this process only, absent on a CPU.",
        "lower",
        "below 90: densification needs headroom",
    ),
    _metric("System/RAM_percent", "%", "Percentage of the machine's main memory that is not available.", "lower"),
    _metric("System/CPU_percent", "%", "Utilization of all processors of the machine since the last recording."),
)


def _statistics() -> Iterator[Metric]:
    # The tags and their parts are those of the original tool.
    for name, meaning in _PARTS.items():
        yield _metric(f"Stats/{name}_mean", "", f"Mean over all entries of {meaning}.", "steady")
        spread = f"Sample standard deviation over all entries of {meaning}."
        yield _metric(f"Stats/{name}_std", "", spread, "steady", "changes slowly except at densification and resets")
    yield _metric("Stats/n_active_gaussians", "", f"Number of Gaussians with an opacity above {ACTIVE}.")
    yield _metric(
        "Stats/n_gaussians_sdf_sampling",
        "",
        "Number of Gaussians that the density or SDF term samples from; absent while the term is off.",
    )


STATISTICS = tuple(_statistics())

HISTOGRAMS = (
    Metric(
        name="Histograms/scales",
        unit="",
        meaning="Distribution of the standard deviations along the axes, world units.",
        kind="histogram",
        expected="one mode; discs form a second one on the left",
    ),
    Metric(
        name="Histograms/opacities",
        unit="",
        meaning="Distribution of the opacities.",
        kind="histogram",
        expected="the entropy term drives them to 0 and 1",
    ),
)

PICTURES = tuple(
    Metric(name=f"Test/{name}", unit="", meaning=meaning, kind="image", expected=expected)
    for name, meaning, expected in (
        ("worst_views", "Photo, rendering and error of the held-out photos with the lowest PSNR.", "errors get darker"),
        ("normals", "Rendered normals of a held-out view, in camera axes, as colors.", "smooth where the surface is"),
        ("depth", "Rendered depth of a held-out view.", "edges only at object boundaries"),
    )
)

SUSPECTS = (
    Metric(
        name="Suspects/photo",
        unit="",
        meaning="A photo that a rule named as wrong: photo, rendering, error, and the photos of the nearest cameras.",
        kind="image",
    ),
)

POPULATION = (
    _metric(
        "Population/transparent",
        "",
        f"Fraction of the Gaussians with an opacity below {TRANSPARENT}: cost without contribution.",
        "lower",
        "small, except after a reset and in the entropy phase until its prune",
    ),
    _metric(
        "Population/giant",
        "",
        f"Fraction of the Gaussians with a standard deviation above {GIANT} of the scene's size: the cameras' extent, "
        "or the median distance of the points from the nearest camera if that is larger.",
        "lower",
        "below 0.05; a distant background needs some",
    ),
    _metric(
        "Population/needle",
        "",
        f"Fraction of the Gaussians whose longest axis is over {NEEDLE:g} times the second: they define no surface.",
        "lower",
        "below 0.3; discs have two long axes and do not count",
    ),
    _metric(
        "Population/never_visible",
        "",
        "Fraction of the Gaussians that were visible in no step for two epochs of the training photos; absent until "
        "the number of Gaussians has been constant for that long.",
        "lower",
        "below 0.05 after densification: these receive no gradient",
    ),
    _metric(
        "Population/non_finite",
        "",
        f"Fraction of the Gaussians with a non-finite parameter; {_RARELY}.",
        "lower",
        "0",
    ),
    _metric("Population/visible", "", "Fraction of the Gaussians visible in this step.", "none", "0.1 to 0.9"),
)

GUIDE = (
    Metric(
        name="Training_Guide",
        unit="",
        meaning="Schedule of this run and the most important metrics; recorded at the start.",
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
        *SUSPECTS,
        *GUIDE,
        *MESH,
    )
)
"""All metrics of a splats run in addition to the toolkit's."""
