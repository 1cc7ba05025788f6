"""Files of a registration: reads the observed map and writes the results."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import torch
from jaxtyping import Bool, Float32, UInt8
from torch import Tensor
from torch.nn import functional

from fieldwatch import InputError
from fieldwatch.files import output_path, whole_file
from fieldwatch.recon.data import NormalSet, NormalView, read_mask_file, read_normal_file, write_normal_maps
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.normals.pictures import (
    depth_colors,
    error_colors,
    normal_colors,
    save_array,
    save_cut_out,
    save_picture,
)
from fieldwatch.recon.pipelines.normals.registration import Registration
from fieldwatch.recon.pipelines.normals.registration_shape import filled
from fieldwatch.recon.pipelines.normals.scene import NormalsScene

Axes = Literal["opengl", "opencv", "auto"]

_SURE = 0.9  # fraction of the normals that must agree for their axes to be detected
_NONE = 0.1  # shorter vectors are not normals
_BORDER = (255, 214, 10)  # color of the observed silhouette's outline in the overlay
_GAP = 4


def read_view(
    image: Path, mask: Path | None, lens: Camera | tuple[float, float, float, float] | None, *, axes: Axes = "auto"
) -> NormalView:
    """Read a normal map of unknown camera pose.

    Args:
        image: 16-bit PNG, EXR or npy file, in camera space.
        mask: mask of the object; None uses the pixels that have a normal.
        lens: fx, fy, cx, cy in pixels of the map, whose corner is at (0, 0); or a camera with the same aspect ratio and
            any size, whose pose is ignored. None raises an error.
        axes: axis convention of the file; "auto" detects it from the sign of z.

    Raises:
        NormalMapError: a file is missing or cannot be read.
        InputError: no lens is given, sizes do not match, or axes cannot be detected.
    """
    vectors = read_normal_file(image)
    size = (int(vectors.shape[0]), int(vectors.shape[1]))
    # Background pixels are zero or, after rounding to 16 bits, nearly so.
    known = vectors.norm(dim=-1) > _NONE
    silhouette = known if mask is None else read_mask_file(mask)
    if tuple(silhouette.shape) != size:
        raise InputError(
            f"mask and normal map must have the same size, got {mask} with {tuple(silhouette.shape)} (height, width) "
            f"and {image} with {size}"
        )
    normals = torch.where(known[..., None], functional.normalize(vectors, dim=-1), torch.zeros(()))
    view = NormalView(name=image.stem, camera=_fitted(lens, image, size), normals=normals, mask=silhouette)
    if axes == "auto":
        axes = _detected_axes(view, image)
    if axes == "opencv":
        return view
    return replace(view, normals=torch.where(normals == 0, normals, normals * torch.tensor([1.0, -1.0, -1.0])))


def write_registration(
    registration: Registration, scene: NormalsScene, folder: Path, about: Mapping[str, Any]
) -> dict[str, Path]:
    """Write a registration and return the paths by kind.

    `pose.json` contains the pose in the frame of the scene's sphere (`unit_from_camera`) and in the world of the run's
    meshes (`world_from_camera`), the lens, and measures of the fit; `pose.npy` is the former and `pose_world.npy` the
    latter pose, float64. `depth.npy` is the depth along the optical axis in world units, float32, NaN outside the
    surface, and `depth.png` its image. `completed/` is a dataset of one view in the layout of DiLiGenT-MV: normals
    (16-bit PNG, OpenGL axes), observed where available and rendered from the surface elsewhere, mask, depth, camera.
    `normals.png` shows observed, rendered and completed normals side by side, `overlay.png` the angles between them
    with the outline of the observed silhouette.

    Args:
        registration: registration of a view.
        scene: scene, which defines the world frame.
        folder: output folder, created if missing.
        about: further entries of the report.

    Raises:
        OSError: a file cannot be written.
    """
    comparison = registration.comparison
    camera = registration.camera
    world = registration.world_from_camera(scene)
    scale = scene.maps.scale
    rendered_mask = comparison.rendered.mask
    depth = np.where(rendered_mask.numpy(), scale * comparison.rendered.depth.numpy(), np.float32(np.nan)).astype(
        np.float32
    )
    table: dict[str, Any] = {
        **about,
        "axes": "OpenCV: x right, y down, z forward",
        **{name: getattr(camera, name) for name in ("width", "height", "fx", "fy", "cx", "cy")},
        "unit_from_camera": registration.best.pose.tolist(),
        "world_from_camera": world.tolist(),
        "world_from_unit": scene.maps.world_from_unit.tolist(),
        "fit": registration.figures(),
    }
    with whole_file(output_path(folder, "pose.json")) as draft:
        draft.write_bytes(orjson.dumps(table, option=orjson.OPT_INDENT_2) + b"\n")
    return {
        "pose": output_path(folder, "pose.json"),
        "pose_unit": save_array(output_path(folder, "pose.npy"), registration.best.pose.numpy()),
        "pose_world": save_array(output_path(folder, "pose_world.npy"), world.numpy()),
        "depth": save_array(output_path(folder, "depth.npy"), depth),
        "depth_picture": save_cut_out(
            output_path(folder, "depth.png"), depth_colors(comparison.rendered.depth, rendered_mask), rendered_mask
        ),
        # A dataset that can be read like any other input.
        "completed": write_normal_maps(completed_set(registration, scene), output_path(folder, "completed")),
        "normals": save_picture(output_path(folder, "normals.png"), _side_by_side(registration)),
        "overlay": save_picture(output_path(folder, "overlay.png"), _overlay(registration)),
    }


def completed_set(registration: Registration, scene: NormalsScene) -> NormalSet:
    """Return the completed view as a dataset of one view, at its estimated pose."""
    view = registration.comparison.view
    rendered = registration.comparison.rendered
    depth = torch.where(rendered.mask, rendered.depth, torch.zeros(())).float()
    normals: Float32[Tensor, "height width 3"] = registration.completed
    # The mask grows by the rendered surface, which fills its holes.
    completed_view = replace(view, normals=normals, mask=view.mask | rendered.mask, depth=depth)
    return NormalSet(
        views=(completed_view,), world_from_unit=scene.maps.world_from_unit, source=f"completed {view.name}"
    )


def _fitted(lens: Camera | tuple[float, float, float, float] | None, image: Path, size: tuple[int, int]) -> Camera:
    height, width = size
    # A placeholder until the pose is estimated.
    nowhere = torch.eye(4, dtype=torch.float64)
    if isinstance(lens, tuple):
        fx, fy, cx, cy = lens
        if not (all(map(math.isfinite, lens)) and min(fx, fy) > 0):
            raise InputError(
                f"--lens {fx:g} {fy:g} {cx:g} {cy:g}: expected four finite numbers, with focal lengths above 0"
            )
        return Camera(
            name=image.stem, width=width, height=height, fx=fx, fy=fy, cx=cx, cy=cy, world_from_camera=nowhere
        )
    if lens is None:
        raise InputError(
            f"the lens of {image} is unknown: give its focal lengths and principal point in pixels "
            "(--lens FX FY CX CY), or a view of the run that was taken with the same lens (--like NAME)"
        )
    # Aspect ratios may differ by the rounding of a resize: by up to one pixel on a side.
    if abs(lens.width * height - lens.height * width) > max(lens.width, lens.height):
        raise InputError(
            f"lens and image must have the same aspect ratio, got a lens for {lens.width}x{lens.height} pixels and "
            f"{image} with {width}x{height}: give the lens of this image (--lens FX FY CX CY)"
        )
    return replace(lens.resized(width, height), name=image.stem, world_from_camera=nowhere)


def _detected_axes(view: NormalView, image: Path) -> Literal["opengl", "opencv"]:
    z = view.normals[view.valid][:, 2]
    if not len(z):
        return "opengl"  # any axes will do: without normals the registration raises an error
    # Visible surfaces face the camera: z is positive in OpenGL axes and negative in OpenCV axes.
    positive = float((z > 0).double().mean())
    if _SURE > positive > 1 - _SURE:
        raise InputError(
            f"{image}: cannot detect the axes of the normals, because z is positive in {positive:.0%} of those in the "
            "mask: give --axes opengl (z toward the viewer) or --axes opencv, and check that they are in camera space"
        )
    return "opengl" if positive > 0.5 else "opencv"


def _side_by_side(registration: Registration) -> UInt8[np.ndarray, "height width 3"]:
    comparison = registration.comparison
    panels = [
        comparison.view.normals * comparison.view.valid[..., None],
        comparison.rendered.camera_normals,
        registration.completed,
    ]
    gap = np.full((comparison.view.size[0], _GAP, 3), 255, np.uint8)
    first, second, third = (normal_colors(panel) for panel in panels)
    return np.concatenate([first, gap, second, gap, third], 1)


def _overlay(registration: Registration) -> UInt8[np.ndarray, "height width 3"]:
    picture = error_colors(registration.comparison)
    # The outline shows where the observed silhouette ends, on top of the errors.
    picture[_outline(filled(registration.comparison.view.mask)).numpy()] = _BORDER
    return picture


def _outline(mask: Bool[Tensor, "height width"]) -> Bool[Tensor, "height width"]:
    """Return the pixels of a mask that touch its outside."""
    # Pixels beyond the image count as outside, so that a silhouette cut off by the border has an outline there.
    outside = functional.pad((~mask).float()[None, None], (1, 1, 1, 1), value=1.0)
    return mask & (functional.max_pool2d(outside, 3, 1)[0, 0] > 0)
