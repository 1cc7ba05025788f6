"""Photo sets of synthetic scenes, with a sparse point cloud like that of a reconstruction."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from fieldwatch import InputError
from fieldwatch.recon.data.photos import PhotoSet, every_nth
from fieldwatch.recon.data.solids.scene import BEFORE_A_WALL, SolidScene
from fieldwatch.recon.geometry import Camera, look_at, ring

# All lengths in world units.
_RINGS = ((2.9, 0.55), (2.6, 1.35), (1.9, 2.25))  # radius and height above the target
_TARGET = (0.0, 0.0, 0.22)
_FIELD = math.radians(44)  # field of view
_APERTURE = 0.25  # radius of the disc of forward-facing cameras
_AHEAD = (0.0, 8.0, -0.3)  # point that the forward-facing cameras look at


def solid_cameras(views: int, size: int) -> tuple[Camera, ...]:
    """Return evenly spaced cameras on three rings around the scene that look at its center; photos are square."""
    counts = [views - 2 * (views // 3), views // 3, views // 3]
    poses = [
        pose
        for number, (count, (radius, height)) in enumerate(zip(counts, _RINGS, strict=True))
        for pose in ring(count, radius=radius, height=height, target=_TARGET, start=number / 7)
        if count
    ]
    focal = 0.5 * size / math.tan(_FIELD / 2)
    lens = {"fx": focal, "fy": focal, "cx": size / 2, "cy": size / 2}
    # Names alternate between the rings, so that every n-th photo by name comes from all of them.
    order = np.argsort(np.concatenate([(np.arange(count) + 0.5) / count for count in counts if count]), kind="stable")
    return tuple(
        Camera(name=f"view_{i:03d}.png", width=size, height=size, **lens, world_from_camera=poses[int(pose_index)])
        for i, pose_index in enumerate(order)
    )


def forward_cameras(views: int, size: int) -> tuple[Camera, ...]:
    """Return cameras on a spiral in a vertical disc of radius 0.25 that look at a point 8 world units away along y.

    The solids of `BEFORE_A_WALL` are 5 to 10 units away, so the baseline is at most a tenth of the scene depth.
    """
    focal = 0.5 * size / math.tan(_FIELD / 2)
    lens = {"fx": focal, "fy": focal, "cx": size / 2, "cy": size / 2}
    # With the golden angle, a sunflower spiral fills the disc evenly for any number of views.
    golden = math.pi * (3 - math.sqrt(5))
    # The square root makes the density uniform over the area of the disc.
    radii = [_APERTURE * math.sqrt((i + 0.5) / views) for i in range(views)]
    positions = [(r * math.cos(i * golden), 0.0, r * math.sin(i * golden)) for i, r in enumerate(radii)]
    return tuple(
        Camera(name=f"view_{i:03d}.png", width=size, height=size, **lens, world_from_camera=look_at(position, _AHEAD))
        for i, position in enumerate(positions)
    )


def forward_photos(  # noqa: PLR0913 - independent settings of the scene
    *, views: int = 20, size: int = 128, held_out: int = 5, points: int = 4000, noise: float = 0.01, seed: int = 0
) -> PhotoSet:
    """Render photos of a forward-facing scene: solids before a wall, with cameras close together.

    Args:
        views: number of photos.
        size: width and height of the photos in pixels.
        held_out: spacing of the held-out photos; 0 holds out none.
        points: number of sparse points, visible in the training photos.
        noise: standard deviation of the point positions in world units; the wall is 10 units away.
        seed: seed of textures and points.
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


def solid_photos(  # noqa: PLR0913 - independent settings of the scene
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
    """Create photos of the synthetic scene, the default data of `fieldwatch train splats`.

    Photos are rendered when they are read. The same arguments give the same set.

    Args:
        scene: scene to render; None creates the built-in scene with `seed`.
        views: number of photos.
        size: width and height of the photos in pixels.
        held_out: spacing of the held-out photos; 0 holds out none.
        points: number of sparse points, visible in the training photos.
        noise: standard deviation of the point positions in world units; the scene is 3.2 units wide.
        samples: number of rays per pixel in each direction.
        seed: seed of the scene and the points.

    Raises:
        InputError: if there are fewer than three views, `noise` is negative, or another number is below 1.
    """
    if views < 3 or min(size, points, samples) < 1 or noise < 0:
        msg = (
            f"a synthetic scene needs at least 3 views, noise of at least 0, and sizes, points and samples of at least "
            f"1, got {views} views of {size} pixels, {points} points, noise {noise} and {samples} samples per side"
        )
        raise InputError(msg)
    scene = scene or SolidScene(seed)
    cameras = solid_cameras(views, size)
    return _photographed(scene, cameras, held_out=held_out, points=points, noise=noise, samples=samples, seed=seed)


def _photographed(  # noqa: PLR0913 - all settings of forward_photos and solid_photos
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
    # Only training photos contribute points, as a reconstruction without the test photos would find them.
    positions, colors = _sparse_cloud(scene, [cameras[i] for i in train], points, noise, seed)
    return PhotoSet(
        cameras=cameras,
        read=lambda index: scene.picture(cameras[index], samples=samples),
        points=torch.from_numpy(positions.astype(np.float32)),
        colors=torch.from_numpy(np.rint(255 * colors).astype(np.uint8)),
        train=train,
        test=test,
        source=f"synthetic scene, seed {seed}",
        masked=False,
    )


def _sparse_cloud(
    scene: SolidScene, cameras: list[Camera], count: int, noise: float, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return noisy surface points at random pixels, equally many per camera, and their colors (0 to 1)."""
    # A separate random stream keeps the cloud independent of the number of draws for the textures.
    generator = np.random.Generator(np.random.PCG64([seed, 1]))
    per_camera = -(-count // len(cameras))
    samples = [scene.visible_points(camera, per_camera, generator) for camera in cameras]
    positions = np.concatenate([points for points, _, _ in samples])
    colors = np.concatenate([sample_colors for _, _, sample_colors in samples])
    chosen = generator.permutation(len(positions))[:count]
    return positions[chosen] + noise * generator.normal(size=(len(chosen), 3)), colors[chosen]
