"""Fixtures: a scene small enough for every test, and Gaussians on its points."""

import pytest
import torch

from fieldwatch.recon.data import SolidScene, solid_photos
from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians
from fieldwatch.recon.pipelines.splats.model import SplatModel, view_of
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.pipelines.splats.schedule import make_plan

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def tiny_photos():
    return solid_photos(views=9, size=40, held_out=3, points=300)


@pytest.fixture
def tiny_scene(tiny_photos):
    return Scene(
        photos=tiny_photos,
        views=tuple(view_of(camera, CPU) for camera in tiny_photos.cameras),
        device=CPU,
        background=torch.zeros(3),
        plan=make_plan(SplatsConfig(), None),
        extent=tiny_photos.extent,
        cloud=None,
        loaded=None,
        distance=SolidScene(0).distance,
        notes=(),
    )


@pytest.fixture
def tiny_model(tiny_photos):
    gaussians = Gaussians.from_points(tiny_photos.points, tiny_photos.colors, degree=1, opacity=0.7)
    return SplatModel(gaussians, torch.zeros(3))
