"""Custom captures: normals, masks and a COLMAP model under any similarity are recovered; errors for every fault."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.recon.data import (
    PhotoSet,
    SolidUnion,
    check_normal_maps,
    normal_layout,
    normal_map_sheet,
    open_normal_maps,
    synthetic_normal_maps,
    write_normal_maps,
)
from fieldwatch.recon.data.colmap import ColmapError, write_colmap
from fieldwatch.recon.data.normal_maps import NormalMapError, read_normal_captures, read_normal_maps
from fieldwatch.recon.data.normal_maps.enclosing_ball import enclosing_ball, nearest_to_rays, object_ball
from fieldwatch.recon.data.normal_maps.map_files import encode_normals, write_png16
from fieldwatch.recon.data.photos import PhotoPixels
from fieldwatch.recon.geometry import Similarity, quaternion_to_matrix

OPENGL = torch.tensor([1.0, -1.0, -1.0])
WORLD = Similarity(
    scale=3.7,
    rotation=quaternion_to_matrix(torch.tensor([0.9, -0.3, 0.5, 0.2], dtype=torch.float64)),
    translation=torch.tensor([12.0, -7.0, 30.0], dtype=torch.float64),
)


@pytest.fixture(scope="module")
def made():
    return synthetic_normal_maps(views=8, size=64, depth="none")


def moved(camera):
    pose = WORLD.apply_to_pose(camera.world_from_camera.double())
    return replace(camera, name=f"IMG_{camera.name}.png", world_from_camera=pose)


def write(folder, views, points):
    """Write the output of COLMAP and a normal estimator: poses in another world, npy normals in OpenGL axes, masks."""
    cameras = tuple(moved(view.camera) for view in views)
    gray = [PhotoPixels(image=torch.full((c.height, c.width, 3), 128, dtype=torch.uint8)) for c in cameras]
    colors = torch.zeros(len(points), 3, dtype=torch.uint8)
    places = {"points": WORLD.apply(points).float(), "colors": colors}
    split = {"train": tuple(range(len(views))), "test": (), "source": "made"}
    write_colmap(folder, PhotoSet(cameras=cameras, read=gray.__getitem__, **places, **split))
    for name in ("normals", "masks"):
        (folder / name).mkdir()
    for view in views:
        np.save(folder / "normals" / f"IMG_{view.name}.npy", (view.normals * OPENGL).numpy())
        Image.fromarray(view.mask.numpy().astype(np.uint8) * 255).save(folder / "masks" / f"IMG_{view.name}.png")
    return folder


@pytest.fixture(scope="module")
def written(made, tmp_path_factory):
    return write(tmp_path_factory.mktemp("captures") / "set", made.views, SolidUnion().surface_points(200))


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "set")


def refused(folder, **options):
    with pytest.raises(NormalMapError) as caught:
        read_normal_captures(folder, **options)
    return str(caught.value)


def test_a_capture_comes_back_up_to_the_similarity(made, written):
    read = read_normal_captures(written)
    assert read.names == tuple(f"IMG_{view.name}" for view in made.views)
    back = WORLD.inverse()
    for own, truth in zip(read.views, made.views, strict=True):
        assert torch.equal(own.mask, truth.mask)
        assert torch.allclose(own.normals, truth.normals, atol=1e-6)
        pose = own.camera.world_from_camera.clone()
        pose[:3, 3] = read.scale * pose[:3, 3] + read.world_from_unit[:3, 3]
        assert torch.allclose(back.apply_to_pose(pose), truth.camera.world_from_camera.double(), atol=1e-6)
        assert (own.camera.fx, own.camera.cx, own.camera.cy) == (truth.camera.fx, truth.camera.cx, truth.camera.cy)
    assert check_normal_maps(read) == ()


def test_the_object_lies_within_the_unit_sphere(written):
    read = read_normal_captures(written)
    surface = WORLD.apply(SolidUnion().surface_points(2000))
    reach = ((surface - read.world_from_unit[:3, 3]) / read.scale).norm(dim=-1)
    assert 0.6 < float(reach.max()) <= 0.8
    wider = read_normal_captures(written, ratio=0.4)
    assert wider.scale == pytest.approx(2 * read.scale)
    assert any("199 of 200 sparse points" in note for note in read.notes)
    assert any("normals: opengl" in note for note in read.notes)


def test_an_object_far_from_the_middle_of_the_pictures_is_found(made):
    def off_center(view):
        """Crop the image so that the optical axis is outside it."""
        rows, columns = view.mask.nonzero().T
        top = max(int(rows.min()) - 2, 0)
        left = max(int(columns.min()) - 2, 0)
        camera = view.camera
        lens = {"cx": camera.cx - left, "cy": camera.cy - top}
        size = {"height": camera.height - top, "width": camera.width - left}
        camera = replace(camera, **lens, **size)
        return replace(view, camera=camera, normals=view.normals[top:, left:], mask=view.mask[top:, left:])

    ball = object_ball([off_center(view) for view in made.views])
    whole = object_ball(made.views)
    assert torch.allclose(ball.center, whole.center, atol=0.02)
    assert ball.radius == pytest.approx(whole.radius, rel=0.02)


def test_masks_cut_by_the_edge_do_not_cut_the_object(made):
    view = made.views[0]
    half = replace(view.camera, width=32)
    close = replace(view, camera=half, normals=view.normals[:, :32], mask=view.mask[:, :32])
    ball = object_ball([close, *made.views[1:]])
    whole = object_ball(made.views)
    assert ball.radius == pytest.approx(whole.radius, rel=0.1)
    assert ball.radius > 0.79


def test_the_ball_around_points_on_a_sphere_is_that_sphere():
    points = torch.nn.functional.normalize(torch.randn(500, 3, dtype=torch.float64), dim=-1) * 2 + 5
    ball = enclosing_ball(points)
    assert ball.radius == pytest.approx(2, rel=0.005)
    assert bool(((points - ball.center).norm(dim=-1) <= ball.radius + 1e-12).all())


def test_rays_meet_where_they_were_sent():
    goal = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    origins = torch.randn(5, 3, dtype=torch.float64)
    directions = torch.nn.functional.normalize(goal - origins, dim=-1)
    assert torch.allclose(nearest_to_rays(origins, directions), goal)
    with pytest.raises(NormalMapError, match=r"\d views.*half a degree.*cameras_sphere\.npz"):
        nearest_to_rays(origins, directions[:1].expand(5, 3))


def test_views_from_one_side_only_are_refused(made):
    with pytest.raises(NormalMapError, match=r"\d views.*half a degree.*cameras_sphere\.npz"):
        object_ball([made.views[0], replace(made.views[0], name="again")])


def test_maps_of_another_size_than_the_photos_resize_the_camera(made, folder):
    for view in made.views:
        small = view.normals.reshape(32, 2, 32, 2, 3).mean((1, 3)) * OPENGL
        np.save(folder / "normals" / f"IMG_{view.name}.npy", small.numpy())
    read = read_normal_captures(folder)
    assert read.sizes == ((32, 32),) * 8
    assert read.views[0].camera.fx == pytest.approx(made.views[0].camera.fx / 2)
    assert any("cameras were resized (8 views)" in note for note in read.notes)
    assert any("their normals" in note for note in read.notes)
    np.save(folder / "normals" / "IMG_003.npy", np.ones((32, 24, 3), np.float32))
    assert "'IMG_003.png' is 64x64" in refused(folder)


def test_sixteen_bit_files_in_opencv_axes_and_other_folders_are_read(made, folder):
    for view in made.views:
        write_png16(folder / "normals" / f"IMG_{view.name}.png", encode_normals(view.normals))
        (folder / "normals" / f"IMG_{view.name}.npy").unlink()
        (folder / "masks" / f"IMG_{view.name}.png").rename(folder / "masks" / f"IMG_{view.name}.jpg.png")
    for old, new in (("normals", "omnidata"), ("masks", "sam"), ("sparse", "model")):
        (folder / old).rename(folder / new)
    read = read_normal_captures(folder, normals="omnidata", masks="sam", sparse="model/0")
    assert any("normals: opencv" in note for note in read.notes)
    assert torch.allclose(read.views[2].normals, made.views[2].normals, atol=1e-4)


def test_a_model_without_points_is_enough(folder):
    (folder / "sparse" / "0" / "points3D.bin").write_bytes(bytes(8))
    with_empty = read_normal_captures(folder)
    (folder / "sparse" / "0" / "points3D.bin").unlink()
    assert read_normal_captures(folder).scale == with_empty.scale
    assert not any("sparse points" in note for note in with_empty.notes)


def test_text_models_are_read_and_distortion_is_refused(made, folder, written):
    sparse = folder / "sparse" / "0"
    shutil.rmtree(sparse)
    sparse.mkdir()
    camera = made.views[0].camera
    pinhole = f"1 PINHOLE 64 64 {camera.fx!r} {camera.fy!r} 32 32"
    (sparse / "cameras.txt").write_text(f"# cameras\n{pinhole}\n")
    rows = []
    for number, view in enumerate(made.views):
        motion = moved(view.camera).camera_from_world
        w, x, y, z = quaternion_of(motion[:3, :3])
        place = " ".join(repr(v) for v in motion[:3, 3].tolist())
        rows.append(f"{number + 1} {w!r} {x!r} {y!r} {z!r} {place} 1 IMG_{view.name}.JPG\n")
    (sparse / "images.txt").write_text("\n".join(rows) + "\n")
    (sparse / "points3D.txt").write_text("# no points\n")
    read = read_normal_captures(folder)
    other = read_normal_captures(written)
    for one, same in zip(read.views, other.views, strict=True):
        assert one.name == same.name
        torch.testing.assert_close(in_the_model(read, one), in_the_model(other, same), rtol=0, atol=1e-9)
    assert read.scale == pytest.approx(other.scale, rel=1e-2)  # rounding may add or remove a cell of the hull
    (sparse / "cameras.txt").write_text(f"1 OPENCV 64 64 {camera.fx!r} {camera.fy!r} 32 32 0.1 0 0 0\n")
    message = refused(folder)
    assert "OPENCV lens" in message
    assert "colmap image_undistorter" in message
    (sparse / "cameras.txt").write_text(pinhole.replace("1 PIN", "2 PIN"))
    assert "the cameras of IMG_000.JPG" in refused(folder)


def in_the_model(maps, view):
    """Return position and rotation of a view's camera in model coordinates."""
    pose = maps.world_from_unit @ view.camera.world_from_camera.double()
    return torch.cat([pose[:3, :3] / maps.scale, pose[:3, 3:]], 1)


def quaternion_of(rotation):
    """Return (w, x, y, z) as an eigenvector of Bar-Itzhack's matrix, independently of the library."""
    r = rotation.numpy()
    k = np.array(
        [
            [r[0, 0] - r[1, 1] - r[2, 2], 0, 0, 0],
            [r[1, 0] + r[0, 1], r[1, 1] - r[0, 0] - r[2, 2], 0, 0],
            [r[2, 0] + r[0, 2], r[2, 1] + r[1, 2], r[2, 2] - r[0, 0] - r[1, 1], 0],
            [r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1], np.trace(r)],
        ]
    )
    x, y, z, w = np.linalg.eigh(k / 3, UPLO="L")[1][:, -1].tolist()
    return w, x, y, z


def test_missing_and_doubled_files_are_named(folder):
    (folder / "masks" / "IMG_002.png").unlink()
    (folder / "normals" / "IMG_005.npy").rename(folder / "normals" / "IMG_009.npy")
    message = refused(folder)
    assert "normals/ lacks IMG_005" in message
    assert "masks/ lacks IMG_002, IMG_009" in message
    assert "lacks IMG_009" in message
    read = read_normal_captures(folder, exclude=[2, "IMG_005.png", "IMG_009"])
    assert read.names == ("IMG_000", "IMG_001", "IMG_003", "IMG_004", "IMG_006", "IMG_007")
    assert "cannot leave out 'IMG_7x'" in refused(folder, exclude=["IMG_7x"])
    shutil.copy(folder / "masks" / "IMG_001.png", folder / "masks" / "IMG_001.jpg.png")
    assert "belong to photo 'IMG_001'" in refused(folder)


def test_masks_that_leave_nothing_are_named(folder):
    size = (64, 64)
    Image.new("L", size).save(folder / "masks" / "IMG_004.png")
    assert "IMG_004 (1 of 8) are black" in refused(folder)
    wrong = np.zeros(size, np.uint8)
    wrong[2:6, 2:6] = 255
    Image.fromarray(wrong).save(folder / "masks" / "IMG_004.png")
    message = refused(folder)
    assert "at most 7" in message
    assert "views IMG_004" in message
    for path in (folder / "masks").iterdir():
        Image.new("L", size).save(path)
    assert "IMG_000, IMG_001" in refused(folder)


def test_wrong_options_and_models_are_refused(folder):
    assert "at most 1, got 1.5" in refused(folder, ratio=1.5)
    assert "no COLMAP model" in refused(folder, sparse="sparse/1")
    assert "masks: expected sam," in refused(folder, masks="sam")
    (folder / "sparse" / "0" / "images.bin").write_bytes(b"\x08\0\0")
    with pytest.raises(ColmapError, match="cut short"):
        read_normal_captures(folder)


def test_photos_in_subfolders_are_joined_by_their_paths(made, tmp_path):
    folder = write(tmp_path / "set", made.views[:4], torch.zeros(0, 3, dtype=torch.float64))
    model = (folder / "sparse" / "0" / "images.bin").read_bytes()
    (folder / "sparse" / "0" / "images.bin").write_bytes(model.replace(b"IMG_", b"a/b_"))
    for name in ("normals", "masks"):
        for path in list((folder / name).iterdir()):
            path.rename(path.with_name(path.name.replace("IMG_", "b_")))
    assert read_normal_captures(folder).names == ("b_000", "b_001", "b_002", "b_003")
    for name in ("normals", "masks"):
        (folder / name).rename(folder / "a")
        (folder / name).mkdir()
        (folder / "a").rename(folder / name / "a")
    assert read_normal_captures(folder).names == ("a_b_000", "a_b_001", "a_b_002", "a_b_003")


def test_either_layout_is_opened(made, written, tmp_path):
    sphere = write_normal_maps(made, tmp_path / "sphere")
    assert (normal_layout(sphere), normal_layout(written), normal_layout(tmp_path)) == (
        "cameras_sphere",
        "colmap",
        None,
    )
    assert open_normal_maps(sphere, exclude=[3]).names == read_normal_maps(sphere, exclude=[3]).names
    assert len(open_normal_maps(written, exclude=["IMG_003"])) == 7
    with pytest.raises(NormalMapError, match=r"omit exclude=\['a'\]"):
        open_normal_maps(sphere, exclude=[1, "a"])
    with pytest.raises(NormalMapError, match="masks: expected sam"):
        open_normal_maps(sphere, masks="sam")
    with pytest.raises(NormalMapError, match=r"found: sphere\).*cameras_sphere.npz .*transforms.json"):
        open_normal_maps(tmp_path)
    with pytest.raises(NormalMapError, match="is a file"):
        open_normal_maps(sphere / "cameras_sphere.npz")
    with pytest.raises(NormalMapError, match="does not exist"):
        open_normal_maps(tmp_path / "nowhere")


def test_the_contact_sheet_shows_where_hull_and_masks_differ(made):
    sheet = normal_map_sheet(made, tile=64, columns=4)
    assert sheet.shape == (2 * (64 + 14), 4 * 64, 3)
    red = (sheet == (255, 40, 40)).all(-1)
    wrong = [replace(made.views[0], mask=made.views[1].mask), *made.views[1:]]
    worse = (normal_map_sheet(replace(made, views=tuple(wrong)), tile=64, columns=4) == (255, 40, 40)).all(-1)
    assert worse.sum() > 1.5 * red.sum()
    row, column = made.views[0].valid.nonzero()[400].tolist()
    normal = made.views[0].normals[row, column] * torch.tensor([1.0, -1.0, -1.0])
    assert torch.allclose(torch.tensor(sheet[14 + row, column]), ((normal + 1) / 2 * 255).round().to(torch.uint8))
