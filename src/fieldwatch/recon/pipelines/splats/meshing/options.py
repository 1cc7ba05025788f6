"""What may be chosen about the way from Gaussians to a mesh."""

from dataclasses import dataclass
from typing import Literal, get_args

from fieldwatch import InputError

Method = Literal["poisson", "tsdf", "density"]
Point = tuple[float, float, float]
MOST_TRIANGLES = 200_000
"""Of a mesh for which nobody said how many."""


@dataclass(frozen=True, kw_only=True)
class ExtractOptions:
    """How a mesh is made of Gaussians.

    Attributes:
        surface_level: of the density; each gives a mesh (SuGaR, section 4.2: 0.3; 0.1 is fuller, 0.5 tighter).
        method: surface reconstruction: screened Poisson reconstruction of points on the level set, TSDF fusion of
            rendered depth maps, or marching cubes on the density of the Gaussians.
        bbox: corners of the foreground, world units; None finds it from the cameras.
        centred: find it around what the cameras look at, as if that were the origin.
        points: on each level set, at the most; SuGaR takes 10,000,000.
        resolution: cells along the longest side of the foreground's grid; None follows the photos' resolution, between
            96 and 384.
        background: also make a mesh of what lies outside the foreground, in the same file.
        trim: surface with no sample near goes where it is sampled as thinly as this share of the rest; 0 keeps all
            (SuGaR: a tenth of the surface goes, whatever is near).
        unseen: what happens to surface that no photo shows: trim opens it; close keeps it where no photo has seen
            empty space, so that the mesh is closed.
        least_piece: pieces with a smaller share of the faces go; 0 keeps all.
        triangles: of the whole mesh, at the most; 0 leaves all. None takes 200,000, unless vertices are given.
        vertices: of the whole mesh, at the most.
        snap: move vertices to the nearest surface point, as SuGaR does.
        memory: GiB that the process may come to take; None sets no limit.
        seed: of the choice of pixels.
    """

    surface_level: tuple[float, ...] = (0.3,)
    method: Method = "poisson"
    bbox: tuple[Point, Point] | None = None
    centred: bool = True
    points: int = 1_000_000
    resolution: int | None = None
    background: bool = True
    trim: float = 0.1
    unseen: Literal["trim", "close"] = "trim"
    least_piece: float = 0.01
    triangles: int | None = None
    vertices: int | None = None
    snap: bool = True
    memory: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.method not in get_args(Method):
            raise InputError(
                f"--method must be one of {', '.join(get_args(Method))}, got {self.method!r}; use poisson, the default"
            )
        wrong = [level for level in self.surface_level if not 0 < level < 1]
        if not self.surface_level or wrong:
            raise InputError(
                f"--surface-level {self.surface_level}: levels of the density lie above 0 and below 1; try 0.3"
            )
        for name, least, value in (
            ("points", 1000, self.points),
            ("resolution", 32, self.resolution),
            ("triangles", 4, self.triangles or None),
            ("vertices", 4, self.vertices),
        ):
            if value is not None and value < least:
                raise InputError(f"--{name} is {value}: wanted is {least} or more")
        for name, share in (("trim", self.trim), ("least-piece", self.least_piece)):
            if not 0 <= share < 1:
                raise InputError(f"--{name} is {share}: wanted is a share, at least 0 and below 1")
        if self.triangles is not None and self.vertices is not None:
            raise InputError("--triangles and --vertices both limit the mesh: give one of them")
        if self.bbox is not None and any(low >= high for low, high in zip(*self.bbox, strict=True)):
            low, high = self.bbox
            raise InputError(f"--bbox from {low} to {high} is empty: wanted is low < high on all three axes")
        if self.memory is not None and self.memory <= 0:
            raise InputError(f"--memory is {self.memory} GiB: wanted is a number above 0")

    @property
    def limit(self) -> dict[str, int] | None:
        """How large the mesh may be: so many triangles, or so many vertices; None leaves it as it comes."""
        if self.vertices is not None:
            return {"vertices": self.vertices}
        most = MOST_TRIANGLES if self.triangles is None else self.triangles
        return {"triangles": most} if most else None
