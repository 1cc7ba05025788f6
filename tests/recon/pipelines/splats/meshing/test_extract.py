"""Meshes of Gaussians on known surfaces: results, notes and memory."""

from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch

from fieldwatch.recon.data.photos import PhotoPixels
from fieldwatch.recon.mesh import MeshError, mesh_quality
from fieldwatch.recon.pipelines.splats import ExtractOptions, extract_mesh

COARSE = ExtractOptions(resolution=64, points=30_000, triangles=0)


def coarse(**changes) -> ExtractOptions:
    return ExtractOptions(**{**vars(COARSE), **changes})


def radii(mesh) -> np.ndarray:
    return np.linalg.norm(mesh.vertices, axis=1)


def test_ball_seen_from_all_sides_is_watertight_after_the_trim(sphere) -> None:
    made = extract_mesh(*sphere, COARSE)
    assert made.facts["should_close"]
    mesh = made.meshes["level0.3"]
    assert mesh.closed
    assert mesh.outward
    assert mesh.pieces.max() == 0
    assert np.abs(radii(mesh) - 0.5).mean() < 0.008
    assert abs(mesh.signed_volume / (4 / 3 * np.pi * 0.5**3) - 1) < 0.05


@pytest.mark.parametrize("method", ["tsdf", "density"])
def test_other_ways_find_the_same_ball(sphere, method) -> None:
    made = extract_mesh(*sphere, coarse(method=method, resolution=96)).meshes
    mesh = next(iter(made.values()))
    outer = radii(mesh) > 0.47  # discs have a back: their density has two sheets
    assert np.abs(radii(mesh)[outer] - 0.5).mean() < 0.008
    assert len(mesh.faces) > 1000


def test_higher_levels_lie_farther_inside(given) -> None:
    thick = given.evenly(1500)
    model = given.model_of(given.discs(thick, 0.5 * thick, 0.03, thickness=0.03))
    made = extract_mesh(model, given.scene_of(given.cameras_around()), coarse(surface_level=(0.1, 0.3, 0.5)))
    assert list(made.meshes) == ["level0.1", "level0.3", "level0.5"]
    means = [radii(mesh).mean() for mesh in made.meshes.values()]
    assert means[0] > means[1] + 0.003 > means[2] + 0.006


def test_colors_are_those_of_the_gaussians(sphere) -> None:
    mesh = extract_mesh(*sphere, COARSE).meshes["level0.3"]
    wanted = 255 * (mesh.vertices / radii(mesh)[:, None] + 1) / 2
    assert np.abs(mesh.colors - wanted).mean() < 10


def test_half_that_no_camera_sees_is_open_or_closed_as_asked(given) -> None:
    above = tuple(camera for camera in given.cameras_around(60) if float(camera.position[2]) > 0.9)
    normals = given.evenly(3000)
    upper = normals[normals[:, 2] > 0]
    model = given.model_of(given.discs(upper, 0.5 * upper, 0.03))
    scene = given.scene_of(above)
    made = [extract_mesh(model, scene, options) for options in (COARSE, coarse(unseen="close"))]
    # A side that no camera sees is no fault of the mesh.
    assert [each.facts["should_close"] for each in made] == [False, True]
    opened, closed = (each.meshes["level0.3"] for each in made)
    assert not opened.closed
    assert opened.vertices[:, 2].min() > -0.1
    assert closed.closed
    assert closed.outward


def test_empty_background_is_said_and_the_foreground_comes_out(sphere) -> None:
    made = extract_mesh(*sphere, coarse(background=True))
    assert len(made.meshes["level0.3"].faces) > 1000
    assert any("background has 0 surface points" in note for note in made.notes)


def test_empty_foreground_is_said_and_the_background_comes_out(sphere) -> None:
    box = ((3.0, 3.0, 3.0), (3.5, 3.5, 3.5))
    made = extract_mesh(*sphere, coarse(background=True, bbox=box))
    assert len(made.meshes["level0.3"].faces) > 1000
    assert any("foreground has 0 surface points" in note and "--bbox" in note for note in made.notes)


def test_nothing_at_all_is_an_error_that_says_so(sphere) -> None:
    with pytest.raises(MeshError, match="foreground has 0 surface points"):
        extract_mesh(*sphere, coarse(bbox=((3.0, 3.0, 3.0), (3.5, 3.5, 3.5))))


def test_transparent_gaussians_have_no_surface(given) -> None:
    rows = given.ball()._replace(opacity_logits=torch.full((1500,), -3.0))
    with pytest.raises(ValueError, match=r"none of the 1500 Gaussians.*than 0\.5"):
        extract_mesh(given.model_of(rows), given.scene_of(given.cameras_around()), COARSE)


def test_foreground_and_background_stay_apart(given) -> None:
    both = given.all_of(given.ball(0.3), given.ball(0.4, (3.2, 0.0, 0.0)))
    cameras = given.cameras_around(32)
    made = extract_mesh(given.model_of(both), given.scene_of(cameras), coarse(background=True, least_piece=0))
    mesh = made.meshes["level0.3"]
    assert (np.linalg.norm(mesh.vertices, axis=1) < 0.35).any()
    assert (mesh.vertices[:, 0] > 2.5).any()
    assert mesh_quality(mesh).n_pieces >= 2


def test_the_object_is_found_and_the_rest_left_out_unless_asked_for(given) -> None:
    """A ball that all cameras look at, and a ball beside it that few have in their image."""
    model = given.model_of(given.all_of(given.ball(0.3), given.ball(0.4, (3.2, 0.0, 0.0))))
    scene = given.scene_of(given.cameras_around(32))
    made = extract_mesh(model, scene, COARSE)
    assert made.facts["foreground_kind"] == "object"
    assert radii(made.meshes["level0.3"]).max() < 0.35
    assert np.abs(made.facts["foreground"]).max() < 0.4
    assert any("--background" in note for note in made.notes)
    whole = extract_mesh(model, scene, coarse(background=True, least_piece=0))
    assert not any("--background" in note for note in whole.notes)
    assert whole.meshes["level0.3"].vertices[:, 0].max() > 2.5


def test_shells_in_the_color_of_plain_surroundings_are_left_out(given) -> None:
    """Photos show gray where a small ball floats, so nothing is there."""
    model = given.model_of(given.all_of(given.ball(), given.ball(0.1, (0.68, 0.0, 0.0), 300)))
    scene = given.scene_of(given.cameras_around())
    cameras = scene.photos.cameras
    photos = scene.photos.having(read=lambda index: speckled_ball(cameras[index]), transparent=False, masked=False)
    scene = replace(scene, photos=photos)
    options = coarse(least_piece=0.005)
    carved = extract_mesh(model, scene, options)
    assert radii(carved.meshes["level0.3"]).max() < 0.56
    assert any("--surroundings keep" in note and "RGB (150, 150, 150)" in note for note in carved.notes)
    for kept in (replace(options, surroundings="keep"), replace(options, background=True)):
        made = extract_mesh(model, scene, kept)
        assert radii(made.meshes["level0.3"]).max() > 0.6
        assert not any("--surroundings" in note for note in made.notes)


def speckled_ball(camera) -> PhotoPixels:
    """Return the photo of a ball of radius 0.5 before gray."""
    origins, directions = camera.rays()
    apart = (origins - (origins * directions).sum(-1, keepdim=True) * directions).norm(dim=-1)
    shape = (camera.height, camera.width, 3)
    speckles = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return PhotoPixels(image=torch.where(apart[..., None] < 0.5, speckles, torch.tensor(150, dtype=torch.uint8)))


def test_surface_that_no_photo_shows_is_removed_and_counted(given) -> None:
    """Cameras above a ball: without a trim, Poisson's surface closes its lower end in a balloon."""
    above = tuple(camera for camera in given.cameras_around(60) if float(camera.position[2]) > 0.9)
    model, scene = given.model_of(given.ball()), given.scene_of(above)
    options = coarse(trim=0.0)
    whole = extract_mesh(model, scene, replace(options, least_views=0))
    cut = extract_mesh(model, scene, options)
    assert whole.meshes["level0.3"].closed
    assert not cut.meshes["level0.3"].closed
    lowest = [made.meshes["level0.3"].vertices[:, 2].min() for made in (whole, cut)]
    assert lowest[0] < lowest[1] < -0.2
    assert not any("triangles" in note for note in whole.notes)
    removed = len(whole.meshes["level0.3"].faces) - len(cut.meshes["level0.3"].faces)
    assert any(f"{removed:,} of {len(whole.meshes['level0.3'].faces):,} triangles" in note for note in cut.notes)
    with pytest.raises(MeshError, match="--least-views"):
        extract_mesh(model, scene, replace(options, least_views=len(above) + 1))


def test_the_largest_pieces_are_kept(given) -> None:
    parts = [given.ball(0.3), given.ball(0.2, (0.6, 0.0, 0.0), 700), given.ball(0.12, (-0.5, 0.0, 0.0), 300)]
    model, scene = given.model_of(given.all_of(*parts)), given.scene_of(given.cameras_around())
    for pieces, count in ((0, 3), (1, 1), (2, 2)):
        made = extract_mesh(model, scene, coarse(pieces=pieces, least_piece=0.005))
        mesh = made.meshes["level0.3"]
        assert mesh.pieces.max() + 1 == count
        assert any("pieces" in note for note in made.notes) == bool(pieces)
    assert mesh.vertices[:, 0].min() > -0.35


def test_triangles_and_vertices_are_counted_as_what_they_are(sphere) -> None:
    few = extract_mesh(*sphere, coarse(triangles=1000)).meshes["level0.3"]
    assert 800 < len(few.faces) <= 1000
    few = extract_mesh(*sphere, coarse(triangles=None, vertices=1000)).meshes["level0.3"]
    assert 800 < len(few.vertices) <= 1000


def test_what_masks_hide_is_not_looked_at(given, sphere) -> None:
    """Photos whose background is masked out: Gaussians outside the masks give no surface."""
    mask = torch.zeros(given.size, given.size, dtype=torch.uint8)
    mask[:, : given.size // 2] = 255
    model, _ = sphere
    everything = extract_mesh(*sphere, COARSE).facts["points"]["level0.3"]
    made = extract_mesh(model, given.scene_of(given.cameras_around(), mask), COARSE)
    assert 0.3 < made.facts["points"]["level0.3"] / everything < 0.7


@pytest.mark.machine
def test_memory_bounds_the_pieces_and_not_the_result(sphere) -> None:
    free = extract_mesh(*sphere, COARSE).meshes["level0.3"]
    taken = psutil.Process().memory_info().rss / (1 << 30)
    bound = extract_mesh(*sphere, coarse(memory=taken + 0.35)).meshes["level0.3"]
    np.testing.assert_allclose(bound.vertices, free.vertices, atol=1e-4)
    np.testing.assert_array_equal(bound.faces, free.faces)


def test_too_little_memory_is_said_before_anything_is_done(sphere) -> None:
    with pytest.raises(ValueError, match=r"--memory 0\.05 GiB: .*; give at least"):
        extract_mesh(*sphere, coarse(memory=0.05))


def test_same_seed_same_mesh(sphere) -> None:
    first, second = (extract_mesh(*sphere, COARSE).meshes["level0.3"] for _ in range(2))
    np.testing.assert_array_equal(first.vertices, second.vertices)
    np.testing.assert_array_equal(first.faces, second.faces)


def test_progress_tells_every_stage(sphere) -> None:
    told: list[tuple[str, float]] = []
    extract_mesh(*sphere, COARSE, on_progress=lambda stage, share: told.append((stage, share)))
    assert {"surface points", "finishing"} < {stage for stage, _ in told}
    assert all(0 <= share <= 1 for _, share in told)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"surface_level": (0.0,)}, r"--surface-level .* got \(0\.0,\)"),
        ({"surface_level": ()}, r"--surface-level .* got \(\)"),
        ({"points": 10}, "--points .* got 10"),
        ({"resolution": 31}, "--resolution .* got 31"),
        ({"least_views": -1}, "--least-views .* got -1"),
        ({"pieces": -1}, "--pieces .* got -1"),
        ({"trim": 1.0}, r"--trim .* got 1\.0"),
        ({"triangles": 100, "vertices": 100}, "--triangles and --vertices"),
        ({"bbox": ((0.0, 0.0, 0.0), (1.0, 1.0, 0.0))}, "--bbox must have low < high"),
        ({"memory": -1.0}, r"--memory .* 0 GiB, got -1\.0"),
    ],
)
def test_options_out_of_bounds_are_rejected(wrong, message) -> None:
    with pytest.raises(ValueError, match=message):
        ExtractOptions(**wrong)


def test_a_method_that_does_not_exist_is_refused_without_a_type_checker() -> None:
    """The import hook of the tests would refuse the argument first: users have no hook."""
    options = object.__new__(ExtractOptions)
    object.__setattr__(options, "method", "open3d")
    with pytest.raises(ValueError, match=r"--method .*poisson, tsdf, density, got 'open3d'; use poisson"):
        options.__post_init__()


def test_what_floats_where_photos_are_transparent_is_no_surface(given) -> None:
    """Two balls that float in the background: in opaque photos, black ones are indistinguishable from it."""
    cameras = given.cameras_around()
    floating = [given.ball(0.12, middle, 200) for middle in ((0.9, 0.0, 0.0), (0.0, -0.9, 0.0))]
    model = given.model_of(given.all_of(given.ball(), *floating))
    opaque = given.scene_of(cameras)
    photos = opaque.photos.having(read=lambda index: ball_of_alpha(cameras[index]))
    scene = replace(opaque, photos=photos)
    kept = extract_mesh(model, opaque, coarse(least_piece=0.0))
    carved = extract_mesh(model, scene, coarse(least_piece=0.0))
    assert radii(kept.meshes["level0.3"]).max() > 0.9
    assert radii(carved.meshes["level0.3"]).max() < 0.55
    assert carved.meshes["level0.3"].pieces.max() == 0
    assert carved.facts["carved_gaussians"] == 400
    assert any("400 opaque Gaussians" in note for note in carved.notes)


def ball_of_alpha(camera) -> PhotoPixels:
    origins, directions = camera.rays()
    along = -(origins * directions).sum(-1)
    apart = (origins + along[..., None] * directions).norm(dim=-1)
    alpha = (apart < 0.52).to(torch.uint8) * 255
    return PhotoPixels(image=torch.zeros(*alpha.shape, 3, dtype=torch.uint8), alpha=alpha)
