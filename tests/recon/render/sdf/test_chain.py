"""From grid to picture and back: a sphere is drawn as it is, and a wrong one is put right by its silhouette."""

import pytest
import torch

from fieldwatch.recon.losses import depth_scale_error, eikonal_error, mask_error, normal_error
from fieldwatch.recon.render import (
    BoundedRays,
    Cells,
    Deviation,
    OccupancyConfig,
    OccupancyGrid,
    composite,
    gradient_ad,
    points_along,
    section_alpha,
    transmittance,
)

RADIUS = 0.5


class Sphere(torch.nn.Module):
    def __init__(self, radius, center):
        super().__init__()
        self.radius = torch.nn.Parameter(torch.tensor(radius))
        self.center = torch.nn.Parameter(torch.tensor(center))

    def forward(self, points):
        return (points - self.center).norm(dim=-1) - self.radius


def rays_around(count):
    origins = torch.randn(count, 3)
    origins = 3 * origins / origins.norm(dim=-1, keepdim=True)
    directions = 0.45 * torch.randn(count, 3) - origins
    return BoundedRays.in_sphere(origins, directions / directions.norm(dim=-1, keepdim=True))


def truth(rays):
    """Distance, normal and mask of the sphere of RADIUS in the middle."""
    middle = -(rays.origins * rays.directions).sum(-1)
    square = RADIUS**2 - (rays.origins.square().sum(-1) - middle**2)
    distance = middle - square.clamp_min(0).sqrt()
    return distance, (rays.origins + distance[:, None] * rays.directions) / RADIUS, square > 0


def drawn(field, sharpness, grid, rays, step):
    samples = grid.march(rays, step, jitter=torch.rand(len(rays)))
    ends = samples.sections()
    sdf, gradient = gradient_ad(field, points_along(rays, ends.distances, ends.ray_index))
    alpha = section_alpha(sdf[ends.start], sdf[ends.end], sharpness)
    blended = composite(alpha, samples.ray_index, len(rays), samples.midpoints, gradient[ends.start])
    return blended, gradient, alpha, samples


def grid_for(field):
    grid = OccupancyGrid(OccupancyConfig(cells=Cells(resolution=32)))
    grid.update(0, field)
    return grid


def test_a_sphere_is_drawn_with_its_depth_normals_and_silhouette():
    field = Sphere(RADIUS, [0.0, 0.0, 0.0])
    rays = rays_around(300)
    blended, gradient, alpha, samples = drawn(field, 1000.0, grid_for(field), rays, 2e-3)
    distance, normal, mask = truth(rays)
    clear = (distance - (-(rays.origins * rays.directions).sum(-1))).abs() > 0.2  # not at the silhouette itself
    seen = mask & clear
    assert 100 < int(seen.sum()) < int(mask.sum())
    assert (blended.depth - distance)[seen].abs().max().item() < 2e-4
    assert (blended.values[0] - normal)[seen].norm(dim=-1).max().item() < 5e-3
    assert (blended.opacity - mask.float())[seen].abs().max().item() < 1e-4
    assert eikonal_error(gradient).item() < 1e-10
    assert mask_error(blended.opacity, mask).item() < 0.05
    assert normal_error(blended.values[0], normal, seen).item() < 1e-5
    assert depth_scale_error(0.1 * distance, blended.depth, seen).item() < 1e-4

    visible = transmittance(alpha.detach(), samples.ray_index, len(rays)) > 1e-8
    fewer = samples.selected(visible)
    assert len(fewer) < 0.5 * len(samples)
    again = composite(alpha[visible], fewer.ray_index, len(rays), fewer.midpoints)
    assert torch.allclose(again.depth, blended.depth, atol=1e-5)


def test_a_wrong_sphere_is_put_right_by_silhouette_and_normals():
    field = Sphere(0.35, [0.12, -0.1, 0.08])
    deviation = Deviation(50.0, highest=500.0)
    grid = grid_for(field)
    optimizer = torch.optim.Adam([*field.parameters(), *deviation.parameters()], lr=0.02)
    rate = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 45)
    for step in range(45):
        grid.update(step, field, deviation().item())
        rays = rays_around(120)
        blended, *_ = drawn(field, deviation(), grid, rays, 0.02)
        _, normal, mask = truth(rays)
        loss = mask_error(blended.opacity, mask) + normal_error(blended.values[0], normal, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    assert field.radius.item() == pytest.approx(RADIUS, abs=0.01)
    assert field.center.detach().norm().item() < 0.02
    assert deviation().item() > 50
