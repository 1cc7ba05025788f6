"""What a fault does to a run, and whether a healthy run learns: figures of merit without any verdict.

    PYTHONPATH=src:benchmarks python -m verdict_runs.harm --set f                 # seed 0
    PYTHONPATH=src:benchmarks python -m verdict_runs.harm --set f --seed 1 --only "river"

Every broken run, its repair and every healthy run of a set is trained in a process of its own. The last column says
whether the case counts: a broken run has to miss the figure that a sound run reaches, and the others have to reach it.
What the runs print is dropped, and no verdict is asked for, so that an author of a set learns nothing of the rules.
"""

import argparse
import sys
from collections.abc import Sequence

from verdict_runs.cases import Order
from verdict_runs.judging import Ran
from verdict_runs.processes import run_orders
from verdict_runs.sets import HEALTHY, PLANTS


class Harm:
    """Prints a row for each case, and counts.

    Attributes:
        cases: cases that were trained.
        left_out: cases that do not count.
        seconds: processor time of all runs.
    """

    def __init__(self, set_name: str) -> None:
        self._plants = {plant.name: plant for plant in PLANTS[set_name]}
        self._healthy = {run.name: run for run in HEALTHY[set_name]}
        self._broken: dict[str, Ran] = {}
        self.cases = 0
        self.left_out = 0
        self.seconds = 0.0

    def orders(self, only: Sequence[str]) -> list[Order]:
        """Return the runs to make first; ``only`` has parts of their names, and is empty for all."""
        names = [*self._plants, *self._healthy]
        return [Order(name=name) for name in names if not only or any(part in name for part in only)]

    def after(self, order: Order, ran: Ran) -> list[Order]:
        """Note a run; return the repair of a plant, or print the row of a case."""
        self.seconds += ran.seconds
        plant = self._plants.get(order.name)
        if plant is None:
            good = self._healthy[order.name].good
            self._show(order.name, ["", _figure(ran), f"{good:.3g}", f"{ran.seconds:.1f}"], counts=ran.reaches(good))
            return []
        if not order.repaired:
            self._broken[order.name] = ran
            return [Order(name=order.name, advice=plant.ideal, repaired=True)]
        broken = self._broken[order.name]
        cells = [_figure(broken), _figure(ran), f"{plant.good:.3g}", f"{broken.seconds:.1f}"]
        self._show(order.name, cells, counts=ran.reaches(plant.good) and not broken.reaches(plant.good))
        return []

    def _show(self, name: str, cells: Sequence[str], *, counts: bool) -> None:
        self.cases += 1
        self.left_out += not counts
        print(f"| {' | '.join([name, *cells, 'yes' if counts else 'NO'])} |", flush=True)


def _figure(ran: Ran) -> str:
    """Return the figure of merit, or how the run ended."""
    if ran.figure is not None:
        return f"{ran.figure:.3g}"
    return "refused" if ran.ended == "refused" else ran.message.splitlines()[0][:60]


def main(words: Sequence[str] | None = None) -> int:
    """Train a set and print its figures; 1 if a case does not count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=sorted(PLANTS), required=True, help="set to train")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="part of a name; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="seed of data, models and training")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    args = parser.parse_args(words)
    harm = Harm(args.set)
    print("| case | broken | sound | good | s | counts |\n|---|---:|---:|---:|---:|---|", flush=True)
    run_orders(harm.orders(args.only), seed=args.seed, jobs=args.jobs, after=harm.after, examined=False)
    print(f"\n{harm.cases} cases, {harm.left_out} of them do not count; {harm.seconds:.0f} s of processor time")
    return 1 if harm.left_out else 0


if __name__ == "__main__":
    sys.exit(main())
