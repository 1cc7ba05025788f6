"""Exports of other programs: synthetic ones, written from known cameras, project known points to the same pixels.

Projections are computed here from the formulas of each program's documentation, in numpy, without our lenses.
"""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch import InputError
from fieldwatch.recon.data import PhotoOptions, read_transforms, write_point_ply
from fieldwatch.recon.data.exports import (
    ExportError,
    cameras_of_export,
    is_camera_export,
    read_camera_export,
    unread_export,
)
from fieldwatch.recon.data.transforms.frame import lens_of
from fieldwatch.recon.geometry import Lens, inverse_rigid, transform_points

SIZE = (64, 48)
POINTS = np.random.default_rng(0).uniform(-0.6, 0.6, (50, 3))
RADIAL = (-0.11, 0.04, -0.012, 0.003)
TANGENTIAL = (0.0011, -0.0007)
ALL = PhotoOptions(held_out=0)
RIGHT_UP_BACK = np.diag([1.0, -1.0, -1.0])


def rotation_about(axis, degrees):
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    i, j = [(1, 2), (2, 0), (0, 1)]["xyz".index(axis)]
    matrix = np.eye(3)
    matrix[i, i] = matrix[j, j] = c
    matrix[i, j], matrix[j, i] = -s, s
    return matrix


def poses():
    """Three cameras that see the points: camera-to-world rotations (right, down, forward) and positions."""
    found = []
    for turn in (0, 100, 215):
        rotation = rotation_about("y", turn) @ rotation_about("x", -12) @ rotation_about("z", 7)
        found.append((rotation, -3.0 * rotation[:, 2]))
    return found


def normalized(pose):
    """Points at depth 1 before the lens."""
    rotation, position = pose
    seen = (POINTS - position) @ rotation
    assert (seen[:, 2] > 1).all()
    return seen[:, :2] / seen[:, 2:]


def brown(points, radial, first, second):
    """Distort by polynomials; `first` multiplies 2xy in x, `second` r^2 + 2x^2, as p1 and p2 of OpenCV."""
    x, y = points.T
    r2 = x**2 + y**2
    factor = 1 + sum(k * r2 ** (i + 1) for i, k in enumerate(radial))
    return np.stack(
        [
            x * factor + 2 * first * x * y + second * (r2 + 2 * x**2),
            y * factor + first * (r2 + 2 * y**2) + 2 * second * x * y,
        ],
        1,
    )


def equidistant(points):
    radius = np.linalg.norm(points, axis=1, keepdims=True)
    return points * np.arctan(radius) / radius


def photos(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        Image.new("RGB", SIZE, (40 * i + 40,) * 3).save(folder / name)


def projected(lens, world_from_camera, size=SIZE):
    """Pixels of the points by what was read."""
    assert isinstance(lens, Lens)
    seen = transform_points(inverse_rigid(world_from_camera), torch.from_numpy(POINTS))
    return lens.project(seen[:, :2] / seen[:, 2:])[0].numpy()


def assert_projections(path, expected):
    export = cameras_of_export(path)
    assert len(export.cameras) == len(expected)
    for camera, pixels in zip(export.cameras, expected, strict=True):
        assert np.abs(projected(camera.lens(SIZE), camera.world_from_camera) - pixels).max() < 1e-4
    return export


# Metashape


def metashape(folder, *, kind="frame", transform=None, cameras=None, **changed):
    """Write cameras.xml; the poses are in the coordinates of the chunk."""
    values = {"f": 60.0, "cx": 1.5, "cy": -2.25, "b1": 0.8, "b2": -0.4}
    values |= dict(zip(("k1", "k2", "k3", "k4"), RADIAL, strict=True))
    values |= {"p1": TANGENTIAL[0], "p2": TANGENTIAL[1]} | changed
    calibration = "".join(f"<{name}>{value!r}</{name}>" for name, value in values.items())
    resolution = f'<resolution width="{SIZE[0]}" height="{SIZE[1]}"/>'
    if cameras is None:
        cameras = ""
        for i, (rotation, position) in enumerate(poses()):
            matrix = np.eye(4)
            matrix[:3, :3] = rotation
            matrix[:3, 3] = position
            if transform is not None:
                turn, shift, scale = transform
                matrix[:3, :3] = turn.T @ rotation
                matrix[:3, 3] = turn.T @ (position - shift) / scale
            text = " ".join(map(repr, matrix.reshape(-1).tolist()))
            cameras += f'<camera id="{i}" sensor_id="0" component_id="0" label="IMG_{i}">'
            cameras += f"<transform>{text}</transform></camera>"
        cameras += '<camera id="9" sensor_id="0" label="IMG_9"/>'
    components = ""
    if transform is not None:
        turn, shift, scale = transform
        numbers = [" ".join(map(repr, np.ravel(part).tolist())) for part in (turn, shift, np.array(scale))]
        tags = ("rotation", "translation", "scale")
        inner = "".join(f"<{tag}>{text}</{tag}>" for tag, text in zip(tags, numbers, strict=True))
        components = f'<components><component id="0"><transform>{inner}</transform></component></components>'
    folder.mkdir(exist_ok=True)
    (folder / "cameras.xml").write_text(
        f'<?xml version="1.0" encoding="UTF-8"?><document version="2.0.0"><chunk label="Chunk 1"><sensors>'
        f'<sensor id="0" label="phone" type="{kind}">{resolution}'
        f'<calibration type="{kind}" class="initial">{resolution}<f>1</f></calibration>'
        f'<calibration type="{kind}" class="adjusted">{resolution}{calibration}</calibration></sensor></sensors>'
        f"{components}<cameras>{cameras}</cameras></chunk></document>"
    )
    return folder


def metashape_pixels(pose, distort):
    """Appendix of the manual: u = w/2 + cx + x' f + x' B1 + y' B2, v = h/2 + cy + y' f; P1, P2 opposite to OpenCV."""
    x, y = brown(distort(normalized(pose)), RADIAL, TANGENTIAL[1], TANGENTIAL[0]).T
    u = SIZE[0] / 2 + 1.5 + x * 60 + x * 0.8 + y * -0.4
    return np.stack([u, SIZE[1] / 2 - 2.25 + y * 60], 1)


@pytest.mark.parametrize(("kind", "distort"), [("frame", lambda points: points), ("fisheye", equidistant)])
def test_metashape_projects_points_to_the_same_pixels(tmp_path, kind, distort):
    expected = [metashape_pixels(pose, distort) for pose in poses()]
    export = assert_projections(metashape(tmp_path / "scan", kind=kind), expected)
    assert [camera.name for camera in export.cameras] == ["IMG_0", "IMG_1", "IMG_2"]
    assert any("1 of 4 cameras" in note for note in export.notes)


def test_metashape_has_the_coordinates_of_its_point_clouds(tmp_path):
    transform = (rotation_about("z", 33), np.array([4.0, -1.0, 0.5]), 0.37)
    expected = [metashape_pixels(pose, lambda points: points) for pose in poses()]
    assert_projections(metashape(tmp_path / "scan", transform=transform), expected)


def test_a_metashape_scene_is_read_with_photos_masks_and_points(tmp_path):
    folder = metashape(tmp_path / "scan")
    photos(folder / "images", [f"IMG_{i}.jpg" for i in range(3)])
    (folder / "masks").mkdir()
    Image.new("L", SIZE, 255).save(folder / "masks" / "IMG_1_mask.png")
    write_point_ply(folder / "points.ply", torch.from_numpy(POINTS).float(), torch.zeros(50, 3, dtype=torch.uint8))
    for path in (folder, folder / "cameras.xml"):
        scene = read_camera_export(path, ALL)
        assert scene.names == tuple(f"images/IMG_{i}.jpg" for i in range(3))
        assert len(scene.points) == 50
        assert any("BROWN" in note for note in scene.notes)
        assert any("1 of 3 photos" in note and "mask" in note for note in scene.notes)
        assert scene[1].image.shape == (48, 64, 3)


def test_an_undistorted_metashape_scene_is_a_pinhole(tmp_path):
    zeros = dict.fromkeys(("k1", "k2", "k3", "k4", "p1", "p2", "b1", "b2"), 0.0)
    lens = cameras_of_export(metashape(tmp_path / "scan", **zeros)).cameras[0].lens(SIZE)
    assert (lens.model, lens.fx, lens.cx) == ("PINHOLE", 60.0, 33.5)


def test_the_largest_component_of_metashape_is_used(tmp_path):
    matrix = " ".join(map(str, np.eye(4).reshape(-1)))
    rows = [
        f'<camera sensor_id="0" component_id="{part}" label="{i}"><transform>{matrix}</transform></camera>'
        for i, part in enumerate((0, 1, 1))
    ]
    export = cameras_of_export(metashape(tmp_path / "scan", cameras="".join(rows)))
    assert [camera.name for camera in export.cameras] == ["1", "2"]
    assert any("smaller components" in note for note in export.notes)


@pytest.mark.parametrize(
    ("changed", "fact"),
    [
        ({"kind": "spherical"}, "spherical"),
        ({"p3": 0.1}, "p3"),
        ({"f": float("nan")}, "finite"),
        ({"cameras": '<camera label="a" sensor_id="0"/>'}, "none is aligned"),
        ({"cameras": '<camera label="a" sensor_id="7"><transform>1</transform></camera>'}, "sensor 7"),
        ({"cameras": '<camera label="a" sensor_id="0"><transform>1 2</transform></camera>'}, "16 numbers"),
    ],
)
def test_a_metashape_file_that_cannot_be_used_is_named(tmp_path, changed, fact):
    with pytest.raises(ExportError, match=rf"cameras\.xml.*{fact}"):
        read_camera_export(metashape(tmp_path / "scan", **changed))


def test_a_cut_metashape_file_is_named(tmp_path):
    file = metashape(tmp_path / "scan") / "cameras.xml"
    file.write_text(file.read_text()[:700])
    with pytest.raises(ExportError, match=r"cameras\.xml.*XML"):
        read_camera_export(file)


# RealityScan


def angles_of(rotation):
    """Heading, pitch and roll of Rz(-heading) Rx(pitch) Ry(roll), degrees."""
    pitch = np.arcsin(rotation[2, 1])
    roll = np.arctan2(-rotation[2, 0], rotation[2, 2])
    heading = -np.arctan2(-rotation[0, 1], rotation[1, 1])
    return np.rad2deg([heading, pitch, roll])


def realityscan(folder, header="#name,x,y,alt,heading,pitch,roll,f,px,py,k1,k2,k3,k4,t1,t2", shift=(0, 0, 0)):
    rows = []
    for i, (rotation, position) in enumerate(poses()):
        heading, pitch, roll = angles_of(rotation @ RIGHT_UP_BACK)
        x, y, alt = position + np.array(shift)
        values = [x, y, alt, heading, pitch, roll, 60 * 36 / 64, 1.5 / 64, -2.25 / 64, *RADIAL, *TANGENTIAL]
        rows.append(",".join([f"IMG_{i}.jpg", *(repr(float(value)) for value in values)]))
    folder.mkdir(exist_ok=True)
    (folder / "cameras.csv").write_text("\n".join([header, *rows, ""]))
    return folder


@pytest.mark.parametrize(
    "header",
    [
        "#name,x,y,alt,heading,pitch,roll,f,px,py,k1,k2,k3,k4,t1,t2",
        "#name,x,y,alt,yaw,pitch,roll,f_35mm,px_norm,py_norm,k1,k2,k3,k4,t1,t2",
    ],
)
def test_realityscan_projects_points_to_the_same_pixels(tmp_path, header):
    expected = [
        brown(normalized(pose), RADIAL, *TANGENTIAL) * 60 + np.array(SIZE) / 2 + [1.5, -2.25] for pose in poses()
    ]
    assert_projections(realityscan(tmp_path / "scan", header), expected)


def test_coordinates_of_a_map_are_moved_to_the_origin(tmp_path):
    shift = (512_000.0, 5_400_000.0, 300.0)
    folder = realityscan(tmp_path / "scan", shift=shift)
    photos(folder, [f"IMG_{i}.jpg" for i in range(3)])
    scene = read_camera_export(folder, ALL)
    assert max(float(camera.position.abs().max()) for camera in scene.cameras) < 20
    assert any("moved by" in note for note in scene.notes)
    distance = float((scene.cameras[0].position - scene.cameras[1].position).norm())
    assert distance == pytest.approx(np.linalg.norm(poses()[0][1] - poses()[1][1]), abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "fact"),
    [("", "no rows"), ("a.jpg,1,2,3,x,0,0,20", "heading, got 'x'"), ("a.jpg,1,2,3,,0,0,20", "heading")],
)
def test_a_realityscan_file_that_cannot_be_used_is_named(tmp_path, rows, fact):
    (tmp_path / "a.csv").write_text(f"#name,x,y,alt,heading,pitch,roll,f\n{rows}\n")
    with pytest.raises(ExportError, match=fact):
        read_camera_export(tmp_path)


# Polycam and Record3D


def pinhole_pixels(pose):
    return normalized(pose) * [60, 61] + [31.0, 23.5]


def polycam(folder, cameras="cameras", images="images"):
    for i, (rotation, position) in enumerate(poses()):
        matrix = np.concatenate([rotation @ RIGHT_UP_BACK, position[:, None]], 1)
        values = {f"t_{row}{column}": matrix[row, column] for row in range(3) for column in range(4)}
        values |= {"width": SIZE[0], "height": SIZE[1], "fx": 60, "fy": 61, "cx": 31.0, "cy": 23.5, "blur_score": 88.0}
        file = folder / "keyframes" / cameras / f"17000{i}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    photos(folder / "keyframes" / images, [f"17000{i}.jpg" for i in range(3)])
    return folder


def test_polycam_projects_points_to_the_same_pixels(tmp_path):
    folder = polycam(tmp_path / "scan")
    expected = [pinhole_pixels(pose) for pose in poses()]
    export = assert_projections(folder, expected)
    assert any("drift" in note for note in export.notes)
    assert_projections(folder / "keyframes", expected)
    scene = read_camera_export(folder, ALL)
    assert scene.names == ("170000.jpg", "170001.jpg", "170002.jpg")
    assert any("random points" in note for note in scene.notes)


def test_corrected_poses_of_polycam_are_preferred(tmp_path):
    folder = polycam(polycam(tmp_path / "scan"), "corrected_cameras", "corrected_images")
    export = cameras_of_export(folder)
    assert export.photos.name == "corrected_images"
    assert not export.notes


def test_a_damaged_camera_of_polycam_is_named(tmp_path):
    folder = polycam(tmp_path / "scan")
    file = folder / "keyframes" / "cameras" / "170001.json"
    file.write_text(file.read_text().replace('"t_12"', '"t_99"'))
    with pytest.raises(ExportError, match=r"170001\.json.*t_12"):
        read_camera_export(folder)


def record3d(folder, *, images="rgb", metadata="metadata.json", per_frame=True, repeat=1):
    rows = []
    for rotation, position in poses() * repeat:
        matrix = rotation @ RIGHT_UP_BACK
        w = np.sqrt(max(1 + np.trace(matrix), 0)) / 2
        axis = np.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]]) / (
            4 * w
        )
        rows.append([*axis.tolist(), w, *position.tolist()])
    content = {"w": SIZE[0], "h": SIZE[1], "fps": 60, "poses": rows, "K": [60, 0, 0, 0, 61, 0, 31.0, 23.5, 1]}
    if per_frame:
        content["K"] = [1, 0, 0, 0, 1, 0, 0, 0, 1]
        content["perFrameIntrinsicCoeffs"] = [[60, 61, 31.0, 23.5]] * len(rows)
    folder.mkdir(exist_ok=True)
    (folder / metadata).write_text(json.dumps(content))
    photos(folder / images, [f"{i}.jpg" for i in range(3)])
    return folder


@pytest.mark.parametrize(
    ("images", "metadata", "per_frame"), [("rgb", "metadata.json", True), ("rgbd", "metadata", False)]
)
def test_record3d_projects_points_to_the_same_pixels(tmp_path, images, metadata, per_frame):
    folder = record3d(tmp_path / "scan", images=images, metadata=metadata, per_frame=per_frame)
    assert_projections(folder, [pinhole_pixels(pose) for pose in poses()])
    assert read_camera_export(folder, ALL).names == ("0.jpg", "1.jpg", "2.jpg")


def test_films_of_record3d_are_thinned(tmp_path):
    export = cameras_of_export(record3d(tmp_path / "scan", repeat=200))
    assert len(export.cameras) == 300
    assert [export.cameras[i].name for i in (0, 1, 299)] == ["0", "2", "598"]


# Nerfstudio


@pytest.mark.parametrize(
    ("fields", "distort"),
    [
        (dict(zip(("k1", "k2", "k3", "k4"), RADIAL, strict=True)), lambda points: brown(points, RADIAL, *TANGENTIAL)),
        ({"k1": -0.1, "k2": 0.03}, lambda points: brown(points, (-0.1, 0.03), *TANGENTIAL)),
        ({"k1": -0.1, "camera_model": "OPENCV_FISHEYE", "p1": 0, "p2": 0}, lambda points: fisheye(points, -0.1)),
        ({"k1": 0.02, "k4": 0.01, "is_fisheye": True, "p1": 0, "p2": 0}, lambda points: fisheye(points, 0.02, k4=0.01)),
    ],
)
def test_nerfstudio_projects_points_to_the_same_pixels(tmp_path, fields, distort):
    """Its OPENCV has polynomials up to r^8, which differ from OpenCV's from k4 on."""
    photos(tmp_path / "images", [f"{i}.png" for i in range(3)])
    frames = []
    for i, (rotation, position) in enumerate(poses()):
        matrix = np.eye(4)
        matrix[:3, :3] = rotation @ RIGHT_UP_BACK
        matrix[:3, 3] = position
        frames.append({"file_path": f"images/{i}.png", "transform_matrix": matrix.tolist(), "depth_file_path": "d.png"})
    lens = {"w": 64, "h": 48, "fl_x": 60, "fl_y": 61, "cx": 31.0, "cy": 23.5, "p1": TANGENTIAL[0], "p2": TANGENTIAL[1]}
    (tmp_path / "transforms.json").write_text(json.dumps({**lens, **fields, "frames": frames}))
    scene = read_transforms(tmp_path, ALL)
    assert any("depth maps" in note for note in scene.notes)
    for pose, camera, file in zip(poses(), scene.cameras, scene.read.files, strict=True):
        # The pinhole camera of the undistorted photo, and the pixels of the photo that it is resampled from.
        ideal = camera.project(torch.from_numpy(POINTS))[0].numpy()
        assert np.abs(ideal - pinhole_pixels(pose)).max() < 1e-4
        raw = distort(normalized(pose)) * [60, 61] + [31.0, 23.5]
        read = lens_of({**lens, **fields}, SIZE, "frame")
        assert np.abs(projected(read, camera.world_from_camera) - raw).max() < 1e-4
        assert file.undistortion is not None


def fisheye(points, k1, k4=0.0):
    radius = np.linalg.norm(points, axis=1, keepdims=True)
    theta = np.arctan(radius)
    return points / radius * theta * (1 + k1 * theta**2 + k4 * theta**8)


# Recognition


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("scan.psx", "Metashape.*Export Cameras"),
        ("scan.rcproj", "RealityCapture.*Internal/External"),
        ("scan.rsproj", "RealityScan.*Internal/External"),
        ("a_calibrated_camera_parameters.txt", "Pix4D.*data photos"),
        ("cameras.sfm", "Meshroom.*ExportColmap"),
        ("reconstruction.json", "OpenSfM.*export_colmap"),
        ("poses_bounds.npy", "LLFF.*data photos"),
    ],
)
def test_other_programs_are_named_by_their_signature(tmp_path, name, fact):
    (tmp_path / name).write_bytes(b"")
    for path in (tmp_path, tmp_path / name):
        assert unread_export(path) is not None
        with pytest.raises(ExportError, match=f"{name.split('.')[-1]}.*{fact}"):
            cameras_of_export(path)


def test_sidecars_of_realitycapture_are_told_from_those_of_other_programs(tmp_path):
    (tmp_path / "a.xmp").write_text("<x:xmpmeta><crs:Exposure>1</crs:Exposure></x:xmpmeta>")
    assert unread_export(tmp_path) is None
    (tmp_path / "a.xmp").write_text('<x:xmpmeta xmlns:xcr="http://www.capturingreality.com/ns/xcr/1.1#"/>')
    assert "RealityCapture" in unread_export(tmp_path)


def test_an_archive_of_record3d_says_how_to_extract_it(tmp_path):
    with zipfile.ZipFile(tmp_path / "room.r3d", "w") as archive:
        archive.writestr("metadata", "{}")
    assert "python -m zipfile -e" in unread_export(tmp_path / "room.r3d")


def test_several_exports_and_none_are_told_apart(tmp_path):
    metashape(tmp_path / "scan")
    realityscan(tmp_path / "scan")
    with pytest.raises(ExportError, match=r"cameras\.xml, cameras\.csv"):
        is_camera_export(tmp_path / "scan")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "other.xml").write_text("<html/>")
    assert not is_camera_export(tmp_path)
    with pytest.raises(InputError, match=r"Metashape.*Record3D"):
        cameras_of_export(Path(tmp_path))
