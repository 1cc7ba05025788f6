"""Dashboard layout of a splats run: the most important charts come first."""

from fieldwatch import Chart, Layout, Tab
from fieldwatch.pipeline import MEMORY_TAB
from fieldwatch.recon.pipelines.splats.config import SURFACE_TERMS

_OVERVIEW = (
    Chart.of("PSNR: training photo and held-out photos", "Train/PSNR", "Test/psnr"),
    Chart.of("Total loss", "Loss/total"),
    Chart.of("Gaussians", "Model/size", "Stats/n_active_gaussians"),
)
_LOSSES = (
    Chart.matching("Loss Composition Analysis", "Loss/component_[^/]+"),
    Chart.of("Total and rendering loss", "Loss/total", "Loss/component_rendering"),
    Chart.matching("Weighted terms", "Loss/weighted_[^/]+"),
    Chart.matching("Fraction of the total", "Loss/share_[^/]+"),
)
_QUALITY = (
    Chart.of("PSNR", "Test/psnr", "Test/psnr_fitted", "Test/psnr_as_drawn", "Test/train_psnr", "Baseline/Test/psnr"),
    Chart.of("PSNR gap", "Test/psnr_gap"),
    Chart.of("SSIM", "Test/ssim", "Test/ssim_fitted"),
    Chart.of("LPIPS", "Test/lpips"),
    Chart.of("Test Loss Analysis", "Test/loss"),
)
_SURFACE = (
    Chart.of("Distance to the true surface", "Surface/mean_distance", "Surface/median_distance"),
    Chart.of("Within 1 % of the extent", "Surface/within_1_percent"),
    Chart.of(
        "Surface terms",
        *(f"Loss/component_{term}" for term in SURFACE_TERMS),
    ),
)
_POPULATION = (
    Chart.of("Transparent", "Population/transparent"),
    Chart.of("Giants and needles", "Population/giant", "Population/needle"),
    Chart.of("Visible in the step, not visible for two epochs", "Population/visible", "Population/never_visible"),
    Chart.of("Non-finite", "Population/non_finite"),
)
_GROWTH = (
    Chart.of("Gaussians", "Model/size"),
    Chart.of("Visible Gaussians per step", "Model/work"),
    Chart.of("Memory of the parameters (MiB)", "Memory/parameters_MB"),
    Chart.of("Gaussians sampled by the density terms", "Stats/n_gaussians_sdf_sampling"),
)
_STATISTICS = tuple(
    Chart.of(title, f"Stats/{name}_mean", f"Stats/{name}_std")
    for title, name in (
        ("Centers", "points"),
        ("Scales", "scales"),
        ("Quaternions", "quaternions"),
        ("SH coefficients of degree 0", "sh_dc"),
        ("SH coefficients of degree 1 and above", "sh_rest"),
        ("Opacities", "opacities"),
    )
)
_PERFORMANCE = (
    Chart.of("Iterations per second", "Performance/iterations_per_sec"),
    Chart.of("Elapsed and remaining time (min)", "Time/elapsed_minutes", "Performance/eta_minutes"),
    # The lookahead excludes the two tags of the original tool that are not times of spans.
    Chart.matching("Step time by span (ms)", "Time/(?!minutes_per_iter|elapsed_minutes)[^/]+"),
    Chart.of("Render time per held-out photo (ms)", "Test/render_time_ms"),
    Chart.of("VRAM of this process (GiB)", "VRAM/allocated_GB", "VRAM/reserved_GB"),
    Chart.of("Utilization (%)", "VRAM/percent", "System/RAM_percent", "System/CPU_percent"),
)
_MESH = (
    Chart.of("Vertices, edges and triangles", *(f"Mesh/Topology/n_{part}" for part in ("vertices", "edges", "faces"))),
    Chart.matching("Watertightness and defects", "Mesh/Topology/(?!n_(vertices|edges|faces)$)[^/]+"),
    Chart.matching("Triangles", "Mesh/Quality/[^/]+"),
    Chart.matching("Size", "Mesh/Geometry/[^/]+"),
    Chart.matching("Smoothness", "Mesh/Surface/[^/]+"),
    Chart.matching("Distance to the Gaussians", "Mesh/GaussianFit/[^/]+"),
)

SPLATS_LAYOUT = Layout(
    tabs=(
        Tab(title="Overview", charts=_OVERVIEW),
        Tab(title="Loss components", charts=_LOSSES),
        Tab(title="Held-out photos", charts=_QUALITY),
        Tab(title="Surface", charts=_SURFACE),
        Tab(title="Population", charts=_POPULATION),
        Tab(title="Densification", charts=_GROWTH),
        Tab(title="Statistics", charts=_STATISTICS),
        Tab(title="Test mesh", charts=_MESH),
        Tab(title="Performance", charts=_PERFORMANCE),
        MEMORY_TAB,
    )
)
"""Dashboard layout of splats runs and refinements."""
