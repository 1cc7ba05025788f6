"""Baking photos of known colors: the colors come back, occluders and odd photos do not, nothing stays black."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fieldwatch.recon.geometry import look_at
from fieldwatch.recon.mesh import BakingOptions, MeshError, TexturePhoto, Triangles, bake_texture, unwrapped
from fieldwatch.recon.mesh.baking import blended_colors
from fieldwatch.recon.mesh.filling import pad_texture
from fieldwatch.recon.mesh.texels import Texels, find_texels
from fieldwatch.recon.render import View, cast_triangles

SIX = [(3, 0.1, 0), (-3, 0, 0.1), (0.1, 3, 0), (0, -3, 0.1), (0, 0.1, 3), (0.1, 0, -3)]
CORNERS = [(x, y, z) for x in (-2, 2) for y in (-2, 2) for z in (-2, 2)]
BLANK = (1, 2, 3)


def color_at(places):
    """Between 27 and 227, smooth, different everywhere."""
    return 127 + 100 * np.sin(2 * places + np.array([0, 1, 2]))


def camera(eye, size=96):
    pose = torch.linalg.inv(look_at(list(eye), [0.0, 0, 0], [0.3, 0.2, 0.9]).double())
    return View(camera_from_world=pose, fx=1.2 * size, fy=1.2 * size, cx=size / 2, cy=size / 2, width=size, height=size)


def photo(mesh, eye, *, color=color_at, size=96, mask=None):
    view = camera(eye, size)
    hits = cast_triangles(torch.from_numpy(mesh.vertices), torch.from_numpy(mesh.faces), view)
    faces = hits.faces.numpy()
    places = np.einsum("hwc,hwci->hwi", hits.barycentrics.numpy().astype(float), mesh.corners[faces])
    image = np.where((faces >= 0)[..., None], color(places), BLANK)
    return TexturePhoto(image=np.rint(image).astype(np.uint8), view=view, mask=mask)


def errors(mesh, size, color=color_at):
    """Largest difference in any channel, of texels inside faces."""
    texels = find_texels(mesh, size)
    rows = np.flatnonzero(texels.inside)
    baked = mesh.texture.reshape(-1, 3)[texels.indices[rows]]
    return np.abs(baked - color(texels.points(mesh, rows))).max(1), texels, rows


def cube(half=0.7):
    places = half * np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = [row for a, b, c, d in quads for row in ((a, b, c), (a, c, d))]
    return Triangles(vertices=places, faces=np.array(faces))


@pytest.mark.parametrize("method", ["xatlas", "squares"])
@pytest.mark.parametrize("blend", ["mean", "best"])
def test_the_colors_of_a_sphere_come_back(forms, method, blend):
    mesh = unwrapped(forms.icosphere(2), method=method, size=128)
    baked = bake_texture(
        mesh, (photo(mesh, eye) for eye in SIX + CORNERS), size=128, options=BakingOptions(blend=blend)
    )
    off, _, _ = errors(baked.mesh, 128)
    assert baked.seen == 1
    assert off.mean() < 1
    assert np.quantile(off, 0.99) < 3
    assert (baked.photos, baked.blank) == (14, 0)
    assert baked.views == 1 if blend == "best" else baked.views > 2


def test_the_colors_of_a_cube_come_back_up_to_its_edges():
    mesh = unwrapped(cube(), size=128)
    assert mesh.outward is True
    baked = bake_texture(mesh, [photo(mesh, eye) for eye in CORNERS], size=128)
    off, _, _ = errors(baked.mesh, 128)
    assert off.mean() < 2
    assert baked.seen > 0.99


def test_an_occluder_is_not_baked_onto_what_lies_behind(forms):
    """A small sphere floats before a larger one, in a color of its own; both are in the mesh."""
    big = forms.icosphere(2)
    small = forms.icosphere(1, radius=0.25)
    small = replace(small, vertices=small.vertices + np.array([1.6, 0, 0]))
    mesh = unwrapped(forms.joined(big, small), method="squares", size=256)

    def color(places):
        near = np.linalg.norm(places - [1.6, 0, 0], axis=-1) < 0.3
        return np.where(near[..., None], 255, color_at(places) * 0.5)

    eyes = [(3.5, 0.5, 0), (3.5, -0.5, 0.3), (3.5, 0, -0.6), *SIX[1:]]
    baked = bake_texture(
        mesh, [photo(mesh, eye, color=color) for eye in eyes], size=256, options=BakingOptions(blend="best")
    )
    off, texels, rows = errors(baked.mesh, 256, color)
    assert off[texels.faces[rows] < len(big.faces)].mean() < 1.5
    assert (off[texels.faces[rows] < len(big.faces)] > 40).mean() < 0.002


def test_one_odd_photo_of_four_is_dropped(forms):
    mesh = unwrapped(forms.icosphere(2), size=64)
    eyes = [(3, 0, 0), (3, 0.3, 0), (3, 0, 0.3), (3, -0.2, -0.2)]
    photos = [photo(mesh, eye) for eye in eyes]
    photos[1] = replace(photos[1], image=np.full_like(photos[1].image, 255))
    baked = bake_texture(mesh, photos, size=64)
    off, texels, rows = errors(baked.mesh, 64)
    facing = texels.points(mesh, rows)[:, 0] > 0.7
    assert off[facing].max() < 6


def test_masked_pixels_and_background_are_never_taken(forms):
    mesh = unwrapped(forms.icosphere(2), size=64)
    photos = [photo(mesh, eye) for eye in SIX]
    left = np.zeros((96, 96), np.bool_)
    left[:, :48] = True
    spoilt = photos[0].image.copy()
    spoilt[:, 48:] = 255
    photos[0] = replace(photos[0], image=spoilt, mask=left)
    off, _, _ = errors(bake_texture(mesh, photos, size=64, options=BakingOptions(blend="best")).mesh, 64)
    assert np.quantile(off, 0.98) < 6


def test_unseen_texels_take_colors_from_around_and_none_is_black(forms):
    mesh = unwrapped(forms.icosphere(2), size=128)

    def halves(places):
        return np.where(places[..., 2:] > 0, [250.0, 100, 100], [100.0, 100, 250])

    baked = bake_texture(mesh, [photo(mesh, (3, 0, 0.01), color=halves)], size=128)
    assert 0.2 < baked.seen < 0.5
    assert baked.mesh.texture.min() >= 95
    off, texels, rows = errors(baked.mesh, 128, halves)
    height = texels.points(mesh, rows)[:, 2]
    assert off[np.abs(height) > 0.4].max() < 8


def test_smaller_copies_of_the_picture_keep_the_color_of_the_surface(forms):
    mesh = unwrapped(forms.icosphere(1), size=128)
    photos = [photo(mesh, eye, color=lambda p: np.full_like(p, 200.0)) for eye in SIX]
    picture = bake_texture(mesh, photos, size=128).mesh.texture
    assert np.abs(picture.astype(int) - 200).max() <= 1


def test_filling_takes_the_mean_of_the_smallest_square_with_a_color():
    places = np.array([0, 7 * 8 + 7])
    texels = Texels(
        size=8,
        indices=places,
        faces=np.zeros(2, np.int64),
        weights=np.zeros((2, 3), np.float32),
        inside=np.ones(2, np.bool_),
    )
    picture = pad_texture(texels, np.array([[10, 20, 30], [110, 120, 130]], np.float32))
    assert (picture[:4, :4] == [10, 20, 30]).all()
    assert (picture[4:, 4:] == [110, 120, 130]).all()
    assert (picture[:4, 4:] == [60, 70, 80]).all()


def test_blending_is_the_mean_of_what_is_near_the_median():
    colors = np.array([[[100.0] * 3, [104] * 3, [108] * 3, [250] * 3], [[9] * 3, [5] * 3, [0] * 3, [0] * 3]])
    worth = np.array([[1.0, 1, 2, 3], [3, 1, 0, 0]])
    assert blended_colors(colors, worth)[0] == pytest.approx([105.0] * 3)
    assert blended_colors(colors, worth)[1] == pytest.approx([8.0] * 3)
    assert blended_colors(colors, 0 * worth)[0] == pytest.approx([0.0] * 3)


def test_photos_are_taken_one_at_a_time(forms):
    mesh = unwrapped(forms.icosphere(0), size=32)
    calls = []

    def stream():
        for number, eye in enumerate(SIX):
            assert len(calls) == number
            yield photo(mesh, eye, size=32)

    bake_texture(mesh, stream(), size=32, on_photo=lambda: calls.append(1))
    assert len(calls) == 6


def test_what_cannot_be_baked_is_said(forms):
    mesh = unwrapped(forms.icosphere(0), size=32)
    with pytest.raises(MeshError, match="there are none"):
        bake_texture(mesh, [], size=32)
    with pytest.raises(MeshError, match="none of the 1"):
        bake_texture(replace(mesh, vertices=mesh.vertices + 100), [photo(mesh, SIX[0])], size=32)
    with pytest.raises(MeshError, match="no texture coordinates"):
        bake_texture(forms.icosphere(0), [], size=32)
    with pytest.raises(MeshError, match="from 1 to 64"):
        BakingOptions(views=0)
    with pytest.raises(MeshError, match="its camera 96 x 96"):
        TexturePhoto(image=np.zeros((96, 95, 3), np.uint8), view=camera(SIX[0]))
