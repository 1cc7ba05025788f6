from dataclasses import replace

import numpy as np
import pytest

from fieldwatch.recon.mesh import OrientedPoints, Triangles, facing_outward


def scaled(mesh, factor, shift=(0, 0, 0)):
    return replace(mesh, vertices=factor * mesh.vertices + np.array(shift, float))


@pytest.mark.parametrize("inward", [False, True])
def test_a_closed_surface_faces_outward(forms, inward):
    ball = forms.icosphere()
    mesh = facing_outward(ball.turned() if inward else ball)
    assert mesh.outward is True


def test_some_faces_wound_wrongly_are_turned(forms):
    ball = forms.icosphere()
    wrong = ball.turned(np.random.default_rng(0).random(len(ball.faces)) < 0.3)
    assert facing_outward(wrong).outward is True


def test_each_piece_by_itself(forms):
    both = forms.joined(forms.icosphere().turned(), scaled(forms.icosphere(2), 0.5, (5, 0, 0)))
    assert facing_outward(both).signed_volume == pytest.approx(4 / 3 * np.pi * 1.125, rel=0.02)


def test_the_wall_of_a_hollow_faces_into_it_and_a_ball_inside_faces_out(forms):
    ball = forms.icosphere()
    nest = forms.joined(forms.joined(ball.turned(), scaled(ball, 0.8)), scaled(ball, 0.3).turned())
    volume = 4 / 3 * np.pi * (1 - 0.8**3 + 0.3**3)
    assert facing_outward(nest).signed_volume == pytest.approx(volume, rel=0.02)


def test_pieces_side_by_side_in_one_box_are_not_inside(forms):
    corner = scaled(forms.icosphere(2), 0.1, (0.95, 0.95, 0.95))
    mesh = facing_outward(forms.joined(forms.icosphere(), corner.turned()))
    assert mesh.signed_volume == pytest.approx(4 / 3 * np.pi * 1.001, rel=0.01)


@pytest.mark.parametrize("up", [1.0, -1.0])
def test_an_open_surface_faces_as_its_points_do(forms, up):
    patch = forms.patch()
    points = OrientedPoints(points=patch.vertices, normals=np.tile([0.0, 0.0, up], (len(patch.vertices), 1)))
    assert (facing_outward(patch, points).normals[:, 2] == up).all()
    assert (facing_outward(patch).normals[:, 2] == 1).all()


def test_what_cannot_be_oriented_and_nothing_stay(forms):
    strip = forms.mobius()
    assert facing_outward(strip).faces.tolist() == strip.faces.tolist()
    empty = Triangles(vertices=np.empty((0, 3)), faces=np.empty((0, 3), np.int64))
    assert facing_outward(empty) is empty
