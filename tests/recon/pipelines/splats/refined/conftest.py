"""Fixtures: a coarse run that takes seconds, and a mesh of the true surface of its scene."""

from pathlib import Path

import numpy as np
import pytest
import skimage.measure
import torch

from fieldwatch.recon.data import SolidScene, solid_photos
from fieldwatch.recon.data.colmap import write_colmap
from fieldwatch.recon.mesh import Triangles, write_mesh
from fieldwatch.recon.pipelines.splats import (
    BoundGaussians,
    DensificationOptions,
    RefineConfig,
    RefineRates,
    SplatsConfig,
    prepare_refinement,
    prepare_scene,
    train_splats,
)

CELL = 0.25
"""World units between two samples of the distance: a mesh of a thousand triangles."""


@pytest.fixture(scope="session")
def solid_mesh():
    """Coarse surface of the built-in scene, colored by position."""
    low = np.array([-1.7, -1.7, -0.3])
    high = np.array([1.7, 1.7, 1.2])
    axes = [np.arange(one, other, CELL) for one, other in zip(low, high, strict=True)]
    places = torch.from_numpy(np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)).float()
    values = SolidScene(0).distance(places).numpy().reshape([len(axis) for axis in axes])
    vertices, faces, _, _ = skimage.measure.marching_cubes(values, 0.0, spacing=(CELL,) * 3)
    shades = np.clip(40 + 70 * (vertices - vertices.min(0)), 0, 255).astype(np.uint8)
    mesh = Triangles(vertices=(vertices + low).astype(np.float64), faces=faces.astype(np.int64), colors=shades)
    return mesh if mesh.outward else mesh.turned()


@pytest.fixture(scope="session")
def mesh_file(solid_mesh, tmp_path_factory) -> Path:
    return write_mesh(tmp_path_factory.mktemp("mesh") / "surface.ply", solid_mesh)


@pytest.fixture(scope="session")
def coarse_run(tmp_path_factory) -> Path:
    """Ten steps of free Gaussians on six small photos, two of which are held out."""
    photos = tmp_path_factory.mktemp("photos") / "scene"
    write_colmap(photos, solid_photos(views=6, size=24, points=80, samples=1))
    config = SplatsConfig(
        data=photos,
        held_out=3,
        coarse_iterations=10,
        schedule_scale=1.0,
        growth_options=DensificationOptions(growth="none"),
        regularization="none",
        antialiased=True,
        turntable=0.0,
        device="cpu",
        degree=1,
    )
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs") / "coarse"
    train_splats(config, prepare_scene(config), folder)
    return folder


@pytest.fixture
def config(coarse_run, mesh_file) -> RefineConfig:
    return RefineConfig(
        run=coarse_run,
        mesh=mesh_file,
        iterations=16,
        test_iterations=(8,),
        checkpoint_interval=4,
        keep_last=5,
        turntable=0.0,
        device="cpu",
        degree=1,
        degree_every=5,
        rates=RefineRates(lr_constant=0.05),
    )


@pytest.fixture
def refinement(config):
    return prepare_refinement(config)


@pytest.fixture
def make_bound():
    """Gray Gaussians on given triangles."""

    def make(vertices, faces, per_triangle=1, *, degree=1, opacity=0.8):
        count = len(faces) * per_triangle
        places = torch.as_tensor(vertices)
        return BoundGaussians.on_mesh(
            places,
            torch.as_tensor(faces),
            places.new_zeros(count, 3),
            places.new_zeros(count, (degree + 1) ** 2 - 1, 3),
            per_triangle=per_triangle,
            thickness=1e-5,
            opacity=opacity,
        )

    return make
