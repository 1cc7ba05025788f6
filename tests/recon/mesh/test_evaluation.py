"""A mesh against the truth: spheres of known distance, protocols, what cameras see, colors and the picture."""

import numpy as np
import pytest

from fieldwatch.recon.geometry import Camera, look_at
from fieldwatch.recon.mesh import (
    MeshError,
    StyleLengths,
    Triangles,
    decimated,
    error_colored,
    error_histogram,
    error_ramp,
    evaluate_mesh,
    read_mesh,
)
from fieldwatch.recon.mesh.sampling import sample_surface, thinned
from fieldwatch.recon.mesh.visibility import visible_points


def camera_at(position, size=48):
    pose = look_at(position, (0.0, 0.0, 0.0))
    return Camera(name="c", width=size, height=size, fx=1.6 * size, fy=1.6 * size, cx=size / 2, cy=size / 2,
                  world_from_camera=pose)  # fmt: skip


@pytest.mark.parametrize("scale", [0.9, 1.1])
def test_a_scaled_sphere_is_as_far_as_the_radii_differ(forms, scale):
    found = evaluate_mesh(forms.icosphere(4, scale), forms.icosphere(4), samples=5000, thresholds=(0.05, 0.105))
    assert (found.accuracy, found.completeness, found.chamfer) == pytest.approx((0.1, 0.1, 0.1), rel=0.002)
    assert found.diameter == pytest.approx(2 * 3**0.5, rel=0.01)
    assert found.chamfer_percent == pytest.approx(100 * found.chamfer / found.diameter)
    assert found.chamfer_squared == pytest.approx(2 * 0.01, rel=0.005)
    assert (found.worst_accuracy, found.worst_completeness) == pytest.approx((0.1, 0.1), rel=0.01)
    assert found.normal_consistency == pytest.approx(1, abs=1e-3)
    assert [(s.precision, s.recall, s.f_score) for s in found.scores] == [(0, 0, 0), (1, 1, 1)]
    assert found.vertex_errors == pytest.approx(np.full(2562, 0.1), abs=2e-3)


def test_a_mesh_is_itself(forms):
    found = evaluate_mesh(forms.cone(), forms.cone(), samples=2000)
    assert found.chamfer < 1e-12
    assert [score.f_score for score in found.scores] == [1, 1, 1]
    assert [score.threshold / found.diameter for score in found.scores] == pytest.approx([0.005, 0.01, 0.02])


def test_half_a_sphere_is_accurate_but_incomplete(forms):
    ball = forms.icosphere(4)
    half = ball.chosen(ball.corners.mean(1)[:, 2] > 0)
    found = evaluate_mesh(half, ball, samples=8000, thresholds=(0.02,))
    assert found.accuracy < 1e-12
    # the mean over the lower half of 2 sin(angle / 2) to the rim: 2 - 4/3 sqrt 2 for each unit of height... integrated
    heights = np.linspace(0, 1, 20001)
    expected = np.sqrt(2 - 2 * np.sqrt(1 - heights**2)).mean() / 2
    assert found.completeness == pytest.approx(expected, rel=0.02)
    assert found.scores[0].precision == 1
    assert found.scores[0].recall == pytest.approx(0.51, abs=0.01)


def test_inside_out_is_seen_by_the_facing_only(forms):
    found = evaluate_mesh(forms.icosphere(3).turned(), forms.icosphere(3), samples=2000)
    assert found.normal_consistency == pytest.approx(1)
    assert found.facing_alike == 0


def test_aligning_takes_the_pose_away(forms):
    ball = forms.icosphere(3)
    places = ball.vertices * [1.0, 0.7, 0.4] + 0.2 * ball.vertices[:, [1, 2, 0]] ** 2
    form = Triangles(vertices=places, faces=ball.faces)
    other = Triangles(vertices=1.05 * places + 0.05, faces=ball.faces)
    assert evaluate_mesh(other, form, samples=2000).chamfer_percent > 1
    found = evaluate_mesh(other, form, samples=2000, align="icp")
    assert found.chamfer_percent < 1e-6
    assert found.alignment.scale == pytest.approx(1 / 1.05, rel=1e-6)
    assert found.aligned.vertices == pytest.approx(places, abs=1e-6)


@pytest.mark.parametrize("style", ["dtu", "tanks"])
def test_clouds_agree_up_to_their_spacing(forms, style):
    found = evaluate_mesh(forms.icosphere(3, 1.1), forms.icosphere(3), style=style, samples=20000,
                          thresholds=(0.105,), lengths=StyleLengths(spacing=0.03))  # fmt: skip
    assert 0.1 <= found.accuracy < 0.106
    assert found.lengths.spacing == 0.03
    assert found.lengths.cap == (pytest.approx(3) if style == "dtu" else None)


def test_the_cap_leaves_far_pieces_out(forms):
    ball = forms.icosphere(3)
    stray = forms.joined(ball, Triangles(vertices=0.2 * ball.vertices + 30, faces=ball.faces))
    lengths = StyleLengths(spacing=0.05, cap=1.0)
    found = evaluate_mesh(stray, ball, style="dtu", samples=5000, lengths=lengths)
    assert found.accuracy < 0.05
    assert found.worst_accuracy > 40
    with pytest.raises(MeshError, match=r"cap of .*sim3"):
        evaluate_mesh(Triangles(vertices=ball.vertices + 50, faces=ball.faces), ball, style="dtu", lengths=lengths)


def test_what_no_camera_sees_does_not_count(forms):
    ball = forms.icosphere(4)
    half = ball.chosen(ball.corners.mean(1)[:, 2] > 0)
    cameras = [camera_at((0.0, -1, 4.0)), camera_at((0.5, 1.0, 4.0))]
    seen = visible_points(ball, cameras)
    assert np.linalg.norm(seen.points, axis=1) == pytest.approx(np.ones(len(seen)), abs=5e-3)
    assert seen.points[:, 2].min() > -0.1
    all_round = evaluate_mesh(half, ball, samples=4000)
    found = evaluate_mesh(half, ball, samples=4000, cameras=cameras)
    assert found.completeness < 0.02 < all_round.completeness


def test_the_diligent_style_counts_every_ray_in_the_masks(forms):
    cameras = [camera_at((0.0, -1, 4.0))]
    mask = np.zeros((48, 48), np.bool_)
    mask[20:28, 20:28] = True
    found = evaluate_mesh(forms.icosphere(4, 1.1), forms.icosphere(4), style="diligent", cameras=cameras, masks=[mask])
    assert (len(found.to_truth), len(found.to_mesh)) == (64, 64)
    assert 0.1 < found.chamfer < 0.11
    with pytest.raises(MeshError, match="no cameras"):
        evaluate_mesh(forms.cone(), forms.cone(), style="diligent")
    with pytest.raises(MeshError, match=r"nothing .*mesh"):
        evaluate_mesh(forms.cone(), forms.cone(), style="diligent", cameras=cameras, masks=[mask & False])
    with pytest.raises(MeshError, match=r"mask of camera .* size \(\d+, \d+\), got \("):
        visible_points(forms.cone(), cameras, masks=[mask[1:]])
    with pytest.raises(MeshError, match="1 cameras and 2 masks"):
        visible_points(forms.cone(), cameras, masks=[None, None])


def test_what_makes_no_evaluation_is_refused(forms):
    nothing = Triangles(vertices=np.zeros((0, 3)), faces=np.zeros((0, 3), np.int64))
    with pytest.raises(MeshError, match=r"truth.* no faces"):
        evaluate_mesh(forms.cone(), nothing)
    with pytest.raises(MeshError, match="an area of 0"):
        evaluate_mesh(nothing, forms.cone())
    with pytest.raises(MeshError, match="lengths greater than 0"):
        evaluate_mesh(forms.cone(), forms.cone(), thresholds=(0.0,))


def test_samples_follow_the_area_and_lie_on_the_faces(forms):
    patch = forms.patch(4)
    samples = sample_surface(patch, 3200)
    squares = np.floor(samples.points[:, :2]).astype(int) @ (1, 4)
    assert np.abs(np.bincount(squares) - 200).max() <= 4  # stratified: pure chance would differ by some 40
    assert np.array_equal(samples.normals, np.tile([0.0, 0, 1], (3200, 1)))
    assert np.array_equal(samples.points, sample_surface(patch, 3200).points)
    few = thinned(samples, 1.0)
    assert len(few) == 16
    with pytest.raises(MeshError, match=r"spacing .*greater than 0, got 0"):
        thinned(samples, 0.0)


def test_the_ramp_gets_lighter_and_ends_stay(forms):
    colors = error_ramp(np.linspace(0, 1, 256)).astype(float)
    light = colors @ (0.2126, 0.7152, 0.0722)
    assert (np.diff(light) > -0.8).all()  # up to the rounding of 8 bits
    assert light[-1] - light[0] > 150
    assert np.array_equal(error_ramp(np.array([-1.0, 2.0])), error_ramp(np.array([0.0, 1.0])))
    colored = error_colored(forms.cone(8), np.linspace(0, 2, 10), 2.0)
    assert np.array_equal(colored.colors, error_ramp(np.linspace(0, 1, 10)))
    with pytest.raises(MeshError, match=r"last color .*greater than 0"):
        error_colored(forms.cone(8), np.zeros(10), 0.0)


def test_the_picture_has_bars_where_the_errors_are(forms):
    found = evaluate_mesh(forms.icosphere(3, 1.1), forms.icosphere(3), samples=2000, thresholds=(0.05, 0.2))
    picture = error_histogram(found, title="ball")
    assert picture.shape == (660, 960, 3)
    bar = error_ramp(np.array([0.4]))[0].astype(int)  # 0.1 of 1.25 * 0.2
    alike = (np.abs(picture[110:290].astype(int) - bar).sum(2) < 40).any(0)
    columns = np.flatnonzero(alike)
    assert 70 + 860 * 0.36 < columns.min() <= columns.max() < 70 + 860 * 0.44


def test_spot_against_itself_decimated(real_data):
    spot = read_mesh(real_data / "meshes/spot/spot_triangulated.obj").welded()
    found = evaluate_mesh(decimated(spot, triangles=1000), spot, samples=4000)
    assert 0.01 < found.chamfer_percent < 0.3
    assert found.scores[1].f_score > 0.999
    assert found.normal_consistency > 0.95
