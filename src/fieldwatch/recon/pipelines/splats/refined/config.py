"""Everything a refinement depends on, in one frozen value."""

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
    refuse_out_of_bounds,
)
from fieldwatch.recon.pipelines.splats.refined.pattern import FirstSize, PerTriangle

FirstColours = Literal["gaussians", "vertices", "grey"]


@dataclass(frozen=True, kw_only=True)
class RefineRates:
    """How fast each kind of parameter learns; the defaults are SuGaR's unless it is said.

    Attributes:
        lr_vertices: of the vertices at step 0, in shares of 10 extents / sqrt(number of vertices), SuGaR's spatial
            scale: finer meshes move more slowly. Above 0.
        lr_vertices_final: at ``lr_steps`` and after, in the same shares; evenly in the logarithm in between. Above 0.
        lr_steps: over which it falls; None ends it with the training (SuGaR: 30,000, never reached).
        lr_scales: of the logarithms of the sizes in the plane. Above 0.
        lr_turns: of the turns in the plane. Above 0.
        lr_opacities: of the logits of the opacities. Above 0.
        lr_constant: of the colours. Above 0.
        lr_rest: of what changes with the direction. Above 0.
        lr_fall: share of themselves to which all but the vertices' fall over the second half (ours); 1 keeps them.
    """

    lr_vertices: float = 1.6e-4
    lr_vertices_final: float = 1.6e-6
    lr_steps: int | None = None
    lr_scales: float = 5e-3
    lr_turns: float = 1e-3
    lr_opacities: float = 5e-2
    lr_constant: float = 2.5e-3
    lr_rest: float = 1.25e-4
    lr_fall: float = 1.0

    def __post_init__(self) -> None:
        """Refuse rates that train nothing."""
        refuse_out_of_bounds(self, (*POSITIVE, tuple(vars(self))))


@dataclass(frozen=True, kw_only=True)
class RefineOptions:
    """How a mesh is refined, whatever the mesh.

    Attributes:
        checkpoint: of the run, for the first colours: last, best, or a step.
        gaussians_per_triangle: 1, 3, 4 or 6. More draw finer detail than the mesh has, and take as much more memory.
        iterations: training steps, at least 1 (SuGaR: 2000 short, 7000 medium, 15,000 long).
        normal_consistency_weight: of 1 - cosine between the normals of faces that share an edge; 0 or more (SuGaR 0.1).
        dssim: weight of 1 - SSIM in the rendering term, 0 to 1; L1 has the rest (3DGS, eq. 7).
        opacity: of all Gaussians at the start, above 0 and below 1 (SuGaR 0.1).
        thickness: standard deviation along the normal, in shares of the extent of the cameras; above 0; not learned.
        first_colours: from the nearest Gaussians of the run, from the mesh's vertices, or grey.
        first_size: radii are shares of the triangle's shortest side (shortest; SuGaR), or of an equilateral triangle's
            of the same area (area), which leaves fewer gaps on narrow triangles.
        degree: of the harmonics, 0 to 3.
        degree_every: steps until the next degree is used; 0 uses all from the start.
        test_iterations: where held-out photos are evaluated; the end always is.
        checkpoint_interval: steps between checkpoints; 0 saves only at evaluations and the end.
        keep_last: newest checkpoints that stay; at least 1.
        keep_best: best ones (by held-out PSNR) that stay.
        rates: learning rates.
        stats_every: steps between two looks at the population; at least 1.
        turntable: seconds of film at the end; 0 makes none.
        threads: CPU threads; 0 leaves torch's own choice.
        device: where to train.
        seed: of the order of the photos.
    """

    checkpoint: str = "last"
    gaussians_per_triangle: PerTriangle = 1
    iterations: int = 2000
    normal_consistency_weight: float = 0.1
    dssim: float = 0.2
    opacity: float = 0.1
    thickness: float = 1e-6
    first_colours: FirstColours = "gaussians"
    first_size: FirstSize = "area"
    degree: int = 3
    degree_every: int = 0
    test_iterations: tuple[int, ...] = (2000, 7000, 15_000)
    checkpoint_interval: int = 1000
    keep_last: int = 2
    keep_best: int = 1
    rates: RefineRates = field(default_factory=RefineRates)
    stats_every: int = 10
    turntable: float = 4.0
    threads: int = 0
    device: Device = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        naturals = ("degree_every", "checkpoint_interval", "keep_best", "turntable", "threads", "seed")
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, ("iterations", "keep_last", "stats_every")),
            (*NOT_NEGATIVE, naturals),
            (*FINITE_WEIGHT, ("normal_consistency_weight",)),
            (*FRACTION, ("dssim",)),
            (*POSITIVE, ("thickness",)),
            ("a share above 0 and below 1", lambda value: 0 < value < 1, ("opacity",)),
            ("0, 1, 2 or 3", lambda value: value in (0, 1, 2, 3), ("degree",)),
            ("1, 3, 4 or 6", lambda value: value in (1, 3, 4, 6), ("gaussians_per_triangle",)),
        )
        if self.checkpoint not in ("last", "best") and not self.checkpoint.isdecimal():
            raise InputError(f"--checkpoint is {self.checkpoint}: wanted last, best, or the number of a stored step")


@dataclass(frozen=True, kw_only=True)
class RefineConfig(RefineOptions):
    """A refinement: Gaussians bound to a mesh, trained with its vertices on the photos of a splats run.

    Attributes:
        run: folder of the splats run: photos, cameras, split, colours to begin with.
        mesh: file of the mesh, in the units of that run.
    """

    run: Path
    mesh: Path

    @classmethod
    def of(cls, run: Path, mesh: Path, options: RefineOptions) -> Self:
        """Put the three together."""
        return cls(run=run, mesh=mesh, **vars(options))

    @property
    def name(self) -> str:
        """What the refinement is called in logs."""
        return f"{self.mesh.stem} of {self.run.resolve().name}"
