"""Tiny trainings through the command line, in this process, so that they run on the pretended device."""

import inspect
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

from fake_cuda.ledger import Ledger
from fake_cuda.tensors import STATE, DeviceTensor
from fieldwatch import Checkpoints, Interrupted
from fieldwatch.checkpoint import BackgroundWorker
from fieldwatch.cli import main
from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.data.colmap import write_colmap
from fieldwatch.recon.pipelines.normals import start, views
from fieldwatch.recon.transfers import copies
from fieldwatch.run.step import Step
from small_products import small_products

_EVERYWHERE = ["--threads", "1", "--no-doctor"]
_SPLATS = (
    "--degree 1 --schedule-scale 0.0015 --coarse-iterations 12000 --checkpoint-interval 2000 --turntable 0 "
    "--growth-from 500 --held-out 3"
).split()
_NORMALS = (
    "--views 3 --size 16 --steps 24 --nominal 240 --mesh-resolution 6 --evaluate-at 100000 --checkpoint-interval 80 "
    "--turntable 0 --levels 3 --first-levels 1 --levels-by 200 --base-resolution 4 --finest-resolution 12 "
    "--table-bits 10 --hidden 16 --grid-resolution 12 --grid-every 8 --grid-warmup 8"
).split()
_BUDGET = ["--rays", "128", "--sample-budget", "800"]
_RAYS_PER_VIEW = ["--rays-per-view", "16", "--warm-up-rays", "8"]
_VIDEO = (
    "--rows 1 --columns 2 --batch 4 --data-split 7_7_8 --teacher descriptor --epochs 6 --eval-freq 3 "
    "--pixel-loss-warmup-epochs 2 --checkpoint-epochs 2 --grid-cells 4 2 --grid-widths 8 8 --grid-channels 4 2 "
    "--grid-periods 1 2 --grid-static 4 0 --grid-blocks 1 1 --grid-kernel 3"
).split()

STOP = 9
"""Step at which trainings are compared."""
SURFACE_STOP = 16
"""Step at which the terms of `SURFACE` act too: in steps 15 and 16, no Gaussians are added or removed any more."""
MORE_LAUNCHES = 3
"""Launches that a step may have beyond the recorded ones: on a busy machine, steps of splats have had two more."""
COUNTS = Path(__file__).with_name("counts.json")
"""Launches, waits and sums in no fixed order of a steady step of each training."""

Words = Callable[[Path, Path], list[str]]
AtStep = Callable[[Step, tuple[Any, ...]], None]


def _splats(*more: str) -> Words:
    return lambda scene, _: ["train", "splats", "--data", str(scene), *_SPLATS, *more]


def _normals(*more: str) -> Words:
    # Presets with a number of rays per view take no budget.
    budget = [] if "--rays-per-view" in more else _BUDGET
    return lambda *_: ["train", "normals", *_NORMALS, *budget, *more]


def _video(*more: str) -> Words:
    return lambda _, frames: ["train", "video", "--data", str(frames), *_VIDEO, *more]


RUNS: dict[str, Words] = {
    "splats-planar": _splats("--regularization", "planar"),
    "splats-sugar": _splats("--regularization", "sdf", "--exposure"),
    "splats-mcmc": _splats("--regularization", "none", "--growth", "mcmc", "--growth-cap", "400"),
    "normals": _normals(),
    "normals-poses": _normals("--preset", "poses", "--poses-from", "20", "--poses-late-from", "100"),
    "video": _video(),
    "video-hnerv": _video("--model", "hnerv", "--modelsize", "0.02"),
}
"""Arguments of each training: of a COLMAP folder and a folder of frames."""
LATE_RUNS: dict[str, Words] = {
    "splats-dn-surface": _splats("--regularization", "dn_consistency"),
    "video-interpolate": _video("--model", "hnerv", "--modelsize", "0.02", "--conv-type", "convnext", "interpolate"),
    "video-literal": _video("--preset", "literal", "--fc-dim", "8", "--fc-hw", "3_4", "--dec-strds", "2", "3"),
    "video-graphs": _video("--cuda-graphs"),
    "video-hnerv-graphs": _video("--model", "hnerv", "--modelsize", "0.02", "--cuda-graphs"),
}
"""Arguments of trainings of which only the counts at `SURFACE_STOP` are of interest."""
PRESET_RUNS: dict[str, Words] = {
    "splats default": _splats(),
    "splats cpu": _splats("--preset", "cpu"),
    "splats rooms": _splats("--preset", "rooms"),
    "splats full": _splats("--preset", "full"),
    "splats parity": _splats("--preset", "parity"),
    "normals default": _normals(),
    "normals cpu": _normals("--preset", "cpu"),
    "normals poses": _normals("--preset", "poses", "--poses-from", "20", "--poses-late-from", "100"),
    "normals pmni": _normals("--preset", "pmni", *_RAYS_PER_VIEW),
    "normals gpu": _normals("--preset", "gpu", *_RAYS_PER_VIEW),
    "normals parity": _normals("--preset", "parity", *_RAYS_PER_VIEW),
    "video default": _video(),
    "video dual": _video("--preset", "dual", "--fc-dim", "8"),
    "video literal": _video("--preset", "literal", "--fc-dim", "8", "--fc-hw", "3_4", "--dec-strds", "2", "3"),
    "video hnerv": _video("--preset", "hnerv", "--modelsize", "0.02"),
    "video nerv": _video("--preset", "nerv", "--modelsize", "0.04"),
}
"""Arguments of a training with each preset, by pipeline and preset."""
OTHER_NUMBERS: dict[str, tuple[str, set[str]]] = {
    "splats gpu-8": ("splats full", {"growth_options.growth_cap"}),
    "splats gpu-12": ("splats full", {"growth_options.growth_cap"}),
    "splats gpu-24": ("splats full", {"growth_options.growth_cap"}),
    "splats gpu-80": ("splats full", {"growth_options.growth_cap", "longer_side"}),
    "video demo": ("video default", {"epochs", "eval_freq", "pixel_loss_warmup_epochs", "checkpoint_epochs"}),
    "video small": ("video default", {"epochs", "eval_freq"}),
}
"""Presets that differ from another one in sizes and lengths only, which are tiny here: that one, and the settings."""
SURFACE = {"splats-planar": "splats-planar-surface", "splats-sugar": "splats-sugar-surface"}
"""Trainings with terms that begin after `STOP`, and the names of their counts at `SURFACE_STOP`."""


def write_scene(folder: Path) -> Path:
    """Write six small photos of the built-in solids as a COLMAP folder."""
    return write_colmap(folder / "scene", solid_photos(views=6, size=32, held_out=2, points=300))


def draw_frames(folder: Path) -> Path:
    """Write sixteen small frames."""
    folder.mkdir(parents=True, exist_ok=True)
    y, x = np.mgrid[0:16, 0:32] / 16
    for number in range(16):
        waves = np.stack([np.sin(6 * x + number / 3), np.cos(5 * y - number / 4), np.sin(4 * (x + y))], axis=-1)
        Image.fromarray(np.round(127.5 + 110 * waves).astype(np.uint8)).save(folder / f"{number:04d}.png")
    return folder


@dataclass
class Training:
    """A training and what its steps did on the device.

    Attributes:
        folder: the run folder.
        steps: counts of each step, from update to update.
        losses: total loss of each step.
        optimizers: classes of the optimizers of each update, without repetitions.
    """

    folder: Path
    steps: list[Ledger] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    optimizers: set[str] = field(default_factory=set)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return all tensors of the last checkpoint, by path."""
        found: dict[str, torch.Tensor] = {}
        _collect("", Checkpoints(self.folder / "checkpoints").read("last"), found)
        return found

    def steady_counts(self) -> dict[str, int]:
        """Return launches, waits and unordered sums of the quieter one of the last two steps.

        The other step may save, or update a grid.
        """
        step = min(self.steps[-2:], key=lambda step: step.launches.total())
        return {
            "launches": step.launches.total(),
            "waits": step.waits.total(),
            "unordered": step.unordered.total(),
        }


def _collect(path: str, value: Any, found: dict[str, torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found[path] = value
    elif isinstance(value, dict):
        for key, part in value.items():
            _collect(f"{path}/{key}", part, found)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            _collect(f"{path}/{index}", part, found)


@contextmanager
def _watched(training: Training, at_step: AtStep) -> Iterator[None]:
    """Note the counts and the loss of each step; call ``at_step`` with the step and its optimizers before an update."""
    update = Step.update
    last: list[Ledger] = []

    def watched(step: Step, *optimizers: Any, **options: Any) -> Any:
        at_step(step, optimizers)
        updated = update(step, *optimizers, **options)
        now = STATE.ledger.copy()
        training.steps += [now.since(before) for before in last]
        training.optimizers |= {type(optimizer).__name__ for optimizer in optimizers}
        total = step.terms.total
        # Not a read of the device, which would count as a wait.
        training.losses.append(float(total.values if isinstance(total, DeviceTensor) else total))
        # After the total, which the step itself does not ask for.
        last[:] = [STATE.ledger.copy()]
        return updated

    with mock.patch.object(Step, "update", watched):
        yield


_truth = inspect.unwrap(start.built_in_truth)  # without its cache, which other tests share


@cache
def _coarse_truth() -> Any:
    with mock.patch.object(start, "TRUTH_CELLS", 24):
        return _truth()


@contextmanager
def _coarse_evaluations() -> Iterator[None]:
    """Measure meshes of normals against a coarse truth, and find surfaces of whole images in long sections."""
    with ExitStack() as stack:
        stack.enter_context(small_products())
        stack.enter_context(mock.patch.object(start, "built_in_truth", _coarse_truth))
        stack.enter_context(mock.patch.object(views, "STEPS_PER_SECTION", 24))
        yield


@contextmanager
def _saved_at_once() -> Iterator[None]:
    """End each save in the step that begins it: on a busy machine, its event and its launches come in a later one."""
    begin = BackgroundWorker.begin

    def begin_and_wait(worker: BackgroundWorker, work: Any) -> None:
        begin(worker, work)
        worker.wait()

    with mock.patch.object(BackgroundWorker, "begin", begin_and_wait):
        yield


def train(
    words: list[str],
    folder: Path,
    *,
    device: str = "cuda",
    stop: int | None = None,
    at_step: AtStep = lambda *_: None,
) -> Training:
    """Run a training command, or resume its run if the folder has one.

    Args:
        words: the command, from `RUNS`.
        folder: the run folder.
        device: value of ``--device``.
        stop: step in which the process gets SIGTERM; None trains to the end.
        at_step: called with each step and its optimizers, before the update.
    """
    training = Training(folder)
    # Constants are copied to the device once per process; here, once per training, so that counts repeat.
    copies._constant.cache_clear()

    def watch(step: Step, optimizers: tuple[Any, ...]) -> None:
        at_step(step, optimizers)
        if step.index == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    # Rows are copied to the host after a second, too: on a busy machine in every step, which would count as launches.
    patience = mock.patch("fieldwatch.measure.ring.MAX_WAIT_SECONDS", float("inf"))
    with _watched(training, watch), _coarse_evaluations(), patience, _saved_at_once():
        try:
            code = main([*words, "--device", device, *_EVERYWHERE, "--out", str(folder)])
        except Interrupted as end:
            code = end.code
    # 1 means an error among the findings: so short a run may end worse than a prediction without training.
    assert code in ({128 + signal.SIGTERM} if stop is not None else {0, 1}), code
    return training


def refused_from(index: int, count: int = 10, until: Callable[[], bool] = lambda: False) -> AtStep:
    """Return a function for `train`: once, gradients in a row are not finite, so that the run goes back.

    Args:
        index: first step with such gradients.
        count: number of these steps.
        until: asked at each step, whether the gradients are finite from now on.
    """
    spoiled: set[int] = set()

    def spoil(step: Step, optimizers: tuple[Any, ...]) -> None:
        if index <= step.index < index + count and step.index not in spoiled and not until():
            spoiled.add(step.index)
            for group in optimizers[0].param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.fill_(torch.nan)

    return spoil
