"""The dashboard of a splats run: what the seeds tell people to look at, in that order."""

import re

from fieldwatch.record import MEMORY_TAB, Chart, Layout, Tab


def _chart(title: str, *tags: str) -> Chart:
    """One chart with exactly these tags on it."""
    return Chart(title=title, tags=tuple(f"^{re.escape(tag)}$" for tag in tags))


def _of(title: str, *patterns: str) -> Chart:
    """One chart with every tag that one of the patterns describes in full."""
    return Chart(title=title, tags=tuple(f"^{pattern}$" for pattern in patterns))


_OVERVIEW = (
    _chart("PSNR: training photo and held-out photos", "Train/PSNR", "Test/psnr"),
    _chart("Total loss", "Loss/total"),
    _chart("Gaussians", "Model/size", "Stats/n_active_gaussians"),
)
_LOSSES = (
    _of("Loss Composition Analysis", "Loss/component_[^/]+"),
    _chart("Total against rendering", "Loss/total", "Loss/component_rendering"),
    _of("Weighted terms: what each adds", "Loss/weighted_[^/]+"),
    _of("Share of the total", "Loss/share_[^/]+"),
)
_QUALITY = (
    _chart("PSNR", "Test/psnr", "Test/psnr_fitted", "Test/psnr_as_drawn", "Test/train_psnr"),
    _chart("PSNR gap", "Test/psnr_gap"),
    _chart("SSIM", "Test/ssim", "Test/ssim_fitted"),
    _chart("LPIPS", "Test/lpips"),
    _chart("Test Loss Analysis", "Test/loss"),
)
_SURFACE = (
    _chart("Distance to the true surface", "Surface/mean_distance", "Surface/median_distance"),
    _chart("Within 1 % of the extent", "Surface/within_1_percent"),
    _chart(
        "Terms of the surface",
        *(
            f"Loss/component_{term}"
            for term in (
                "depth_normal_consistency",
                "sdf_density",
                "sdf_estimation",
                "better_normal",
                "samples_on_surface",
                "smoothing",
                "flatness",
            )
        ),
    ),
)
_POPULATION = (
    _chart("Transparent", "Population/transparent"),
    _chart("Giants and needles", "Population/giant", "Population/needle"),
    _chart("Seen: in the step, and not for two rounds", "Population/visible", "Population/never_visible"),
    _chart("Not finite", "Population/non_finite"),
)
_GROWTH = (
    _chart("Gaussians", "Model/size"),
    _chart("Work of a step", "Model/work"),
    _chart("Memory of the parameters (MiB)", "Memory/parameters_MB"),
    _chart("Samples are drawn from", "Stats/n_gaussians_sdf_sampling"),
)
_STATISTICS = tuple(
    _chart(title, f"Stats/{name}_mean", f"Stats/{name}_std")
    for title, name in (
        ("Centres", "points"),
        ("Scales", "scales"),
        ("Quaternions", "quaternions"),
        ("Constant colours", "sh_dc"),
        ("Colours that change with the direction", "sh_rest"),
        ("Opacities", "opacities"),
    )
)
_PERFORMANCE = (
    _chart("Iterations per second", "Performance/iterations_per_sec"),
    _chart("Minutes: so far, and to come", "Time/elapsed_minutes", "Performance/eta_minutes"),
    _of("Time of a step, by span (ms)", "Time/(?!minutes_per_iter|elapsed_minutes)[^/]+"),
    _chart("Drawing a held-out photo (ms)", "Test/render_time_ms"),
    _chart("This process's VRAM (GiB)", "VRAM/allocated_GB", "VRAM/reserved_GB"),
    _chart("Percent in use", "VRAM/percent", "System/RAM_percent", "System/CPU_percent"),
)
_MESH = (
    _chart("Vertices, edges and triangles", *(f"Mesh/Topology/n_{part}" for part in ("vertices", "edges", "faces"))),
    _of("Closed, and what is in the way", "Mesh/Topology/(?!n_(vertices|edges|faces)$)[^/]+"),
    _of("Triangles", "Mesh/Quality/[^/]+"),
    _of("Size", "Mesh/Geometry/[^/]+"),
    _of("Smoothness", "Mesh/Surface/[^/]+"),
    _of("Distance to the Gaussians", "Mesh/GaussianFit/[^/]+"),
)

SPLATS_LAYOUT = Layout(
    tabs=(
        Tab(title="Overview", charts=_OVERVIEW),
        Tab(title="Loss components", charts=_LOSSES),
        Tab(title="Held-out photos", charts=_QUALITY),
        Tab(title="Surface", charts=_SURFACE),
        Tab(title="Population", charts=_POPULATION),
        Tab(title="Growth", charts=_GROWTH),
        Tab(title="Statistics", charts=_STATISTICS),
        Tab(title="Test mesh", charts=_MESH),
        Tab(title="Performance", charts=_PERFORMANCE),
        MEMORY_TAB,
    )
)
"""Tab, its charts, their tags."""
