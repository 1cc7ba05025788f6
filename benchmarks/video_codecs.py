"""Size of our video bitstreams beside x264, x265 and SVT-AV1 at equal quality, on three clips.

    python benchmarks/video_codecs.py                        # 600 CPU seconds of training for each clip
    python benchmarks/video_codecs.py --seconds 1800         # as long as the goal allows
    python benchmarks/video_codecs.py --only builtin --pictures FOLDER

bunny    data/real/video_bunny: 32 frames of Big Buck Bunny, 640x320
builtin  the built-in clip: textured shapes before a panning, zooming camera, 256x128
film     a rendered film of boxes on a floor with motion blur and a drift of the exposure, 640x360

The network trains on one thread without the semantic head (``--preset small``), and is exported with
``--psnr-drop 0.5`` alone, and with ``--shrink-epochs``, too. All codecs get all frames, one thread and their slowest
presets, and are decoded again. Quality is the pooled RGB PSNR of the frames that the network trains on; those that it
holds out are in all files. A codec's size at the network's PSNR is interpolated between the two nearest qualities,
linearly in the logarithm of the size. Only the compressed pictures are counted, not a container. x264 and x265 code
4:4:4, SVT-AV1 can only code 4:2:0, here with 10 bits.

``--pictures`` writes the network's worst training frame beside that of x264 in a file of about the same size.
"""

import argparse
import io
import math
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from av.video.reformatter import ColorRange, Colorspace
from numpy.typing import NDArray
from PIL import Image

from capture_cameras import film_frames, textured_scene
from fieldwatch.recon.data import Clip
from fieldwatch.recon.mesh import MeshRenderer
from fieldwatch.recon.pipelines.video import export_bitstream, open_run, prepare_scene, train_video
from fieldwatch.recon.pipelines.video.bitstream import CodecOptions
from fieldwatch.recon.pipelines.video.playback import Playback
from video_quality import config_for, step_seconds

Frames = NDArray[np.uint8]
BUNNY = Path("data/real/video_bunny")
CLIPS = ("bunny", "builtin", "film")
FILM_FRAMES = 32
DROP = 0.5
"""Drop of the PSNR that an export may spend, in dB."""
SHRINKING = 60
"""Passes over the frames in which the network is trained on for a smaller file."""


@dataclass(frozen=True, kw_only=True)
class Codec:
    """A conventional codec at its slowest preset.

    Attributes:
        name: name in the table.
        encoder: FFmpeg's name.
        pixels: pixel format.
        options: options but the quality.
        qualities: constant rate factors, from the best quality to the worst.
    """

    name: str
    encoder: str
    pixels: str
    options: dict[str, str]
    qualities: Sequence[int]


CODECS = (
    Codec(
        name="x264 veryslow",
        encoder="libx264",
        pixels="yuv444p",
        options={"preset": "veryslow"},
        qualities=range(8, 38, 3),
    ),
    Codec(
        name="x265 veryslow",
        encoder="libx265",
        pixels="yuv444p",
        options={"preset": "veryslow", "x265-params": "log-level=error:pools=1:frame-threads=1"},
        qualities=range(8, 38, 3),
    ),
    Codec(
        name="SVT-AV1 preset 2, 4:2:0",
        encoder="libsvtav1",
        pixels="yuv420p10le",
        options={"preset": "2", "svtav1-params": "lp=1"},
        qualities=range(8, 63, 6),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Coded:
    """Frames that were compressed and decoded.

    Attributes:
        bytes: size of the compressed pictures.
        psnr: pooled PSNR of the chosen frames, dB.
        frames: decoded frames.
    """

    bytes: int
    psnr: float
    frames: Frames


def psnr(found: Frames, true: Frames) -> float:
    """Return the pooled PSNR in dB."""
    error = float(np.square(found.astype(np.float64) - true).mean()) / 255**2
    return -10 * math.log10(max(error, 1e-12))


def code(frames: Frames, codec: Codec, quality: int, chosen: Sequence[int]) -> Coded:
    """Compress and decode frames ``[n, height, width, 3]``; only ``chosen`` ones are scored."""
    colors: dict[str, Any] = {"dst_colorspace": Colorspace.ITU709, "dst_color_range": ColorRange.JPEG}
    buffer = io.BytesIO()
    size = 0
    with av.open(buffer, "w", format="matroska") as file:
        stream: Any = file.add_stream(codec.encoder, rate=Fraction(25), options={**codec.options, "crf": str(quality)})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = codec.pixels
        stream.codec_context.thread_count = 1
        pictures = (
            av.VideoFrame.from_ndarray(frame).reformat(format=codec.pixels, interpolation="LANCZOS", **colors)
            for frame in frames
        )
        # The last call, with None, returns what the encoder has held back.
        for picture in chain(pictures, (None,)):
            for packet in stream.encode(picture):
                size += packet.size
                file.mux(packet)
        size += len(stream.codec_context.extradata or b"")
    buffer.seek(0)
    back: dict[str, Any] = {"src_colorspace": Colorspace.ITU709, "src_color_range": ColorRange.JPEG}
    with av.open(buffer, "r") as file:
        decoded = np.stack(
            [
                picture.reformat(format="rgb24", interpolation="LANCZOS", **back).to_ndarray().astype(np.uint8)
                for picture in file.decode(video=0)
            ]
        )
    return Coded(bytes=size, psnr=psnr(decoded[list(chosen)], frames[list(chosen)]), frames=decoded)


class Ladder:
    """What a codec makes of frames at its qualities, each coded when it is first asked for.

    Args:
        codec: the codec.
        frames: frames ``[n, height, width, 3]``.
        chosen: indices of the frames that are scored.
    """

    def __init__(self, codec: Codec, frames: Frames, chosen: Sequence[int]) -> None:
        self.codec = codec
        self._frames = frames
        self._chosen = chosen
        self._coded: dict[int, Coded] = {}

    def at(self, quality: int) -> Coded:
        """Return the frames at one quality."""
        if quality not in self._coded:
            self._coded[quality] = code(self._frames, self.codec, quality, self._chosen)
        return self._coded[quality]

    def bytes_at(self, wanted: float) -> float | None:
        """Return the size at a PSNR in dB; None if no two qualities have it between them."""
        qualities = self.codec.qualities
        # The PSNR falls along the qualities. Bisection codes four of ten, which take up to half a minute each.
        first_below = bisect_left(qualities, True, key=lambda quality: self.at(quality).psnr < wanted)
        if first_below in (0, len(qualities)):
            return None
        high, low = self.at(qualities[first_below - 1]), self.at(qualities[first_below])
        share = (wanted - low.psnr) / max(high.psnr - low.psnr, 1e-9)
        return math.exp((1 - share) * math.log(low.bytes) + share * math.log(high.bytes))

    def nearest(self, size: int) -> Coded:
        """Return the frames at the quality whose size is nearest to this one, in the ratio of both."""
        coded = [self.at(quality) for quality in self.codec.qualities]
        return min(coded, key=lambda each: abs(math.log(each.bytes / size)))


def film(folder: Path) -> Path:
    """Write the first frames of a rendered film as pictures; return their folder."""
    folder.mkdir()
    for number, frame in enumerate(islice(film_frames(MeshRenderer(textured_scene())), FILM_FRAMES)):
        Image.fromarray(frame.permute(1, 2, 0).numpy()).save(folder / f"{number:05d}.png")
    return folder


def frames_of(clip: Clip) -> Frames:
    """Return all frames of a clip, ``[n, height, width, 3]``."""
    return clip.batch(range(len(clip))).permute(0, 2, 3, 1).contiguous().numpy()


def measure(name: str, seconds: float, scratch: Path, pictures: Path | None) -> list[str]:
    """Train, export, and compare on one clip; return the rows of the table."""
    torch.set_num_threads(1)
    data = {"bunny": BUNNY, "builtin": None}.get(name) if name != "film" else film(scratch / "film")
    per_step, epoch_steps = step_seconds("small", data)
    config = config_for("small", data, max(int(seconds / (per_step * epoch_steps)), 1))
    scene = prepare_scene(config)
    train_video(config, scene, scratch / "run", sinks=())
    stored = open_run(scratch / "run")
    frames = frames_of(scene.clip)
    chosen = sorted(scene.split.train)
    ladders = [Ladder(codec, frames, chosen) for codec in CODECS]
    area = frames.shape[0] * frames.shape[1] * frames.shape[2]
    rows: list[str] = []
    path = scratch / "clip.fwv"
    for passes in (0, SHRINKING):
        began = time.process_time()
        exported = export_bitstream(
            stored, path, CodecOptions(with_clip_head=False), psnr_drop=DROP, shrink_epochs=passes
        )
        took = time.process_time() - began
        metrics = exported.after
        reached = metrics["Eval/Pooled/train_psnr"]
        size = exported.written.bytes
        beside = [ladder.bytes_at(reached) for ladder in ladders]
        ratios = " | ".join("-" if other is None else f"{size / other:.2f}" for other in beside)
        quality = f"{reached:.2f} | {metrics['Eval/Pooled/val_psnr']:.2f}"
        rows.append(f"| {name} | {passes or '-'} | {took:.0f} | {quality} | {8 * size / area:.4f} | {ratios} |")
    if pictures is not None:
        write_pictures(pictures / f"{name}.png", frames, chosen, path, ladders[0])
    return rows


def write_pictures(path: Path, frames: Frames, chosen: Sequence[int], bitstream: Path, ladder: Ladder) -> None:
    """Write truth, network and x264 at about the same size, side by side, at the network's worst frame."""
    player = Playback.of_bitstream(bitstream, "cpu")
    ours = {index: (player.frame(index).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy() for index in chosen}
    worst = min(chosen, key=lambda index: psnr(ours[index], frames[index]))
    size = bitstream.stat().st_size
    other = ladder.nearest(size)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.hstack([frames[worst], ours[worst], other.frames[worst]])).save(path)
    print(
        f"{path}: frame {worst}; truth, network ({size:,} bytes, {psnr(ours[worst], frames[worst]):.2f} dB), "
        f"{ladder.codec.name} ({other.bytes:,} bytes, {psnr(other.frames[worst], frames[worst]):.2f} dB)",
        file=sys.stderr,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CLIPS, default=CLIPS)
    parser.add_argument("--seconds", type=float, default=600, help="processor time of each training")
    parser.add_argument("--pictures", type=Path, help="folder for pictures of the worst frames")
    asked = parser.parse_args()
    print(f"About {asked.seconds:.0f} CPU seconds of training for each clip. Sizes are ours divided by the codec's.\n")
    head = "| clip | passes of shrinking | export, CPU s | PSNR, dB | held out, dB | bits per pixel | "
    print(head + " | ".join(f"/ {codec.name}" for codec in CODECS) + " |")
    print("|---|---:|---:|---:|---:|---:|" + "---:|" * len(CODECS))
    for name in asked.only:
        with tempfile.TemporaryDirectory(prefix="video-codecs-") as scratch:
            for row in measure(name, asked.seconds, Path(scratch), asked.pictures):
                print(row, flush=True)


if __name__ == "__main__":
    main()
