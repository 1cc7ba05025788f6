"""Pictures of meshes against closed forms: textures texel by texel, colors, clay, normals; cameras around them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fieldwatch.recon.geometry import Camera, look_at
from fieldwatch.recon.mesh import MeshError, MeshRenderer, Triangles, mesh_still, render_mesh, turntable_cameras

BLACK = (0, 0, 0)
CORNERS = np.array([[-1.0, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]])
TWO = np.array([[0, 1, 2], [0, 2, 3]])


def square(**more):
    return Triangles(vertices=CORNERS.copy(), faces=TWO.copy(), **more)


def facing(size, width=2.0, distance=5.0, shift=0.0):
    """A camera above the square, whose picture is `width` wide there; `shift` moves it by pixels."""
    focal = size * distance / width
    pose = look_at((0, 0, distance), (0, 0, 0), up=(0, 1, 0))
    lens = {"fx": focal, "fy": focal, "cx": size / 2 + shift, "cy": size / 2}
    return Camera(name="above", width=size, height=size, world_from_camera=pose, **lens)


def noise(*shape):
    return np.random.default_rng(5).integers(0, 256, shape, np.uint8)


def test_a_texture_is_seen_texel_by_texel():
    texture = noise(16, 16, 3)
    uvs = (CORNERS[TWO][..., :2] + 1) / 2
    picture = render_mesh(square(texture=texture, uvs=uvs), facing(16), samples=1)
    assert np.array_equal(picture, texture)


def test_between_texels_a_texture_is_bilinear():
    texture = noise(8, 8, 3)
    uvs = (CORNERS[TWO][..., :2] + 1) / 2
    picture = render_mesh(square(texture=texture, uvs=uvs), facing(8, shift=0.5), samples=1)
    wanted = (texture[:, :-1].astype(float) + texture[:, 1:]) / 2
    assert np.abs(picture[:, 1:] - wanted).max() <= 1


def test_a_texture_goes_before_the_colors_of_vertices():
    uvs = np.zeros((2, 3, 2))
    mesh = square(texture=np.full((2, 2, 3), 9, np.uint8), uvs=uvs, colors=np.full((4, 3), 200, np.uint8))
    assert (render_mesh(mesh, facing(4)) == 9).all()


def test_colors_of_vertices_are_mixed_evenly_along_the_surface():
    colors = np.array([[0, 0, 0], [255, 0, 0], [255, 255, 0], [0, 255, 0]], np.uint8)
    picture = render_mesh(square(colors=colors), facing(50), samples=1).astype(float)
    ramp = 255 * (np.arange(50) + 0.5) / 50
    assert np.abs(picture[..., 0] - ramp).max() <= 0.51
    assert np.abs(picture[..., 1] - ramp[::-1, None]).max() <= 0.51


def test_a_pixel_is_the_mean_of_its_samples():
    white = square(colors=np.full((4, 3), 200, np.uint8))
    half = facing(10, width=4.0, shift=0.5)
    assert set(np.unique(render_mesh(white, half, background=BLACK, samples=1))) == {0, 200}
    fine = render_mesh(white, half, background=BLACK, samples=2)
    # 5 pixels wide from 3.0 to 8.0 across, from 2.5 to 7.5 down: half a pixel is covered above and below
    assert fine[:, 5, 0].tolist() == [0, 0, 100, 200, 200, 200, 200, 100, 0, 0]
    assert fine[5, :, 0].tolist() == [0, 0, 0, 200, 200, 200, 200, 200, 0, 0]


def test_normals_of_a_sphere_are_its_own(forms):
    camera = facing(64, width=3.0, distance=9.0)
    picture = render_mesh(forms.icosphere(4), camera, shading="normals", background=BLACK, samples=1).astype(float)
    directions = camera.directions().numpy()
    square_length = (directions**2).sum(-1)
    half = -9.0 * directions[..., 2]
    root = half**2 - square_length * 80.0
    depth = (-half - np.sqrt(root.clip(0))) / square_length
    normal = directions * depth[..., None] - [0, 0, 9.0]  # camera axes; the sphere's middle is 9 ahead
    wanted = (normal * [1, -1, -1] + 1) * 127.5
    inside = root > 0.05
    assert inside.sum() > 1000
    assert np.abs(picture - wanted)[inside].max() < 2


def test_edges_of_a_cube_are_not_smoothed_away():
    places = np.array([[x, y, z] for x in (-1.0, 1) for y in (-1.0, 1) for z in (-1.0, 1)])
    sides = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = [face for a, b, c, d in sides for face in ((a, b, c), (a, c, d))]
    cube = Triangles(vertices=places, faces=np.array(faces))
    camera = turntable_cameras(cube, 1, 64)[0]
    picture = render_mesh(cube, camera, shading="normals", samples=1)
    colors, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    assert (counts > 50).sum() == 3  # the background, the side in front, the top
    assert counts[counts > 50].sum() > 0.98 * 64 * 64
    assert len(colors) < 40


def test_clay_is_brightest_where_it_faces_the_camera_and_red_from_behind(forms):
    ball = forms.icosphere(3)
    camera = facing(40, width=2.4)
    outside = render_mesh(ball, camera, shading="clay", background=BLACK).astype(int)
    assert np.abs(outside[20, 20] - [205, 200, 192]).max() <= 2
    assert outside[20, 20].sum() > outside[20, 35].sum() > outside[20, 0].sum() == 0
    inside_out = render_mesh(ball.turned(), camera, shading="clay", background=BLACK).astype(int)
    assert np.abs(inside_out[20, 20] - [150, 96, 88]).max() <= 2


def test_a_mesh_without_colors_is_clay():
    assert np.array_equal(render_mesh(square(), facing(8)), render_mesh(square(), facing(8), shading="clay"))


def test_repeated_vertices_do_not_show_in_clay(forms):
    ball = forms.icosphere(2)
    camera = facing(32, width=2.4)
    difference = render_mesh(ball, camera, shading="clay").astype(int) - render_mesh(
        forms.torn(ball), camera, shading="clay"
    )
    assert np.abs(difference).max() <= 1


def test_what_lies_beside_the_mesh_is_the_background():
    picture = render_mesh(square(), facing(9, width=200.0), background=(1, 2, 3), samples=3)
    assert (picture[0, 0] == [1, 2, 3]).all()
    away = replace(facing(4), world_from_camera=look_at((0, 0, 5), (0, 0, 9)))
    assert (render_mesh(square(), away, background=(1, 2, 3)) == [1, 2, 3]).all()


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_the_size_of_the_scene_does_not_matter(forms, scale):
    ball = forms.icosphere(2)
    large = replace(ball, vertices=ball.vertices * scale)
    pictures = [render_mesh(mesh, turntable_cameras(mesh, 3, 32)[1], shading="clay") for mesh in (ball, large)]
    assert np.abs(pictures[0].astype(int) - pictures[1]).max() <= 1


@pytest.mark.parametrize("up", [(0, 0, 1), (0, -2, 0), (1, 0, 0), (0.3, -0.5, 0.8)])
def test_cameras_of_a_turntable_see_all_of_the_mesh_upright(forms, up):
    mesh = forms.cone()
    cameras = turntable_cameras(mesh, 7, 100, up=up)
    places = torch.from_numpy(mesh.vertices)
    upwards = torch.tensor(up, dtype=torch.float64) / math.hypot(*up)
    middle = torch.from_numpy((mesh.vertices.max(0) + mesh.vertices.min(0)) / 2)
    assert len({tuple(camera.position.tolist()) for camera in cameras}) == 7
    for camera in cameras:
        pixels, depth = camera.project(places)
        assert (depth > 0).all()
        assert ((pixels > 0) & (pixels < 100)).all()
        assert torch.allclose(camera.project(middle)[0], torch.full((2,), 50.0, dtype=torch.float64))
        raised = camera.project(middle + 0.1 * upwards)[0]
        assert abs(float(raised[0]) - 50) < 1e-6
        assert float(raised[1]) < 49
        assert float((camera.position - middle) @ upwards) == pytest.approx(
            math.sin(math.radians(15)) * float((camera.position - middle).norm())
        )


def test_a_still_shows_colors_above_and_clay_below(forms):
    ball = forms.icosphere(2)
    colored = replace(ball, colors=np.full((len(ball.vertices), 3), (10, 200, 30), np.uint8))
    sheet = mesh_still(colored, size=20, views=3)
    assert sheet.shape == (40, 60, 3)
    assert (sheet[10, [10, 30, 50]] == (10, 200, 30)).all()
    renderer = MeshRenderer(colored)
    for number, camera in enumerate(turntable_cameras(colored, 3, 20)):
        assert np.array_equal(sheet[20:, 20 * number : 20 * number + 20], renderer.render(camera, shading="clay"))


def test_a_still_without_colors_shows_clay_above_and_normals_below(forms):
    ball = forms.icosphere(2)
    camera = turntable_cameras(ball, 4, 24)[2]
    sheet = mesh_still(ball, size=24)
    assert np.array_equal(sheet[:24, 48:72], render_mesh(ball, camera, shading="clay"))
    assert np.array_equal(sheet[24:, 48:72], render_mesh(ball, camera, shading="normals"))


def test_a_mesh_without_faces_is_refused():
    empty = Triangles(vertices=np.zeros((3, 3)), faces=np.empty((0, 3), np.int64))
    with pytest.raises(MeshError, match="without faces"):
        render_mesh(empty, facing(4))
    with pytest.raises(MeshError, match="without faces"):
        mesh_still(empty)


@pytest.mark.parametrize("up", [(0, 0, 0), (0, math.nan, 1)])
def test_an_up_without_direction_is_refused(up):
    with pytest.raises(ValueError, match="three finite numbers"):
        turntable_cameras(square(), 4, 32, up=up)


@pytest.mark.parametrize(("frames", "size", "elevation"), [(0, 32, 0), (4, 0, 0), (4, 32, 90)])
def test_cameras_that_cannot_be_are_refused(frames, size, elevation):
    with pytest.raises(ValueError, match="at least 1"):
        turntable_cameras(square(), frames, size, elevation=elevation)


def test_no_sample_is_refused():
    with pytest.raises(ValueError, match=r"samples .* at least 1 .*got 0"):
        render_mesh(square(), facing(4), samples=0)
