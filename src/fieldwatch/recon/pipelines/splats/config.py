"""Everything a splats run depends on, in one frozen value."""

from dataclasses import dataclass, field
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
    refuse_out_of_bounds,
)

Regularization = Literal["planar", "dn_consistency", "density", "sdf", "none"]
"""Which terms draw the Gaussians to a surface: see `fieldwatch.recon.pipelines.splats.schedule`."""
BetaMode = Literal["average", "learnable", "weighted_average"]
"""Source of the thickness of the surface: `fieldwatch.recon.losses.BetaMode`, whose room needs torch."""
DensificationMode = Literal["adaptive", "mcmc", "none"]

BUILT_IN_CAP = 60_000
"""Gaussians that the built-in scene's photos can tell apart."""


@dataclass(frozen=True, kw_only=True)
class DensificationOptions:
    """How the number of Gaussians changes. Iterations are nominal: ``schedule_scale`` shortens them all.

    Attributes:
        growth: "adaptive" clones, splits and prunes (Kerbl 2023); "mcmc" relocates and draws (Kheradmand 2024); "none".
        growth_cap: Gaussians there may be at most; None for no limit (mcmc: a million; built-in scene: 60,000).
        growth_from: first iteration after which Gaussians grow.
        growth_until: last iteration after which they grow, at most the start of the surface terms.
        growth_every: iterations between growth steps; never scaled below 20 steps.
        growth_gradient: which gradient on the image tells where to grow: "signed" sums it over pixels (3DGS), where
            opposite pulls cancel; "absolute" sums its size (AbsGS, Ye 2024), which splits large blurred Gaussians.
        growth_pull: mean of that gradient (normalised device coordinates) from which a Gaussian grows; None takes 2e-4
            for signed, 1e-3 for absolute ones.
        split_size: radius on a photo (three standard deviations), in shares of its longer side, from which on Gaussians
            are split whether they pull or not; 0 splits none for that. Blended in the order of their centres, large
            discs hide each other from the side, and training answers by sinking them below the surface.
        growth_twins: clones keep their original's opacity ("kept", 3DGS) or share it ("shared", Rota Bulo 2024).
        least_opacity: Gaussians below it are pruned while others grow.
        largest_size: standard deviation above which a Gaussian is pruned while others grow (3DGS: from iteration 3000
            on), in shares of its distance to the nearest training camera that looks at it, or of the cameras' extent
            where that is longer; 0 prunes none for its size.
        reset_every: iterations between opacity resets; 0 for none.
        fill_points: points put by guess where the reconstruction found none (bare walls, blurred backgrounds); 0 none.
    """

    growth: DensificationMode = "adaptive"
    growth_cap: int | None = None
    growth_from: int = 500
    growth_until: int = 7000
    growth_every: int = 100
    growth_gradient: Literal["signed", "absolute"] = "signed"
    growth_pull: float | None = None
    split_size: float = 0.0
    growth_twins: Literal["kept", "shared"] = "kept"
    least_opacity: float = 0.005
    largest_size: float = 0.1
    reset_every: int = 3000
    fill_points: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, ("growth_cap", "growth_from", "growth_until", "growth_every")),
            (*POSITIVE, ("growth_pull",)),
            (*FRACTION, ("least_opacity", "split_size")),
            (*NOT_NEGATIVE, ("reset_every", "fill_points")),
            (*FINITE_WEIGHT, ("largest_size",)),
        )
        if self.growth_from > self.growth_until:
            raise InputError(
                f"--growth-from is {self.growth_from}, --growth-until {self.growth_until}: wanted from <= until; "
                "`--growth none` grows nothing"
            )


@dataclass(frozen=True, kw_only=True)
class SurfaceOptions:
    """The terms that draw Gaussians to a surface, and when each acts. Iterations are nominal.

    Attributes:
        surface_from: start of the coarse stage: growth has ended, the first surface terms begin.
        prune_at: end of the entropy term: Gaussians less opaque than ``prune_below`` go, density and SDF terms begin.
        prune_below: opacity; 0 prunes none. None takes SuGaR's 0.5, and 0.05 for planar, which has no entropy term.
        prune_hidden: light, in pixels, that a Gaussian has to add to some training photo, or it goes at ``prune_at``:
            those inside solids; 0 prunes none. What adds as much as the mean Gaussian stays: where there are more
            Gaussians than pixels, each adds little, and the photos show nothing else.
        entropy_weight: of the binary entropy of the visible opacities, from ``surface_from`` to ``prune_at``.
        depth_normal_weight: of 1 - cosine between drawn normals and those of the drawn depth.
        depth_normal_from: iteration at which that term begins.
        density_weight: of the density or SDF term, from ``prune_at`` on.
        better_normal_weight: of the difference between a Gaussian's normal and its neighbours', with the density.
        samples_on_surface_weight: of the samples' distance to the surface, with the density term; 0 leaves it out.
        smoothing_weight: of the centres' distance from the middle of their neighbours, with the density term; 0 no.
        flatness_weight: of the smallest scale, from ``surface_from`` on; 0 leaves it out.
        samples: points at which the density is compared; None takes one for four Gaussians.
        density_every: interval in steps at which the density terms act (5 in the original SuGaR scripts, unscaled).
        beta: where the thickness of the surface comes from.
        neighbours: per Gaussian, itself included.
        neighbours_every: iterations between searches.
        literal: formulas of the public SuGaR code, its biases included: depth not divided by alpha, z of normals
            derived from x and y, border pixels counted.
    """

    surface_from: int = 7000
    prune_at: int = 9000
    prune_below: float | None = None
    prune_hidden: float = 0.5
    entropy_weight: float = 0.1
    depth_normal_weight: float = 0.05
    depth_normal_from: int = 7000
    density_weight: float = 0.2
    better_normal_weight: float = 0.2
    samples_on_surface_weight: float = 0.0
    smoothing_weight: float = 0.0
    flatness_weight: float = 0.0
    samples: int | None = None
    density_every: int = 1
    beta: BetaMode = "average"
    neighbours: int = 16
    neighbours_every: int = 500
    literal: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        weights = ("entropy_weight", "depth_normal_weight", "density_weight", "better_normal_weight")
        options = ("samples_on_surface_weight", "smoothing_weight", "flatness_weight")
        refuse_out_of_bounds(
            self,
            (*NOT_NEGATIVE, ("surface_from", "prune_at", "depth_normal_from")),
            (*AT_LEAST_ONE, ("samples", "density_every", "neighbours", "neighbours_every")),
            (*FINITE_WEIGHT, (*weights, *options, "prune_hidden")),
            (*FRACTION, ("prune_below",)),
        )
        if not self.surface_from < self.prune_at:
            raise InputError(
                f"--surface-from is {self.surface_from}, --prune-at {self.prune_at}: the entropy term acts from the "
                "one to the other, so wanted is from < at"
            )


@dataclass(frozen=True, kw_only=True)
class RateOptions:
    """How fast each kind of parameter learns (3DGS and SuGaR have these defaults).

    Attributes:
        lr_means: of the places, at iteration 0, in shares of the scene's extent.
        lr_means_final: at ``lr_iterations`` and after.
        lr_iterations: nominal iterations over which it falls; None ends it with the training.
        lr_scales: of the logarithms of the sizes.
        lr_quaternions: of the turns.
        lr_opacities: of the logits of the opacities.
        lr_constant: of the colours.
        lr_rest: of what changes with the direction.
        lr_factor: times all of the Gaussians' rates above: short runs want 2.
        lr_fall: share of themselves to which all rates but the means' fall over the second half; 1 keeps them.
        lr_exposures: of the exposure compensation at its start; it falls to a tenth.
        lr_beta: of the learned thickness (``beta`` learnable), in its logarithm.
    """

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
        """Refuse rates that train nothing."""
        refuse_out_of_bounds(self, (*POSITIVE, tuple(vars(self))))


@dataclass(frozen=True, kw_only=True)
class SplatsConfig:
    """A splats run. Iterations are nominal, as papers count them; ``schedule_scale`` turns them into steps.

    Attributes:
        data: folder of a scene (COLMAP's, or with transforms*.json); None takes the one that ``checkpoint_path`` names,
            or the built-in scene.
        images: folder of the photos, where it is not beside the model.
        masks: folder of masks, where it is not ``masks`` beside the model; black is not trained on.
        checkpoint_path: folder of a trained 3DGS model to start from; None starts from the points.
        iteration_to_load: which of its iterations; None takes 7000 if it is there, else the last.
        skip_unreadable: leave out photos that are missing or damaged, and say so, instead of refusing the scene.
        longer_side: pixels; larger photos are scaled down by area.
        held_out: every so many-th photo by name is held out of everything; 0 for none.
        background: behind everything.
        transparency: what transparent photos are compared over in training: "random", a new color at every step, so
            that nothing opaque may stand where a photo is transparent; "background", the same color as ever.
        memory_gb: decoded photos that stay in memory; the others are decoded ahead when wanted.
        views: photos of the built-in scene.
        regularization: which surface terms (-r): planar, dn_consistency, density, sdf, none.
        coarse_iterations: where training ends. Below the start of the coarse stage, with a checkpoint, it counts from
            the loaded iteration, and so do the test iterations.
        schedule_scale: steps per iteration; None is 1, and 0.2 for the built-in scene.
        schedule_origin: "absolute": iterations count from 0; "relative": the loaded iteration stands for 7000.
        prune_on_load: prune below ``prune_below`` at the start; for checkpoints from behind ``prune_at``.
        test_iterations: where held-out photos are evaluated; the end always is.
        checkpoint_interval: iterations between checkpoints; 0 saves only at milestones and the end.
        checkpoint_milestones: further iterations with a checkpoint.
        keep_last: newest checkpoints that stay.
        keep_best: best ones (by held-out PSNR) that stay.
        growth_options: how the number of Gaussians changes.
        surface: terms of the coarse stage.
        rates: learning rates.
        degree: of the harmonics, 0 to 3.
        degree_every: iterations until the next degree is used; 0 uses all from the start.
        views_per_step: photos that one step draws; the loss is their mean, and several processes share them. Iterations
            count steps.
        dssim: weight of 1 - SSIM in the rendering term; L1 has the rest.
        exposure: learn a colour map for every training photo, for photos of uneven exposure.
        antialiased: keep the light of Gaussians that drawing widens to a pixel's size (Mip-Splatting's 2D filter, Yu
            2024); without it everything is drawn about a pixel too large, and lies that much below its surface.
        mip: Mip-Splatting's 3D filter: no Gaussian finer than the photos can show (Yu 2024).
        stats_every: steps between statistics of the parameters.
        turntable: seconds of the turntable video at the end; 0 makes none.
        extract_test_meshes: make a mesh at every evaluation and record its quality (`Mesh/...`); some seconds each.
        threads: CPU threads; 0 leaves torch's own choice.
        device: where to train.
        seed: of everything random.

    Raises:
        ValueError: a value is out of its bounds.
    """

    data: Path | None = None
    images: Path | None = None
    masks: Path | None = None
    checkpoint_path: Path | None = None
    iteration_to_load: int | None = None
    skip_unreadable: bool = False
    longer_side: int = 1600
    held_out: int = 8
    background: Literal["black", "white"] = "black"
    transparency: Literal["random", "background"] = "random"
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
    dssim: float = 0.2
    exposure: bool = False
    antialiased: bool = False
    mip: bool = False
    stats_every: int = 10
    turntable: float = 4.0
    extract_test_meshes: bool = False
    threads: int = 0
    device: Device = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
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
        """What the scene is called in logs."""
        return self.data.resolve().name if self.data else "built-in scene"


def growth_cap(config: SplatsConfig) -> int | None:
    """Gaussians there may be at most; None for no limit."""
    built_in = config.data is None and config.checkpoint_path is None
    return BUILT_IN_CAP if built_in and config.growth_options.growth_cap is None else config.growth_options.growth_cap


def prune_below(config: SplatsConfig) -> float:
    """Opacity below which Gaussians go at the prune; 0 where there is none."""
    if config.regularization == "none":
        return 0.0
    usual = 0.05 if config.regularization == "planar" else 0.5
    return usual if config.surface.prune_below is None else config.surface.prune_below


def _refuse_without_data(config: SplatsConfig) -> None:
    """The built-in scene has no folder in which anything could lie."""
    for name in ("images", "masks"):
        if config.data is None and config.checkpoint_path is None and getattr(config, name) is not None:
            raise InputError(f"--{name} {getattr(config, name)} says where photos of -s lie: give -s FOLDER, too")
