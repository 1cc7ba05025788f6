"""Synthetic sets of normal maps, exact up to rounding, for trying everything without data."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.integrate import integrate_normals
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView
from fieldwatch.recon.data.normal_maps.scene import NormalScene, SolidUnion
from fieldwatch.recon.geometry import Camera, look_at

_MARGIN = 1.03  # width of the image divided by the width of the unit sphere in it


def ring_cameras(
    views: int, size: int, *, distance: float = 4.0, elevations: Sequence[float] = (25.0, -25.0)
) -> tuple[Camera, ...]:
    """Return evenly spaced cameras around the z axis that look at the origin and see the whole unit sphere.

    Args:
        views: number of cameras.
        size: width and height of the images in pixels.
        distance: distance from the origin, greater than 1.
        elevations: elevation angles in degrees above the horizon, assigned to the cameras in turn.

    Raises:
        NormalMapError: if a number is below 1, an elevation is not below 90 degrees, or the cameras are inside the unit
            sphere.
    """
    if min(views, size, len(elevations)) < 1 or distance <= 1 or max(map(abs, elevations)) >= 90:
        msg = (
            "a ring needs at least 1 camera, pixel and elevation, a distance greater than 1 and elevations within 90 "
            f"degrees, got {views} cameras of {size} pixels, {distance} from the origin at {list(elevations)} degrees"
        )
        raise NormalMapError(msg)
    # The unit sphere's silhouette subtends asin(1 / distance).
    focal = 0.5 * size * math.sqrt(distance**2 - 1) / _MARGIN
    lens = {"fx": focal, "fy": focal, "cx": size / 2, "cy": size / 2}
    cameras = list[Camera]()
    for number in range(views):
        azimuth = 2 * math.pi * number / views
        elevation = math.radians(elevations[number % len(elevations)])
        horizontal = distance * math.cos(elevation)
        position = (horizontal * math.cos(azimuth), horizontal * math.sin(azimuth), distance * math.sin(elevation))
        pose = look_at(position, (0.0, 0.0, 0.0))
        cameras.append(Camera(name=f"{number:03d}", width=size, height=size, **lens, world_from_camera=pose))
    return tuple(cameras)


def synthetic_normal_maps(  # noqa: PLR0913 - independent settings of the scene
    scene: NormalScene | None = None,
    *,
    views: int = 12,
    size: int = 128,
    cameras: Sequence[Camera] | None = None,
    depth: Literal["exact", "integrated", "none"] = "exact",
    noise: float = 0.0,
    seed: int = 0,
) -> NormalSet:
    """Render normal maps of a synthetic object from a ring of cameras, the default data of `fieldwatch train normals`.

    The world of the scene is the camera frame, so the object must lie within the unit sphere.

    Args:
        scene: scene to render; None uses the built-in `SolidUnion`.
        views: number of cameras on the ring.
        size: width and height of the images in pixels.
        cameras: cameras to use instead of `ring_cameras(views, size)`.
        depth: `exact` depth, depth `integrated` from the normals (up to scale), or `none`.
        noise: standard deviation in degrees of the rotation of every normal about each of two axes.
        seed: seed of the noise.

    Raises:
        NormalMapError: if the cameras are invalid, the noise is negative, or depth cannot be integrated in a view that
            does not see the object.
    """
    if noise < 0 or not math.isfinite(noise):
        msg = f"noise must be finite and at least 0 degrees, for example 5 for maps estimated by a network, got {noise}"
        raise NormalMapError(msg)
    scene = scene or SolidUnion()
    # One generator for all views, so their noise is independent.
    generator = np.random.Generator(np.random.PCG64(seed))
    chosen = tuple(cameras) if cameras is not None else ring_cameras(views, size)
    rendered = tuple(_view(scene, camera, depth, math.radians(noise), generator) for camera in chosen)
    return NormalSet(views=rendered, source=f"synthetic object ({type(scene).__name__}), {len(rendered)} views")


def _view(
    scene: NormalScene,
    camera: Camera,
    kind: Literal["exact", "integrated", "none"],
    noise: float,
    generator: np.random.Generator,
) -> NormalView:
    exact = scene.depth(camera)
    normals = scene.normals(camera)
    mask = exact > 0
    # Row vectors: n @ R rotates from world to camera axes.
    normals = normals @ camera.world_from_camera[:3, :3].double()
    normals = _noisy(normals, mask, noise, generator) if noise else normals
    depth = None if kind == "none" else exact
    # Integration sees the noisy normals, as it would with estimated ones.
    if kind == "integrated":
        depth = integrate_normals(normals, mask, camera)
    return NormalView(
        name=camera.name,
        camera=camera,
        normals=normals.float(),
        mask=mask,
        depth=None if depth is None else depth.float(),
    )


def _noisy(
    normals: Float[Tensor, "h w 3"], mask: Bool[Tensor, "h w"], noise: float, generator: np.random.Generator
) -> Float[Tensor, "h w 3"]:
    """Rotate every normal by random angles about two axes perpendicular to it."""
    noise_vectors = torch.from_numpy(generator.normal(scale=noise, size=normals.shape))
    # The length of the tangential part is the rotation angle.
    across = noise_vectors - (noise_vectors * normals).sum(-1, keepdim=True) * normals
    angle = across.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    rotated = angle.cos() * normals + angle.sin() * across / angle
    return torch.where(mask[..., None], rotated, normals)
