"""Video files: round trips, random access and truncated files."""

import wave

import av
import numpy as np
import pytest
import torch

from fieldwatch.recon.data import read_clip, synthetic_clip, write_video
from fieldwatch.recon.data.clip_error import ClipError
from fieldwatch.recon.data.video_writer import _can_encode


@pytest.fixture(scope="module")
def film():
    return synthetic_clip(frames=40, height=48, width=64)


@pytest.fixture
def path(film, tmp_path):
    return write_video(tmp_path / "film.mp4", film)


def psnr(a, b):
    return -10 * torch.log10((a.float() - b.float()).square().mean() / 255**2)


def test_what_is_written_can_be_read(film, path):
    clip = read_clip(path)
    assert (len(clip), clip.height, clip.width) == (40, 48, 64)
    assert clip.names[39] == "frame_00039"
    assert psnr(clip.frames, film.frames) > 26  # 4:2:0 chroma of so small a picture; 37 at 320 x 640
    # correct order: each frame is closer to its original than to the next one
    assert all(psnr(clip[i], film[i]) > psnr(clip[i], film[i + 1]) for i in range(39))
    assert [p.name for p in path.parent.iterdir()] == ["film.mp4"]  # no draft is left


def test_selection_and_framing(path):
    clip = read_clip(path, start=3, stride=5, count=4, crop="32_40", resize="16")
    assert clip.names == ("frame_00003", "frame_00008", "frame_00013", "frame_00018")
    assert (clip.height, clip.width) == (16, 20)


def test_a_streaming_video_gives_the_same_frames_in_any_order(path):
    held = read_clip(path, stride=2)
    streamed = read_clip(path, stride=2, memory_budget=3 * 48 * 64 * 3)
    assert streamed.streams
    assert streamed.digest == held.digest
    order = [19, 0, 7, 8, 3, 18, 1, 19, 12, 11, 10]
    assert torch.equal(streamed.batch(order), held.batch(order))
    assert torch.equal(streamed.frames, held.frames)
    streamed.close()


def encode(path, frames, **options):
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("mpeg4", rate=24)
        stream.height = frames.shape[2]
        stream.width = frames.shape[3]
        stream.pix_fmt = "yuv420p"
        stream.gop_size = 6
        for frame in frames:
            array = frame.permute(1, 2, 0).contiguous().numpy()
            container.mux(stream.encode(av.VideoFrame.from_ndarray(array, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def test_seeking_over_many_key_frames(film, tmp_path):
    frames = film.frames.repeat(4, 1, 1, 1)
    path = encode(tmp_path / "long.avi", frames)
    held = read_clip(path)
    streamed = read_clip(path, memory_budget=2 * 48 * 64 * 3)
    order = [150, 2, 90, 91, 89, 10, 159, 0]
    assert torch.equal(streamed.batch(order), held.batch(order))
    streamed.close()


@pytest.mark.parametrize("name", ["film.mp4", "film.mkv"])
def test_a_video_that_is_cut_short_says_how_far_it_is_good(film, tmp_path, name):
    path = encode(tmp_path / name, film.frames, **({"movflags": "faststart"} if name.endswith("mp4") else {}))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * 0.6)])
    with pytest.raises(ClipError, match=r"after (\d+) frames") as error:
        read_clip(path)
    good = int(str(error.value).split("count=")[1].split()[0])
    assert 0 < good < 40
    assert len(read_clip(path, count=good)) == good  # the remedy works


def test_a_video_without_its_index_cannot_be_opened(path):
    content = path.read_bytes()
    path.write_bytes(content[:300])
    with pytest.raises(ClipError, match=r"film\.mp4 (has no video|cannot be opened)"):
        read_clip(path)
    path.write_text("this is no video" * 100)
    with pytest.raises(ClipError, match=r"film\.mp4 cannot be opened.*FFmpeg.*PNG"):
        read_clip(path)


def test_sound_alone_is_no_clip(tmp_path):
    path = tmp_path / "sound.wav"
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(16000))
    with pytest.raises(ClipError, match=r"\(found: audio\)"):
        read_clip(path)


def test_a_start_behind_the_end(path):
    with pytest.raises(ClipError, match=r"no frame of .*has 40 frames, got start=50"):
        read_clip(path, start=50)


def test_a_video_on_its_side_is_turned_upright(film, tmp_path):
    path = tmp_path / "phone.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=24)
        stream.height = 64
        stream.width = 48
        stream.pix_fmt = "yuv420p"
        stream.set_display_rotation(90)
        for frame in film.frames[:3]:
            lying = np.rot90(frame.permute(1, 2, 0).numpy(), -1)  # rotated clockwise, displayed counterclockwise
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(lying), format="rgb24")))
        container.mux(stream.encode(None))
    clip = read_clip(path)
    assert (clip.height, clip.width) == (48, 64)
    assert psnr(clip.frames, film.frames[:3]) > 25


def test_odd_sizes_are_padded_by_one(tmp_path):
    frames = torch.randint(0, 256, (1, 3, 3, 3), dtype=torch.uint8).repeat_interleave(9, -1).repeat_interleave(9, -2)
    path = write_video(tmp_path / "odd.mp4", frames.expand(4, -1, -1, -1), rate=29.97)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.height, stream.width, stream.frames) == (28, 28, 4)
        assert float(stream.average_rate) == pytest.approx(29.97, abs=0.01)


def test_a_video_that_cannot_be_written_leaves_the_old_one(film, path):
    before = path.read_bytes()

    def frames():
        yield film[0]
        yield torch.zeros(3, 10, 10, dtype=torch.uint8)

    with pytest.raises(ClipError, match=r"frame 1 for .* is 10_10, expected 48_64"):
        write_video(path, frames())
    with pytest.raises(ClipError, match=r"no frame.*film\.mp4"):
        write_video(path, [])
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["film.mp4"]


def test_encoders_are_known_by_name():
    assert _can_encode("mpeg4")
    assert not _can_encode("no-such-codec")
