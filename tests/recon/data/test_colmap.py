"""Binary and text COLMAP models, intact and damaged, and the scenes read from them."""

import contextlib
import shutil
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.recon.data import PhotoOptions, read_colmap, solid_photos
from fieldwatch.recon.data.colmap import ColmapError, read_colmap_model, write_colmap
from fieldwatch.recon.data.photos import PhotoError
from fieldwatch.recon.geometry import matrix_to_quaternion

SMALL = PhotoOptions(longer_side=24, held_out=4)


def write_text(folder, model):
    """Write a model as COLMAP text files."""
    folder.mkdir(parents=True)
    lenses = [
        f"{number} PINHOLE {lens.width} {lens.height} {lens.fx!r} {lens.fy!r} {lens.cx!r} {lens.cy!r}"
        for number, lens in model.lenses.items()
    ]
    (folder / "cameras.txt").write_text("\n".join(["# a comment", *lenses, ""]))
    lines = ["# two lines for each", "#"]
    for image in model.images:
        motion = torch.linalg.inv(image.world_from_camera)
        pose = [*matrix_to_quaternion(motion[:3, :3]).tolist(), *motion[:3, 3].tolist()]
        lines.append(f"{image.image_id} {' '.join(map(repr, pose))} {image.camera_id} {image.name}")
        lines.append("" if image.image_id % 2 else "10.5 11.5 -1 20.5 3.25 7")  # a photo may have no observations
    (folder / "images.txt").write_text("\n".join([*lines, ""]))
    tracks = {}
    for row, number in zip(model.points.track_points.tolist(), model.points.track_images.tolist(), strict=True):
        tracks.setdefault(row, []).append(f"{number} 0")
    points = [
        f"{row + 1} {' '.join(map(repr, place))} {' '.join(map(str, color))} {error!r} {' '.join(tracks.get(row, []))}"
        for row, (place, color, error) in enumerate(
            zip(*(x.tolist() for x in (model.points.positions, model.points.colors, model.points.errors)), strict=True)
        )
    ]
    (folder / "points3D.txt").write_text("\n".join(["# points", *points, ""]))


@pytest.fixture
def scene(tmp_path):
    return write_colmap(tmp_path / "scene", solid_photos(views=8, size=24, held_out=0, points=60, samples=1))


def test_the_real_scene(real_data):
    photos = read_colmap(real_data / "colmap_plush", PhotoOptions(longer_side=256))
    assert (len(photos), len(photos.train), len(photos.test)) == (25, 21, 4)
    assert photos.test[:3] == (0, 8, 16)
    assert photos.names[0] == "20240212_003919.jpg"
    assert list(photos.names) == sorted(photos.names)
    assert photos[3].image.shape == (192, 256, 3)
    assert len(photos.points) == len(photos.colors) == 4412
    assert any("62 of 4474 points" in note for note in photos.notes)
    assert photos.extent == pytest.approx(5.87, abs=0.05)


def test_points_of_the_real_scene_fall_where_their_color_is(real_data):
    """Tracked points have the color of the pixel they project to, and less so of pixels beside it."""
    model = read_colmap_model(real_data / "colmap_plush" / "sparse" / "0")
    photos = read_colmap(real_data / "colmap_plush", PhotoOptions(longer_side=495, held_out=0))
    own = model.points.track_points[model.points.track_images == 1]
    photo = photos[0]
    pixels = photo.camera.project(model.points.positions[own])[0].long()

    def difference(across, down):
        rows = (pixels[:, 1] + down).clamp(0, 370)
        columns = (pixels[:, 0] + across).clamp(0, 494)
        return float((photo.image[rows, columns].float() - model.points.colors[own].float()).abs().mean())

    assert all(difference(0, 0) < difference(*shift) - 3 for shift in ((3, 0), (-3, 0), (0, 3), (0, -3)))


def test_text_says_the_same_as_binary(scene, tmp_path, real_data):
    for number, folder in enumerate((scene / "sparse" / "0", real_data / "colmap_plush" / "sparse" / "0")):
        model = read_colmap_model(folder)
        write_text(tmp_path / f"text{number}", model)
        again = read_colmap_model(tmp_path / f"text{number}")
        assert again.lenses == model.lenses
        assert [i.name for i in again.images] == [i.name for i in model.images]
        for one, other in zip(model.images, again.images, strict=True):
            assert torch.allclose(one.world_from_camera, other.world_from_camera, atol=1e-12)
        assert torch.equal(again.points.positions, model.points.positions)
        assert torch.equal(again.points.colors, model.points.colors)
        assert torch.equal(again.points.track_points, model.points.track_points)
        assert torch.equal(again.points.track_images, model.points.track_images)


def test_what_is_written_is_read_again(tmp_path):
    made = solid_photos(views=8, size=24, held_out=4, points=60)
    photos = read_colmap(write_colmap(tmp_path, made), SMALL)
    assert (photos.names, photos.train, photos.test) == (made.names, made.train, made.test)
    assert torch.equal(photos.points, made.points)
    assert torch.equal(photos.colors, made.colors)
    for one, other in zip(made, photos, strict=True):
        assert torch.equal(one.image, other.image)
        assert torch.allclose(one.camera.world_from_camera, other.camera.world_from_camera, atol=1e-12)
        assert torch.allclose(one.camera.K, other.camera.K)


def test_cameras_of_other_sizes_and_centers_live_side_by_side(scene):
    """Two lenses: full size, and a crop with an off-center principal point."""
    path = scene / "sparse" / "0"
    model = read_colmap_model(path)
    lens = read_colmap_model(path).lenses[1]
    cameras = struct.pack("<Q", 2)
    for number, cut in ((1, 0), (2, 6)):
        cameras += struct.pack("<IiQQ", number, 1, lens.width - cut, lens.height)
        cameras += struct.pack("<4d", lens.fx, lens.fy, lens.cx - cut, lens.cy)
    (path / "cameras.bin").write_bytes(cameras)
    data = bytearray((path / "images.bin").read_bytes())
    data[8 + 60 : 8 + 64] = struct.pack("<I", 2)  # camera id of the first photo
    (path / "images.bin").write_bytes(data)
    name = model.images[0].name
    Image.open(scene / "images" / name).crop((6, 0, 24, 24)).save(scene / "images" / name)
    photos = read_colmap(scene, PhotoOptions(longer_side=12, held_out=0))
    cropped = photos[0].camera
    whole = photos[1].camera
    assert (cropped.width, cropped.height, whole.width, whole.height) == (9, 12, 12, 12)
    assert cropped.cx == pytest.approx(whole.cx - 3)
    assert cropped.fx == pytest.approx(whole.fx)
    assert photos[0].image.shape == (12, 9, 3)


def test_photos_are_found_in_subfolders_with_other_extensions_and_at_other_sizes(scene):
    (scene / "photos").mkdir()
    for path in (scene / "images").iterdir():
        folder = scene / "photos" / ("left" if path.stem.endswith(("0", "1")) else "right")
        folder.mkdir(exist_ok=True)
        Image.open(path).resize((12, 12)).save(folder / f"{path.stem}.JPG", format="jpeg")
    photos = read_colmap(scene, SMALL, images="photos")
    assert photos[0].image.shape == (12, 12, 3)
    assert photos[0].camera.cx == pytest.approx(6)


def test_photos_that_were_not_registered_are_noted(scene):
    Image.new("RGB", (24, 24)).save(scene / "images" / "zz_stray.png")
    photos = read_colmap(scene, SMALL)
    assert any("zz_stray.png" in note for note in photos.notes)


def test_masks_are_found_by_colmaps_name_and_by_the_photos(scene):
    names = read_colmap(scene, SMALL).names
    (scene / "masks").mkdir()
    drawn = np.zeros((24, 24), np.uint8)
    drawn[:, 12:] = 255
    Image.fromarray(drawn).save(scene / "masks" / f"{names[0]}.png")
    Image.fromarray(drawn).save(scene / "masks" / f"{names[1][:-4]}.jpg")
    photos = read_colmap(scene, SMALL)
    expected = torch.from_numpy(drawn)
    assert torch.equal(photos[0].mask, expected)
    assert torch.equal(photos[1].mask, expected)
    assert photos[2].mask is None
    assert any("2 of 8 photos" in note for note in photos.notes)


def test_of_several_models_the_largest_is_taken(scene):
    small = scene / "sparse" / "1"
    shutil.copytree(scene / "sparse" / "0", small)
    (scene / "sparse" / "0").rename(scene / "sparse" / "2")
    data = (small / "images.bin").read_bytes()
    first = data.index(b"\0", 8 + 64) + 9
    (small / "images.bin").write_bytes(struct.pack("<Q", 1) + data[8:first])
    photos = read_colmap(scene, SMALL)
    assert len(photos) == 8
    assert any("largest of 2 models" in note and note.endswith("sparse: 2") for note in photos.notes)


def test_points_that_only_held_out_photos_see_are_left_out(real_data):
    whole = read_colmap(real_data / "colmap_plush", PhotoOptions(longer_side=8, held_out=0))
    split = read_colmap(real_data / "colmap_plush", PhotoOptions(longer_side=8, held_out=2))
    assert len(whole.points) == 4474 > len(split.points)


def test_a_folder_without_a_model_says_what_is_there(tmp_path):
    (tmp_path / "holiday.txt").write_text("")
    with pytest.raises(ColmapError, match=r"found: holiday.txt.*fieldwatch data photos"):
        read_colmap(tmp_path)
    with pytest.raises(ColmapError, match=r"/nowhere is not .*folder"):
        read_colmap(tmp_path / "nowhere")


def test_a_missing_file_of_the_model_is_named(scene):
    (scene / "sparse" / "0" / "points3D.bin").unlink()
    with pytest.raises(ColmapError, match=r"is missing points3D.bin"):
        read_colmap(scene)


def test_photos_that_are_missing_are_counted_and_named(scene):
    (scene / "images" / "view_003.png").unlink()
    with pytest.raises(PhotoError, match=r"1 of 8 photos .* are not in .*images \(which contains 7 .*: view_003.png"):
        read_colmap(scene)


def test_a_model_without_points_leaves_them_to_chance_and_says_so(scene):
    (scene / "sparse" / "0" / "points3D.bin").write_bytes(struct.pack("<Q", 0))
    photos = read_colmap(scene)
    assert photos.points.shape == photos.colors.shape == (0, 3)
    assert any("no points" in note for note in photos.notes)


def test_zero_photos_are_refused(scene):
    (scene / "sparse" / "0" / "images.bin").write_bytes(struct.pack("<Q", 0))
    with pytest.raises(ColmapError, match=r"images\.bin .*no registered photos"):
        read_colmap(scene)


@pytest.mark.parametrize("name", ["cameras.bin", "images.bin", "points3D.bin"])
@pytest.mark.parametrize("left", [0, 5, 8, 30, -1])
def test_a_file_that_is_cut_short_is_named(scene, name, left):
    path = scene / "sparse" / "0" / name
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ColmapError, match=f"{name} is cut short"):
        read_colmap_model(path.parent)


@pytest.mark.parametrize("name", ["cameras.bin", "images.bin", "points3D.bin"])
def test_a_count_that_no_file_could_hold_is_refused_at_once(scene, name):
    path = scene / "sparse" / "0" / name
    path.write_bytes(struct.pack("<Q", 2**63) + path.read_bytes()[8:])
    with pytest.raises(ColmapError, match=f"{name} is cut short"):
        read_colmap_model(path.parent)


def test_any_damaged_byte_is_an_error_of_ours_or_read(scene):
    """Random byte changes never raise anything other than ColmapError."""
    generator = np.random.default_rng(0)
    for name in ("cameras.bin", "images.bin", "points3D.bin"):
        path = scene / "sparse" / "0" / name
        whole = path.read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            data[int(generator.integers(len(data)))] = int(generator.integers(256))
            path.write_bytes(data)
            with contextlib.suppress(ColmapError):
                read_colmap_model(path.parent)
        path.write_bytes(whole)
    assert len(read_colmap_model(scene / "sparse" / "0").images) == 8


def test_a_pointer_instead_of_a_model_says_how_to_get_it(scene, real_data):
    shutil.copy(real_data / "splat_files" / "lfs_pointer_point_cloud.ply", scene / "sparse" / "0" / "points3D.bin")
    with pytest.raises(ColmapError, match="Git LFS pointer"):
        read_colmap_model(scene / "sparse" / "0")


def test_values_that_are_not_finite_are_named(scene):
    path = scene / "sparse" / "0" / "points3D.bin"
    data = bytearray(path.read_bytes())
    data[16:24] = struct.pack("<d", float("nan"))
    path.write_bytes(data)
    with pytest.raises(ColmapError, match=r"1 of 60 points.*index 0"):
        read_colmap(scene)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("cameras.txt", "1 PINHOLE 24 twenty 1 1 1 1", r"cameras.txt, line 2: malformed line '1 PINHOLE"),
        ("cameras.txt", "1 PINHOLE 24 24 1 1 1", r"camera 1: camera model PINHOLE takes 4 parameters"),
        ("cameras.txt", "1 MAGIC 24 24 1", r"camera 1: unsupported camera model 'MAGIC'"),
        ("cameras.txt", "7 PINHOLE 24 24 9 9 12 12", r"camera 1, but cameras.txt only has cameras \[7\]"),
        ("images.txt", "1 1 0 0 0 0 0 0 1", r"images.txt, line 2"),
        ("images.txt", "1 0 0 0 0 0 0 0 1 a.png", r"photo 'a.png': expected a finite pose"),
        ("points3D.txt", "1 2 3", r"points3D.txt, line 2"),
    ],
)
def test_a_line_that_cannot_be_read_is_quoted(scene, tmp_path, name, line, message):
    write_text(tmp_path / "text", read_colmap_model(scene / "sparse" / "0"))
    (tmp_path / "text" / name).write_text(f"# broken\n{line}\n")
    with pytest.raises(ColmapError, match=message):
        read_colmap_model(tmp_path / "text")
