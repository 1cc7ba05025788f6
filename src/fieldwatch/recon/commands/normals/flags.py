"""Flags of the commands about normal maps; importing them needs no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fieldwatch.cli.kit import RunFlags


@dataclass(frozen=True, kw_only=True)
class InferNormalsFlags(RunFlags):
    """Find the camera pose of a new normal map, and complete the map from the trained surface.

    Example: fieldwatch infer normals runs/bear --image new/normal.png --mask new/mask.png --like 007

    The pose is searched from all sides without an initial guess, then refined on normals and silhouette. Written are
    the pose (in the run's unit frame and in the world of its meshes), depth along the optical axis in world units, the
    normals completed where the map had none, pictures, and the quality of the fit. Here --checkpoint best is the one
    with the lowest mean angular error.

    Exit codes: 0; 1 if the surface does not fit the view (another object, wrong intrinsics, wrong axes), or if another
    pose fits nearly as well (an object that looks alike from two sides). The files are written in both cases.
    """

    image: Path
    """Normal map in camera space: PNG, EXR or npy. It must show the whole object."""
    mask: Path | None = None
    """Mask of the object, white inside; by default the pixels that have a normal."""
    lens: tuple[float, float, float, float] | None = None
    """FX FY CX CY in pixels of the map; its upper left corner is (0, 0)."""
    like: str | None = None
    """Name of a view of the run that has the same intrinsics."""
    axes: Literal["auto", "opengl", "opencv"] = "auto"
    """Axes of the map: opengl (x right, y up, z to the viewer) or opencv (x right, y down, z forward)."""
    directions: int = 400
    """Number of directions from which the surface is compared first."""
    most_error: float = 15.0
    """Mean angular error in degrees above which the view does not fit."""
    least_iou: float = 0.85
    """IoU of the silhouettes below which the view does not fit."""
    out: Path | None = None
    """Folder for the files; by default RUN/products/infer-<step>-<image>."""


@dataclass(frozen=True, kw_only=True)
class IntegrateNormalsFlags:
    """Integrate the normal map of one view (photometric stereo) to depth and a mesh.

    Example: fieldwatch data integrate-normals my_object --out my_object_depth

    The folder holds normal_map.png (or .exr, .npy), mask.png, and K.txt with the intrinsics.

    Exit codes: 0; 2 for bad input, with nothing written.
    """

    folder: tyro.conf.Positional[Path]
    """Folder of the view."""
    out: Annotated[Path, tyro.conf.arg(aliases=("-o",))]
    """Folder to write: depth.npy (along the optical axis, NaN where unknown), depth.png, mesh.ply, integration.json."""
    lens: tuple[float, float, float, float] | None = None
    """FX FY CX CY in pixels, instead of K.txt; the center of the first pixel is (0, 0)."""
    axes: str | None = None
    """Axes of the normals: opengl, opencv, directx, or the axis of each channel (x,-y,-z); by default found."""
    channels: Literal["rgb", "bgr"] | None = None
    """Order of the channels; by default found."""
    pixel_center: Literal["half", "whole"] | None = None
    """Center of the first pixel in the intrinsics, (0.5, 0.5) or (0, 0); by default (0, 0)."""
    sharpness: float = 2.0
    """How easily a jump counts as a discontinuity; 0 assumes a smooth surface."""
    median: float = 1.0
    """Median depth of the result, which normals do not determine."""
    json: bool = False
    """Print the files and the facts as JSON, and nothing else on standard output."""


@dataclass(frozen=True, kw_only=True)
class RenderNormalsFlags:
    """Render normal maps of a mesh: exact normals, masks, depth and cameras, in the layout of DiLiGenT-MV and PMNI.

    Example: fieldwatch data render-normals bunny.ply --out data/bunny

    Exit codes: 0; 1 if the check of the data set, which is written, finds an error; 2 for bad input, with nothing
    written.
    """

    mesh: tyro.conf.Positional[Path]
    """Mesh: .ply, .obj or .glb, with faces wound counter-clockwise seen from outside."""
    out: Annotated[Path, tyro.conf.arg(aliases=("-o",))]
    """Folder to write."""
    views: int = 20
    """Number of cameras on the ring."""
    size: int = 256
    """Width and height of each view, pixels."""
    shading: Literal["smooth", "flat"] = "smooth"
    """Which normals: smooth (of the vertices, interpolated, as renderers do) or flat (of the faces, consistent with the
    depth). A surface trained on smooth normals is rounder than the mesh."""
    distance: float = 4.0
    """Distance of the cameras from the center of the object, in radii of the unit sphere; greater than 1."""
    elevations: tuple[float, ...] = (25.0, -25.0)
    """Elevations above the plane of the ring, degrees; the cameras take them in turn."""
    up: tuple[float, float, float] = (0.0, 0.0, 1.0)
    """X Y Z of the axis of the ring, upwards in the pictures: 0 1 0 for most downloaded meshes."""
    fill: float = 0.8
    """Radius of the smallest sphere around the object, in radii of the unit sphere; at most 1."""
    depth: Literal["exact", "integrated", "none"] = "exact"
    """Depth maps: exact (of the mesh), integrated (from the normals, as in real data sets; slower), or none."""
    noise: float = 0.0
    """Standard deviation of the rotation of every normal about each of two axes, degrees."""
    seed: int = 0
    """Seed of the noise."""
    format: Literal["png", "npy"] = "png"
    """Files of the normals: 16-bit PNG (0.002 degrees) or float32 npy."""
    overwrite: bool = False
    """Replace a data set that this command wrote into the folder before; other files stay."""
    json: bool = False
    """Print the files and the facts as JSON, and nothing else on standard output."""
