"""Photos of a small object before a plain backdrop, with their cameras and true masks."""

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fieldwatch.recon.data import SolidScene
from fieldwatch.recon.data.colmap import ColmapModel, RegisteredImage, SparsePoints
from fieldwatch.recon.data.solids.scene import SolidSpec
from fieldwatch.recon.data.solids.shapes import RoundedBox, Sphere
from fieldwatch.recon.geometry import Camera, Lens, look_at

WIDTH, HEIGHT, FOCAL = 96, 72, 110.0
BACKDROP = (190, 200, 185)
OBJECT = (
    SolidSpec(Sphere(0.4), (0.0, 0.0, 0.1), (0.75, 0.25, 0.2), 0.3),
    SolidSpec(RoundedBox((0.25, 0.45, 0.2), 0.05), (0.0, 0.0, -0.35), (0.2, 0.4, 0.7), 0.3),
)


def poses_around(count=14):
    """Poses on two circles around the object."""
    turns = [2 * math.pi * i / count for i in range(count)]
    heights = [0.4 + 0.5 * (i % 2) for i in range(count)]
    return [look_at((2.4 * math.cos(a), 2.4 * math.sin(a), h), (0, 0, 0)) for a, h in zip(turns, heights, strict=True)]


def name_of(number):
    return f"r_{number:02d}.png"


def model_of(poses):
    """The model that a reconstruction without points would be."""
    nothing = torch.zeros(0, dtype=torch.int64)
    return ColmapModel(
        lenses={1: Lens.of("PINHOLE", WIDTH, HEIGHT, (FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2))},
        images=tuple(
            RegisteredImage(image_id=i + 1, name=name_of(i), camera_id=1, world_from_camera=pose.double())
            for i, pose in enumerate(poses)
        ),
        points=SparsePoints(
            positions=torch.zeros(0, 3, dtype=torch.float64),
            colors=torch.zeros(0, 3, dtype=torch.uint8),
            errors=torch.zeros(0, dtype=torch.float64),
            track_points=nothing,
            track_images=nothing,
        ),
    )


def write_object_photos(folder: Path, poses):
    """Write the photos into a new folder; return the true masks."""
    folder.mkdir()
    scene = SolidScene(3, OBJECT)
    lens = {"width": WIDTH, "height": HEIGHT, "fx": FOCAL, "fy": FOCAL, "cx": WIDTH / 2, "cy": HEIGHT / 2}
    truth: list[np.ndarray] = []
    for i, pose in enumerate(poses):
        picture = scene.picture(Camera(name="", world_from_camera=pose, **lens), background=BACKDROP)
        Image.fromarray(picture.image.numpy()).save(folder / name_of(i))
        truth.append(picture.alpha.numpy() > 127)
    return truth
