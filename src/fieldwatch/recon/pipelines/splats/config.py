"""Configuration of a splats run."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from fieldwatch import InputError
from fieldwatch.pipeline import (
    AT_LEAST_ONE,
    FINITE_WEIGHT,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    Device,
    formerly,
    refuse_out_of_bounds,
)

Regularization = Literal["planar", "dn_consistency", "density", "sdf", "none"]
"""Set of surface regularization terms; `SURFACE_TERMS` lists the terms of each set."""
BetaMode = Literal["average", "learnable", "weighted_average"]
"""Source of the thickness of the surface: `fieldwatch.recon.losses.BetaMode`, whose room needs torch."""
DensificationMode = Literal["adaptive", "mcmc", "none"]

BUILT_IN_CAP = 60_000
"""Default cap for the built-in scene; its photos do not resolve more Gaussians."""

USUAL_FILL = 10_000
"""Default maximum number of points that are added in gaps."""


@dataclass(frozen=True, kw_only=True)
class DensificationOptions:
    """Densification, pruning and opacity resets. Iterations are nominal and scaled by ``schedule_scale``.

    Attributes:
        growth: densification method: "adaptive" clones, splits and prunes (Kerbl 2023); "mcmc" relocates dead Gaussians
            and samples new ones (Kheradmand 2024); "none" keeps the number of Gaussians.
        growth_cap: maximum number of Gaussians; None for no limit (mcmc: 1,000,000; built-in scene: 60,000).
        growth_from: first iteration after which Gaussians are densified.
        growth_until: last iteration after which Gaussians are densified; never later than the start of the surface
            terms.
        growth_every: interval between densifications, in iterations; never scaled below 20 steps.
        growth_gradient: view-space gradient used for densification: "signed" sums it over pixels (3DGS), so that
            opposite gradients cancel; "absolute" sums its absolute value (AbsGS, Ye 2024), which also splits large
            blurred Gaussians.
        growth_pull: threshold of the mean view-space gradient, in normalized device coordinates, from which a Gaussian
            is cloned or split; None selects 2e-4 for signed and 1e-3 for absolute gradients.
        split_size: radius on a photo (three standard deviations), as a fraction of its longer side, from which a
            Gaussian is split regardless of its gradient; 0 disables this. Gaussians are blended in the order of their
            centers, so large discs occlude each other when seen from the side, and training sinks them below the
            surface.
        growth_twins: opacity of clones: "kept" copies the original's (3DGS); "shared" lowers both so that the pair
            blends to the original's opacity (Rota Bulo 2024).
        least_opacity: opacity below which a Gaussian is pruned at each densification.
        largest_size: standard deviation above which a Gaussian is pruned at a densification after iteration 3000 (as in
            3DGS), as a fraction of its distance to the nearest training camera that faces it, or of the cameras' extent
            if that is larger; 0 disables pruning by size.
        prune_floaters: Gaussians that at most three training photos show, and that are nearer to the camera than this
            fraction of the near end of the photo's scene, are pruned at the middle and at the end of densification and
            at ``prune_at``; 0 prunes none.
        reset_every: interval between opacity resets, in iterations; 0 disables them.
        fill_points: maximum number of points added by guess where the reconstruction has none (bare walls, blurred
            backgrounds); 0 adds none. None selects 10,000 for photos, and 0 for the built-in scene, whose points cover
            it.
    """

    growth: DensificationMode = "adaptive"
    growth_cap: int | None = None
    growth_from: int = 500
    # 3DGS: 15,000. Here, densification ends where SuGaR's coarse stage starts.
    growth_until: int = 7000
    growth_every: int = 100
    growth_gradient: Literal["signed", "absolute"] = "signed"
    growth_pull: float | None = None
    split_size: float = 0.0
    growth_twins: Literal["kept", "shared"] = "kept"
    # The pruning threshold of 3DGS.
    least_opacity: float = 0.005
    largest_size: float = 0.1
    prune_floaters: float = 0.0
    # The reset interval of 3DGS.
    reset_every: int = 3000
    fill_points: int | None = 0

    def __post_init__(self) -> None:
        """Check the bounds."""
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, ("growth_cap", "growth_from", "growth_until", "growth_every")),
            (*POSITIVE, ("growth_pull",)),
            (*FRACTION, ("least_opacity", "split_size", "prune_floaters")),
            (*NOT_NEGATIVE, ("reset_every", "fill_points")),
            # 0 is allowed: it disables pruning by size.
            (*FINITE_WEIGHT, ("largest_size",)),
        )
        if self.growth_from > self.growth_until:
            raise InputError(
                f"--growth-from must be at most --growth-until, got --growth-from {self.growth_from} and "
                f"--growth-until {self.growth_until}; `--growth none` disables densification"
            )


@dataclass(frozen=True, kw_only=True)
class SurfaceOptions:
    """Surface regularization terms, their weights and when each acts. Iterations are nominal.

    Attributes:
        surface_from: first iteration of the coarse stage: densification ends and the first surface terms start.
        prune_at: iteration at which the entropy term ends, Gaussians below ``prune_below`` are pruned, and the density
            and SDF terms start.
        prune_below: opacity below which Gaussians are pruned at ``prune_at``; 0 prunes none. None selects SuGaR's 0.5,
            or 0.05 for planar, which has no entropy term.
        prune_hidden: minimum contribution of a Gaussian to at least one training photo, in pixels of light; Gaussians
            below it, such as those inside solids, are pruned at ``prune_at``; 0 prunes none. A Gaussian that
            contributes at least as much as the mean is always kept: with more Gaussians than pixels, each contributes
            little.
        entropy_weight: weight of the binary entropy of the visible Gaussians' opacities, from ``surface_from`` to
            ``prune_at``.
        depth_normal_weight: weight of 1 - cosine between the rendered normals and the normals of the rendered depth.
        depth_normal_from: first iteration of the depth-normal term.
        density_weight: weight of the density or SDF term, from ``prune_at`` on.
        better_normal_weight: weight of the difference between a Gaussian's normal and its neighbors', from ``prune_at``
            on.
        samples_on_surface_weight: weight of the samples' distance to the surface, from ``prune_at`` on; 0 disables the
            term.
        smoothing_weight: weight of the distance, along the normal, between a Gaussian's center and the mean of its
            neighbors, from ``prune_at`` on; 0 disables the term.
        flatness_weight: weight of the smallest scale, from ``surface_from`` on; 0 disables the term.
        multi_view_depth_weight: weight of the multi-view depth term, for planar: the distance in pixels, weighted by a
            confidence, by which a pixel misses itself after a visit to a neighboring photo and back, each by the depth
            rendered there (PGSR); 0 disables the term.
        multi_view_photo_weight: weight of the multi-view photo term, for planar: 1 - normalized cross-correlation of
            7 x 7 pixels with those of a neighboring photo on the plane of the rendered depth and normal (PGSR); 0
            disables the term.
        multi_view_from: first iteration of the multi-view terms.
        multi_view_samples: number of pixels that the multi-view terms compare at a step.
        samples: number of points at which the density is evaluated; None selects a quarter of the number of Gaussians.
        density_every: interval at which the density terms act, in steps and not scaled (original SuGaR scripts: 5).
        beta: source of the surface thickness in the density terms.
        neighbors: number of nearest neighbors of each Gaussian, itself included.
        neighbors_every: interval between neighbor searches, in iterations.
        literal: use the formulas of the public SuGaR code including its biases: depth not divided by alpha, z of the
            normals derived from x and y, border pixels included.
    """

    surface_from: int = 7000
    prune_at: int = 9000
    prune_below: float | None = None
    prune_hidden: float = 0.5
    # SuGaR, section 5.
    entropy_weight: float = 0.1
    depth_normal_weight: float = 0.05
    depth_normal_from: int = 7000
    # SuGaR, eq. 5 and 8.
    density_weight: float = 0.2
    better_normal_weight: float = 0.2
    samples_on_surface_weight: float = 0.0
    smoothing_weight: float = 0.0
    flatness_weight: float = 0.0
    multi_view_depth_weight: float = 0.0
    multi_view_photo_weight: float = 0.0
    multi_view_from: int = 7000
    multi_view_samples: int = 2048
    samples: int | None = None
    density_every: int = 1
    beta: BetaMode = "average"
    neighbors: int = field(default=16, metadata=formerly("neighbours"))
    neighbors_every: int = field(default=500, metadata=formerly("neighbours_every"))
    literal: bool = False

    def __post_init__(self) -> None:
        """Check the bounds."""
        weights = tuple(option.name for option in fields(self) if option.name.endswith("_weight"))
        refuse_out_of_bounds(
            self,
            (*NOT_NEGATIVE, ("surface_from", "prune_at", "depth_normal_from", "multi_view_from")),
            (*AT_LEAST_ONE, ("multi_view_samples", "samples", "density_every", "neighbors", "neighbors_every")),
            (*FINITE_WEIGHT, (*weights, "prune_hidden")),
            (*FRACTION, ("prune_below",)),
        )
        if not self.surface_from < self.prune_at:
            raise InputError(
                "--surface-from must be less than --prune-at because the entropy term acts between the two, got "
                f"--surface-from {self.surface_from} and --prune-at {self.prune_at}"
            )


@dataclass(frozen=True, kw_only=True)
class SurfaceTerm:
    """When a surface term acts, and which setting is its weight.

    Attributes:
        weight: name of the weight in `SurfaceOptions`; at 0 the term never acts.
        begins: name of the setting with its first iteration.
        ends: name of the setting with the iteration at which it ends; None acts to the end of training.
        regularizations: sets that contain the term.
        compares_neighbors: whether it needs the nearest neighbors of the Gaussians.
    """

    weight: str
    begins: str = "prune_at"
    ends: str | None = None
    regularizations: tuple[Regularization, ...]
    compares_neighbors: bool = False


_DENSITIES: tuple[Regularization, ...] = ("dn_consistency", "density", "sdf")
SURFACE_TERMS: dict[str, SurfaceTerm] = {
    "depth_normal_consistency": SurfaceTerm(
        weight="depth_normal_weight", begins="depth_normal_from", regularizations=("planar", "dn_consistency")
    ),
    "multi_view_depth": SurfaceTerm(
        weight="multi_view_depth_weight", begins="multi_view_from", regularizations=("planar",)
    ),
    "multi_view_photo": SurfaceTerm(
        weight="multi_view_photo_weight", begins="multi_view_from", regularizations=("planar",)
    ),
    "flatness": SurfaceTerm(weight="flatness_weight", begins="surface_from", regularizations=("planar", *_DENSITIES)),
    "entropy_regularization": SurfaceTerm(
        weight="entropy_weight", begins="surface_from", ends="prune_at", regularizations=_DENSITIES
    ),
    "sdf_density": SurfaceTerm(
        weight="density_weight", regularizations=("dn_consistency", "density"), compares_neighbors=True
    ),
    "sdf_estimation": SurfaceTerm(weight="density_weight", regularizations=("sdf",), compares_neighbors=True),
    "better_normal": SurfaceTerm(weight="better_normal_weight", regularizations=_DENSITIES, compares_neighbors=True),
    "samples_on_surface": SurfaceTerm(
        weight="samples_on_surface_weight", regularizations=_DENSITIES, compares_neighbors=True
    ),
    "smoothing": SurfaceTerm(weight="smoothing_weight", regularizations=_DENSITIES, compares_neighbors=True),
}
"""Terms in addition to the rendering term, in the order in which they are added. A new term needs its formula
(`fieldwatch.recon.losses`), its weight in `SurfaceOptions`, a line here, and its call in the objective."""


@dataclass(frozen=True, kw_only=True)
class RateOptions:
    """Learning rates by kind of parameter; the defaults are those of 3DGS and SuGaR.

    Attributes:
        lr_means: initial learning rate of the means, as a fraction of the scene's extent.
        lr_means_final: learning rate of the means from ``lr_iterations`` on, as a fraction of the scene's extent.
        lr_iterations: number of nominal iterations over which the learning rate of the means decays; None selects the
            whole training.
        lr_scales: learning rate of the log scales.
        lr_quaternions: learning rate of the rotations.
        lr_opacities: learning rate of the opacity logits.
        lr_constant: learning rate of the SH coefficients of degree 0.
        lr_rest: learning rate of the SH coefficients of degree 1 and above.
        lr_factor: factor applied to all learning rates above except ``lr_means_final``; use 2 for short runs.
        lr_fall: final fraction of the Gaussians' learning rates except that of the means, reached by decay over the
            second half of training; 1 keeps them constant.
        lr_exposures: initial learning rate of the exposure compensation; it decays to a tenth.
        lr_beta: learning rate of the logarithm of the surface thickness, for ``beta`` learnable.
    """

    # Values of the published code of 3DGS.
    lr_means: float = 1.6e-4
    lr_means_final: float = 1.6e-6
    lr_iterations: int | None = 30_000
    lr_scales: float = 5e-3
    lr_quaternions: float = 1e-3
    lr_opacities: float = 5e-2
    lr_constant: float = 2.5e-3
    lr_rest: float = 1.25e-4
    lr_factor: float = 1.0
    lr_fall: float = 1.0
    lr_exposures: float = 5e-3
    lr_beta: float = 5e-3

    def __post_init__(self) -> None:
        """Check the bounds."""
        refuse_out_of_bounds(self, (*POSITIVE, tuple(vars(self))))


@dataclass(frozen=True, kw_only=True)
class SplatsConfig:
    """Settings of a splats run. Iterations are nominal, as in the papers; ``schedule_scale`` converts them to steps.

    Attributes:
        data: folder of the scene (COLMAP model or transforms*.json), or a film or folder of photos whose cameras are
            found first; None selects the scene that ``checkpoint_path``
            names, or the built-in scene.
        images: folder of the photos, if they are not in the scene folder.
        masks: folder of the masks, if it is not ``masks`` in the scene folder; black pixels are ignored in training.
        checkpoint_path: folder of a trained 3DGS model to start from, or a file of Gaussians (.ply, .spz, .sog, .splat,
            .ksplat); None starts from the point cloud.
        iteration_to_load: iteration of ``checkpoint_path`` to load; None selects 7000 if available, else the last. A
            file counts as this iteration, with None as 7000.
        skip_unreadable: skip missing or damaged photos with a note instead of rejecting the scene.
        longer_side: maximum length of a photo's longer side, in pixels; larger photos are downscaled by area averaging.
        held_out: hold out every N-th photo, by name, for evaluation; 0 holds out none.
        background: background color; "auto" uses that of a plain backdrop around the object, or black.
        transparency: color behind transparent pixels in training: "random" samples a new color at every step, so that
            opaque Gaussians are penalized wherever a photo is transparent; "everywhere" does so for opaque photos, too,
            so that Gaussians are opaque where a photo is as dark as the background; "background" always uses the
            background color.
        memory_gb: memory for decoded photos, in GiB; photos that do not fit are decoded ahead of their step.
        views: number of photos of the built-in scene.
        regularization: set of surface terms (-r).
        coarse_iterations: last iteration of training. With a checkpoint, a value before the start of the coarse stage
            counts from the loaded iteration, as do the test iterations.
        schedule_scale: number of steps per iteration; None selects 1, or 0.2 for the built-in scene.
        schedule_origin: "absolute" counts iterations from 0; "relative" treats the loaded iteration as 7000.
        prune_on_load: prune Gaussians below ``prune_below`` at the start; for checkpoints from after ``prune_at``.
        test_iterations: iterations at which held-out photos are evaluated; the last step is always evaluated.
        checkpoint_interval: interval between checkpoints, in iterations; 0 saves only at milestones and at the end.
        checkpoint_milestones: additional iterations at which a checkpoint is saved; these are never deleted.
        keep_last: number of most recent checkpoints to keep.
        keep_best: number of best checkpoints, by held-out PSNR, to keep.
        growth_options: densification, pruning and opacity resets.
        surface: surface terms of the coarse stage.
        rates: learning rates.
        degree: maximum SH degree, 0 to 3.
        degree_every: interval at which the active SH degree increases by one, in iterations; 0 uses all degrees from
            the start.
        views_per_step: number of photos per step; the loss is their mean, and several processes share them. Iterations
            count steps, not photos.
        dssim: weight of 1 - SSIM in the rendering term; L1 has weight 1 - dssim.
        exposure: learn a color transform for every training photo, to compensate for uneven exposure.
        antialiased: preserve the light of Gaussians that the low-pass filter widens to pixel size (Mip-Splatting's 2D
            filter, Yu 2024); without it, every Gaussian is rendered about a pixel too large, and training places it
            that far below its surface.
        mip: apply Mip-Splatting's 3D filter (Yu 2024), which keeps Gaussians from being finer than the photos resolve.
        stats_every: interval between statistics of the parameters, in steps.
        turntable: length of the turntable video rendered at the end, in seconds; 0 renders none.
        extract_test_meshes: extract a mesh at every evaluation and record its quality (`Mesh/...`); takes some seconds
            each.
        threads: number of CPU threads; 0 keeps torch's default.
        deterministic: use algorithms that repeat to the bit on a GPU, which are slower, and stop at an operation that
            has none.
        device: device to train on.
        seed: seed of all random numbers.

    Raises:
        ValueError: A value is out of bounds.
    """

    data: Path | None = None
    images: Path | None = None
    masks: Path | None = None
    checkpoint_path: Path | None = None
    iteration_to_load: int | None = None
    skip_unreadable: bool = False
    # 3DGS also rescales photos wider than 1600 pixels.
    longer_side: int = 1600
    # Every 8th photo, the usual split of Mip-NeRF 360 and 3DGS.
    held_out: int = 8
    background: Literal["auto", "black", "white"] = "auto"
    transparency: Literal["random", "everywhere", "background"] = "random"
    memory_gb: float = 2.0
    views: int = 48
    regularization: Regularization = "planar"
    coarse_iterations: int = 15_000
    schedule_scale: float | None = None
    schedule_origin: Literal["absolute", "relative"] = "absolute"
    prune_on_load: bool = False
    test_iterations: tuple[int, ...] = (7000, 10_000, 15_000)
    checkpoint_interval: int = 1000
    checkpoint_milestones: tuple[int, ...] = (7000, 9000, 12_000, 15_000)
    keep_last: int = 2
    keep_best: int = 1
    growth_options: DensificationOptions = field(default_factory=DensificationOptions)
    surface: SurfaceOptions = field(default_factory=SurfaceOptions)
    rates: RateOptions = field(default_factory=RateOptions)
    degree: int = 3
    degree_every: int = 1000
    views_per_step: int = 1
    # lambda of 3DGS (Kerbl 2023, eq. 7).
    dssim: float = 0.2
    exposure: bool = False
    antialiased: bool = False
    mip: bool = False
    stats_every: int = 10
    turntable: float = 4.0
    extract_test_meshes: bool = False
    threads: int = 0
    deterministic: bool = False
    device: Device = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the bounds."""
        counts = ("longer_side", "coarse_iterations", "keep_last", "stats_every", "views_per_step")
        naturals = ("held_out", "iteration_to_load", "checkpoint_interval", "keep_best", "degree_every", "threads")
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, counts),
            ("3 or more", lambda value: value >= 3, ("views",)),
            (*NOT_NEGATIVE, (*naturals, "seed", "turntable")),
            (*POSITIVE, ("memory_gb", "schedule_scale")),
            (*FRACTION, ("dssim",)),
            ("0, 1, 2 or 3", lambda value: value in (0, 1, 2, 3), ("degree",)),
        )
        _refuse_without_data(self)

    @property
    def name(self) -> str:
        """Name of the scene in logs."""
        return self.data.resolve().name if self.data else "built-in scene"


def growth_cap(config: SplatsConfig) -> int | None:
    """Return the maximum number of Gaussians; None for no limit."""
    # A checkpoint may be of any scene, so the cap of the built-in one does not apply.
    built_in = config.data is None and config.checkpoint_path is None
    return BUILT_IN_CAP if built_in and config.growth_options.growth_cap is None else config.growth_options.growth_cap


def fill_points(config: SplatsConfig) -> int:
    """Return the maximum number of points that are added in gaps of the reconstruction."""
    chosen = config.growth_options.fill_points
    usual = 0 if config.data is None and config.checkpoint_path is None else USUAL_FILL
    return usual if chosen is None else chosen


def prune_below(config: SplatsConfig) -> float:
    """Return the opacity below which Gaussians are pruned at `prune_at`; 0 if none are."""
    if config.regularization == "none":
        return 0.0
    # Without the entropy term, opacities are not driven to 0 or 1: SuGaR's 0.5 would remove Gaussians in use.
    usual = 0.05 if config.regularization == "planar" else 0.5
    return usual if config.surface.prune_below is None else config.surface.prune_below


def _refuse_without_data(config: SplatsConfig) -> None:
    """Reject folder options for the built-in scene, which is rendered and has no folder."""
    # With a checkpoint, the scene is the one that its folder names.
    for name in ("images", "masks"):
        if config.data is None and config.checkpoint_path is None and getattr(config, name) is not None:
            raise InputError(f"--{name} {getattr(config, name)} requires a scene folder: add -s FOLDER")
