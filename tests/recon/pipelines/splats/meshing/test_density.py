"""Level set of the density, against one Gaussian whose density is known."""

import math

import numpy as np
import pytest
import torch

from fieldwatch.recon.losses import Ellipsoids
from fieldwatch.recon.pipelines.splats.meshing.boxes import Box
from fieldwatch.recon.pipelines.splats.meshing.density import density_surface
from fieldwatch.recon.pipelines.splats.meshing.surface import OpaqueGaussians


@pytest.mark.parametrize("level", [0.2, 0.5])
def test_round_gaussian_gives_the_ball_at_which_its_density_is_the_level(level) -> None:
    shapes = Ellipsoids(
        means=torch.tensor([[1.0, 0.0, -1.0]]),
        scales=torch.full((1, 3), 0.2),
        quaternions=torch.tensor([[1.0, 0.0, 0.0, 0.0]]),
        opacities=torch.tensor([0.9]),
    )
    gaussians = OpaqueGaussians(
        ellipsoids=shapes,
        constant=torch.zeros(1, 1, 3),
        neighbors=torch.zeros(1, 1, dtype=torch.int64),
        antialiased=False,
    )
    told: list[tuple[int, int]] = []
    middle = np.array([1.0, 0.0, -1.0])
    mesh = density_surface(gaussians, level, Box.around(middle, 0.6), 32, lambda done, of: told.append((done, of)))
    radius = 0.2 * math.sqrt(2 * math.log(0.9 / level))
    np.testing.assert_allclose(np.linalg.norm(mesh.vertices - middle, axis=1), radius, atol=0.003)
    assert mesh.closed
    assert mesh.outward
    assert told[-1][0] == told[-1][1]
