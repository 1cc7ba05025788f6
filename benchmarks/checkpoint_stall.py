"""How long training waits for checkpoints: fieldwatch in the background or while training waits, and torch.save.

The state is that of 3D Gaussian splatting: 59 numbers per Gaussian, and two Adam moments for each (0.7 GB per million).
A step is an Adam update of all numbers, after a forward and backward pass over a fraction of them. All methods run in
turn on the same loop in the same process. The stall of a save is the time that it adds to its step; steps during
writing are compared with steps without it.

    python benchmarks/checkpoint_stall.py           # 0.1 and 1 M Gaussians, some minutes
    python benchmarks/checkpoint_stall.py --quick   # 20,000 Gaussians, seconds
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fieldwatch.checkpoint import Autosave, BackgroundWorker, Checkpoints, Draft, HostBuffers, Interval, Retention
from fieldwatch.run.saving import free_memory

WIDTHS = {"means": 3, "sh0": 3, "rest": 45, "scales": 3, "rotations": 4, "opacities": 1}
BUDGET = 0.005


class Scene:
    """Gaussians with their optimizer, and a training step on the CPU.

    Args:
        count: number of Gaussians.
        share: fraction of them that one view sees.
    """

    def __init__(self, count: int, share: float) -> None:
        torch.manual_seed(0)
        self.parameters = {name: torch.randn(count, width).requires_grad_() for name, width in WIDTHS.items()}
        self.optimizer = torch.optim.Adam(list(self.parameters.values()), lr=1e-4, fused=True)
        self._seen = int(count * share)

    def items(self) -> dict[str, object]:
        """Return the content of a checkpoint."""
        return {"gaussians": dict(self.parameters), "optimizer": self.optimizer}

    def step(self) -> None:
        """Run forward, backward and update."""
        losses: list[Tensor] = [one[: self._seen].sin().square().mean() for one in self.parameters.values()]
        torch.stack(losses).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)


@dataclass
class Times:
    """Measured times of one method, in milliseconds.

    Attributes:
        steps: steps without a save or writing.
        beside: steps while a thread writes.
        stalls: training time that each save took.
        writing: seconds from each snapshot to its acknowledgement.
    """

    steps: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    writing: list[float] = field(default_factory=list)


def with_torch(scene: Scene, folder: Path) -> Callable[[int], bool]:
    """Save with ``torch.save`` to a temporary file, synced and renamed, while training waits."""

    def save(step: int) -> bool:
        draft = folder / f"{step}.tmp"
        with draft.open("wb") as file:
            torch.save({"gaussians": dict(scene.parameters), "optimizer": scene.optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / "last.pt")
        return False

    return save


def waiting(scene: Scene, folder: Path) -> Callable[[int], bool]:
    """Save with fieldwatch while training waits: hashed, synced, with verified names."""
    checkpoints = Checkpoints(folder, keep=Retention(last=1))

    def save(step: int) -> bool:
        checkpoints.save(step, scene.items())  # type: ignore[arg-type]  # the mapping's values are stateful or tensors
        return False

    return save


class Behind:
    """Save with fieldwatch as a run does: take a snapshot, and let a thread write it."""

    def __init__(self, scene: Scene, folder: Path, times: Times) -> None:
        self._scene = scene
        self._times = times
        self._checkpoints = Checkpoints(folder, keep=Retention(last=1))
        self._buffers = HostBuffers(free_memory)
        self._saver = BackgroundWorker()
        self._checkpoints.take(0, scene.items(), self._buffers.copy_arrays)  # type: ignore[arg-type]  # like the rehearsal of a run

    def __call__(self, step: int) -> bool:
        """Take a snapshot."""
        began = time.perf_counter()
        draft = self._checkpoints.take(step, self._scene.items(), self._buffers.copy_arrays)  # type: ignore[arg-type]  # see above
        self._saver.begin(lambda: self._write(draft, began))
        return True

    @property
    def busy(self) -> bool:
        """Whether the thread writes."""
        return self._saver.busy

    def settle(self) -> None:
        """Wait for the thread."""
        self._saver.wait()

    def close(self) -> None:
        """Wait for the thread, and end it."""
        self._saver.close()

    def _write(self, draft: Draft, began: float) -> None:
        self._checkpoints.write(draft, threads=1)
        self._times.writing.append(time.perf_counter() - began)


THEIRS = "torch.save + fsync"
OURS = "fieldwatch, background"
METHODS: dict[str, Callable[[Scene, Path, Times], Callable[[int], bool] | None]] = {
    "none": lambda *_: None,
    THEIRS: lambda scene, folder, _: with_torch(scene, folder),
    "fieldwatch, waiting": lambda scene, folder, _: waiting(scene, folder),
    OURS: Behind,
}


def measure(scene: Scene, save: Callable[[int], bool] | None, times: Times, steps: int, every: int) -> None:
    """Run some steps and save at regular intervals; a pause between two saves lets the disk settle."""
    busy = (lambda: save.busy) if isinstance(save, Behind) else (lambda: False)
    for index in range(steps):
        before = busy()
        began = time.perf_counter()
        scene.step()
        took = (time.perf_counter() - began) * 1e3
        (times.beside if before else times.steps).append(took)
        if save is not None and (index + 1) % every == 0:
            if isinstance(save, Behind):  # a run postpones a save while another one is in progress
                save.settle()
            began = time.perf_counter()
            save(index + 1)
            times.stalls.append((time.perf_counter() - began) * 1e3)
            while busy() and len(times.beside) > 3 * len(times.steps):
                time.sleep(0.01)
    if isinstance(save, Behind):
        save.close()


def percent(values: list[float], which: float) -> float:
    """Return a percentile; NaN for no values."""
    return float(np.percentile(values, which)) if values else float("nan")


def table(count: int, share: float, steps: int, every: int) -> None:
    """Measure one size, and print its rows."""
    scene = Scene(count, share)
    found = dict[str, Times]()
    scene.step()
    nbytes = 3 * sum(one.numel() * one.element_size() for one in scene.parameters.values())
    print(f"\n{count:,} Gaussians, {nbytes / 1e6:,.0f} MB with moments, saved every {every} of {steps} steps")
    print("| saving | step p50 ms | p99 | beside writing p50 | stall p50 ms | p99 | stall / torch.save |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, make in METHODS.items():
        folder = Path(tempfile.mkdtemp(prefix="stall-"))
        times = Times()
        measure(scene, make(scene, folder, times), times, steps, every)
        shutil.rmtree(folder)
        found[name] = times
        ratio = percent(times.stalls, 99) / percent(found.get(THEIRS, times).stalls, 99)
        figures = [percent(times.steps, 50), percent(times.steps, 99), percent(times.beside, 50)]
        figures += [percent(times.stalls, 50), percent(times.stalls, 99)]
        print(f"| {name} | " + " | ".join(f"{one:.1f}" for one in figures) + f" | {ratio:.3f} |")
    tell(found[THEIRS], found[OURS])


def tell(theirs: Times, ours: Times) -> None:
    """Print the promised figures and the interval that results."""
    interval = Interval("auto", Autosave())
    total = 0.0
    stall = percent(ours.stalls, 99) / 1e3
    for waited, wrote in zip(ours.stalls, ours.writing, strict=True):  # the duration of a run with these saves
        interval.snapshot_taken(waited / 1e3)
        interval.written(wrote)
        total += interval.seconds + waited / 1e3
    seconds = interval.seconds
    slower = percent(ours.beside, 50) / percent(ours.steps, 50) - 1
    ratio = percent(ours.stalls, 99) / percent(theirs.stalls, 99)
    share = sum(ours.stalls) / 1e3 / total
    step = percent(ours.steps, 50)
    print(f"p99 stall / torch.save's: {ratio:.3f} (promised: at most 0.1); in steps: {stall * 1e3 / step:.2f}")
    print(f"last interval chosen: {seconds:.1f} s; all stalls, ", end="")
    print(f"share of the run: {share:.4%} (promised: at most {BUDGET:.1%})")
    print(f"writing takes {percent(ours.writing, 50):.2f} s, steps beside it are {slower:+.1%} slower, ", end="")
    print(f"over the run {slower * percent(ours.writing, 50) / seconds:+.2%}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20,000 Gaussians, 40 steps")
    parser.add_argument("--saves", type=int, default=20, help="saves per method")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores, CPU")
    if options.quick:
        table(20_000, 0.5, 40, 10)
        return
    table(100_000, 0.5, options.saves * 25, 25)
    table(1_000_000, 0.2, options.saves * 10, 10)


if __name__ == "__main__":
    main()
