"""The synthetic scene: exact distances, depths and normals, reproducible and consistent photos."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fieldwatch.recon.data import SolidScene, solid_photos
from fieldwatch.recon.data.solids import solid_cameras
from fieldwatch.recon.data.solids.shapes import Cylinder, RoundedBox, Sphere, Torus
from fieldwatch.recon.geometry import normals_from_depth

SHAPES = [Sphere(0.4), Cylinder(1.0, 0.1), Torus(0.4, 0.15), RoundedBox((0.4, 0.3, 0.2), 0.08)]
SCENE = SolidScene()


def points_around(count=400, seed=0):
    return np.random.default_rng(seed).uniform(-1.3, 1.3, (count, 3))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_distance_leads_to_the_surface_along_the_normal(shape):
    """Moving by an exact distance along its gradient ends on the surface, and the gradient has length 1."""
    points = points_around()
    gaps = shape.distance(points)
    normals = shape.normals(points)
    assert np.allclose(np.linalg.norm(normals, axis=1), 1)
    outside = gaps > 0
    assert np.abs(shape.distance((points - gaps[:, None] * normals)[outside])).max() < 1e-12
    step = 1e-6
    slope = (shape.distance(points + step * normals) - shape.distance(points - step * normals)) / (2 * step)
    assert np.allclose(slope[outside], 1, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_rays_stop_at_the_first_surface_and_miss_only_what_they_miss(shape):
    generator = np.random.default_rng(1)
    origins = generator.normal(size=(500, 3))
    origins *= 3 / np.linalg.norm(origins, axis=1, keepdims=True)
    directions = generator.uniform(-0.9, 0.9, (500, 3)) - origins
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    met = shape.intersect(origins, directions)
    along = np.linspace(0, 6, 3001)
    gaps = np.stack([shape.distance(origins + t * directions) for t in along])
    hit = np.isfinite(met)
    assert 60 < hit.sum() < 400
    assert np.abs(shape.distance(origins[hit] + met[hit, None] * directions[hit])).max() < 1e-6
    assert (gaps[:, ~hit].min(0) > -1e-3).all()
    first = np.where((gaps < -1e-3).any(0), along[(gaps < -1e-3).argmax(0)], np.inf)
    assert (met <= first + 1e-9).all()


@given(st.tuples(*[st.floats(-1.5, 1.5)] * 3), st.tuples(*[st.floats(-1.5, 1.5)] * 3))
def test_the_distance_never_changes_faster_than_one_moves(one, other):
    points = torch.tensor([one, other], dtype=torch.float64)
    gaps = SCENE.distance(points)
    assert float((gaps[0] - gaps[1]).abs()) <= float((points[0] - points[1]).norm()) + 1e-9


@pytest.mark.parametrize("view", [0, 3, 5])
def test_depth_ends_on_the_surface_and_normals_agree_with_it(view):
    camera = solid_cameras(6, 96)[view]
    depth = SCENE.depth(camera)
    normals = SCENE.normals(camera)
    seen = depth > 0
    assert 0.3 < float(seen.double().mean()) < 0.95
    points = camera.unproject(depth)[seen]
    assert float(SCENE.distance(points).abs().max()) < 1e-6
    assert torch.allclose(normals[seen].norm(dim=-1), torch.ones(int(seen.sum()), dtype=torch.float64))
    step = 1e-5 * normals[seen]
    slope = (SCENE.distance(points + step) - SCENE.distance(points)) / 1e-5
    assert float(slope.median()) == pytest.approx(1, abs=1e-6)
    drawn, valid = normals_from_depth(depth, camera)
    angle = torch.rad2deg((drawn * normals).sum(-1)[valid].clamp(-1, 1).acos())
    assert float(angle.median()) < 1
    assert float((angle < 8).double().mean()) > 0.9


def test_nothing_stands_between_the_camera_and_what_it_sees():
    camera = solid_cameras(6, 48)[1]
    depth = SCENE.depth(camera)
    for share in np.linspace(0.02, 0.99, 40):
        before = camera.unproject(share * depth)[depth > 0]
        assert float(SCENE.distance(before).min()) > -1e-6


def test_a_point_looks_the_same_from_everywhere():
    """Colors depend on the surface, not on the view: all cameras that see a point see the same color."""
    photos = solid_photos(views=9, size=192, held_out=0, samples=1)
    one = photos[0]
    other = photos[3]
    depth = SCENE.depth(one.camera)
    shown = SCENE.depth(other.camera)
    points = one.camera.unproject(depth)[depth > 0]
    pixels, far = other.camera.project(points)
    places = pixels.floor().long()
    inside = ((places >= 0) & (places < 192)).all(-1) & (far > 0)
    places, far = places[inside], far[inside]
    visible = (shown[places[:, 1], places[:, 0]] - far).abs() < 0.01
    difference = one.image[depth > 0][inside].float() - other.image[places[:, 1], places[:, 0]].float()
    assert int(visible.sum()) > 1000
    assert float(difference[visible].abs().mean()) < 4


def test_more_samples_smooth_the_edges_only():
    camera = solid_cameras(6, 64)[2]
    rough = SCENE.picture(camera, samples=1)
    smooth = SCENE.picture(camera, samples=4)
    difference = (rough.image.float() - smooth.image.float()).abs().amax(-1)
    assert set(rough.alpha.unique().tolist()) == {0, 255}
    assert len(smooth.alpha.unique()) > 5
    assert float(difference.median()) <= 2
    assert 0 < float((difference > 20).double().mean()) < 0.1


def test_the_background_shows_where_nothing_is():
    picture = SCENE.picture(solid_cameras(6, 32)[0], background=(9, 99, 199))
    assert picture.image[picture.alpha == 0].unique(dim=0).tolist() == [[9, 99, 199]]


def test_points_spread_over_the_whole_surface_lie_on_it_evenly():
    points = SCENE.surface_points(4000, seed=1)
    assert points.shape == (4000, 3)
    assert float(SCENE.distance(points).abs().max()) < 1e-6
    # a cap of height r / 3 is a sixth of the sphere: pi r^2 2 / 3 of 4 pi r^2
    center = torch.tensor([0.55, 0.40, 0.79], dtype=torch.float64)
    ball = points[((points - center).norm(dim=-1) - 0.19).abs() < 1e-6]
    share = float((ball[:, 2] > 0.79 + 0.19 * 2 / 3).double().mean())
    assert share == pytest.approx(1 / 6, abs=0.06)


def test_the_same_seed_gives_the_same_set():
    one, same, other = (solid_photos(views=6, size=16, points=50, seed=seed) for seed in (3, 3, 4))
    assert one.digest == same.digest != other.digest
    assert torch.equal(one[2].image, same[2].image)
    assert not torch.equal(one[2].image, other[2].image)


def test_the_sparse_cloud_lies_near_the_surface_by_its_noise():
    photos = solid_photos(views=8, size=32, points=2000, noise=0.02)
    distance = SCENE.distance(photos.points.double()).abs()
    assert len(photos.points) == 2000
    assert float(distance.mean()) == pytest.approx(0.02 * 0.8, rel=0.1)  # the mean of |x| is 0.8 sigma
    exact = solid_photos(views=8, size=32, points=300, noise=0.0)
    assert float(SCENE.distance(exact.points.double()).abs().max()) < 1e-6


def test_held_out_views_come_from_all_around():
    photos = solid_photos(views=48, size=8)
    heights = {round(float(photos.cameras[i].position[2]), 3) for i in photos.test}
    assert (len(photos.train), len(photos.test)) == (42, 6)
    assert len(heights) >= 2
    assert len({camera.name for camera in photos.cameras}) == 48


@pytest.mark.parametrize("change", [{"views": 2}, {"size": 0}, {"points": 0}, {"samples": 0}, {"noise": -0.1}])
def test_numbers_that_make_no_scene_are_refused(change):
    with pytest.raises(ValueError, match=rf"synthetic scene.* 3 views.* got.* {next(iter(change.values()))} "):
        solid_photos(**change)
