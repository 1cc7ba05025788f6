"""What a fault does to a run, and whether a healthy run learns: figures of merit without any verdict.

    PYTHONPATH=src:benchmarks python -m verdict_runs.harm --set f                 # seed 0
    PYTHONPATH=src:benchmarks python -m verdict_runs.harm --set f --seed 1 --only "river"

Every broken run, its repair and every healthy run of a set is trained in a process of its own. The last column says
whether the case counts: a broken run has to miss the figure that a sound run reaches, and the others have to reach it.
What the runs print is dropped, and their findings are not read, so that an author of a set learns nothing of the rules.
"""

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from verdict_runs.cases import Healthy, Order, Plant, RefusedError
from verdict_runs.sets import HEALTHY, PLANTS, training_of

LIMIT = 300.0
"""Seconds after which a run is ended."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What became of a run.

    Attributes:
        figure: figure of merit; None if the training did not end.
        ended: "finished", or the kind of error that ended it.
        seconds: processor time.
    """

    figure: float | None
    ended: str
    seconds: float

    def reaches(self, good: float) -> bool:
        """Whether the run is sound."""
        return self.figure is not None and self.figure >= good

    def __str__(self) -> str:
        """Return the figure, or the error."""
        return self.ended if self.figure is None else f"{self.figure:.3g}"


def _train(order: Order, seed: int, answer: Connection, trace: str) -> None:
    """Train one run in this process."""
    import torch  # noqa: PLC0415  the process that starts the others need not have it

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="harm-") as place:
        output = os.open(trace, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        folder = Path(place) / "run"
        figure = None
        ended = "finished"
        try:
            figure = training_of(order)(folder, seed)
        except RefusedError:
            ended = "refused"
        except Exception as error:  # noqa: BLE001  whatever a broken run raises is a result
            ended = f"{type(error).__name__} {str(error).splitlines()[0][:60] if str(error) else ''}"
        used = resource.getrusage(resource.RUSAGE_SELF)
    answer.send(Trained(figure=figure, ended=ended, seconds=used.ru_utime + used.ru_stime))


def trained(order: Order, seed: int, trace: str = os.devnull) -> Trained:
    """Train a run in a process of its own.

    Args:
        order: the run.
        seed: seed of data, model and training.
        trace: file for what the run prints.
    """
    context = multiprocessing.get_context("forkserver")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_train, args=(order, seed, theirs, trace))
    process.start()
    theirs.close()
    until = time.monotonic() + LIMIT
    found = Trained(figure=None, ended=f"took longer than {LIMIT:.0f} s", seconds=LIMIT)
    try:
        if mine.poll(max(0.0, until - time.monotonic())):
            found = mine.recv()
    except EOFError:
        found = Trained(figure=None, ended="the process was killed", seconds=0.0)
    process.kill()
    process.join()
    return found


def _row_of_plant(plant: Plant, seed: int) -> tuple[str, bool, float]:
    broken = trained(Order(name=plant.name), seed)
    mended = trained(Order(name=plant.name, advice=plant.ideal, repaired=True), seed)
    counts = mended.reaches(plant.good) and not broken.reaches(plant.good)
    seconds = broken.seconds + mended.seconds
    cells = (
        plant.name,
        str(broken),
        str(mended),
        f"{plant.good:.3g}",
        f"{broken.seconds:.1f}",
        "yes" if counts else "NO",
    )
    return f"| {' | '.join(cells)} |", counts, seconds


def _row_of_healthy(run: Healthy, seed: int) -> tuple[str, bool, float]:
    found = trained(Order(name=run.name), seed)
    counts = found.reaches(run.good)
    cells = (run.name, "", str(found), f"{run.good:.3g}", f"{found.seconds:.1f}", "yes" if counts else "NO")
    return f"| {' | '.join(cells)} |", counts, found.seconds


def main(words: Sequence[str] | None = None) -> int:
    """Train a set and print its figures; 1 if a case does not count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=sorted(PLANTS), required=True, help="set to train")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="part of a name; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="seed of data, models and training")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    args = parser.parse_args(words)

    def chosen(name: str) -> bool:
        return not args.only or any(part in name for part in args.only)

    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "fieldwatch.cli", "verdict_runs.sets"])
    print("| case | broken | sound | good | s | counts |\n|---|---:|---:|---:|---:|---|", flush=True)
    total = 0.0
    left_out = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = [pool.submit(_row_of_plant, plant, args.seed) for plant in PLANTS[args.set] if chosen(plant.name)]
        rows += [pool.submit(_row_of_healthy, run, args.seed) for run in HEALTHY[args.set] if chosen(run.name)]
        for row in rows:
            text, counts, seconds = row.result()
            print(text, flush=True)
            total += seconds
            left_out += not counts
    print(f"\n{len(rows)} cases, {left_out} of them do not count; {total:.0f} s of processor time")
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
