"""Fixtures: Gaussians on known surfaces that need no training, and cameras around them."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.data.photos import PhotoPixels
from fieldwatch.recon.geometry import Camera, colors_to_constant, look_at
from fieldwatch.recon.pipelines.splats import Gaussians, Rows, Scene, SplatModel, SplatsConfig, view_of
from fieldwatch.recon.pipelines.splats.schedule import make_plan

SIZE = 64


def evenly(count: int) -> torch.Tensor:
    """Directions spread evenly over the sphere."""
    height = 1 - 2 * (torch.arange(count) + 0.5) / count
    turn = torch.arange(count) * math.pi * (3 - math.sqrt(5))
    flat = (1 - height.square()).sqrt()
    return torch.stack([flat * turn.cos(), flat * turn.sin(), height], -1)


def discs(normals: torch.Tensor, places: torch.Tensor, radius: float, *, thickness: float = 0.002) -> Rows:
    """Opaque discs across their normals, colored by their direction."""
    count = len(places)
    up = torch.tensor([0.0, 0.0, 1.0])
    quaternions = torch.cat([1 + (normals @ up)[:, None], torch.linalg.cross(up.expand_as(normals), normals)], 1)
    quaternions[normals[:, 2] < -0.9999] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    return Rows(
        means=places,
        log_scales=torch.tensor([radius, radius, thickness]).log().repeat(count, 1),
        quaternions=quaternions,
        opacity_logits=torch.full((count,), 3.0),
        constant=colors_to_constant((normals + 1) / 2),
        rest=torch.zeros(count, 0, 3),
    )


def ball(radius: float = 0.5, middle: tuple[float, float, float] = (0.0, 0.0, 0.0), count: int = 1500) -> Rows:
    normals = evenly(count)
    spacing = math.sqrt(4 * math.pi / count) * radius
    return discs(normals, torch.tensor(middle) + radius * normals, 0.6 * spacing)


def all_of(*parts: Rows) -> Rows:
    return Rows(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def cameras_around(count: int = 24, distance: float = 2.0) -> tuple[Camera, ...]:
    lens = {"width": SIZE, "height": SIZE, "fx": 1.3 * SIZE, "fy": 1.3 * SIZE, "cx": SIZE / 2, "cy": SIZE / 2}
    places = (distance * evenly(count)).tolist()
    return tuple(
        Camera(name=f"{i:02d}.png", world_from_camera=look_at(place, (0, 0, 0), (0.1, 0.2, 1)), **lens)
        for i, place in enumerate(places)
    )


def scene_of(cameras: tuple[Camera, ...], mask: torch.Tensor | None = None) -> Scene:
    device = torch.device("cpu")
    black = torch.zeros(SIZE, SIZE, 3, dtype=torch.uint8)
    photos = PhotoSet(
        cameras=cameras,
        read=lambda _: PhotoPixels(image=black, mask=mask),
        points=torch.zeros(0, 3),
        colors=torch.zeros(0, 3, dtype=torch.uint8),
        train=tuple(range(len(cameras))),
        test=(),
        source="cameras around",
    )
    return Scene(
        photos=photos,
        views=tuple(view_of(camera, device) for camera in cameras),
        device=device,
        background=torch.zeros(3),
        plan=make_plan(replace(SplatsConfig(), regularization="none"), None),
        extent=photos.extent,
        cloud=None,
        loaded=None,
        distance=None,
        notes=(),
    )


def model_of(rows: Rows) -> SplatModel:
    return SplatModel(Gaussians(rows), torch.zeros(3))


@pytest.fixture(scope="module")
def sphere() -> tuple[SplatModel, Scene]:
    return model_of(ball()), scene_of(cameras_around())


@pytest.fixture(scope="session")
def given() -> SimpleNamespace:
    """Building blocks of the tests."""
    parts = (all_of, ball, cameras_around, discs, evenly, model_of, scene_of)
    return SimpleNamespace(size=SIZE, **{part.__name__: part for part in parts})
