"""A ball with known signed distance, normals and images, against which views and meshes are measured."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch.recon.data import synthetic_normal_maps
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.mesh import Triangles, implicit_surface
from fieldwatch.recon.pipelines.normals.config import (
    FieldOptions,
    NormalsConfig,
    PoseOptions,
    RayOptions,
    RenderOptions,
)
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.scene import NormalsScene
from fieldwatch.recon.pipelines.normals.schedule import NormalsSchedule

RADIUS = 0.5


class BallField(nn.Module):
    """The signed distance of balls, in place of a trained field; with gradients, and with a count of points."""

    def __init__(self, *balls: tuple[tuple[float, float, float], float]) -> None:
        super().__init__()
        self.balls = balls or (((0.0, 0.0, 0.0), RADIUS),)
        self.points = 0

    def forward(self, points: Float[Tensor, "n 3"]) -> Float[Tensor, " n"]:
        """Distance to the nearest ball."""
        assert bool((points.abs() <= 1).all()), "outside of the box"
        self.points += len(points)
        return torch.stack([(points - torch.tensor(c)).norm(dim=-1) - r for c, r in self.balls]).amin(0)

    def with_gradient(self, points: Float[Tensor, "n 3"]) -> tuple[Float[Tensor, " n"], Float[Tensor, "n 3"]]:
        """Distance and gradient, without a graph."""
        with torch.enable_grad():
            places = points.detach().requires_grad_()
            values = self(places)
            (slope,) = torch.autograd.grad(values.sum(), places)
        return values.detach(), slope


@dataclass(frozen=True)
class BallPictures:
    """Images of a ball at the center of the scene."""

    radius: float = RADIUS

    def depth(self, camera: Camera) -> Float[Tensor, "height width"]:
        """Return the depth along the optical axis, float64; 0 outside the ball."""
        origins, directions = camera.to("cpu", torch.float64).rays()
        middle = -(origins * directions).sum(-1)
        inside = self.radius**2 - (origins + middle[..., None] * directions).square().sum(-1)
        distance = middle - inside.clamp_min(0).sqrt()
        along = camera.to("cpu", torch.float64).directions().norm(dim=-1)
        return torch.where(inside > 0, distance / along, torch.zeros_like(inside))

    def normals(self, camera: Camera) -> Float[Tensor, "height width 3"]:
        """Return outward normals in world axes, float64; 0 outside the ball."""
        depth = self.depth(camera)
        points = camera.to("cpu", torch.float64).unproject(depth)
        unit = points / points.norm(dim=-1, keepdim=True)
        return torch.where(depth[..., None] > 0, unit, torch.zeros_like(unit))


def small_config(**changes) -> NormalsConfig:
    """Settings of a run that takes less than a second."""
    defaults = {
        "steps": 20,
        "nominal": 200,
        "stages": ("fit@0 normal=1 mask=1 eikonal=0.1",),
        "views": 4,
        "size": 24,
        "mesh_resolution": 24,
        "mesh_at": 100,
        "evaluate_at": 100,
        "poses_at": 50,
        "sdf": FieldOptions(levels=4, base_resolution=4, finest_resolution=16, table_bits=10, hidden=16, levels_by=0),
        "rendering": RenderOptions(
            grid_resolution=16,
            first_step=0.03,
            last_step=0.01,
            sharpness="scheduled",
            first_sharpness=60.0,
            last_sharpness=600.0,
            empty_samples=8,
        ),
        "rays": RayOptions(rays=64, views_per_graph=4),
    }
    return NormalsConfig(**defaults | changes)


def ball_truth() -> Triangles:
    """The ball as a mesh."""
    return implicit_surface(
        lambda points: np.linalg.norm(points, axis=1) - RADIUS, np.full(3, -1.0), np.full(3, 1.0), resolution=48
    )


def ball_scene(config: NormalsConfig, *, start=None, size: int | None = None) -> NormalsScene:
    """Four views of the ball, every other held out if the config says so."""
    maps = synthetic_normal_maps(BallPictures(), views=config.views, size=size or config.size)
    test = tuple(range(0, config.views, config.held_out)) if config.held_out else ()
    known = torch.stack([camera.world_from_camera.double() for camera in maps.cameras])
    return NormalsScene(
        maps=maps,
        train=tuple(i for i in range(config.views) if i not in test),
        test=test,
        device=torch.device("cpu"),
        schedule=NormalsSchedule(config=config),
        starting_poses=known if start is None else start(known),
        read_truth=ball_truth,
    )


def ball_model(config: NormalsConfig, scene: NormalsScene, *balls, sharpness: float = 600.0) -> NormalsModel:
    """A model whose field is that of balls."""
    model = NormalsModel(config, scene.starting_poses[list(scene.train)])
    model.sdf = BallField(*balls)
    model.set_sharpness(sharpness)
    model.grid.rebuild(model.sdf)
    return model


@dataclass(frozen=True)
class Ball:
    """Factories of settings, scenes and models of a ball."""

    config = staticmethod(small_config)
    scene = staticmethod(ball_scene)
    model = staticmethod(ball_model)
    learned = PoseOptions(learn_rotation=True, learn_translation=True)


@pytest.fixture(scope="session")
def ball() -> Ball:
    """Return the makers of a ball's settings, scene and model."""
    return Ball()


class Sphere(nn.Module):
    """The exact distance from a sphere around the origin, whose radius can be learned."""

    def __init__(self, radius: float) -> None:
        super().__init__()
        self.radius = radius
        self.offset = nn.Parameter(torch.tensor(0.0))

    def forward(self, points: Float[Tensor, "n 3"]) -> Float[Tensor, " n"]:
        """Distance, with gradients to the offset of the radius and to the points."""
        assert bool((points.abs() <= 1).all()), "outside of the box"
        return points.norm(dim=-1) - self.radius - self.offset

    def with_gradient(self, points: Float[Tensor, "n 3"]) -> tuple[Float[Tensor, " n"], Float[Tensor, "n 3"]]:
        """Distance and gradient, in the graph."""
        return self(points), points / points.norm(dim=-1, keepdim=True)


@pytest.fixture
def settings():
    """Make small settings of 20 nominal steps, with the given fields."""

    def make(**changes):
        render = RenderOptions(grid_resolution=16, first_step=4e-2, last_step=2e-2, grid_every=2, empty_samples=8)
        field = {"levels": 4, "base_resolution": 4, "finest_resolution": 16, "table_bits": 10, "hidden": 16}
        known = {"steps": 20, "nominal": 20, "stages": ("fit@0 normal=1 mask=1 eikonal=0.1",), "views": 3, "size": 24}
        known |= {"sdf": FieldOptions(**field, levels_by=10), "rendering": render, "rays": RayOptions(rays=48)}
        return NormalsConfig(**(known | changes))

    return make


@pytest.fixture(scope="session")
def tiny_maps():
    """Four views of the built-in object."""
    return synthetic_normal_maps(views=4, size=24)


@pytest.fixture
def scene_of(tiny_maps):
    """Make a scene of the tiny maps, or of given maps."""

    def make(config, maps=tiny_maps, test=()):
        return NormalsScene(
            maps=maps,
            train=tuple(i for i in range(len(maps)) if i not in test),
            test=tuple(test),
            device=torch.device("cpu"),
            schedule=NormalsSchedule(config=config),
            starting_poses=torch.stack([camera.world_from_camera.double() for camera in maps.cameras]),
        )

    return make


@pytest.fixture
def sphere_model(settings):
    """Make a model whose field is an exact sphere, its grid up to date or full."""

    def make(poses, *, radius=0.6, sharpness=200.0, full=False, **changes):
        config = settings(**changes)
        rendering = replace(config.rendering, first_sharpness=sharpness, most_sharpness=1e5)
        model = NormalsModel(replace(config, rendering=rendering), poses)
        model.sdf = Sphere(radius)
        if not full:
            model.grid.rebuild(model.sdf, sharpness)
        return model

    return make
