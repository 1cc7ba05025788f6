"""Checks of photos and masks before training: formats, damage, threads."""

import io
import time

import numpy as np
import pytest
from PIL import Image

from fieldwatch.recon.data.photos import PhotoCandidate, PhotoError, check_photos
from fieldwatch.recon.data.photos.photo_file import check_photo, mask_is_black

FORMATS = {"png": {}, "jpg": {"quality": 92}, "tif": {}, "webp": {"quality": 90}, "bmp": {}}


def picture(width=96, height=64, seed=0, mode="RGB"):
    bands = len(Image.new(mode, (1, 1)).getbands())
    values = np.random.default_rng(seed).integers(0, 256, (height, width, bands), dtype=np.uint8)
    return Image.fromarray(values[..., 0] if bands == 1 else values, mode)


def bytes_of(image, kind):
    file = io.BytesIO()
    image.save(file, {"jpg": "jpeg", "tif": "tiff"}.get(kind, kind), **FORMATS[kind])
    return file.getvalue()


def sift(candidates, **options):
    usual = {"skip": False, "leave_out": None, "source": "a test", "where": "a folder"}
    return check_photos(candidates, **{**usual, **options})


@pytest.mark.parametrize("kind", FORMATS)
def test_a_photo_that_is_cut_short_is_named_whatever_its_format(kind, tmp_path):
    path = tmp_path / f"a.{kind}"
    whole = bytes_of(picture(), kind)
    path.write_bytes(whole)
    check_photo(path)
    for left in (0, 4, 11, len(whole) // 3, len(whole) - 40):
        path.write_bytes(whole[:left])
        with pytest.raises(PhotoError, match=rf"a\.{kind}"):
            check_photo(path)


def test_every_flipped_byte_before_the_end_of_a_png_is_noticed(tmp_path):
    whole = bytes_of(picture(12, 9), "png")
    path = tmp_path / "a.png"
    for place in range(len(whole) - len("....IEND....")):  # bytes of the end marker carry no image data
        data = bytearray(whole)
        data[place] ^= 0x10
        path.write_bytes(data)
        with pytest.raises(PhotoError):
            check_photo(path)


@pytest.mark.parametrize("brand", [b"heic", b"mif1", b"hevc"])
def test_the_format_of_iphones_is_named_whatever_the_name(brand, tmp_path):
    path = tmp_path / "IMG_0001.jpg"
    path.write_bytes(b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1heic")
    with pytest.raises(PhotoError, match=r"HEIC format.*JPEG"):
        check_photo(path)


@pytest.mark.parametrize(("mode", "expected"), [("RGB", False), ("RGBA", True), ("L", False), ("LA", True)])
def test_alpha_is_known_from_the_header(mode, expected, tmp_path):
    path = tmp_path / "a.png"
    picture(mode=mode).save(path)
    assert check_photo(path).transparent is expected


def test_masks_that_leave_nothing_are_told_from_others(tmp_path):
    values = {"black": np.zeros((4, 4), np.uint8), "dark": np.full((4, 4), 100, np.uint8)}
    values["one"] = np.where(np.arange(16).reshape(4, 4) == 5, 255, 0).astype(np.uint8)
    for name, pixels in values.items():
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    assert [mask_is_black(tmp_path / f"{name}.png") for name in values] == [True, True, False]


def test_missing_and_damaged_photos_are_counted_named_and_left_out_only_when_asked(tmp_path):
    candidates = []
    for number in range(6):
        path = tmp_path / f"{number}.png"
        path.write_bytes(bytes_of(picture(seed=number), "png"))
        candidates.append(PhotoCandidate(name=path.name, path=path))
    (tmp_path / "2.png").write_bytes(b"")
    candidates[4] = PhotoCandidate(name="4.png", path=None)
    with pytest.raises(PhotoError, match=r"1 of 6 photos .*4\.png.*--skip-unreadable"):
        sift(candidates)
    with pytest.raises(PhotoError, match=r"2\.png.*--skip-unreadable"):
        sift([one for one in candidates if one.path is not None])
    found = sift(candidates, skip=True)
    assert list(found.photos) == ["0.png", "1.png", "3.png", "5.png"]
    assert found.left_out == ("2.png", "4.png")
    assert "2 of 6" in found.notes[0]
    again = sift(candidates, leave_out=("2.png", "4.png", "5.png"))
    assert again.left_out == ("2.png", "4.png", "5.png")
    with pytest.raises(PhotoError, match=r"2\.png"):
        sift(candidates, skip=True, leave_out=("4.png",))


def test_seventeen_of_sixty_seven_photos_may_be_missing(tmp_path):
    whole = bytes_of(picture(), "png")
    candidates = []
    for number in range(67):
        path = tmp_path / f"{number:02d}.png"
        if number % 4 != 1:
            path.write_bytes(whole)
        candidates.append(PhotoCandidate(name=path.name, path=path if path.is_file() else None))
    found = sift(candidates, skip=True)
    assert (len(found.photos), len(found.left_out)) == (50, 17)
    assert all(name in found.notes[0] for name in found.left_out)


def test_of_many_photos_some_are_decoded_and_the_others_must_have_an_end(tmp_path):
    candidates = []
    for number in range(8):
        path = tmp_path / f"{number}.jpg"
        data = bytes_of(picture(seed=number), "jpg")
        path.write_bytes(data)
        candidates.append(PhotoCandidate(name=path.name, path=path))
    # A phone appended further data.
    (tmp_path / "6.jpg").write_bytes(bytes_of(picture(seed=6), "jpg") + b"SEFT" * 200)
    assert len(sift(candidates, most_decoded=2).photos) == 8
    whole = bytes_of(picture(seed=5), "jpg")
    (tmp_path / "5.jpg").write_bytes(whole[: len(whole) // 2])
    for most in (0, 2, None):
        with pytest.raises(PhotoError, match=r"5\.jpg"):
            sift(candidates, most_decoded=most)


@pytest.mark.machine
def test_checking_a_jpeg_costs_a_fraction_of_decoding_it(tmp_path):
    path = tmp_path / "a.jpg"
    Image.effect_noise((3000, 2000), 20).convert("RGB").save(path, quality=88)

    def seconds(work):
        began = time.process_time()
        work()
        return time.process_time() - began

    def decoded():
        with Image.open(path) as image:
            np.asarray(image.convert("RGB"))

    assert min(seconds(lambda: check_photo(path)) for _ in range(3)) < 0.9 * min(seconds(decoded) for _ in range(3))
