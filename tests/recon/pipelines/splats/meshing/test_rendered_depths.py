"""Depth maps for the fusion: the mean on a surface, the median at an edge, nothing where the photo shows none."""

import numpy as np
import pytest
import torch

from fieldwatch.recon.pipelines.splats import extract_mesh
from fieldwatch.recon.pipelines.splats.hull import PhotoMask, VisualHull
from fieldwatch.recon.pipelines.splats.meshing.options import ExtractOptions
from fieldwatch.recon.pipelines.splats.meshing.rendered_depths import RenderedDepths
from fieldwatch.recon.pipelines.splats.meshing.surface import OpaqueGaussians

NORMAL = torch.tensor([0.0, -1.0, 0.0])


def wall(given, noise, *, side=40, opacity_logit=0.4):
    """Discs of a wall at y = 0, each a bit in front of or behind it, which faces the cameras at negative y."""
    steps = (torch.arange(side) + 0.5) / side * 2.4 - 1.2
    x, z = torch.meshgrid(steps, steps, indexing="ij")
    offsets = noise * torch.randn(side * side, generator=torch.Generator().manual_seed(3))
    places = torch.stack([x.flatten(), offsets, z.flatten()], -1)
    rows = given.discs(NORMAL.expand_as(places).contiguous(), places, 0.06)
    # Opacities of 0.6 by default, so that several discs share a pixel.
    return rows._replace(opacity_logits=torch.full((side * side,), opacity_logit))


def depths_of(given, rows, mask_of=lambda _: PhotoMask()):
    cameras = tuple(camera for camera in given.cameras_around() if camera.position[1] < -1.5)[:1]
    scene = given.scene_of(cameras)
    model = given.model_of(rows)
    hull = VisualHull.of(scene.photos)
    return RenderedDepths.of(model, hull, cameras, scene.training_views, mask_of=mask_of), model, scene, cameras[0]


def errors(depth, camera):
    """Distances of the points of a depth map from the plane y = 0."""
    shown = torch.from_numpy(depth) > 0
    return camera.to("cpu", torch.float64).unproject(torch.from_numpy(depth).double())[shown][:, 1].abs()


def test_a_wall_of_discs_at_their_own_depths_is_flatter_than_by_the_median(given) -> None:
    rendered, model, scene, camera = depths_of(given, wall(given, 0.02))
    (view,) = rendered
    gaussians = OpaqueGaussians.of(model)
    median = gaussians.render(scene.training_views[0]).median_depth
    assert median is not None
    assert (view.depth > 0).mean() > 0.5
    assert errors(view.depth, camera).mean() < 0.75 * errors(median.numpy(), camera).mean()


def test_a_pixel_that_shows_two_surfaces_has_the_depth_of_one(given) -> None:
    near = given.ball(0.4, (0.0, -0.8, 0.0))
    rendered, _, _, camera = depths_of(given, given.all_of(near, wall(given, 0.0)))
    (view,) = rendered
    points = camera.to("cpu", torch.float64).unproject(torch.from_numpy(view.depth).double())
    points = points[torch.from_numpy(view.depth) > 0]
    ball = ((points - torch.tensor([0.0, -0.8, 0.0], dtype=torch.float64)).norm(dim=-1) - 0.4).abs()
    # A mean of ball and wall would lie between them.
    between = torch.minimum(ball, points[:, 1].abs()) > 0.06
    assert between.double().mean() < 0.01


@pytest.mark.parametrize(("opacity_logit", "shown"), [(-3.0, True), (-4.5, False)])
def test_a_wall_that_absorbs_less_than_half_of_the_light_is_shown_unless_it_is_fainter_still(
    given, opacity_logit, shown
) -> None:
    rendered, model, scene, camera = depths_of(given, wall(given, 0.02, opacity_logit=opacity_logit))
    (view,) = rendered
    alpha = model.render(scene.training_views[0], degree=0).alpha
    assert alpha.max() < 0.5
    assert bool((view.depth > 0).any()) == shown
    if shown:
        assert errors(view.depth, camera).mean() < 0.02


def test_masked_pixels_are_unknown_and_the_background_is_empty(given) -> None:
    left = torch.zeros(given.size, given.size, dtype=torch.bool)
    left[:, : given.size // 2] = True
    for mask in (PhotoMask(counted=left), PhotoMask(solid=left)):
        rendered, *_ = depths_of(given, wall(given, 0.0), mask_of=lambda _, mask=mask: mask)
        (view,) = rendered
        assert (view.depth[:, : given.size // 2] > 0).any()
        assert not (view.depth[:, given.size // 2 :] > 0).any()
        seen = rendered.maps(1 << 20)._maps[0][2]
        assert bool(np.isnan(seen).any()) == (mask.counted is not None)


@pytest.mark.parametrize("bands", [1, 4])
def test_fused_depths_are_flatter_than_a_level_set(given, bands) -> None:
    cameras = tuple(camera for camera in given.cameras_around(60) if camera.position[1] < -1.2)
    model = given.model_of(wall(given, 0.02))
    common = {"resolution": 48, "bbox": ((-0.5, -0.4, -0.5), (0.5, 0.4, 0.5)), "surroundings": "keep"}
    heights = {}
    for method in ("tsdf", "poisson"):
        options = ExtractOptions(method=method, points=20_000, **common)
        (mesh,) = extract_mesh(model, given.scene_of(cameras), options, bands=bands).meshes.values()
        inner = np.abs(mesh.vertices[:, [0, 2]]).max(1) < 0.45
        heights[method] = np.abs(mesh.vertices[inner, 1]).mean()
    assert heights["tsdf"] < 0.7 * heights["poisson"]
