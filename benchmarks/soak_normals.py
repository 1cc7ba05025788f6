"""Does a normals run survive everything? Trains a tiny scene with and without planted faults.

    python benchmarks/soak_normals.py                  # 30,000 steps, twice: the nightly `make soak`
    python benchmarks/soak_normals.py --steps 300      # the same faults at the same fractions of the run

The faults are batches with NaN in their normals, an occupancy grid that is emptied, a surface that is pushed out of the
scene, a validation that fails, and two kills by SIGKILL, after which the run is restarted. The disturbed run and its
undisturbed twin are separate processes that run at the same time. At the end, both must have the same mean angular
error within 10 %, and the record of the disturbed run must report what happened.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fieldwatch.recon.pipelines.normals import (
    NormalsConfig,
    algorithm,
    planned_evaluations,
    prepare_scene,
    train_normals,
)
from fieldwatch.recon.pipelines.normals.batches import RayBatch, RaySource
from fieldwatch.recon.pipelines.normals.config import FieldOptions, NormalsRateOptions, RayOptions, RenderOptions
from fieldwatch.recon.pipelines.normals.learning import NormalsOptimizers
from fieldwatch.record import read_events

NAN = (0.2, 0.55)
EMPTIED = 0.35
LOST = 0.65
FAILING = 0.5
KILLS = (0.3, 0.8)
"""Times of the faults, as fractions of the steps."""
GRID_EVERY = 32
"""Steps between updates of the grid; more than the patience with a collapse, or the grid recovers earlier."""
ALLOWED = 0.10
"""Allowed ratio by which the disturbed run may end worse, minus 1."""


def settings(steps: int) -> NormalsConfig:
    """Return a run whose steps take some milliseconds: 6 views of 48 pixels, 96 rays."""
    return NormalsConfig(
        steps=steps,
        stages=("fit@0 normal=1 mask=1 eikonal=0.1",),
        views=6,
        size=48,
        sdf=FieldOptions(
            levels=4,
            base_resolution=8,
            finest_resolution=48,
            table_bits=12,
            hidden=32,
            first_levels=2,
            levels_by=10_000,
        ),
        rendering=RenderOptions(
            grid_resolution=24,
            grid_every=GRID_EVERY,
            grid_warmup=64,
            first_step=0.04,
            last_step=0.02,
            unseen=1e-3,
            sharpness="scheduled",
            first_sharpness=20.0,
            last_sharpness=150.0,
            empty_samples=16,
        ),
        rays=RayOptions(rays=96, views_per_graph=6),
        rates=NormalsRateOptions(lr=1e-3, lr_table=1e-2),
        mesh_resolution=48,
        mesh_at=0,
        turntable=0.0,
        evaluate_at=15_000,
        checkpoint_interval=1000,
        threads=1,
        device="cpu",
    )


class Faults:
    """The faults of a run, by step.

    Args:
        steps: number of steps.
        folder: folder in which past faults are noted, so that a restarted run does not repeat them.
    """

    def __init__(self, steps: int, folder: Path) -> None:
        self.step = -1
        self._folder = folder
        emptied = round(EMPTIED * steps) // GRID_EVERY * GRID_EVERY + 1  # right after an update of the grid
        nan = [round(share * steps) + more for share in NAN for more in range(2)]
        self._nan = set(nan)
        self._emptied = emptied
        self._lost = round(LOST * steps)
        self._failing = FAILING * steps

    def nan(self) -> bool:
        """Return whether the normals of this step's rays must be NaN."""
        return self.step in self._nan

    def disturb(self, model: Any) -> None:
        """Empty the grid, or push the surface out of the scene, if this is the step for it."""
        if self.step == self._emptied:
            emptied = {name: torch.zeros_like(value) for name, value in model.grid.state_dict().items()}
            model.grid.load_state_dict(emptied | {"updates": model.grid.updates})
        if self.step == self._lost:
            with torch.no_grad():
                model.sdf.last.bias += 1

    def failing(self) -> bool:
        """Return whether the validation of this step must fail: the first one in the second half."""
        path = self._folder / "failing_validation"
        if self.step < self._failing - 1 or path.exists():
            return False
        path.touch()
        return True


def plant(faults: Faults) -> None:
    """Replace the loop's classes by failing ones in this process."""

    class FaultyLearning(NormalsOptimizers):
        def prepare(self, step: int) -> None:
            super().prepare(step)
            faults.step = step
            faults.disturb(self._model)

    class FaultyRays(RaySource):
        def draw(self, rays: int, most: int | None = None) -> list[RayBatch]:
            batches = super().draw(rays, most)
            if not faults.nan():
                return batches
            return [replace(batch, normals=torch.full_like(batch.normals, torch.nan)) for batch in batches]

    evaluate = planned_evaluations.evaluate_surface

    def failing(*arguments: Any, **named: Any) -> Any:
        if faults.failing():
            raise OSError(28, "No space left on device (planted)")
        return evaluate(*arguments, **named)

    algorithm.NormalsOptimizers = FaultyLearning
    algorithm.RaySource = FaultyRays
    planned_evaluations.evaluate_surface = failing


def work(folder: Path, steps: int, *, disturbed: bool) -> None:
    """Train or resume in this process; write down the error."""
    torch.set_num_threads(1)
    config = settings(steps)
    if disturbed:
        plant(Faults(steps, folder.parent))
    outcome = train_normals(config, prepare_scene(config), folder, sinks=())
    if outcome.evaluation is not None:
        (folder.parent / f"{folder.name}.json").write_text(json.dumps({"mae": outcome.evaluation.score}))


def start(folder: Path, steps: int, *, disturbed: bool) -> subprocess.Popen[str]:
    """Start a training as a separate process."""
    command = [sys.executable, __file__, "--steps", str(steps), "--worker", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command += ["--disturbed"] if disturbed else []
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def saved(folder: Path) -> int:
    """Return the steps of the newest checkpoint."""
    numbers = [path.name.split("_")[-1].split(".")[0] for path in (folder / "checkpoints").glob("*")]
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def killed(process: subprocess.Popen[str], folder: Path, step: int) -> int:
    """Kill the process when it has saved this step; return the step."""
    while saved(folder) < step and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    if process.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the run ended before it could be killed after {step} steps: {errors}")
    return saved(folder)


def ended(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a process.

    Raises:
        RuntimeError: the process failed.
    """
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the run exited with {process.returncode}: {errors}")


def soak(steps: int, folder: Path) -> dict[str, Any]:
    """Train both runs, kill the disturbed one twice, and return the results."""
    quiet = folder / "quiet"
    disturbed = folder / "disturbed"
    began = time.monotonic()
    twin = start(quiet, steps, disturbed=False)
    places = [killed(start(disturbed, steps, disturbed=True), disturbed, round(share * steps)) for share in KILLS]
    ended(start(disturbed, steps, disturbed=True))
    ended(twin)
    events = list(read_events(disturbed))
    undisturbed = list(read_events(quiet))
    counted = {kind: sum(event["kind"] == kind for event in events) for kind in WORDS}
    errors = {name: json.loads((folder / f"{name}.json").read_text())["mae"] for name in ("quiet", "disturbed")}
    return {
        "steps": steps,
        "minutes": (time.monotonic() - began) / 60,
        "kills": places,
        "mae_quiet": errors["quiet"],
        "mae_disturbed": errors["disturbed"],
        "ratio": errors["disturbed"] / errors["quiet"],
        **counted,
        "findings": sorted({event["rule"] for event in events if event["kind"] == "finding"}),
        "findings_quiet": sorted({event["rule"] for event in undisturbed if event["kind"] == "finding"}),
    }


WORDS = {
    "refusal": "updates refused (NaN batches)",
    "grid_rebuilt": "grids rebuilt",
    "rolled_back": "rollbacks (surface lost)",
    "validation_failed": "validations failed",
}
"""Event of each reaction in the record, and its description."""


def main() -> int:
    """Print the table; return 1 if the disturbed run ended worse than allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder", type=Path, help="keep both runs here")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--disturbed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.steps, disturbed=options.disturbed)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        found = soak(options.steps, options.folder or Path(scratch))
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{found['steps']:,} steps in {found['minutes']:.1f} min, both runs side by side")
        print(f"kill -9 and resume               at the checkpoints {', '.join(map(str, found['kills']))}")
        for kind, words in WORDS.items():
            print(f"{words:32} {found[kind]}")
        print(f"findings, disturbed              {', '.join(found['findings'])}")
        print(f"findings, quiet                  {', '.join(found['findings_quiet']) or 'none'}")
        print(
            f"mean angular error, degrees      quiet {found['mae_quiet']:.3f}, disturbed {found['mae_disturbed']:.3f}"
        )
        print(f"ratio                            {found['ratio']:.3f} (goal: at most {1 + ALLOWED:.2f})")
    return int(found["ratio"] > 1 + ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
