"""Cost of the window of a training while nobody looks, and whether the training ends in the same state.

Prints the median time of a step without and with ``--viewer`` (other work on the machine makes them differ, too), the
median time of the window call in each step, the processor time of its server, and whether both trainings have the same
checkpoint. Needs the extra viewer.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fieldwatch import Checkpoints, Run, read_history
from fieldwatch.cli import main as fieldwatch
from fieldwatch.recon.commands.view.scene import ViewedScene
from fieldwatch.recon.commands.view.training_window import Drawing, TrainingWindow

TRAINING = (
    "--views 6 --held-out 3 --coarse-iterations 15000 --schedule-scale 0.02 --device cpu --growth-cap 1500 "
    "--test-iterations 15000 --turntable 0 --threads 1 --no-doctor"
)


def leaves(value: Any) -> Iterator[Any]:
    """Yield what a nested state consists of."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from leaves(value[key])
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def equal(one: Any, other: Any) -> bool:
    """Return whether two leaves have the same bits."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool((one == other) if not hasattr(one, "tobytes") else one.tobytes() == other.tobytes())


def idle_share(seconds: float = 10.0) -> float:
    """Return the processor time that an open window takes while nobody looks, as a fraction of one core."""
    scene = ViewedScene(title="nothing", up=(0.0, 0.0, 1.0))
    with TrainingWindow(scene, modes=("color",)):
        # The server starts in the first second.
        time.sleep(1.0)
        began = time.process_time()
        time.sleep(seconds)
        return (time.process_time() - began) / seconds


def main() -> None:
    """Train twice, and print the comparison."""
    calls: list[float] = []
    after_step = TrainingWindow.after_step

    def timed(window: TrainingWindow, run: Run, drawing: Drawing) -> None:
        began = time.perf_counter()
        after_step(window, run, drawing)
        calls.append(time.perf_counter() - began)

    TrainingWindow.after_step = timed
    folder = Path(tempfile.mkdtemp(prefix="window-cost-"))
    states: list[list[Any]] = []
    lines: list[str] = []
    for name, more in (("without", ()), ("with", ("--viewer",))):
        fieldwatch(["train", "splats", "--out", str(folder / name), *TRAINING.split(), *more])
        steps = read_history(folder / name)["Time/step"].values
        lines.append(f"{name} a window: {len(steps)} steps, median {statistics.median(steps):.2f} ms")
        checkpoints = Checkpoints(folder / name / "checkpoints")
        states.append(list(leaves(checkpoints.read(max(checkpoints.steps())))))
        median = statistics.median(steps)
    call = statistics.median(calls)
    same = len(states[0]) == len(states[1]) and all(map(equal, *states))
    lines.append(f"call of the window: median {1e6 * call:.1f} us, {call / median * 1e3:.4%} of a step")
    lines.append(f"server of the window: {idle_share():.2%} of a core")
    lines.append(f"the same state: {'yes' if same else 'NO'} ({len(states[0])} values and tensors)")
    print("\n".join(lines))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
