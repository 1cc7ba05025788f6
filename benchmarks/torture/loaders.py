"""P4 with torch's DataLoader: shuffling, dropout and augmentation in workers; killed, resumed, equal bit for bit.

    python loaders.py FOLDER WORKERS STEPS SEED [--persistent] [--plain] [--kill-at STEP]

trains once, or resumes. `run_loaders` runs it undisturbed, killed and resumed, with 0 and 2 workers.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fieldwatch import Checkpoints, Outputs, ResumableLoader, Run, Saving, Terms, read_history
from torture.rows import Row, judged

SAMPLES = 37
BATCH = 5
STEPS = 24
KILLED_AT = 13
"""A step in the middle of the second epoch of 8 batches, and between two checkpoints."""
EVERY = 5


class Augmented(Dataset[torch.Tensor]):
    """Samples with noise from every common generator, including one of their own."""

    def __init__(self) -> None:
        self.values = torch.linspace(-1, 1, SAMPLES * 4).reshape(SAMPLES, 4)
        self.noise = np.random.default_rng(3)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        numbers = (random.random(), np.random.rand(), self.noise.random())  # noqa: NPY002, S311  as many data sets do
        return self.values[index] + torch.randn(4) * 0.1 + sum(numbers)


def train(  # noqa: PLR0913  one argument per flag
    folder: Path, *, workers: int, steps: int, seed: int, persistent: bool, plain: bool, kill_at: int
) -> None:
    """Train in a folder, or resume; die by SIGKILL at ``kill_at``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if plain:
        loader = DataLoader(Augmented(), batch_size=BATCH, shuffle=True, num_workers=workers)
    else:
        loader = ResumableLoader(
            Augmented(), BATCH, seed=7, num_workers=workers, persistent_workers=persistent and workers > 0
        )
    kept: dict[str, Any] = {} if plain else {"loader": loader}
    for seeding in (torch.manual_seed, random.seed, np.random.seed):  # another process has other random numbers
        seeding(seed)
    with Run(folder, saving=Saving(every=EVERY), outputs=Outputs(sinks=())) as run:
        run.track(model=model, optimizer=optimizer, **kept)
        run.resume()
        for step, batch in zip(run.steps(steps), run.batches(loader), strict=False):
            if step.index == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = (model(batch) - batch.square().sum(1, keepdim=True)).square().mean()
            terms = Terms(fit=(1.0, loss))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)


def start(folder: Path, workers: int, *, seed: int, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Train in its own process; return the exit code and the output."""
    command = [sys.executable, __file__, str(folder), str(workers), str(STEPS), str(seed), *options]
    here = Path(__file__).resolve()
    source = os.environ.get("PYTHONPATH") or str(
        here.parents[2] / "src"
    )  # PYTHONPATH may name a mutated copy of the package: keep it first
    path = os.pathsep.join([source, str(here.parents[1])])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)


def outcome(folder: Path) -> tuple[list[float], list[torch.Tensor]]:
    """Return the loss of every step, and the final weights."""
    items = Checkpoints(folder / "checkpoints").read("last")
    return read_history(folder)["Loss/total"].values.tolist(), list(items["model"].values())


def equal(one: Path, other: Path) -> tuple[int, bool]:
    """Return how many losses of two runs are equal, and whether all weights are."""
    losses, weights = outcome(one)
    others, their_weights = outcome(other)
    same = sum(a == b for a, b in zip(losses, others, strict=True))
    return same, all(map(torch.equal, weights, their_weights))


def exact_row(folder: Path, workers: int, *, persistent: bool) -> Row:
    """Compare a run that is killed in the middle of an epoch and resumed with an undisturbed one."""
    options = ["--persistent"] if persistent else []
    whole = start(folder / "whole", workers, seed=1, options=options)
    killed = start(folder / "cut", workers, seed=1, options=[*options, "--kill-at", str(KILLED_AT)])
    resumed = start(folder / "cut", workers, seed=2, options=options)
    codes = (whole.returncode, killed.returncode, resumed.returncode)
    kept = ", persistent" if persistent else ""
    what = f"ResumableLoader, {workers} workers{kept}, augmentation, dropout: SIGKILL in step {KILLED_AT}, resumed"
    if codes != (0, -signal.SIGKILL, 0):
        said = (whole.stderr + resumed.stderr)[-300:]
        return judged("P4", what, "bit-equal", f"exit codes {codes}", good=False, why=said, group="data loaders")
    same, weights = equal(folder / "whole", folder / "cut")
    found = f"{same} of {STEPS} losses, weights {'equal' if weights else 'differ'}"
    return judged("P4", what, "bit-equal", found, good=same == STEPS and weights, group="data loaders")


def told_row(folder: Path, workers: int) -> Row:
    """Test that a run with torch's own loader, which cannot be resumed, says so before the first step."""
    ended = start(folder / "plain", workers, seed=1, options=["--plain", "--kill-at", "0"])
    told = "ResumableLoader" in ended.stderr and ended.returncode == -signal.SIGKILL
    what = f"plain torch DataLoader, {workers} workers: killed in the first step"
    found = "reported, with the remedy" if told else "nothing was said"
    return judged("P4", what, "reported before the first step", found, good=told, group="data loaders")


KINDS = ((0, False), (2, False), (2, True))
"""Number of workers, and whether they are persistent."""


def run_loaders(folder: Path, kinds: Sequence[tuple[int, bool]] = KINDS) -> list[Row]:
    """Return all rows about data loaders."""
    rows: list[Row] = []
    for workers, persistent in kinds:
        place = folder / f"{workers}-{persistent}"
        place.mkdir(parents=True)
        rows.append(exact_row(place, workers, persistent=persistent))
        if not persistent:
            rows.append(told_row(place, workers))
    return rows


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("workers", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--kill-at", type=int, default=-1)
    asked = vars(parser.parse_args())
    train(asked.pop("folder"), **asked)


if __name__ == "__main__":
    main()
