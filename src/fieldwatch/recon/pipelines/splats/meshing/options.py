"""Options of mesh extraction."""

from dataclasses import dataclass
from typing import Literal, get_args

from fieldwatch import InputError

Method = Literal["poisson", "tsdf", "density"]
Point = tuple[float, float, float]
MOST_TRIANGLES = 200_000
"""Default limit on the triangles of a mesh."""
_POINTS_TO_FUSE = 100_000  # maximum number of surface points where depths are fused


@dataclass(frozen=True, kw_only=True)
class ExtractOptions:
    """Options of mesh extraction from Gaussians.

    Attributes:
        surface_level: level of the density at which the surface is extracted; each level gives a mesh (SuGaR, section
            4.2: 0.3; 0.1 is fuller, 0.5 tighter).
        method: reconstruction method: screened Poisson reconstruction of points on the level set (poisson), TSDF fusion
            of rendered depth maps (tsdf), or marching cubes on the density of the Gaussians (density).
        bbox: two opposite corners of the foreground box, in world units; None finds the object that the cameras go
            around, or takes all that they see (rooms, forward-facing captures).
        centered: with False, the foreground box is a cube around the origin, one extent of the cameras to each side.
        points: maximum number of points on each level set; SuGaR uses 10,000,000. For tsdf, at most 100,000 are used.
        resolution: number of grid cells along the longest side of the foreground; None derives it from the photos'
            resolution, between 96 and 384.
        background: also mesh the scene outside the foreground, into the same file. `fieldwatch mesh refine` needs it,
            if the photos show more than the object.
        surroundings: treatment of plain surroundings of an object, of one color without texture: auto leaves them out,
            because photos do not tell how far away they are; keep meshes them. Kept with ``background``.
        trim: surface without a sample nearby is removed where its sampling density falls below this fraction of the
            rest; 0 keeps all (SuGaR removes the most thinly sampled tenth, with or without samples nearby).
        unseen: treatment of surface that no photo shows: trim removes it; close keeps it unless a photo has seen the
            space there empty, which gives a closed mesh.
        least_views: surface that fewer training photos show is removed; 0 keeps all. Not with ``unseen="close"``.
        least_piece: connected components with a smaller fraction of the faces are removed; 0 keeps all.
        pieces: number of connected components to keep, the largest ones by area; 0 keeps all.
        triangles: maximum number of triangles of the whole mesh; 0 for no limit. None selects 200,000, unless
            ``vertices`` is given.
        vertices: maximum number of vertices of the whole mesh.
        snap: project vertices onto the nearest surface point, as SuGaR does.
        memory: maximum memory of the process, in GiB; None for no limit.
        seed: seed of the pixel sampling.
    """

    surface_level: tuple[float, ...] = (0.3,)
    method: Method = "poisson"
    bbox: tuple[Point, Point] | None = None
    centered: bool = True
    points: int = 1_000_000
    resolution: int | None = None
    background: bool = False
    surroundings: Literal["auto", "keep"] = "auto"
    trim: float = 0.1
    unseen: Literal["trim", "close"] = "trim"
    least_views: int = 1
    least_piece: float = 0.01
    pieces: int = 0
    triangles: int | None = None
    vertices: int | None = None
    snap: bool = True
    memory: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the bounds."""
        if self.method not in get_args(Method):
            raise InputError(
                f"--method must be one of {', '.join(get_args(Method))}, got {self.method!r}; use poisson, the default"
            )
        wrong = [level for level in self.surface_level if not 0 < level < 1]
        if not self.surface_level or wrong:
            raise InputError(
                f"--surface-level must hold densities greater than 0 and less than 1, got {self.surface_level}; try 0.3"
            )
        for name, least, value in (
            ("least-views", 0, self.least_views),
            ("pieces", 0, self.pieces),
            ("points", 1000, self.points),
            ("resolution", 32, self.resolution),
            # A tetrahedron is the smallest closed mesh; 0 triangles means no limit.
            ("triangles", 4, self.triangles or None),
            ("vertices", 4, self.vertices),
        ):
            if value is not None and value < least:
                raise InputError(f"--{name} must be at least {least}, got {value}")
        for name, share in (("trim", self.trim), ("least-piece", self.least_piece)):
            if not 0 <= share < 1:
                raise InputError(f"--{name} must be at least 0 and less than 1, got {share}")
        if self.triangles is not None and self.vertices is not None:
            raise InputError("--triangles and --vertices cannot be used together: both limit the size of the mesh")
        if self.bbox is not None and any(low >= high for low, high in zip(*self.bbox, strict=True)):
            low, high = self.bbox
            raise InputError(f"--bbox must have low < high on all three axes, got an empty box from {low} to {high}")
        if self.memory is not None and self.memory <= 0:
            raise InputError(f"--memory must be greater than 0 GiB, got {self.memory}")

    @property
    def sampled_points(self) -> int:
        """Maximum number of points on each level set; where depths are fused, they only tell where the surface is."""
        return min(self.points, _POINTS_TO_FUSE) if self.method == "tsdf" else self.points

    @property
    def limit(self) -> dict[str, int] | None:
        """Maximum number of triangles or of vertices, by name; None for no limit."""
        if self.vertices is not None:
            return {"vertices": self.vertices}
        # The default limit applies only if no limit of either kind is given.
        most = MOST_TRIANGLES if self.triangles is None else self.triangles
        return {"triangles": most} if most else None
