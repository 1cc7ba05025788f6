"""Folders of normal maps: round trips, decomposition of cameras, errors for every fault; synthetic sets."""

import math
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.recon.data import (
    NormalSet,
    SolidScene,
    SolidUnion,
    read_mask_file,
    read_normal_file,
    ring_cameras,
    synthetic_normal_maps,
    write_normal_maps,
)
from fieldwatch.recon.data.normal_maps import NormalMapError, NormalScene, PlacedShape, read_normal_maps
from fieldwatch.recon.data.normal_maps.cameras_file import decompose
from fieldwatch.recon.data.normal_maps.map_files import write_png16
from fieldwatch.recon.data.solids.shapes import Sphere
from fieldwatch.recon.geometry import quaternion_to_matrix

NORMALS = "normal_camera_space_GT"


@pytest.fixture(scope="module")
def made():
    views = synthetic_normal_maps(views=3, size=24).views
    wide = replace(views[2].camera, width=20, height=24)
    cut = {"normals": views[2].normals[:, :20], "mask": views[2].mask[:, :20], "depth": views[2].depth[:, :20]}
    unit = torch.tensor([[2.5, 0, 0, 1], [0, 2.5, 0, -3], [0, 0, 2.5, 40], [0, 0, 0, 1]], dtype=torch.float64)
    return NormalSet(views=(*views[:2], replace(views[2], camera=wide, **cut)), world_from_unit=unit)


@pytest.fixture
def folder(made, tmp_path):
    return write_normal_maps(made, tmp_path / "set")


@pytest.mark.parametrize(("kind", "close"), [("png", 1.6e-5 * math.sqrt(3)), ("npy", 1e-7)])
def test_a_set_comes_back_as_it_was_written(made, tmp_path, kind, close):
    (tmp_path / "mesh.ply").write_text("ply")
    read = read_normal_maps(write_normal_maps(replace(made, mesh=tmp_path / "mesh.ply"), tmp_path / "set", kind=kind))
    assert (read.names, read.sizes) == (("000", "001", "002"), ((24, 24), (24, 24), (24, 20)))
    assert read.mesh is not None
    assert read.mesh.read_text() == "ply"
    assert torch.equal(read.world_from_unit, made.world_from_unit)
    for own, truth in zip(read.views, made.views, strict=True):
        assert torch.equal(own.mask, truth.mask)
        assert torch.equal(own.depth, truth.depth)
        assert torch.equal(own.known, truth.known)
        assert float((own.normals - truth.normals).norm(dim=-1).max()) < close
        assert torch.allclose(own.camera.world_from_camera, truth.camera.world_from_camera, atol=1e-10)
        assert torch.allclose(own.camera.K, truth.camera.K, atol=1e-8)
        assert own.off_unit == 0


def test_a_read_camera_puts_points_of_the_world_where_the_layout_says(made, folder):
    """Project with the formula of the layout: world_mat times a world point, pixel centers at integers."""
    matrix = np.load(folder / "cameras_sphere.npz")["world_mat_1"]
    read = read_normal_maps(folder)
    unit = torch.tensor([[0.2, -0.1, 0.3]], dtype=torch.float64)
    world = (unit @ read.world_from_unit[:3, :3].T + read.world_from_unit[:3, 3])[0].numpy()
    x, y, w = (matrix @ [*world, 1])[:3]
    pixel, _ = read.views[1].camera.project(unit)
    assert pixel[0].tolist() == pytest.approx([x / w + 0.5, y / w + 0.5], abs=1e-9)


@pytest.mark.parametrize("factor", [1.0, -3.7])
def test_a_projection_is_taken_apart_exactly_whatever_its_factor(factor):
    rotation = quaternion_to_matrix(torch.tensor([0.3, -0.5, 0.7, 0.2], dtype=torch.float64)).numpy()
    rotation /= np.cbrt(np.linalg.det(rotation))
    intrinsics = np.array([[3772.1, 0.0, 305.9], [0, 3759.0, 255.1], [0, 0, 1]])
    shift = np.array([0.3, -0.2, 15.0])
    parts = decompose(factor * intrinsics @ np.column_stack([rotation, shift]))
    assert np.allclose(parts.K, intrinsics, rtol=1e-11)
    assert np.allclose(parts.camera_from_world[:3], np.column_stack([rotation, shift]), atol=1e-11)


def test_depth_along_the_ray_is_written_beside_that_along_the_axis(made, folder):
    along = np.load(folder / "integration" / "perspective" / "001.npy")
    axis = np.load(folder / "integration" / "depth" / "001.npy")
    view = made.views[1]
    seen = view.mask.numpy()
    assert np.isnan(along[~seen]).all()
    assert np.isnan(axis[~seen]).all()
    points = view.camera.unproject(view.depth.double())
    reach = (points - view.camera.position).norm(dim=-1).numpy()
    assert np.allclose(along[seen], reach[seen], rtol=1e-6)


def test_axes_are_stated_or_recognized(made, folder):
    opencv = read_normal_maps(folder, axes="opencv")
    assert torch.allclose(opencv.views[0].normals[..., 1:], -made.views[0].normals[..., 1:], atol=3e-5)
    recognized = read_normal_maps(folder, axes="auto")
    assert torch.allclose(recognized.views[0].normals, made.views[0].normals, atol=3e-5)
    assert any("normals: opengl, found" in note for note in recognized.notes)


def test_axes_that_can_not_be_recognized_are_assumed_and_said(made, folder):
    normals = made.views[0].normals.numpy().copy()
    normals[::2, :, 2] *= -1
    for number in range(3):
        height, width = made.sizes[number]
        (folder / NORMALS / f"00{number}.png").unlink()
        np.save(folder / NORMALS / f"00{number}.npy", normals[:height, :width])
    assert any("normals: opengl, assumed" in note for note in read_normal_maps(folder).notes)
    with pytest.raises(NormalMapError, match=r"--axes opengk.*opencv"):
        read_normal_maps(folder, axes="opengk")


def test_sixteen_bits_are_decoded_as_the_layout_says_and_black_and_gray_are_nothing(tmp_path):
    values = np.array([[[65535, 32768, 32768], [0, 0, 0], [32768, 32767, 32768], [32768, 0, 32767]]], np.uint16)
    write_png16(tmp_path / "0.png", values)
    normals = read_normal_file(tmp_path / "0.png")
    assert normals[0, 0].tolist() == pytest.approx([1, 1 / 65535, 1 / 65535])
    assert normals[0, 1].tolist() == normals[0, 2].tolist() == [0, 0, 0]
    assert normals[0, 3].tolist() == pytest.approx([1 / 65535, -1, -1 / 65535])


def test_lengths_are_made_one_and_counted(made, folder):
    normals = made.views[0].normals.numpy() * [1, -1, -1]
    (folder / NORMALS / "000.png").unlink()
    normals[:12] *= 0.8
    np.save(folder / NORMALS / "000.npy", normals.astype(np.float32))
    view = read_normal_maps(folder).views[0]
    assert torch.allclose(view.normals, made.views[0].normals, atol=1e-6)
    share = made.views[0].mask[:12].sum() / made.views[0].mask.sum()
    assert view.off_unit == pytest.approx(float(share), abs=1e-6)


def test_an_exr_of_floats_is_read_to_the_bit(tmp_path):
    values = np.random.default_rng(0).normal(size=(7, 5, 3)).astype(np.float32)
    codec = av.CodecContext.create("exr", "w")
    codec.height = 7
    codec.width = 5
    codec.pix_fmt = "gbrpf32le"
    codec.time_base = Fraction(1)
    frame = av.VideoFrame.from_ndarray(values, format="gbrpf32le")
    packets = [*codec.encode(frame), *codec.encode(None)]
    (tmp_path / "0.exr").write_bytes(b"".join(bytes(packet) for packet in packets))
    assert np.array_equal(read_normal_file(tmp_path / "0.exr").numpy(), values)


def test_masks_of_any_kind_are_read(tmp_path):
    truth = np.random.default_rng(0).uniform(size=(6, 9)) > 0.5
    gray = truth.astype(np.uint8) * 255
    Image.fromarray(gray).save(tmp_path / "0.png")
    Image.fromarray(np.dstack([gray, gray * 0, gray])).save(tmp_path / "1.png")
    Image.fromarray(truth).save(tmp_path / "2.png")
    Image.fromarray(truth.astype(np.uint16) * 65535).save(tmp_path / "3.png")
    for number, values in enumerate((truth, gray, truth.astype(np.float32)), 4):
        np.save(tmp_path / f"{number}.npy", values)
    for path in sorted(tmp_path.iterdir()):
        assert np.array_equal(read_mask_file(path).numpy(), truth), path


def test_holes_of_masks_are_filled_where_there_are_normals(made, folder):
    mask = made.views[0].mask.clone()
    row, column = (int(x) for x in mask.nonzero().double().mean(0).round())
    holed = mask.clone()
    holed[row, column] = False
    Image.fromarray(holed.numpy()).save(folder / "mask" / "000.png")
    assert torch.equal(read_normal_maps(folder).views[0].mask, holed)
    filled = read_normal_maps(folder, fill_holes=True)
    assert torch.equal(filled.views[0].mask, mask)
    assert any("1 pixels in holes" in note for note in filled.notes)


def test_views_are_left_out_and_gaps_are_noted(made, folder):
    read = read_normal_maps(folder, exclude=[1], depth=None)
    assert read.names == ("000", "002")
    assert read.views[0].depth is None
    assert any("gaps: 0, 2" in note for note in read.notes)
    assert torch.allclose(read.cameras[1].world_from_camera, made.cameras[2].world_from_camera, atol=1e-10)


def save_cameras(folder, change):
    matrices = dict(np.load(folder / "cameras_sphere.npz"))
    change(matrices)
    np.savez(folder / "cameras_sphere.npz", **matrices)


def skewed(matrices):
    matrices["world_mat_1"] = matrices["world_mat_1"] @ np.array(
        [[1, 0.1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    )


FAULTS = {
    "no cameras": (lambda f: (f / "cameras_sphere.npz").unlink(), "does not exist"),
    "no npz": (lambda f: (f / "cameras_sphere.npz").write_bytes(b"nothing"), "cannot be read as npz"),
    "no matrices": (lambda f: np.savez(f / "cameras_sphere.npz", a=np.eye(4)), "expected 4x4 world_mat_<i>"),
    "a short matrix": (
        lambda f: save_cameras(f, lambda m: m.update(world_mat_1=np.eye(3))),
        r"world_mat_1 must be .* shape \(3, 3\)",
    ),
    "a singular one": (
        lambda f: save_cameras(f, lambda m: m.update(world_mat_1=np.zeros((4, 4)))),
        "view 1: .*singular",
    ),
    "a skew": (lambda f: save_cameras(f, skewed), "view 1: .*has a skew"),
    "two scales": (lambda f: save_cameras(f, lambda m: m.update(scale_mat_2=np.eye(4))), r"scale_mat of views \[2\]"),
    "a flat scale": (
        lambda f: save_cameras(f, lambda m: m.update({f"scale_mat_{i}": np.diag([1, 1, 0.5, 1]) for i in range(3)})),
        "skew|must be a positive uniform scale",
    ),
    "a camera less": (lambda f: save_cameras(f, lambda m: m.pop("world_mat_1")), "cameras_sphere.npz lacks 1"),
    "a normal less": (lambda f: (f / NORMALS / "001.png").unlink(), "normal_camera_space_GT/ lacks 1"),
    "a mask less": (lambda f: (f / "mask" / "002.png").unlink(), "masks lacks 2"),
    "a depth less": (lambda f: (f / "integration" / "depth" / "000.npy").unlink(), "integration/depth/ lacks 0"),
    "neither normals nor masks": (
        lambda f: [(f / name).rename(f / f"{name}_else") for name in (NORMALS, "mask")],
        "has no folder of normals",
    ),
    "a name without number": (lambda f: (f / "mask" / "000.png").rename(f / "mask" / "one.png"), "has no number"),
    "two of one number": (lambda f: np.save(f / NORMALS / "a01.npy", np.zeros((24, 24, 3))), "both belong to view 1"),
    "another size of mask": (lambda f: Image.new("L", (23, 24)).save(f / "mask" / "000.png"), "23x24"),
    "another size of depth": (lambda f: np.save(f / "integration/depth/000.npy", np.ones((24, 9))), "9x24"),
    "depth of whole numbers": (
        lambda f: np.save(f / "integration/depth/000.npy", np.ones((24, 24), int)),
        "write floats",
    ),
    "gray": (lambda f: Image.new("I;16", (24, 24)).save(f / NORMALS / "000.png"), "gray16"),
    "half a PNG": (lambda f: (f / NORMALS / "000.png").write_bytes(b"\x89PNG\r\n\x1a\n12"), "cannot be read"),
    "no mask in it": (lambda f: (f / "mask" / "000.png").write_bytes(b"123"), "cannot be read"),
    "a pointer": (
        lambda f: (f / NORMALS / "000.png").write_text("version https://git-lfs.github.com/spec/v1\nsize 9\n"),
        "Git LFS pointer",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_folder_is_one_error_that_names_it(folder, fault):
    read_normal_maps(folder)
    spoil, message = FAULTS[fault]
    spoil(folder)
    with pytest.raises(NormalMapError, match=message):
        read_normal_maps(folder)


@pytest.mark.parametrize(("exclude", "message"), [([7], "cannot leave out views .7."), ([0, 1, 2], "no view is left")])
def test_views_that_can_not_be_left_out(folder, exclude, message):
    with pytest.raises(NormalMapError, match=message):
        read_normal_maps(folder, exclude=exclude)


@pytest.mark.parametrize("shape", [(24, 24), (24, 24, 2)])
def test_arrays_that_are_no_normals_are_refused(tmp_path, shape):
    np.save(tmp_path / "0.npy", np.zeros(shape, np.float32))
    with pytest.raises(NormalMapError, match=r"\.npy.* shape \(height, width, 3\)"):
        read_normal_file(tmp_path / "0.npy")


def test_a_photo_is_no_normal_map(tmp_path):
    path = tmp_path / "photo.jpg"
    Image.new("RGB", (24, 24)).save(path)
    with pytest.raises(NormalMapError, match=r"photo\.jpg.*EXR"):
        read_normal_file(path)
    with pytest.raises(NormalMapError, match="does not exist"):
        read_normal_file(tmp_path / "missing.jpg")


def test_a_view_has_maps_of_one_size_and_finite_numbers(made):
    view = made.views[0]
    with pytest.raises(NormalMapError, match="of the camera"):
        replace(view, camera=view.camera.resized(12, 12))
    with pytest.raises(NormalMapError, match="NaN or infinite"):
        replace(view, depth=torch.full_like(view.depth, torch.nan))
    with pytest.raises(NormalMapError, match=r"\['000', '000'\]"):
        replace(made, views=(view, view))


def test_made_up_views_show_the_surface_of_the_object():
    scene = SolidUnion()
    views = synthetic_normal_maps(scene, views=4, size=48).views
    for view in views:
        points = view.camera.unproject(view.depth.double())[view.mask]
        assert float(scene.distance(points).abs().max()) < 1e-6
        step = 1e-4 * view.world_normals()[view.mask].double()
        slope = (scene.distance(points + step) - scene.distance(points)) / 1e-4
        assert float(slope.median()) == pytest.approx(1, abs=1e-3)
        cosine = (view.normals * view.camera.directions().float()).sum(-1)[view.mask]
        assert float(cosine.max()) < 1e-4
        edge = torch.cat([view.mask[0], view.mask[-1], view.mask[:, 0], view.mask[:, -1]])
        assert not bool(edge.any())


def test_points_of_the_made_up_object_lie_on_it_within_the_unit_sphere_evenly():
    scene = SolidUnion((PlacedShape(Sphere(0.5), np.array([0.1, 0, 0]), np.eye(3)),))
    points = scene.surface_points(4000, seed=1) - torch.tensor([0.1, 0, 0])
    assert float((points.norm(dim=-1) - 0.5).abs().max()) < 1e-6
    assert float((points[:, 2] > 0.25).double().mean()) == pytest.approx(0.25, abs=0.03)  # area above z = 0.25
    whole = SolidUnion().surface_points(2000)
    assert 0.6 < float(whole.norm(dim=-1).max()) < 0.85
    assert float(SolidUnion().distance(whole).abs().max()) < 1e-6


def test_scenes_are_what_normal_maps_are_made_of():
    assert isinstance(SolidUnion(), NormalScene)
    assert isinstance(SolidScene(), NormalScene)


def test_noise_turns_normals_by_the_angles_asked_for():
    exact, noisy, same = (
        synthetic_normal_maps(views=2, size=48, noise=n, seed=s, depth="none") for n, s in ((0, 0), (5, 1), (5, 1))
    )
    view = noisy.views[0]
    truth = exact.views[0]
    angle = torch.rad2deg((view.normals * truth.normals).sum(-1)[view.mask].clamp(-1, 1).acos())
    assert float(angle.square().mean().sqrt()) == pytest.approx(5 * math.sqrt(2), rel=0.08)
    assert torch.equal(view.normals, same.views[0].normals)
    assert torch.allclose(view.normals[view.mask].norm(dim=-1), torch.ones(()), atol=1e-6)
    assert view.depth is None


def test_cameras_of_a_ring_see_the_unit_sphere_in_turn_from_above_and_below():
    cameras = ring_cameras(6, 100, distance=3.0, elevations=(30.0, -10.0))
    for number, camera in enumerate(cameras):
        height = 3 * math.sin(math.radians((30.0, -10.0)[number % 2]))
        assert float(camera.position[2]) == pytest.approx(height)
        assert float(camera.position.norm()) == pytest.approx(3)
        pixel, _ = camera.project(torch.zeros(1, 3, dtype=torch.float64))
        assert pixel[0].tolist() == pytest.approx([50, 50])
        assert camera.fx * math.tan(math.asin(1 / 3)) < 50


@pytest.mark.parametrize("change", [{"views": 0}, {"size": 0}, {"distance": 1.0}, {"elevations": (90.0,)}])
def test_rings_that_can_not_be_are_refused(change):
    with pytest.raises(NormalMapError, match="a ring needs"):
        ring_cameras(**{"views": 3, "size": 8, **change})


def test_a_negative_noise_is_refused():
    with pytest.raises(NormalMapError, match=r"at least 0 degrees.*got -1"):
        synthetic_normal_maps(views=1, size=8, noise=-1)


@pytest.mark.parametrize("kept", [60, 400])
def test_an_archive_of_cameras_that_is_cut_short_is_refused(folder, kept):
    cameras = folder / "cameras_sphere.npz"
    cameras.write_bytes(cameras.read_bytes()[:kept])
    with pytest.raises(NormalMapError, match=r"cameras_sphere\.npz.*npz \("):
        read_normal_maps(folder)
