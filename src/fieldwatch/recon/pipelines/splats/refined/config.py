"""Configuration of a refinement."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

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
from fieldwatch.recon.pipelines.splats.refined.pattern import FirstSize, PerTriangle

FirstColors = Literal["gaussians", "vertices", "gray"]


@dataclass(frozen=True, kw_only=True)
class RefineRates:
    """Learning rates by kind of parameter; the defaults are SuGaR's unless stated. All must be greater than 0.

    Attributes:
        lr_vertices: initial learning rate of the vertices, in units of 10 extents / sqrt(number of vertices), SuGaR's
            spatial scale: vertices of finer meshes move more slowly.
        lr_vertices_final: learning rate of the vertices from ``lr_steps`` on, in the same unit; the decay is
            exponential.
        lr_steps: number of steps over which the learning rate of the vertices decays; None selects the whole training
            (SuGaR: 30,000, never reached).
        lr_scales: learning rate of the log scales within the triangle's plane.
        lr_turns: learning rate of the rotations within the triangle's plane.
        lr_opacities: learning rate of the opacity logits.
        lr_constant: learning rate of the SH coefficients of degree 0.
        lr_rest: learning rate of the SH coefficients of degree 1 and above.
        lr_fall: final fraction of all learning rates except that of the vertices, reached by decay over the second half
            of training (not in SuGaR); 1 keeps them constant.
    """

    lr_vertices: float = 1.6e-4
    lr_vertices_final: float = 1.6e-6
    # SuGaR's 30,000 would leave short refinements without decay.
    lr_steps: int | None = None
    lr_scales: float = 5e-3
    lr_turns: float = 1e-3
    lr_opacities: float = 5e-2
    lr_constant: float = 2.5e-3
    lr_rest: float = 1.25e-4
    lr_fall: float = 1.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        refuse_out_of_bounds(self, (*POSITIVE, tuple(vars(self))))


@dataclass(frozen=True, kw_only=True)
class RefineOptions:
    """Settings of a refinement that do not depend on the mesh.

    Attributes:
        checkpoint: checkpoint of the run that initial colors are read from: last, best, or a step.
        gaussians_per_triangle: number of Gaussians per triangle: 1, 3, 4 or 6. Memory grows in proportion; more
            Gaussians render finer detail than the mesh has.
        iterations: number of training steps, at least 1 (SuGaR: 2000 short, 7000 medium, 15,000 long).
        normal_consistency_weight: weight of 1 - cosine between the normals of faces that share an edge, 0 or more
            (SuGaR: 0.1).
        dssim: weight of 1 - SSIM in the rendering term, 0 to 1; L1 has weight 1 - dssim (3DGS, eq. 7).
        opacity: initial opacity of all Gaussians, between 0 and 1, both excluded (SuGaR: 0.1).
        thickness: standard deviation along the normal, as a fraction of the cameras' extent; greater than 0; not
            learned.
        first_colors: source of the initial colors: the nearest Gaussians of the run, the mesh's vertices, or uniform
            gray.
        first_size: length that initial radii are proportional to: the triangle's shortest side (shortest; SuGaR), or
            the side of an equilateral triangle of the same area (area), which leaves fewer gaps on narrow triangles.
        degree: maximum SH degree, 0 to 3.
        degree_every: interval at which the active SH degree increases by one, in steps; 0 uses all degrees from the
            start.
        test_iterations: steps at which held-out photos are evaluated; the last step is always evaluated.
        checkpoint_interval: interval between checkpoints, in steps; 0 saves only at evaluations and at the end.
        keep_last: number of most recent checkpoints to keep, at least 1.
        keep_best: number of best checkpoints, by held-out PSNR, to keep.
        rates: learning rates.
        stats_every: interval between statistics of the parameters, in steps, at least 1.
        turntable: length of the turntable video rendered at the end, in seconds; 0 renders none.
        threads: number of CPU threads; 0 keeps torch's default.
        deterministic: use algorithms that repeat to the bit on a GPU, which are slower, and stop at an operation that
            has none.
        device: device to train on.
        seed: seed of the order of the photos.
    """

    checkpoint: str = "last"
    gaussians_per_triangle: PerTriangle = 1
    iterations: int = 2000
    normal_consistency_weight: float = 0.1
    dssim: float = 0.2
    opacity: float = 0.1
    thickness: float = 1e-6
    first_colors: FirstColors = field(default="gaussians", metadata=formerly("first_colours", grey="gray"))
    # Not SuGaR's choice, which the parity preset restores.
    first_size: FirstSize = "area"
    degree: int = 3
    # Initial colors come from a trained model, so all SH degrees are used from the start.
    degree_every: int = 0
    test_iterations: tuple[int, ...] = (2000, 7000, 15_000)
    checkpoint_interval: int = 1000
    keep_last: int = 2
    keep_best: int = 1
    rates: RefineRates = field(default_factory=RefineRates)
    stats_every: int = 10
    turntable: float = 4.0
    threads: int = 0
    deterministic: bool = False
    device: Device = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the bounds."""
        # Values that may be 0.
        naturals = ("degree_every", "checkpoint_interval", "keep_best", "turntable", "threads", "seed")
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, ("iterations", "keep_last", "stats_every")),
            (*NOT_NEGATIVE, naturals),
            (*FINITE_WEIGHT, ("normal_consistency_weight",)),
            (*FRACTION, ("dssim",)),
            (*POSITIVE, ("thickness",)),
            ("greater than 0 and less than 1", lambda value: 0 < value < 1, ("opacity",)),
            ("0, 1, 2 or 3", lambda value: value in (0, 1, 2, 3), ("degree",)),
            ("1, 3, 4 or 6", lambda value: value in (1, 3, 4, 6), ("gaussians_per_triangle",)),
        )
        if self.checkpoint not in ("last", "best") and not self.checkpoint.isdecimal():
            raise InputError(f"--checkpoint must be last, best or the number of a stored step, got {self.checkpoint}")


@dataclass(frozen=True, kw_only=True)
class RefineConfig(RefineOptions):
    """Settings of a refinement: Gaussians bound to a mesh are optimized with its vertices on a splats run's photos.

    Attributes:
        run: folder of the splats run that provides photos, cameras, the split and the initial colors.
        mesh: file of the mesh, in the world units of that run.
    """

    run: Path
    mesh: Path

    @classmethod
    def of(cls, run: Path, mesh: Path, options: RefineOptions) -> Self:
        """Return the config of a run, a mesh and options."""
        return cls(run=run, mesh=mesh, **vars(options))

    @property
    def name(self) -> str:
        """Name of the refinement in logs."""
        return f"{self.mesh.stem} of {self.run.resolve().name}"
