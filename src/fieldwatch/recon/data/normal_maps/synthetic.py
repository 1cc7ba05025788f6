"""Made-up sets of normal maps, exact to rounding: what everything about normals is tried on without any data."""

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

_MARGIN = 1.03  # the unit sphere fills the picture up to this factor


def ring_cameras(
    views: int, size: int, *, distance: float = 4.0, elevations: Sequence[float] = (25.0, -25.0)
) -> tuple[Camera, ...]:
    """Return cameras evenly around the z axis that look at the origin and see the unit sphere; square pictures.

    Args:
        views: cameras.
        size: pixels each way.
        distance: from the origin, above 1.
        elevations: degrees above the horizon; the cameras take them in turn.

    Raises:
        NormalMapError: no camera, no pixel, no elevation, or cameras in the unit sphere.
    """
    if min(views, size, len(elevations)) < 1 or distance <= 1 or max(map(abs, elevations)) >= 90:
        msg = (
            f"a ring of {views} cameras of {size} pixels, {distance} from the origin at {list(elevations)} degrees: "
            "wanted at least 1 camera, pixel and elevation, a distance above 1, elevations within 90 degrees"
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


def synthetic_normal_maps(  # noqa: PLR0913 - what people may want to change about it
    scene: NormalScene | None = None,
    *,
    views: int = 12,
    size: int = 128,
    cameras: Sequence[Camera] | None = None,
    depth: Literal["exact", "integrated", "none"] = "exact",
    noise: float = 0.0,
    seed: int = 0,
) -> NormalSet:
    """Look at a made-up object from a ring of cameras: what `fieldwatch train normals` takes when no data are given.

    The world of the scene is the frame of the cameras, so the object must lie within the unit sphere.

    Args:
        scene: the built-in `SolidUnion`, if None.
        views: cameras of the ring.
        size: pixels each way.
        cameras: others than those of `ring_cameras`; `views` and `size` mean nothing then.
        depth: the exact one, one integrated from the normals (up to scale), or none.
        noise: standard deviation of the angle of every normal about each of two axes, in degrees.
        seed: of the noise.

    Raises:
        NormalMapError: cameras that can not be, a negative noise, or a view that shows nothing.
    """
    if noise < 0 or not math.isfinite(noise):
        msg = f"normals with a noise of {noise} degrees: give 0 or more, such as 5 for maps that a network estimated"
        raise NormalMapError(msg)
    scene = scene or SolidUnion()
    generator = np.random.Generator(np.random.PCG64(seed))
    chosen = tuple(cameras) if cameras is not None else ring_cameras(views, size)
    made = tuple(_view(scene, camera, depth, math.radians(noise), generator) for camera in chosen)
    return NormalSet(views=made, source=f"made-up object ({type(scene).__name__}), {len(made)} views")


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
    normals = normals @ camera.world_from_camera[:3, :3].double()
    normals = _noisy(normals, mask, noise, generator) if noise else normals
    depth = None if kind == "none" else exact
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
    """Turn every normal by random angles about two axes across it."""
    noise_vectors = torch.from_numpy(generator.normal(scale=noise, size=normals.shape))
    # Only the tangential part turns a unit vector; its length is the angle.
    across = noise_vectors - (noise_vectors * normals).sum(-1, keepdim=True) * normals
    angle = across.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    turned = angle.cos() * normals + angle.sin() * across / angle
    return torch.where(mask[..., None], turned, normals)
