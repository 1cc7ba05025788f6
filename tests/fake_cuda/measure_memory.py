"""Measure on the pretended device what a step of normals and of video holds, and print what fits into a card.

python tests/fake_cuda/measure_memory.py
"""

import contextlib
import io
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_cuda.conftest import pretended_gpu
from fake_cuda.training import RUNS, train
from fieldwatch.recon.pipelines.normals.presets import PRESETS
from fieldwatch.recon.pipelines.normals.ray_budget import RayBudget
from fieldwatch.recon.pipelines.splats.gpu_memory import GIB, USABLE
from fieldwatch.recon.render.sdf_gpu.marching import StrideSearch

STEPS = 5
RAYS = (64, 256)
LEVELS = (3, 8)
SIDES = (32, 64)
MODELS = {"grid": [], "hnerv": ["--model", "hnerv", "--modelsize", "0.05"]}
CARDS = (8, 12, 24, 80)


def peak(words: list[str], folder: Path) -> int:
    """Return the most bytes that tensors of the device hold in a steady step."""
    peaks: list[int] = []
    with pretended_gpu() as device, contextlib.redirect_stdout(io.StringIO()):

        def note(*_: object) -> None:
            peaks.append(device.memory.peak)
            device.memory.reset_peak()

        train(words, folder, stop=STEPS, at_step=note)
    return max(peaks[2:])  # without the start of the run


def bytes_of_a_sample(levels: int, folder: Path) -> float:
    """Return the bytes per sample of the room that a step of normals has, with two features per level."""
    room = StrideSearch.room
    found: list[tuple[int, int]] = []

    def noted(search: StrideSearch, rays: int) -> tuple[int, int]:
        rooms.append(room(search, rays)[0])
        return room(search, rays)

    for rays in RAYS:
        rooms: list[int] = []
        words = RUNS["normals"](folder, folder)
        at = words.index("--sample-budget")
        del words[at : at + 2]
        words[words.index("--levels") + 1] = str(levels)
        words[words.index("--rays") + 1] = str(rays)
        with mock.patch.object(StrideSearch, "room", noted):
            found.append((peak(words, folder / f"normals-{levels}-{rays}"), rooms[-1]))
    (low, few), (high, many) = found
    return (high - low) / (many - few)


def bytes_of_a_pixel(model: str, folder: Path) -> float:
    """Return the bytes per pixel that a step of video with one frame holds."""
    found: list[tuple[int, int]] = []
    for side in SIDES:
        frames = folder / f"{model}-{side}-frames"
        frames.mkdir()
        y, x = np.mgrid[0:side, 0 : 2 * side] / 16
        for number in range(16):
            waves = np.stack([np.sin(x + number / 3), np.cos(y), np.sin(x + y)], axis=-1)
            Image.fromarray(np.round(127.5 + 110 * waves).astype(np.uint8)).save(frames / f"{number:04d}.png")
        words = f"train video --data {frames} --rows 1 --columns 2 --batch 1 --teacher descriptor --epochs 6".split()
        words += ["--pixel-loss-warmup-epochs", "2", *MODELS[model]]
        found.append((peak(words, folder / f"{model}-{side}"), 2 * side * side))
    (low, few), (high, many) = found
    return (high - low) / (many - few)


def main() -> int:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as place, mock.patch.dict("os.environ", {"XDG_STATE_HOME": place}):
        folder = Path(place)
        samples = {2 * levels: bytes_of_a_sample(levels, folder) for levels in LEVELS}
        pixels = {model: bytes_of_a_pixel(model, folder) for model in MODELS}
    (few, low), (many, high) = samples.items()
    config = PRESETS["gpu"]()
    features = 2 * config.sdf.levels
    each = low + (high - low) * (features - few) / (many - few)
    bound = RayBudget(config.rays).max_samples
    for count, size in samples.items():
        print(f"normals, {count} features: {size:.0f} bytes a sample")
    print(
        f"normals --preset gpu, {features} features: {each:.0f} bytes a sample, {bound * each / GIB:.2f} GiB a graph\n"
    )
    print("| GPU | largest frame, `grid`, MP | `hnerv`, MP |\n|---|---:|---:|")
    for card in CARDS:
        fits = " | ".join(f"{USABLE * card * GIB / size / 1e6:.0f}" for size in pixels.values())
        print(f"| {card} GB | {fits} |")
    print("\n" + ", ".join(f"{model}: {size:.0f} bytes a pixel" for model, size in pixels.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
