"""Films and photos before their cameras are found: frames, EXIF, formats, pairs, and what a folder may continue."""

import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from fieldwatch.recon.data import write_video
from fieldwatch.recon.data.capture import (
    CaptureError,
    CaptureSettings,
    PhotoHeader,
    choose_frames,
    collect_photos,
    describe,
    find_source,
    gradient_energy,
    matching_of,
    pairs_to_match,
    read_record,
    record_for,
    relative_sharpness,
    share_cameras,
    window_of,
)

ORIENTATION, MAKE, MODEL, EXIF = 0x0112, 0x010F, 0x0110, 0x8769
TAKEN, FOCAL_LENGTH, FOCAL_35MM = 0x9003, 0x920A, 0xA405


def nobody(done, total):
    """Watch no progress."""


def opened(path):
    """Size, mode and pixels of an image file."""
    with Image.open(path) as image:
        return image.size, image.mode, np.array(image)


def picture(seed=0, size=(64, 48)):
    """A picture of random spots."""
    cells = np.random.default_rng(seed).integers(0, 256, (size[1] // 8, size[0] // 8, 3), np.uint8)
    return Image.fromarray(cells).resize(size, Image.Resampling.NEAREST)


def panorama(count, size=(96, 64), blurred=()):
    """Frames of a camera that moves over a wall of spots; some of them are blurred."""
    wall = picture(1, (size[0] + 2 * count + 8 - 2 * count % 8, size[1]))
    for number in range(count):
        frame = wall.crop((2 * number, 0, 2 * number + size[0], size[1]))
        if number in blurred:
            frame = frame.filter(ImageFilter.GaussianBlur(3))
        yield torch.from_numpy(np.array(frame)).permute(2, 0, 1).contiguous()


def film_of(path, frames):
    return write_video(path, frames, rate=10.0, quality=12)


def frame_numbers(chosen):
    return [int(photo.name[6:12]) for photo in chosen.photos]


# ---------------------------------------------------------------- frames


def test_blur_lowers_the_gradient_energy():
    sharp = picture(3).convert("L")
    energies = [gradient_energy(np.asarray(sharp.filter(ImageFilter.GaussianBlur(r)))) for r in (0, 1, 3)]
    assert energies[0] > 2 * energies[1] > 4 * energies[2]


@pytest.mark.parametrize(("total", "count"), [(240, 48), (100, 33), (1000, 7), (10, 10), (7, 20)])
def test_windows_cover_a_film_evenly_and_their_edges_belong_to_none(total, count):
    windows = [window_of(index, total, count) for index in range(total)]
    used = [window for window in windows if window is not None]
    assert used == sorted(used)
    assert len(set(used)) == min(total, count)
    if total >= 4 * count:
        assert windows[0] is None
        # The best frames of two windows are never neighbors.
        assert all(None in (a, b) or a == b for a, b in pairwise(windows))


def test_the_sharpest_frame_of_each_part_is_chosen(tmp_path):
    blurred = set(range(60)) - {5, 17, 24, 33, 44, 55}
    film = film_of(tmp_path / "film.mp4", panorama(60, blurred=blurred))
    chosen = choose_frames(film, tmp_path / "images", CaptureSettings(frames=6), nobody)
    assert frame_numbers(chosen) == [5, 17, 24, 33, 44, 55]
    assert [opened(path)[0] for path in sorted((tmp_path / "images").iterdir())] == [(96, 64)] * 6
    assert [photo.taken for photo in chosen.photos] == pytest.approx([0.5, 1.7, 2.4, 3.3, 4.4, 5.5])
    assert len(chosen.cameras) == 1


def test_a_part_of_a_film_is_chosen_by_seconds(tmp_path):
    film = film_of(tmp_path / "film.mp4", panorama(40))
    settings = CaptureSettings(frames=5, start=1.0, end=2.0)
    numbers = [photo.taken for photo in choose_frames(film, tmp_path / "images", settings, nobody).photos]
    assert len(numbers) == 5
    assert 1.0 <= min(numbers) < max(numbers) <= 2.0


def test_still_and_uniform_frames_are_left_out(tmp_path):
    frames = list(panorama(12))
    frames[4:8] = [frames[4]] * 4
    frames[10] = torch.zeros_like(frames[0])
    chosen = choose_frames(
        film_of(tmp_path / "film.mp4", frames), tmp_path / "images", CaptureSettings(frames=12), nobody
    )
    assert frame_numbers(chosen) == [0, 1, 2, 3, 4, 8, 9, 11]
    assert {float(each.source.removesuffix(" s")) for each in chosen.left_out} == {0.5, 0.6, 0.7, 1.0}


@pytest.mark.parametrize(("level", "remedy"), [(0, "--start"), (None, "walk around")])
def test_black_and_still_films_are_refused(tmp_path, level, remedy):
    frame = next(panorama(1)) if level is None else torch.full((3, 64, 96), level, dtype=torch.uint8)
    film = film_of(tmp_path / "film.mp4", [frame] * 10)
    with pytest.raises(CaptureError, match=remedy):
        choose_frames(film, tmp_path / "images", CaptureSettings(frames=10), nobody)


def test_a_cut_film_is_refused_and_its_intact_part_can_be_chosen(tmp_path):
    whole = film_of(tmp_path / "whole.mp4", panorama(60))
    film = tmp_path / "film.mp4"
    film.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    with pytest.raises(CaptureError, match="--end") as refused:
        choose_frames(film, tmp_path / "images", CaptureSettings(frames=8), nobody)
    end = float(str(refused.value).rsplit(" ", 1)[1])
    chosen = choose_frames(film, tmp_path / "images", CaptureSettings(frames=8, end=end), nobody)
    assert len(chosen.photos) == 8
    film.write_bytes(whole.read_bytes()[:400])
    with pytest.raises(CaptureError, match="copy it again"):
        choose_frames(film, tmp_path / "images", CaptureSettings(), nobody)


def test_sharpness_is_relative_to_the_neighbors():
    relative = relative_sharpness([100.0] * 10 + [20.0] + [100.0] * 10 + [1000.0] * 20)
    assert relative[10] == pytest.approx(0.2)
    assert relative[30] == pytest.approx(1.0)


# ---------------------------------------------------------------- photos


def save(path, image, *, orientation=1, camera="", focal=None, taken=None):
    """Save a picture with EXIF data."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    details = {}
    if camera:
        exif[MAKE], exif[MODEL] = camera.split(" ", 1)
    if focal:
        details |= {FOCAL_35MM: focal, FOCAL_LENGTH: focal / 6}
    if taken:
        details[TAKEN] = f"2026:05:01 10:00:{taken:02d}"
    if details:
        exif.get_ifd(EXIF).update(details)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, exif=exif)
    return path


def collected(folder, out, cameras="auto"):
    return collect_photos(find_source(folder), out, cameras, nobody)


def test_photos_are_upright_and_keep_their_bytes_if_they_already_are(tmp_path):
    upright = save(tmp_path / "in/a.png", picture(1))
    save(tmp_path / "in/sub/b 2.png", picture(2), orientation=6)
    save(tmp_path / "in/c.jpg", picture(3), orientation=3)
    chosen = collected(tmp_path / "in", tmp_path / "out")
    sizes = {photo.source: opened(tmp_path / "out" / photo.name)[0] for photo in chosen.photos}
    assert sizes == {"a.png": (64, 48), "c.jpg": (64, 48), "sub/b 2.png": (48, 64)}
    assert (tmp_path / "out/a.png").read_bytes() == upright.read_bytes()
    turned = opened(tmp_path / "out/sub_b_2.png")[2]
    # Orientation 6: the first row of what is stored is the right side.
    assert np.array_equal(turned, np.rot90(np.asarray(picture(2)), -1))


def test_every_format_becomes_a_plain_jpeg_or_png(tmp_path):
    deep = Image.fromarray(np.asarray(picture(1).convert("L"), np.uint16) * 257)
    save(tmp_path / "in/deep.png", deep)
    save(tmp_path / "in/scan.tif", picture(2))
    save(tmp_path / "in/web.webp", picture(3))
    save(tmp_path / "in/palette.png", picture(4).quantize(16))
    save(tmp_path / "in/cmyk.jpg", picture(5).convert("CMYK"))
    chosen = collected(tmp_path / "in", tmp_path / "out")
    assert {photo.name for photo in chosen.photos} == {"deep.png", "scan.png", "web.jpg", "palette.png", "cmyk.jpg"}
    assert {opened(tmp_path / "out" / photo.name)[1] for photo in chosen.photos} == {"RGB"}
    deep = opened(tmp_path / "out/deep.png")[2]
    assert np.array_equal(deep[..., 0], np.asarray(picture(1).convert("L")))


def test_heic_photos_are_read(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    for number in range(3):
        save(tmp_path / f"in/IMG_{number}.HEIC", picture(number), camera="Apple iPhone", focal=26)
    chosen = collected(tmp_path / "in", tmp_path / "out")
    assert [photo.name for photo in chosen.photos] == ["IMG_0.jpg", "IMG_1.jpg", "IMG_2.jpg"]
    assert chosen.cameras[0].focal == pytest.approx(26 * 80 / 43.2666)


def test_heic_photos_are_read_among_jpeg_files_and_under_their_name(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    save(tmp_path / "in/a.jpg", picture(1))
    for name, number in (("b.HEIC", 2), ("c.heic", 3)):
        save(tmp_path / "in" / name, picture(number))
    # Some programs rename them without converting them.
    (tmp_path / "in/c.heic").rename(tmp_path / "in/c.jpg")
    chosen = collected(tmp_path / "in", tmp_path / "out")
    assert [photo.name for photo in chosen.photos] == ["a.jpg", "b.jpg", "c.jpg"]
    assert chosen.left_out == ()
    assert {opened(tmp_path / "out" / photo.name)[0] for photo in chosen.photos} == {(64, 48)}
    # The file that was renamed is converted, not copied.
    assert (tmp_path / "out/c.jpg").read_bytes().startswith(b"\xff\xd8")


def test_heic_photos_without_the_library_are_refused_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pillow_heif", None)
    for number in range(3):
        (tmp_path / f"IMG_{number}.HEIC").write_bytes(b"\0" * number)
    save(tmp_path / "other.jpg", picture(1))
    (tmp_path / "renamed.jpg").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    with pytest.raises(CaptureError, match=r"4 of 5 photos .* \(IMG_0.HEIC, .*pip install 'fieldwatch\[photos\]'"):
        collected(tmp_path, tmp_path.with_name("out"))


def test_photos_of_one_camera_and_size_share_it(tmp_path):
    for number in range(3):
        save(tmp_path / f"in/a{number}.jpg", picture(number), camera="Nikon D1", focal=35, taken=9 - number)
    save(tmp_path / "in/b.jpg", picture(4), camera="Nikon D1", focal=50, taken=1)
    save(tmp_path / "in/c.jpg", picture(5, (80, 48)), camera="Nikon D1", focal=35, taken=2)
    chosen = collected(tmp_path / "in", tmp_path / "out")
    assert [photo.source for photo in chosen.photos] == ["b.jpg", "c.jpg", "a2.jpg", "a1.jpg", "a0.jpg"]
    assert [photo.camera for photo in chosen.photos] == [0, 1, 2, 2, 2]
    diagonals = [80, np.hypot(80, 48), 80]
    focal = [length * diagonal / 43.2666 for length, diagonal in zip((50, 35, 35), diagonals, strict=True)]
    assert [camera.focal for camera in chosen.cameras] == pytest.approx(focal)


@pytest.mark.parametrize(("cameras", "places"), [("auto", [0, 1, 0, 2]), ("one", [0, 0, 0, 1]), ("each", [0, 1, 2, 3])])
def test_who_shares_a_camera_can_be_chosen(cameras, places):
    headers = [PhotoHeader(camera=name, focal_35mm=None, taken=None, turned=False) for name in ("a", "b", "a", "a")]
    assert share_cameras([(64, 48)] * 3 + [(48, 64)], headers, cameras)[1] == places


def test_damaged_photos_and_copies_are_left_out_with_the_reason(tmp_path):
    for number in range(4):
        save(tmp_path / f"in/{number}.jpg", picture(number, (320, 240)))
    cut = tmp_path / "in/1.jpg"
    cut.write_bytes(cut.read_bytes()[:2000])
    shutil.copyfile(tmp_path / "in/0.jpg", tmp_path / "in/5.jpg")
    chosen = collected(tmp_path / "in", tmp_path / "out")
    assert [photo.source for photo in chosen.photos] == ["0.jpg", "2.jpg", "3.jpg"]
    assert {each.source: "copy" in each.reason for each in chosen.left_out} == {"1.jpg": False, "5.jpg": True}


def test_copies_of_one_photo_are_refused(tmp_path):
    for number in range(5):
        save(tmp_path / f"in/{number}.png", picture(7))
    with pytest.raises(CaptureError, match="other positions"):
        collected(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_photos_are_refused(tmp_path, count):
    (tmp_path / "notes.txt").touch()
    for number in range(count):
        save(tmp_path / f"{number}.png", picture(number))
    with pytest.raises(CaptureError, match="no photos" if not count else "at least 3"):
        find_source(tmp_path)


def test_a_single_photo_and_a_missing_path_are_refused(tmp_path):
    with pytest.raises(CaptureError, match="single photo"):
        find_source(save(tmp_path / "a.png", picture()))
    with pytest.raises(CaptureError, match="does not exist"):
        find_source(tmp_path / "none")


# ---------------------------------------------------------------- pairs


def test_frames_of_a_film_are_matched_near_far_and_alike():
    # Two rounds on a circle: frame i looks like frame i + 50.
    angles = np.arange(100) * 2 * np.pi / 50
    descriptors = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    pairs = set(pairs_to_match(descriptors, "sequential"))
    assert {(i, i + 1) for i in range(99)} | {(i, i + 10) for i in range(90)} | {
        (i, i + 64) for i in range(36)
    } <= pairs
    assert {(i, i + 50) for i in range(50)} <= pairs
    assert len(pairs) < 100 * 20


def test_many_photos_are_matched_with_those_that_look_alike():
    generator = np.random.default_rng(0)
    places = np.repeat(generator.normal(size=(10, 32)), 20, 0)
    descriptors = places + 0.05 * generator.normal(size=places.shape)
    descriptors = (descriptors / np.linalg.norm(descriptors, axis=1, keepdims=True)).astype(np.float32)
    order = generator.permutation(200)
    pairs = pairs_to_match(descriptors[order], "similar")
    same = sum(order[i] // 20 == order[j] // 20 for i, j in pairs)
    # All 190 pairs of each of the ten places, and few others.
    assert same == 1900
    assert len(pairs) < 200 * 26


def test_which_photos_are_matched_depends_on_their_kind_and_number():
    wanted = [matching_of("film", 500, "auto"), matching_of("photos", 150, "auto"), matching_of("photos", 151, "auto")]
    assert wanted == ["sequential", "exhaustive", "similar"]
    assert matching_of("film", 20, "exhaustive") == "exhaustive"
    assert len(pairs_to_match(np.eye(5, dtype=np.float32), "exhaustive")) == 10


def test_a_shifted_photo_looks_more_alike_than_another(tmp_path):
    wall = picture(1, (256, 128))
    crops = [wall.crop((x, 0, x + 128, 128)) for x in (0, 8)] + [picture(2, (128, 128)), Image.new("RGB", (128, 128))]
    paths = [save(tmp_path / f"{number}.png", crop) for number, crop in enumerate(crops)]
    likeness = describe(paths) @ describe(paths).T
    assert likeness[0, 1] > likeness[0, 2] + 0.05
    assert np.isfinite(likeness).all()


# ---------------------------------------------------------------- what may be continued


@pytest.fixture
def source(tmp_path):
    for number in range(3):
        save(tmp_path / f"in/{number}.png", picture(number))
    return find_source(tmp_path / "in")


def test_a_complete_stage_stays_complete_until_its_settings_change(tmp_path, source):
    settings = CaptureSettings()
    record = record_for(tmp_path / "out", source)
    for stage in ("frames", "features", "matching", "mapping"):
        record.complete(stage, settings, {})
    read = read_record(tmp_path / "out")
    changes = {"threads": 4, "mapper": "global", "matching": "similar", "features": 999, "cameras": "each", "seed": 3}
    kept = {
        name: [each for each in read.stages if read.is_complete(each, replace(settings, **{name: value}))]
        for name, value in changes.items()
    }
    stages = list(read.stages)
    assert kept == {
        "threads": stages, "mapper": stages[:3], "matching": stages[:2], "features": stages[:1], "cameras": [],
        "seed": stages[:1],
    }  # fmt: skip


def test_only_files_of_the_same_settings_are_continued(tmp_path, source):
    record = record_for(tmp_path / "out", source)
    settings, other = CaptureSettings(), CaptureSettings(features=500)
    assert not record.begin("features", settings)
    record.started("features", settings)
    assert record_for(tmp_path / "out", source).begin("features", settings)
    assert not record_for(tmp_path / "out", source).begin("features", other)
    # Interrupted before the old files were deleted: nothing may be continued.
    assert not record_for(tmp_path / "out", source).begin("features", settings)


def test_a_folder_holds_one_capture(tmp_path, source):
    record_for(tmp_path / "out", source).complete("frames", CaptureSettings(), {})
    save(tmp_path / "in/0.png", picture(9))
    changed = find_source(tmp_path / "in")
    with pytest.raises(CaptureError, match="--overwrite"):
        record_for(tmp_path / "out", changed)
    assert record_for(tmp_path / "out", changed, overwrite=True).stages == {}


def test_folders_that_are_not_ours_are_refused(tmp_path, source):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").touch()
    for out, reason in (
        (tmp_path / "full", "not empty"),
        (tmp_path / "in/out", "inside"),
        (tmp_path / "in/0.png", "file"),
    ):
        with pytest.raises(CaptureError, match=reason):
            record_for(out, source, overwrite=True)
