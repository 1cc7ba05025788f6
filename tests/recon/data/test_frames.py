"""Clips from image folders: reading, conversion, and the errors for invalid input."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.recon.data import Clip, read_clip
from fieldwatch.recon.data.clip_error import ClipError
from fieldwatch.recon.data.frames import FrameStream


def picture(number, height=24, width=40):
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 5, y * 7, np.full_like(x, number * 9)], -1).astype(np.uint8)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "clip"
    path.mkdir()
    for i in range(12):
        Image.fromarray(picture(i)).save(path / f"frame_{i}.png")
    return path


def test_a_folder_gives_the_very_pixels_in_natural_order(folder):
    clip = read_clip(folder)
    assert len(clip) == 12
    assert clip.names == tuple(f"frame_{i}.png" for i in range(12))  # 2 before 10
    assert any("natural order" in note for note in clip.notes)
    assert (clip.height, clip.width, clip.streams) == (24, 40, False)
    expected = np.stack([picture(i) for i in range(12)]).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(clip.frames, expected)
    np.testing.assert_array_equal(clip[-1], expected[-1])
    np.testing.assert_array_equal(clip.batch([5, 2]), expected[[5, 2]])


def test_start_stride_and_count(folder):
    clip = read_clip(folder, start=1, stride=3, count=3)
    assert clip.names == ("frame_1.png", "frame_4.png", "frame_7.png")
    assert len(read_clip(folder, start=11, stride=5, count=9)) == 1


def test_a_streaming_clip_is_the_same_clip(folder):
    held = read_clip(folder, crop="20_30")
    streamed = read_clip(folder, crop="20_30", memory_budget=4 * 20 * 30 * 3)
    assert streamed.streams
    assert streamed.digest == held.digest
    assert streamed.names == held.names
    assert torch.equal(streamed.frames, held.frames)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0)).tolist()
    streamed.prefetch(order[:3])
    assert torch.equal(streamed.batch(order), held.batch(order))
    assert all(torch.equal(a, b) for a, b in zip(streamed, held, strict=True))
    streamed.close()
    held.close()


def test_a_stream_keeps_no_more_than_it_may_and_asks_once_for_what_it_keeps():
    class Counted:
        notes: list[str] = []  # noqa: RUF012 - the protocol's field
        names = tuple("abcdef")

        def __init__(self):
            self.asked = []

        def scan(self):
            yield from ()

        def read(self, index):
            self.asked.append(index)
            return torch.full((3, 2, 2), index, dtype=torch.uint8)

        def close(self):
            self.asked.append("closed")

    source = Counted()
    stream = FrameStream(source, capacity=3)
    assert [int(stream.fetch(i).result()[0, 0, 0]) for i in (0, 1, 0, 1, 2, 0, 3, 1)] == [0, 1, 0, 1, 2, 0, 3, 1]
    assert source.asked == [0, 1, 2, 3, 1]  # 1 was the least recently used frame when 3 was added
    stream.close()
    assert source.asked[-1] == "closed"


def test_a_frame_that_vanishes_while_streaming_is_named_and_read_again_when_it_is_back(folder):
    clip = read_clip(folder, memory_budget=2 * 24 * 40 * 3)
    moved = folder.parent / "elsewhere.png"
    shutil.move(folder / "frame_7.png", moved)
    with pytest.raises(ClipError, match=r"frame_7\.png cannot"):
        clip[7]
    shutil.move(moved, folder / "frame_7.png")
    assert int(clip[7][2, 0, 0]) == 63
    clip.close()


def test_the_digest_knows_pixels_and_framing(folder, tmp_path):
    one = read_clip(folder).digest
    assert read_clip(folder).digest == one
    assert read_clip(folder, count=11).digest != one
    assert read_clip(folder, resize="24_40").digest != one  # the same size, but with an explicit resize
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert read_clip(copy).digest == one  # the digest does not depend on the path
    changed = picture(3)
    changed[0, 0, 0] ^= 1
    Image.fromarray(changed).save(copy / "frame_3.png")
    assert read_clip(copy).digest != one


def test_a_clip_of_frames_at_hand():
    frames = torch.randint(0, 256, (3, 3, 5, 7), dtype=torch.uint8)
    clip = Clip.of(frames, source="here")
    assert clip.names == ("frame_00000", "frame_00001", "frame_00002")
    assert Clip.of(frames.clone(), source="there").digest == clip.digest
    with pytest.raises(IndexError, match=r"frame index 3.*expected -3 to 2"):
        clip[3]


def test_stray_files_are_ignored_and_counted(folder):
    (folder / "notes.txt").write_text("hello")
    (folder / ".frame_5.png").write_bytes(b"resource fork")
    (folder / "more").mkdir()
    clip = read_clip(folder)
    assert len(clip) == 12
    assert any("ignored 3 entries" in note for note in clip.notes)


def save_and_read(tmp_path, image, name="0.png", **options):
    image.save(tmp_path / name, **options)
    clip = read_clip(tmp_path)
    return clip[0].permute(1, 2, 0).numpy(), clip.notes


def test_alpha_is_composited_on_black(tmp_path):
    array = np.full((4, 6, 4), 200, np.uint8)
    array[:2, :, 3] = 0
    array[2:, :, 3] = 128
    pixels, notes = save_and_read(tmp_path, Image.fromarray(array, "RGBA"))
    assert (pixels[:2] == 0).all()
    assert abs(int(pixels[3, 0, 0]) - 100) <= 1
    assert [note.startswith("1 of 1 frames: transparent,") for note in notes] == [True]


def test_opaque_alpha_changes_nothing(tmp_path):
    array = np.full((4, 6, 4), 255, np.uint8)
    array[..., :3] = 17
    pixels, notes = save_and_read(tmp_path, Image.fromarray(array, "RGBA"))
    assert (pixels == 17).all()
    assert notes == ()


def test_gray_is_repeated(tmp_path):
    pixels, notes = save_and_read(tmp_path, Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6)))
    np.testing.assert_array_equal(pixels, np.repeat(np.arange(24).reshape(4, 6, 1), 3, -1))
    assert [note.startswith("1 of 1 frames: gray,") for note in notes] == [True]


def test_gray_with_alpha(tmp_path):
    image = Image.merge("LA", (Image.new("L", (6, 4), 90), Image.new("L", (6, 4), 0)))
    pixels, notes = save_and_read(tmp_path, image)
    assert (pixels == 0).all()
    assert len(notes) == 2


def test_a_palette_with_a_transparent_entry(tmp_path):
    image = Image.new("P", (6, 4), 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((0, 0), 0)
    pixels, _ = save_and_read(tmp_path, image, transparency=0)
    assert pixels[0, 0].tolist() == [0, 0, 0]
    assert pixels[1, 1].tolist() == [200, 100, 50]


@pytest.mark.parametrize("name", ["0.png", "0.tif"])
def test_sixteen_bit_gray_is_scaled_not_clipped(tmp_path, name):
    values = np.array([[0, 128, 129, 257], [32768, 65535, 514, 40000]], np.uint16)
    pixels, notes = save_and_read(tmp_path, Image.fromarray(values), name)
    np.testing.assert_array_equal(pixels[..., 0], np.floor(values / 257 + 0.5))
    assert any("16-bit" in note for note in notes)


def test_exif_orientation_is_applied(tmp_path):
    image = Image.fromarray(picture(1, 8, 16))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    pixels, notes = save_and_read(tmp_path, image, exif=exif)
    np.testing.assert_array_equal(pixels, np.rot90(picture(1, 8, 16), -1))
    assert [note.startswith("1 of 1 frames: ") and "EXIF" in note for note in notes] == [True]


@pytest.mark.parametrize("name", ["0.jpg", "0.bmp", "0.tif", "0.webp", "0.JPEG"])
def test_other_formats(tmp_path, name):
    pixels, _ = save_and_read(tmp_path, Image.new("RGB", (16, 16), (10, 120, 240)), name)
    np.testing.assert_allclose(pixels, np.broadcast_to([10, 120, 240], pixels.shape), atol=4)


def test_frames_of_two_sizes_are_named_with_the_remedy(folder):
    Image.fromarray(picture(0, 30, 40)).save(folder / "frame_12.png")
    with pytest.raises(ClipError) as error:
        read_clip(folder)
    assert "24_40 (12 frames, first frame_0.png), 30_40 (1 frames, first frame_12.png)" in str(error.value)
    assert "--resize H_W" in str(error.value)
    clip = read_clip(folder, resize="24_40")
    assert len(clip) == 13
    assert any("different sizes" in note for note in clip.notes)


def broken(folder, name, content):
    (folder / name).write_bytes(content)


def test_a_truncated_frame_is_named(folder):
    content = (folder / "frame_4.png").read_bytes()
    broken(folder, "frame_4.png", content[: len(content) // 2])
    with pytest.raises(ClipError, match=r"frame_4\.png is cut short"):
        read_clip(folder)


def test_a_frame_that_is_replaced_by_one_of_another_size_is_named(folder):
    clip = read_clip(folder, memory_budget=2 * 24 * 40 * 3)
    Image.fromarray(picture(7, 10, 10)).save(folder / "frame_7.png")
    with pytest.raises(ClipError, match=r"frame_7.png is 10_10 .height_width., expected 24_40"):
        clip[7]
    clip.close()


def test_a_frame_that_is_no_image_is_named(folder):
    broken(folder, "frame_4.png", b"this is no image")
    with pytest.raises(ClipError, match=r"frame_4\.png cannot"):
        read_clip(folder)


def test_float_images_are_refused(tmp_path):
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "0.tif")
    with pytest.raises(ClipError, match=r"32-bit floats.*PNG"):
        read_clip(tmp_path)


def test_paths_that_hold_no_clip(tmp_path, folder):
    with pytest.raises(ClipError, match="/nowhere does"):
        read_clip(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ClipError, match="empty is empty"):
        read_clip(tmp_path / "empty")
    with pytest.raises(ClipError, match=r"2 entries .*clip\?"):
        read_clip(tmp_path)  # contains two folders
    other = tmp_path / "empty"
    (other / "a.exr").write_bytes(b"")
    (other / "b.exr").write_bytes(b"")
    with pytest.raises(ClipError, match=r"found 2 \.exr\).*PNG"):
        read_clip(other)
    with pytest.raises(ClipError, match=r"frame_1\.png .*single image"):
        read_clip(folder / "frame_1.png")


def test_selections_of_nothing(folder):
    with pytest.raises(ClipError, match=r"no frame of .*has 12 frames, got start=12, stride=1"):
        read_clip(folder, start=12)
    for wrong in ({"start": -1}, {"count": 0}, {"stride": 0}):
        with pytest.raises(ClipError, match=r"start=.*count=.*stride="):
            read_clip(folder, **wrong)


def test_a_crop_larger_than_the_frames_is_found_before_decoding(folder):
    with pytest.raises(ClipError, match=r"--crop 100_20 .* is larger than frame_0.png, which is 24_40"):
        read_clip(folder, crop="100_20")


def test_the_bunny_clip(real_data):
    folder = real_data / "video_bunny"
    clip = read_clip(folder, count=4)
    assert (len(clip), clip.height, clip.width) == (4, 320, 640)
    assert clip.names[0] == "00000.jpg"
    assert any("LICENSE.md" in note for note in clip.notes)
