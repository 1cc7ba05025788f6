"""Quality of held-out frames: the interpolation prior of neural videos, networks trained with it, and references.

    python benchmarks/video_between.py                        # predictions without a network: two minutes
    python benchmarks/video_between.py --epochs 80            # and two networks for each clip: half an hour
    python benchmarks/video_between.py --only bunny pan
    python benchmarks/video_between.py --only bunny --epochs 240 --motions curved   # one network, trained longer

builtin    the built-in clip: textured shapes before a panning, zooming camera, 256x128
other      the same with other textures and another horizon
pan        a texture that moves by 7 pixels per frame, 256x128
rotation   a texture that turns by 5 degrees per frame, 256x128
occluders  two textured disks that cross in front of a slow texture, 256x128
bunny      data/real/video_bunny: 32 frames of Big Buck Bunny, every fourth of the film, 640x320

The constants of curved motion were chosen on ``builtin``, on the same scene with seed 3, and on a pan and a rotation of
other textures; the other clips had no part in this. Of every eight frames, one is held out (``7_7_8``). Quality is
the pooled RGB PSNR, averaged over the held-out frames between two training frames, and for the last frame by itself,
which has no successor. ``FFmpeg`` is its filter minterpolate on every second frame. ``best motion`` sees the held-out
frame: each neighbor is warped along the motion from that frame to the neighbor, and each pixel takes the better of the
two. It shows what is to be had, not a bound.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from av.filter import Graph
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fieldwatch.recon.data import Clip, read_clip, synthetic_clip
from fieldwatch.recon.pipelines.video import open_run, prepare_scene, train_video
from fieldwatch.recon.pipelines.video.between import interpolated_targets
from fieldwatch.recon.pipelines.video.motion import blur, midway_flow, warp
from fieldwatch.recon.pipelines.video.playback import Playback
from fieldwatch.recon.pipelines.video.split import FrameSplit, split_frames
from video_quality import config_for

BUNNY = Path("data/real/video_bunny")
SPLIT = "7_7_8"
FRAMES = 24
HEIGHT = 128
WIDTH = 256
MOTIONS = ("straight", "curved")

Field = NDArray[np.float64]


def texture(seed: int) -> Callable[[Field, Field], Field]:
    """Return a picture of waves in five octaves, as a function of a position in frame heights."""
    generator = np.random.default_rng(seed)
    waves: list[tuple[float, float, float, float]] = []
    for octave in range(5):
        for _ in range(5):
            angle, phase = generator.uniform(0, 2 * math.pi, 2)
            frequency = 1.6 * 2.0**octave * 2 * math.pi
            waves.append((frequency * math.cos(angle), frequency * math.sin(angle), phase, 0.62**octave / 5))
    bright, dark = generator.uniform(0.3, 1, (2, 3))

    def color(u: Field, v: Field) -> Field:
        total = sum(weight * np.cos(across * u + down * v + phase) for across, down, phase, weight in waves)
        share = np.clip(0.5 + 0.9 * np.asarray(total), 0, 1)[..., None]
        return 0.9 * share * bright + 0.4 * (1 - share) * dark

    return color


def drawn_clip(draw: Callable[[Field, Field, float], Field], name: str) -> Clip:
    """Return a clip of a picture as a function of position and time, which runs from 0 to 1."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64)
    u = (columns - WIDTH / 2) / HEIGHT
    v = (rows - HEIGHT / 2) / HEIGHT
    pictures = np.stack([np.rint(draw(u, v, i / FRAMES).clip(0, 1) * 255).astype(np.uint8) for i in range(FRAMES)])
    return Clip.of(torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous(), source=name)


def pan() -> Clip:
    """Return a moving texture."""
    color = texture(11)
    return drawn_clip(lambda u, v, t: color(u + 1.3 * t, v + 0.25 * t), "pan")


def rotation() -> Clip:
    """Return a turning texture."""
    color = texture(12)

    def draw(u: Field, v: Field, time: float) -> Field:
        angle = 0.7 * math.pi * time
        return color(math.cos(angle) * u - math.sin(angle) * v, math.sin(angle) * u + math.cos(angle) * v)

    return drawn_clip(draw, "rotation")


def occluders() -> Clip:
    """Return two disks that cross before a background."""
    background = texture(13)
    # Texture, start, velocity and radius.
    disks = (
        (texture(14), (-0.8, -0.15), (1.5, 0.2), 0.2),
        (texture(15), (0.8, 0.15), (-1.7, -0.25), 0.24),
    )

    def draw(u: Field, v: Field, time: float) -> Field:
        picture = background(u + 0.15 * time, v)
        for color, start, velocity, radius in disks:
            across = u - start[0] - velocity[0] * time
            down = v - start[1] - velocity[1] * time
            cover = np.clip((radius - np.hypot(across, down)) * HEIGHT + 0.5, 0, 1)[..., None]
            picture = picture + (color(across, down) - picture) * cover
        return picture

    return drawn_clip(draw, "occluders")


CLIPS: dict[str, Callable[[], Clip]] = {
    "builtin": lambda: synthetic_clip(frames=32),
    "other": lambda: synthetic_clip(frames=32, seed=7),
    "pan": pan,
    "rotation": rotation,
    "occluders": occluders,
    "bunny": lambda: read_clip(BUNNY),
}


def psnr(found: Float[Tensor, "3 height width"], true: Float[Tensor, "3 height width"]) -> float:
    """Return the pooled PSNR in dB."""
    return -10 * math.log10(max(float((found - true).square().mean()), 1e-12))


def by_ffmpeg(frames: Float[Tensor, "frames 3 height width"], at: int) -> Float[Tensor, "3 height width"]:
    """Return FFmpeg's motion-compensated frame between two frames, from those and the second next ones."""
    graph = Graph()
    shape = {"width": frames.shape[-1], "height": frames.shape[-2], "time_base": Fraction(1, 1)}
    source = graph.add_buffer(format=av.VideoFormat("yuv444p", frames.shape[-1], frames.shape[-2]), **shape)
    doubled = graph.add("minterpolate", "fps=2:mi_mode=mci:mc_mode=aobmc:me_mode=bidir:vsbmc=1")
    sink = graph.add("buffersink")
    source.link_to(doubled)
    doubled.link_to(sink)
    graph.configure()
    for number, index in enumerate((at - 3, at - 1, at + 1, at + 3)):
        pixels = (frames[index].permute(1, 2, 0) * 255).round().byte().numpy()
        picture = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv444p")
        picture.pts = number
        picture.time_base = Fraction(1, 1)
        graph.push(picture)
    graph.push(None)
    while True:
        made: Any = graph.pull()
        # Frame 1 is `at - 1`, frame 2 is `at + 1`.
        if made.time is not None and abs(made.time - 1.5) < 0.01:
            array = made.reformat(format="rgb24").to_ndarray()
            return torch.from_numpy(array).permute(2, 0, 1).float() / 255


def by_best_motion(frames: Float[Tensor, "frames 3 height width"], at: int) -> Float[Tensor, "3 height width"]:
    """Return a frame from its neighbors, with motion and visibility that are found with the frame itself."""
    truth = frames[at][None]
    warped = [
        warp(frames[k][None], midway_flow(truth, frames[k][None], share=0.0), mode="bicubic").clamp(0, 1)
        for k in (at - 1, at + 1)
    ]
    errors = [blur((picture - truth).square().mean(1, keepdim=True), 1.0) for picture in warped]
    return torch.where(errors[0] <= errors[1], warped[0], warped[1])[0]


def references(frames: Float[Tensor, "frames 3 height width"], split: FrameSplit) -> dict[str, dict[int, Tensor]]:
    """Return predictions without a network: by method, by frame."""
    between = [k for k in split.val if k + 1 < len(frames)]
    found: dict[str, dict[int, Tensor]] = {
        "previous frame": {k: frames[k - 1] for k in split.val},
        "mean of both neighbors": {
            k: (frames[k - 1] + frames[min(k + 1, len(frames) - 1)]) / 2 if k in between else frames[k - 1]
            for k in split.val
        },
        "FFmpeg": {k: by_ffmpeg(frames, k) for k in between if k + 3 < len(frames)},
        "best motion (sees the frame)": {k: by_best_motion(frames, k) for k in between},
    }
    for motion in MOTIONS:
        began = time.process_time()
        targets = interpolated_targets(frames, split.train, motion=motion)
        seconds = (time.process_time() - began) / len(targets.indices)
        found[f"prior, {motion} ({seconds:.1f} s per frame)"] = dict(zip(targets.indices, targets.frames, strict=True))
    return found


def write_frames(clip: Clip, folder: Path) -> Path:
    """Write a clip as pictures without loss."""
    folder.mkdir()
    for number, frame in enumerate(clip):
        Image.fromarray(frame.permute(1, 2, 0).numpy()).save(folder / f"{number:05d}.png")
    return folder


def trained(
    clip: Clip, frames: Float[Tensor, "frames 3 height width"], asked: argparse.Namespace, scratch: Path
) -> dict[str, dict[int, Tensor]]:
    """Return the held-out frames of networks that were trained with each shape of motion that is asked for."""
    data = write_frames(clip, scratch / "frames")
    found: dict[str, dict[int, Tensor]] = {}
    for motion in asked.motions:
        config = replace(config_for("small", data, asked.epochs), between_motion=motion)
        scene = prepare_scene(config)
        train_video(config, scene, scratch / motion, sinks=())
        player = Playback.of_run(open_run(scratch / motion))
        pictures = {k: player.frame(k).clamp(0, 1) for k in range(len(clip))}
        quality = sum(psnr(pictures[k], frames[k]) for k in scene.split.train) / len(scene.split.train)
        found[f"network, {motion} ({quality:.2f} dB on training frames)"] = {k: pictures[k] for k in scene.split.val}
    return found


def rows(name: str, asked: argparse.Namespace) -> list[str]:
    """Return the rows of one clip.

    Args:
        name: name of the clip.
        asked: the command line.
    """
    clip = CLIPS[name]()
    frames = clip.batch(range(len(clip))).float() / 255
    split = split_frames(len(clip), SPLIT)
    methods = references(frames, split)
    if asked.epochs:
        with tempfile.TemporaryDirectory(prefix="video-between-") as scratch:
            methods |= trained(clip, frames, asked, Path(scratch))
    between = [k for k in split.val if k + 1 < len(frames)]
    blend = mean([psnr(methods["mean of both neighbors"][k], frames[k]) for k in between])
    lines = []
    for method, pictures in methods.items():
        # A method that lacks frames is not compared on the others alone.
        scores = [psnr(pictures[k], frames[k]) for k in between if k in pictures]
        whole = len(scores) == len(between)
        inner = f"{mean(scores):.2f} | {mean(scores) - blend:+.2f}" if whole else "- | -"
        last = len(frames) - 1
        end = f"{psnr(pictures[last], frames[last]):.2f}" if last in pictures else "-"
        lines.append(f"| {name} | {method} | {inner} | {end} |")
    return lines


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CLIPS, default=tuple(CLIPS))
    parser.add_argument("--epochs", type=int, default=0, help="passes of each training; 0 trains no network")
    parser.add_argument(
        "--motions", nargs="+", choices=MOTIONS, default=MOTIONS, help="motions of the trained networks"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.epochs:
        print(f"Networks: --preset small --epochs {asked.epochs} without the semantic head.\n")
    print("| clip | method | between frames, dB | beside the mean of neighbors, dB | last frame, dB |")
    print("|---|---|---:|---:|---:|")
    for name in asked.only:
        print("\n".join(rows(name, asked)), flush=True)


if __name__ == "__main__":
    main()
