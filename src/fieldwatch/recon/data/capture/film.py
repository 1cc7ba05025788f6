"""Choose sharp, evenly spread frames of a film, and write them as photos."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import av
import numpy as np
from av.error import FFmpegError
from jaxtyping import Float32, UInt8
from PIL import Image

from fieldwatch.files import output_path, whole_file
from fieldwatch.recon.data.capture.error import CaptureError
from fieldwatch.recon.data.capture.model import Chosen, ChosenPhoto, LeftOut, Progress, SharedCamera
from fieldwatch.recon.data.capture.settings import CaptureSettings
from fieldwatch.recon.data.capture.sharpness import gradient_energy, window_of
from fieldwatch.recon.data.capture.source import LEAST_PHOTOS

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

JPEG_QUALITY = 95
_UNIFORM = 3.0  # standard deviation of luma below which a frame shows nothing
_STILL = 0.5  # mean difference of thumbnails, in gray levels, below which the camera did not move
_THUMBNAIL = (64, 36)


@dataclass(frozen=True, kw_only=True)
class FilmIndex:
    """What the packets of a film say, without decoding it.

    Attributes:
        frames: number of frames in the chosen part.
        problem: why the film is incomplete; empty if it is complete.
        end: time of the last frame in the file, seconds.
    """

    frames: int
    problem: str
    end: float


@dataclass
class _Candidate:
    """The sharpest frame of a window so far."""

    index: int
    time: float
    sharpness: float
    uniform: bool
    image: Image.Image


@dataclass
class _Kept:
    """Frames that were written, and those that were not."""

    folder: Path
    photos: list[ChosenPhoto] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    uniform: int = 0
    still: int = 0
    last: Float32[np.ndarray, "36 64"] | None = None

    def take(self, candidate: _Candidate) -> None:
        """Write a frame, unless it shows nothing, or the same as the one before."""
        source = f"{candidate.time:.2f} s"
        thumbnail = np.asarray(candidate.image.convert("L").resize(_THUMBNAIL, Image.Resampling.BOX), np.float32)
        if candidate.uniform:
            self.uniform += 1
            self.left_out.append(LeftOut(source=source, reason="the frame is nearly uniform"))
            return
        if self.last is not None and float(np.abs(thumbnail - self.last).mean()) < _STILL:
            self.still += 1
            self.left_out.append(LeftOut(source=source, reason="the camera has not moved since the frame before"))
            return
        self.last = thumbnail
        name = f"frame_{candidate.index:06d}.jpg"
        with whole_file(output_path(self.folder, name)) as draft:
            candidate.image.save(draft, "JPEG", quality=JPEG_QUALITY)
        self.sizes.append(candidate.image.size)
        photo = ChosenPhoto(
            name=name, source=source, sharpness=candidate.sharpness, camera=0, taken=round(candidate.time, 4)
        )
        self.photos.append(photo)


def choose_frames(path: Path, folder: Path, settings: CaptureSettings, progress: Progress) -> Chosen:
    """Write the sharpest frame of each of `settings.frames` equal windows of a film to `folder`.

    Frames that show nothing, or the same as the one before, are left out.

    Args:
        path: film in any format that FFmpeg reads.
        folder: folder of the photos.
        settings: number of frames, first and last second.
        progress: called after every frame that was decoded.

    Raises:
        CaptureError: if the film cannot be read, is cut short, or does not show a scene from several positions.
    """
    index = scan_film(path, settings)
    if index.frames < LEAST_PHOTOS:
        raise CaptureError(
            f"{path} has {index.frames} frames between --start {settings.start:g} and its end or --end, expected at "
            f"least {LEAST_PHOTOS}: it lasts {index.end:.2f} s, so choose another part, or leave both flags out"
        )
    kept = _Kept(folder)
    best: _Candidate | None = None
    current = -1
    for number, (frame, time) in enumerate(_decoded(path, settings)):
        window = window_of(min(number, index.frames - 1), index.frames, settings.frames)
        progress(number + 1, index.frames)
        if window is None:
            continue
        if window != current and best is not None:
            kept.take(best)
            best = None
        current = window
        luma = _luma(frame)
        sharpness = gradient_energy(luma)
        # Only the best frames so far are converted to RGB, a few per window.
        if best is None or sharpness > best.sharpness:
            uniform = float(luma[::4, ::4].std()) < _UNIFORM
            best = _Candidate(number, time, sharpness, uniform, _upright(frame))
    if best is not None:
        kept.take(best)
    _refuse_too_few(path, kept)
    return Chosen(kind="film", photos=tuple(kept.photos), cameras=(_camera(path, kept),), left_out=tuple(kept.left_out))


def scan_film(path: Path, settings: CaptureSettings) -> FilmIndex:
    """Count the frames of the chosen part of a film from its packets.

    Raises:
        CaptureError: if the file is no film, or is cut short within the chosen part.
    """
    container, stream = _open(path)
    count = 0
    inside = 0
    end = 0.0
    problem = ""
    with container:
        try:
            for packet in container.demux(stream):
                # PyAV ends with an empty packet that flushes the decoder.
                if packet.size:
                    count += 1
                    if packet.is_corrupt:
                        problem = "it contains a damaged packet"
                    time = _seconds(packet.pts, stream)
                    end = max(end, time)
                    inside += _is_inside(time, settings)
        except FFmpegError as error:
            problem = error.strerror or type(error).__name__
        if stream.frames > count:
            problem = f"its header states {stream.frames} frames"
        # Durations are often rounded, so 10 % and a second are tolerated.
        stated = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
        if not problem and stream.frames == 0 and end < 0.9 * stated - 1.0:
            problem = f"its header states {stated:.1f} s"
    if problem and (settings.end is None or settings.end > end):
        raise CaptureError(_cut_short(path, end, problem))
    return FilmIndex(frames=inside, problem=problem, end=end)


def _decoded(path: Path, settings: CaptureSettings) -> "Iterator[tuple[VideoFrame, float]]":
    """Decode the frames of the chosen part with their times in seconds.

    Raises:
        CaptureError: if a frame cannot be decoded.
    """
    container, stream = _open(path)
    with container:
        time = 0.0
        try:
            for frame in container.decode(stream):
                time = _seconds(frame.pts, stream)
                if settings.end is not None and time > settings.end:
                    return
                if _is_inside(time, settings):
                    yield frame, time
        except FFmpegError as error:
            raise CaptureError(_cut_short(path, time, error.strerror or type(error).__name__)) from error


def _open(path: Path) -> "tuple[InputContainer, VideoStream]":
    try:
        container = av.open(str(path))
    except (FFmpegError, OSError) as error:
        raise CaptureError(
            f"{path} cannot be opened as a film ({error.strerror}): it is cut short, or in a format that FFmpeg does "
            "not read; copy it again from the camera, or convert it with `ffmpeg -i FILM film.mp4`"
        ) from error
    if not container.streams.video:
        container.close()
        raise CaptureError(f"{path} has no pictures: give a film, or a folder of photos")
    stream = container.streams.video[0]
    # AUTO decodes frames in parallel if the codec supports it; PyAV's default is slices only.
    stream.thread_type = "AUTO"
    return container, stream


def _seconds(stamp: int | None, stream: "VideoStream") -> float:
    """Return a time stamp in seconds from the beginning of the film; streams without time stamps are all at 0."""
    if stamp is None or stream.time_base is None:
        return 0.0
    return float((stamp - (stream.start_time or 0)) * stream.time_base)


def _is_inside(time: float, settings: CaptureSettings) -> bool:
    return time >= settings.start and (settings.end is None or time <= settings.end)


def _luma(frame: "VideoFrame") -> UInt8[np.ndarray, "height width"]:
    return frame.to_ndarray(format="gray")


def _upright(frame: "VideoFrame") -> Image.Image:
    image = frame.to_image()
    # Phones store films as the sensor reads them, with a rotation by quarter turns.
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image


def _camera(path: Path, kept: _Kept) -> SharedCamera:
    if len(set(kept.sizes)) > 1:
        raise CaptureError(
            f"the frame size of {path} changes from {kept.sizes[0]} to {kept.sizes[-1]} (width, height): use the part "
            "before with --end SECONDS"
        )
    width, height = kept.sizes[0]
    return SharedCamera(width=width, height=height, focal=None, about="the camera of the film")


def _refuse_too_few(path: Path, kept: _Kept) -> None:
    if len(kept.photos) >= LEAST_PHOTOS:
        return
    if kept.uniform > kept.still:
        raise CaptureError(
            f"{kept.uniform} of {len(kept.photos) + len(kept.left_out)} frames of {path} are black or nearly uniform: "
            "use a part that shows the scene with --start SECONDS and --end SECONDS, or film it in more light"
        )
    raise CaptureError(
        f"the camera of {path} does not move ({kept.still} of {len(kept.photos) + len(kept.left_out)} frames show the "
        "same), so depth cannot be determined: walk around the scene while filming"
    )


def _cut_short(path: Path, end: float, problem: str) -> str:
    # Rounded down, so that the suggested part ends before the damage.
    intact = max(int(10 * end) / 10 - 0.1, 0.0)
    return (
        f"{path} is cut short or damaged after {end:.2f} s ({problem}): copy it again from the camera, or use its "
        f"intact part with --end {intact:.1f}"
    )
