"""Photos of the made-up scene, with the cloud of points that a reconstruction would have found."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from fieldwatch import InputError
from fieldwatch.recon.data.photos import PhotoSet, every_nth
from fieldwatch.recon.data.solids.scene import BEFORE_A_WALL, SolidScene
from fieldwatch.recon.geometry import Camera, look_at, ring

_RINGS = ((2.9, 0.55), (2.6, 1.35), (1.9, 2.25))  # radius and height above the target
_TARGET = (0.0, 0.0, 0.22)
_FIELD = math.radians(44)
_APERTURE = 0.25
_AHEAD = (0.0, 8.0, -0.3)


def solid_cameras(views: int, size: int) -> tuple[Camera, ...]:
    """Return cameras on three rings around the scene, evenly, all looking at its middle; square photos."""
    shares = [views - 2 * (views // 3), views // 3, views // 3]
    poses = [
        pose
        for number, (count, (radius, height)) in enumerate(zip(shares, _RINGS, strict=True))
        for pose in ring(count, radius=radius, height=height, target=_TARGET, start=number / 7)
        if count
    ]
    focal = 0.5 * size / math.tan(_FIELD / 2)
    lens = {"fx": focal, "fy": focal, "cx": size / 2, "cy": size / 2}
    # rings take turns, so that every so many-th photo by name comes from all of them
    order = np.argsort(np.concatenate([(np.arange(count) + 0.5) / count for count in shares if count]), kind="stable")
    return tuple(
        Camera(name=f"view_{i:03d}.png", width=size, height=size, **lens, world_from_camera=poses[int(place)])
        for i, place in enumerate(order)
    )


def forward_cameras(views: int, size: int) -> tuple[Camera, ...]:
    """Return cameras on a spiral in one upright disc of radius 0.25, all looking at a point 8 units away (along y).

    What they see of `BEFORE_A_WALL` is 5 to 10 units away: they stand within a tenth of the depth of the scene.
    """
    focal = 0.5 * size / math.tan(_FIELD / 2)
    lens = {"fx": focal, "fy": focal, "cx": size / 2, "cy": size / 2}
    golden = math.pi * (3 - math.sqrt(5))
    radii = [_APERTURE * math.sqrt((i + 0.5) / views) for i in range(views)]
    places = [(r * math.cos(i * golden), 0.0, r * math.sin(i * golden)) for i, r in enumerate(radii)]
    return tuple(
        Camera(name=f"view_{i:03d}.png", width=size, height=size, **lens, world_from_camera=look_at(place, _AHEAD))
        for i, place in enumerate(places)
    )


def forward_photos(  # noqa: PLR0913 - what people may want to change about it
    *, views: int = 20, size: int = 128, held_out: int = 5, points: int = 4000, noise: float = 0.01, seed: int = 0
) -> PhotoSet:
    """Photograph things before a wall from one side: a forward-facing scene, with cameras close together.

    Args:
        views: photos.
        size: pixels each way.
        held_out: every so many-th photo is held out; 0 holds out none.
        points: in the sparse cloud: seen from the training photos only.
        noise: standard deviation of the points' places, world units (the wall is 10 away).
        seed: of textures and points.
    """
    return _photographed(
        SolidScene(seed, BEFORE_A_WALL),
        forward_cameras(views, size),
        held_out=held_out,
        points=points,
        noise=noise,
        samples=2,
        seed=seed,
    )


def solid_photos(  # noqa: PLR0913 - what people may want to change about it
    scene: SolidScene | None = None,
    *,
    views: int = 48,
    size: int = 128,
    held_out: int = 8,
    points: int = 4000,
    noise: float = 0.01,
    samples: int = 2,
    seed: int = 0,
) -> PhotoSet:
    """Photograph the made-up scene: what `fieldwatch train splats` takes when no photos are given.

    Photos are taken when they are first read. The same arguments give the same set.

    Args:
        scene: another one than that of `seed`.
        views: photos.
        size: pixels each way.
        held_out: every so many-th photo is held out; 0 holds out none.
        points: in the sparse cloud: seen from the training photos only.
        noise: standard deviation of the points' places, in world units (the scene is 3.2 wide).
        samples: rays per pixel, each way.
        seed: of the scene and of the points.

    Raises:
        InputError: fewer than three views, or another number below 1.
    """
    if views < 3 or min(size, points, samples) < 1 or noise < 0:
        msg = (
            f"a made-up scene with {views} views of {size} pixels, {points} points, noise {noise} and {samples} "
            "samples per side: it needs at least 3 views, noise of at least 0, and 1 of all others"
        )
        raise InputError(msg)
    scene = scene or SolidScene(seed)
    cameras = solid_cameras(views, size)
    return _photographed(scene, cameras, held_out=held_out, points=points, noise=noise, samples=samples, seed=seed)


def _photographed(  # noqa: PLR0913  a scene, its cameras, and how it is photographed
    scene: SolidScene,
    cameras: tuple[Camera, ...],
    *,
    held_out: int,
    points: int,
    noise: float,
    samples: int,
    seed: int,
) -> PhotoSet:
    train, test = every_nth(len(cameras), held_out)
    places, colours = _sparse_cloud(scene, [cameras[i] for i in train], points, noise, seed)
    return PhotoSet(
        cameras=cameras,
        read=lambda index: scene.picture(cameras[index], samples=samples),
        points=torch.from_numpy(places.astype(np.float32)),
        colours=torch.from_numpy(np.rint(255 * colours).astype(np.uint8)),
        train=train,
        test=test,
        source=f"made-up scene, seed {seed}",
        masked=False,
    )


def _sparse_cloud(
    scene: SolidScene, cameras: list[Camera], count: int, noise: float, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points at random pixels of all cameras alike, displaced by noise; and their colours (0 .. 1)."""
    generator = np.random.Generator(np.random.PCG64([seed, 1]))
    each = -(-count // len(cameras))
    found = [scene.visible_points(camera, each, generator) for camera in cameras]
    places = np.concatenate([points for points, _, _ in found])
    colours = np.concatenate([shown for _, _, shown in found])
    kept = generator.permutation(len(places))[:count]
    return places[kept] + noise * generator.normal(size=(len(kept), 3)), colours[kept]
