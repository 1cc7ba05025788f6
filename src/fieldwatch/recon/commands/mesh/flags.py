"""Flags of the commands about meshes; importing them needs no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fieldwatch.cli.kit import RunFlags


@dataclass(frozen=True, kw_only=True)
class TextureFlags(RunFlags):
    """Bake a run's photos into a texture for a mesh: OBJ with MTL and PNG, and GLB.

    Example: fieldwatch mesh texture runs/garden runs/garden/mesh/level0.3.ply

    Example: fieldwatch mesh texture runs/garden mesh.ply --layout squares --square-size 8 --from renders

    Each texel gets its color from the training photos that see it; photos that disagree with the others are left out.
    Texels that no photo sees are filled from their neighbors, and their fraction is reported. The textured mesh is then
    rendered for the held-out photos, and its PSNR inside its silhouette is reported. Exit codes: 0, or 2 for bad input.
    """

    mesh: tyro.conf.Positional[Path]
    """Mesh (.ply, .obj or .glb) in the run's coordinates, with faces that point outwards."""
    checkpoint: str = "last"
    """Checkpoint for --from renders and for the exposures of the photos: last, best (by held-out PSNR), or a step."""
    size: int | None = None
    """Texels along a side of the texture; by default the power of two that holds the resolution of the photos."""
    layout: Literal["auto", "xatlas", "squares"] = "auto"
    """How faces are laid out: xatlas (few large charts; takes minutes from 30,000 faces on), squares (one square for
    every two faces, immediately), or auto (xatlas below 30,000 faces, else squares)."""
    square_size: int | None = None
    """Texels along a side of the squares of --layout squares; they determine the size of the texture, instead of
    --size."""
    source: Annotated[Literal["photos", "renders"], tyro.conf.arg(name="from")] = "photos"
    """Source of the colors: photos, or renders of the Gaussians without view-dependent colors."""
    blend: Literal["mean", "best"] = "mean"
    """Colors per texel: mean of its best photos without outliers, or the one best photo, which is sharper and leaves
    seams between photos."""
    out: Path | None = None
    """Folder for the files; by default RUN/mesh/textured."""


@dataclass(frozen=True, kw_only=True)
class QualityFlags:
    """Measure a mesh: topology, triangles, size, surface; and grade it out of 100, with reasons.

    Example: fieldwatch mesh quality runs/bunny/mesh/mesh.ply --gaussians runs/bunny/products/gaussians.ply

    Lengths are in units of the scene. Exit codes: 0 for GOOD or EXCELLENT, 1 for less, 2 if a file cannot be read.
    """

    mesh: tyro.conf.Positional[Path]
    """Mesh: .ply, .obj or .glb."""
    gaussians: Path | None = None
    """File of Gaussians (.ply, .spz, .sog, ...): reports how many centers lie inside the mesh, and their distances to
    its surface."""
    open: bool = False
    """The surface is open by nature (seen from one side, or cut): do not grade whether it is closed."""
    json: bool = False
    """Print the result as JSON, and nothing else on standard output."""


@dataclass(frozen=True, kw_only=True)
class MeshComparisonFlags:
    """Compare a mesh with the ground truth: Chamfer distances, F-scores, normals, an error mesh and a histogram.

    Example: fieldwatch mesh evaluate runs/solids/mesh/mesh.ply --gt built-in --visible-from runs/solids

    Example: fieldwatch mesh evaluate mesh.ply --gt scan.ply --align sim3 --threshold 0.5 1

    Lengths are in units of the ground truth. Distances are exact, to triangles; the styles dtu, tanks and diligent
    measure between point clouds, as those benchmarks do. Exit codes: 0, or 2 if something cannot be read.
    """

    mesh: tyro.conf.Positional[Path]
    """Mesh: .ply, .obj or .glb."""
    gt: str
    """Ground truth: a mesh file, or built-in for the exact surface of the built-in scene."""
    align: Literal["none", "icp", "sim3"] = "none"
    """Alignment before measuring: none, icp (the poses are nearly equal), or sim3 (any pose and scale)."""
    style: Literal["plain", "dtu", "tanks", "diligent"] = "plain"
    """Protocol: plain, dtu (thinned, capped), tanks (thinned to half the threshold), diligent (first hits in masks)."""
    visible_from: Path | None = None
    """Splats run: only what its cameras see of both surfaces counts (required by diligent)."""
    threshold: tuple[float, ...] = ()
    """Thresholds of the F-score, lengths; by default 0.5, 1 and 2 % of the ground truth's diameter."""
    spacing: float | None = None
    """Spacing of thinned points, a length; by default the style's."""
    cap: float | None = None
    """Distance above which points are left out of the means; by default the style's."""
    samples: int = 100_000
    """Number of points per surface."""
    resolution: int = 256
    """Cells along the built-in scene, whose surface is extracted by marching cubes."""
    seed: int = 0
    """Seed of the points."""
    out: Path | None = None
    """Folder for the files; by default the mesh's."""
    json: bool = False
    """Print the result as JSON, and nothing else on standard output."""


@dataclass(frozen=True, kw_only=True)
class ViewFlags:
    """Show a mesh: a page that opens offline in any browser, and on request a picture and a film.

    Example: fieldwatch mesh view runs/garden/mesh/garden.ply --still garden.png --film garden.mp4

    The page shows the mesh with its texture, and can turn and zoom it, and display colors, normals, clay and wireframe.
    """

    mesh: tyro.conf.Positional[Path]
    """Mesh: .ply, .obj (with its .mtl and texture) or .glb."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """File of the page; by default the mesh's name with the ending .html."""
    still: Path | None = None
    """Also write a picture from four sides (.png): colors above, clay below."""
    film: Path | None = None
    """Also write a film around the mesh (.mp4)."""
    size: int = 720
    """Width and height of the film and of each side in the picture, pixels."""
    seconds: float = 6.0
    """Duration of the film."""
    up: tuple[float, float, float] | None = None
    """X Y Z of the mesh's upward direction: 0 1 0 for most downloaded meshes, 0 -1 0 for many COLMAP scenes. By default
    0 1 0 for .glb, whose format says so, else 0 0 1."""
    open: bool = False
    """The surface is open by nature (seen from one side, or cut): do not grade whether it is closed."""
    json: bool = False
    """Print the files and the facts as JSON, and nothing else on standard output."""
