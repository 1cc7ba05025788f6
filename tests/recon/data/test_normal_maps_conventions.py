"""Conventions of normal maps: every way of writing the same object is read as the same maps, or refused."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from fieldwatch.recon.commands.normals.integrate_normals import run as integrate
from fieldwatch.recon.data import normal_layout, open_normal_maps, synthetic_normal_maps, write_normal_maps
from fieldwatch.recon.data.normal_maps import NormalMapError, load_normal_file, noise_of, read_axes, write_exr
from fieldwatch.recon.data.normal_maps.diligent_mv import _mat
from fieldwatch.recon.data.normal_maps.map_files import encode_normals, write_png16
from fieldwatch.recon.data.normal_maps.silhouettes import silhouette_coherence

NORMALS = "normal_camera_space_GT"
OPENGL = np.array([1.0, -1.0, -1.0])


@pytest.fixture(scope="module")
def made():
    return synthetic_normal_maps(views=8, size=40, depth="none")


@pytest.fixture
def folder(made, tmp_path):
    return write_normal_maps(made, tmp_path / "set")


def rewritten(made, folder, change, space="camera"):
    """Write other normals into the folder, from those in OpenGL camera axes or in world axes."""
    for number, view in enumerate(made.views):
        normals = view.normals.numpy() * OPENGL if space == "camera" else view.world_normals().numpy()
        changed = np.where(view.mask.numpy()[..., None], change(normals), 0)
        values = encode_normals(torch.from_numpy(np.ascontiguousarray(changed, np.float32)))
        write_png16(folder / NORMALS / f"{number:03d}.png", values)


def agrees(read, made, degrees=0.1):
    for seen, true in zip(read.views, made.views, strict=True):
        assert torch.equal(seen.mask, true.mask)
        cosine = (seen.normals[true.valid].double() * true.normals[true.valid].double()).sum(-1)
        assert math.degrees(math.acos(min(float(cosine.min()), 1))) < degrees
        assert seen.camera.cx == pytest.approx(true.camera.cx, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "space", "named"),
    [
        (lambda n: n * OPENGL, "camera", ("opencv", "camera", "rgb")),
        (lambda n: n * [1, -1, 1], "camera", ("directx", "camera", "rgb")),
        (lambda n: n[..., ::-1], "camera", ("opengl", "camera", "bgr")),
        (lambda n: n[..., [1, 0, 2]], "camera", ("-y,x,-z", "camera", "rgb")),
        (lambda n: n, "world", ("x,y,z", "world", "rgb")),
        (lambda n: -n, "world", ("-x,-y,-z", "world", "rgb")),
    ],
)
def test_axes_space_and_channels_are_found_and_said(made, folder, change, space, named):
    rewritten(made, folder, change, space)
    read = open_normal_maps(folder)
    agrees(read, made)
    said = [next(n for n in read.notes if n.startswith(what)) for what in ("axes", "space", "channels")]
    assert all(f": {value}, found" in note for value, note in zip(named, said, strict=True))
    # The same by flags, which are then not looked for.
    axes, stated, channels = named
    agrees(open_normal_maps(folder, axes=axes, space=stated, channels=channels), made)


def test_stated_conventions_overrule_the_data(made, folder):
    read = open_normal_maps(folder, axes="directx", space="camera", channels="rgb", pixel_center="half")
    assert torch.allclose(read.views[0].normals, made.views[0].normals * torch.tensor([1.0, -1.0, 1.0]), atol=3e-5)
    assert read.views[0].camera.cx == pytest.approx(made.views[0].camera.cx - 0.5)
    with pytest.raises(NormalMapError, match=r"--axes x,x,z.*opengl"):
        read_axes("x,x,z")


@pytest.mark.parametrize(("shift", "center"), [(0.0, "whole"), (0.5, "half")])
def test_half_a_pixel_is_decided_by_the_silhouettes(made, tmp_path, shift, center):
    cameras = [replace(v.camera, cx=v.camera.cx + shift, cy=v.camera.cy + shift) for v in made.views]
    views = tuple(replace(view, camera=camera) for view, camera in zip(made.views, cameras, strict=True))
    read = open_normal_maps(write_normal_maps(replace(made, views=views), tmp_path / "set"))
    agrees(read, made)
    assert read.convention.pixel_center == center
    coherence = silhouette_coherence(views)
    assert coherence.best == pytest.approx(-shift, abs=0.2)
    assert silhouette_coherence(views[:3]) is None


def test_eight_bits_are_read_and_named(made, folder):
    for number, view in enumerate(made.views):
        pixels = np.rint((view.normals.numpy() * OPENGL + 1) / 2 * 255).astype(np.uint8)
        pixels[~view.mask.numpy()] = 0
        Image.fromarray(pixels).save(folder / NORMALS / f"{number:03d}.png")
    read = open_normal_maps(folder)
    agrees(read, made, degrees=0.5)
    assert {view.bits for view in read.views} == {8}
    assert any("8-bit PNG" in note for note in read.notes)


def test_the_layer_of_unit_vectors_of_an_exr_is_read(made, tmp_path):
    normals = made.views[0].normals.numpy()
    path = tmp_path / "a.exr"
    channels = {f"ViewLayer.N.{axis}": normals[..., i] for i, axis in enumerate("XYZ")}
    gray = np.full(normals.shape[:2], 0.3, np.float32)
    channels |= {f"ViewLayer.Combined.{color}": gray for color in "RGBA"} | {"ViewLayer.Depth.Z": gray}
    write_exr(path, channels)
    read = load_normal_file(path)
    assert np.array_equal(read.values.numpy(), normals)
    assert read.encoding == "EXR (float, layer ViewLayer.N)"
    write_exr(path, {"Depth.Z": gray})
    with pytest.raises(NormalMapError, match=r"R, G, B .*X, Y, Z .*Depth"):
        load_normal_file(path)


def test_nan_is_counted_in_the_mask(made, folder):
    (folder / NORMALS / "000.png").unlink()
    normals = made.views[0].normals.numpy() * OPENGL
    normals[20] = np.nan
    np.save(folder / NORMALS / "000.npy", normals.astype(np.float32))
    view = open_normal_maps(folder).views[0]
    assert view.not_finite == pytest.approx(float(view.mask[20].sum() / view.mask.sum()), abs=1e-6)


def test_sets_without_masks_without_normals_or_with_neither(made, folder):
    for path in (folder / "mask").iterdir():
        path.unlink()
    (folder / "mask").rmdir()
    agrees(open_normal_maps(folder), made)
    assert not open_normal_maps(folder, masks="none").silhouettes
    # Normals that fill the pictures show no object.
    for number, view in enumerate(made.views):
        filled = np.where(view.mask.numpy()[..., None], view.normals.numpy() * OPENGL, [0, 0, 1])
        values = encode_normals(torch.from_numpy(filled.astype(np.float32)))
        write_png16(folder / NORMALS / f"{number:03d}.png", values)
    with pytest.raises(NormalMapError, match=r"8 of 8 views .*--masks none"):
        open_normal_maps(folder)


def test_masks_alone_are_a_visual_hull(made, folder):
    for path in (folder / NORMALS).iterdir():
        path.unlink()
    (folder / NORMALS).rmdir()
    read = open_normal_maps(folder)
    assert torch.equal(read.views[3].mask, made.views[3].mask)
    assert not any(bool(view.known.any()) for view in read.views)
    assert any("visual hull" in note for note in read.notes)


def test_frames_of_a_transforms_json_are_read(made, tmp_path):
    frames = []
    for number, view in enumerate(made.views):
        for kind in ("normal", "mask"):
            (tmp_path / kind).mkdir(exist_ok=True)
        world = torch.where(view.mask[..., None], view.world_normals(), torch.zeros(()))
        write_png16(tmp_path / "normal" / f"r_{number}.png", encode_normals(world))
        Image.fromarray(view.mask.numpy().astype(np.uint8) * 255).save(tmp_path / "mask" / f"r_{number}.png")
        pose = view.camera.world_from_camera.double().numpy() @ np.diag([*OPENGL, 1])
        frames.append({"file_path": f"./train/r_{number}", "transform_matrix": pose.tolist()})
    camera = made.views[0].camera
    lens = {"fl_x": camera.fx, "cx": camera.cx, "cy": camera.cy}
    (tmp_path / "transforms.json").write_text(json.dumps({**lens, "frames": frames}))
    assert normal_layout(tmp_path) == "transforms"
    read = open_normal_maps(tmp_path)
    agrees(read, made)
    assert read.convention.space == "world"
    (tmp_path / "normal" / "r_3.png").unlink()
    with pytest.raises(NormalMapError, match=r"frames r_3 .* no normals.*--exclude"):
        open_normal_maps(tmp_path)
    assert len(open_normal_maps(tmp_path, exclude=[3])) == 7


def test_the_files_of_monosdf_are_read(made, folder):
    (folder / "cameras_sphere.npz").rename(folder / "cameras.npz")
    for number, view in enumerate(made.views):
        encoded = np.where(view.mask.numpy()[..., None], (view.normals.numpy() + 1) / 2, 0)
        np.save(folder / f"{number:06d}_normal.npy", np.moveaxis(encoded, 2, 0).astype(np.float32))
        (folder / "mask" / f"{number:03d}.png").rename(folder / f"{number:06d}_mask.png")
        (folder / NORMALS / f"{number:03d}.png").unlink()
    (folder / NORMALS).rmdir()
    (folder / "mask").rmdir()
    agrees(open_normal_maps(folder), made)


def test_diligent_mv_is_read_as_published(made, tmp_path):
    values = {}
    for number, view in enumerate(made.views, 1):
        place = tmp_path / f"view_{number:02d}"
        place.mkdir()
        savemat(place / "Normal_gt.mat", {"Normal_gt": view.normals.double().numpy() * OPENGL})
        Image.fromarray(view.mask.numpy().astype(np.uint8) * 255).save(place / "mask.png")
        inverse = np.linalg.inv(view.camera.world_from_camera.double().numpy())
        values |= {f"Rc_{number}": inverse[:3, :3], f"Tc_{number}": 60 * inverse[:3, 3:]}
    lens = made.views[0].camera
    values["KK"] = np.array([[lens.fx, 0, lens.cx - 0.5], [0, lens.fy, lens.cy - 0.5], [0, 0, 1]])
    savemat(tmp_path / "Calib_Results.mat", values)
    assert normal_layout(tmp_path) == "diligent_mv"
    agrees(open_normal_maps(tmp_path), made)


def test_maps_without_poses_are_read_and_one_view_is_integrated(made, tmp_path, capsys):
    view = made.views[0]
    lens = view.camera
    np.savetxt(tmp_path / "K.txt", [[lens.fx, 0, lens.cx - 0.5], [0, lens.fy, lens.cy - 0.5], [0, 0, 1]])
    (tmp_path / "normals").mkdir()
    values = encode_normals(torch.from_numpy((view.normals.numpy() * OPENGL).astype(np.float32)))
    write_png16(tmp_path / "normals" / "a.png", values)
    read = open_normal_maps(tmp_path)
    assert normal_layout(tmp_path) == "unposed"
    assert not read.posed
    agrees(replace(read), replace(made, views=made.views[:1]))
    (tmp_path / "normals" / "a.png").rename(tmp_path / "normal_map.png")
    (tmp_path / "normals").rmdir()
    with pytest.raises(NormalMapError, match="fieldwatch data integrate-normals"):
        open_normal_maps(tmp_path)
    assert integrate([str(tmp_path), "--out", str(tmp_path / "out"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    depth = np.load(tmp_path / "out" / "depth.npy")
    assert np.isfinite(depth).sum() == facts["pixels"] == int(view.valid.sum())
    assert facts["degrees between normals and depth (median)"] < 5
    assert (tmp_path / "out" / "mesh.ply").stat().st_size > 1000


@pytest.mark.parametrize("noise", [0.0, 5.0, 15.0])
def test_noise_is_estimated(noise):
    maps = synthetic_normal_maps(views=2, size=64, noise=noise, depth="none")
    assert noise_of(maps.views) == pytest.approx(noise, rel=0.12, abs=0.3)


def test_a_matlab_file_of_version_7_3_is_refused_with_the_version_that_is_read(tmp_path):
    file = tmp_path / "Normal_gt.mat"
    file.write_bytes(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512, b"\0"))
    with pytest.raises(NormalMapError, match="-v7"):
        _mat(file)
