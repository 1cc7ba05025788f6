"""What does ``fieldwatch health`` say of broken runs, and of healthy ones?

    python benchmarks/verdicts.py                           # all sets: a table
    python benchmarks/verdicts.py --set a --jobs 2          # one set
    python benchmarks/verdicts.py --only "blobs rate x1000" --keep runs/    # one case, by a part of its name
    python benchmarks/verdicts.py --json --seed 1
    python benchmarks/verdicts.py --set h --beside          # ... with an earlier, sound run of the same loop at hand
    python benchmarks/verdicts.py --check                   # does each plant break its run, and its repair mend it?
    python benchmarks/verdicts.py --write                   # ... and store the scores of each rule for docs/generate.py

Each plant is a run with one fault, trained through the public API or the command line in a process of its own. Of its
findings above a note the table shows: whether there are any, whether the first one names the cause (and how many there
are), whether the remedy names the flag, line or data to change, and whether the run is sound once that remedy was
applied. The figure of merit is measured on clean data, by the benchmark, and is not part of the record. A healthy run
that is not "healthy" is a false alarm.

Rules have been tuned on all of these sets. Sets a and b have the same faults with other data, models and magnitudes.
Sets c to l are in other fields, by authors who did not know the rules; each judged the rules before they were tuned on
it, and what is stored of it is from then: use ``--write`` for a new set only. Set s has results that stand still, set t
faults that rules learned to tell later. Set u has healthy runs only: before the rules were tuned on it, there were 4
false alarms in its first 32 runs and 1 in the other 38. ``python -m verdict_runs.harm --set h`` trains a set without
asking for verdicts, and says which of its faults do harm. Faults of sets i to l follow reports in public, as far as one
was found; the ``plants.py`` of j to l also declare which faults need knowledge of what the data mean.
Sets k and l have the faults that most people meet, whether or not another set has them, too.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verdict_runs.cases import Healthy, Order, Plant
from verdict_runs.judging import Ran, Told, judge
from verdict_runs.processes import run_orders
from verdict_runs.scores import rule_scores, store
from verdict_runs.sets import HEALTHY, PLANTS

HEAD = """| plant | kind | told | cause | remedy | repaired | first finding | figure | good | s |
|---|---|---|---|---|---|---|---:|---:|---:|"""
HEALTHY_HEAD = """| healthy run | alarms | which | figure | good | s |
|---|---:|---|---:|---:|---:|"""


@dataclass(kw_only=True)
class Result:
    """What became of one case.

    Attributes:
        set_name: set that it belongs to.
        ran: its run.
        told: how its verdict is judged; None for a healthy run.
        again: the run with the remedy applied; None if no right remedy was given.
    """

    set_name: str
    ran: Ran
    told: Told | None = None
    again: Ran | None = None


def reaches(ran: Ran | None, good: float) -> bool:
    """Whether a run is sound."""
    return ran is not None and ran.reaches(good)


class Benchmark:
    """Makes the runs and prints their rows.

    Args:
        sets: sets to run.
        only: parts of the names of the cases; empty for all.
        what: "plants" or "healthy"; None for both.
        check: make every repair, and print whether plant and repair do what they promise.
        quiet: print no rows.
    """

    def __init__(self, sets: Sequence[str], only: Sequence[str], *, what: str | None, check: bool, quiet: bool) -> None:
        def chosen(name: str) -> bool:
            return not only or any(part in name for part in only)

        self.check = check
        self.quiet = quiet
        self.set_of = {case.name: each for each in sets for case in (*PLANTS[each], *HEALTHY[each])}
        self.plants = {plant.name: plant for each in sets for plant in PLANTS[each] if chosen(plant.name)}
        if what == "healthy":
            self.plants = {}
        self.healthy = {run.name: run for each in sets for run in HEALTHY[each] if chosen(run.name)}
        if what == "plants":
            self.healthy = {}
        self.results: dict[str, Result] = {}

    def orders(self) -> list[Order]:
        """Return the runs to make first."""
        return [Order(name=name) for name in (*self.plants, *self.healthy)]

    def after(self, order: Order, ran: Ran) -> list[Order]:
        """Note a run, print its row, and return the repair that its remedy asks for."""
        plant = self.plants.get(order.name)
        if plant is None:
            self.results[order.name] = Result(set_name=self.set_of[order.name], ran=ran)
            self.show(healthy_row(self.healthy[order.name], ran))
            return []
        if order.repaired:
            result = self.results[order.name]
            result.again = ran
        else:
            result = Result(set_name=self.set_of[order.name], ran=ran, told=judge(plant, ran))
            self.results[order.name] = result
            if result.told is not None and (result.told.remedy or self.check):
                return [Order(name=order.name, advice=plant.ideal if self.check else result.told.remedy, repaired=True)]
        self.show(plant_row(plant, result))
        return []

    def show(self, row: str) -> None:
        """Print a row."""
        if not self.quiet:
            print(row, flush=True)

    def totals(self, set_name: str) -> dict[str, Any]:
        """Return the shares of a set."""
        mine = {name: result for name, result in self.results.items() if result.set_name == set_name}
        broken = {name: result for name, result in mine.items() if result.told is not None}
        sound = {name: result for name, result in mine.items() if result.told is None}
        told = [result.told for result in broken.values() if result.told is not None]
        repaired = [
            name
            for name, result in broken.items()
            if result.told is not None and result.told.remedy and reaches(result.again, self.plants[name].good)
        ]
        return {
            "plants": len(broken),
            "told": sum(one.told for one in told),
            "cause_first": sum(one.cause == 1 for one in told),
            "cause_named": sum(one.cause > 0 for one in told),
            "remedy": sum(bool(one.remedy) for one in told),
            "repaired": len(repaired),
            "healthy": len(sound),
            "false_alarms": sum(alarmed(result.ran) for result in sound.values()),
            "seconds": round(sum(r.ran.seconds + (r.again.seconds if r.again else 0) for r in mine.values())),
        }

    def scores(self, set_name: str) -> dict[str, Any]:
        """Return the shares of a set, and those of each rule."""
        mine = [result for result in self.results.values() if result.set_name == set_name]
        plants = [(result.ran, result.told) for result in mine if result.told is not None]
        healthy = [result.ran for result in mine if result.told is None]
        return {"totals": self.totals(set_name), "rules": rule_scores(plants, healthy)}


def alarmed(ran: Ran) -> bool:
    """Whether anything above a note was said of a healthy run, or it did not end."""
    return bool(ran.serious) or ran.ended != "finished"


def figure(ran: Ran | None) -> str:
    """Return a figure of merit as text."""
    return "-" if ran is None or ran.figure is None else f"{ran.figure:.3g}"


def first_words(ran: Ran) -> str:
    """Return rule and subject of the first finding."""
    if not ran.serious:
        return "-" if ran.ended == "finished" else ran.message.splitlines()[-1][:60] if ran.message else ran.ended
    first = ran.serious[0]
    return f"{first['rule']} {first['subject']}".strip()


def plant_row(plant: Plant, result: Result) -> str:
    """Return the row of a plant."""
    told = result.told
    assert told is not None  # noqa: S101  a plant is always judged
    cause = "**first**" if told.cause == 1 else f"{told.cause} of {told.findings}" if told.cause else "no"
    mended = "yes" if reaches(result.again, plant.good) else "no"
    repaired = f"{mended} ({figure(result.again)})" if result.again is not None else "-"
    broken = " (sound!)" if reaches(result.ran, plant.good) else ""
    seconds = result.ran.seconds + (result.again.seconds if result.again else 0)
    cells = [plant.name, plant.fault.kind, "yes" if told.told else "**no**", cause, "yes" if told.remedy else "no"]
    cells += [repaired, first_words(result.ran), f"{figure(result.ran)}{broken}", f"{plant.good:.3g}", f"{seconds:.1f}"]
    return f"| {' | '.join(cells)} |"


def healthy_row(run: Healthy, ran: Ran) -> str:
    """Return the row of a healthy run."""
    rules = list(dict.fromkeys(f"{one['rule']} {one['subject']}".strip() for one in ran.serious))
    more = f" and {len(rules) - 3} more" if len(rules) > 3 else ""
    shown = ", ".join(rules[:3]) + more or ("-" if ran.ended == "finished" else f"{ran.ended}: {ran.message[-100:]!r}")
    broken = "" if reaches(ran, run.good) else " (not sound!)"
    return f"| {run.name} | {len(ran.serious)} | {shown} | {figure(ran)}{broken} | {run.good:.3g} | {ran.seconds:.1f} |"


def total_row(set_name: str, totals: dict[str, Any]) -> str:
    """Return the line of totals of a set."""
    plants = max(totals["plants"], 1)
    healthy = max(totals["healthy"], 1)
    shares = [
        f"{text} {totals[key]} ({100 * totals[key] / plants:.0f} %)"
        for key, text in (
            ("told", "told"),
            ("cause_first", "cause first"),
            ("cause_named", "cause named"),
            ("remedy", "remedy"),
            ("repaired", "repaired"),
        )
    ]
    alarms = (
        f"false alarms {totals['false_alarms']} of {totals['healthy']} ({100 * totals['false_alarms'] / healthy:.0f} %)"
    )
    return f"set {set_name}: of {totals['plants']} plants {', '.join(shares)}; {alarms}; {totals['seconds']} s"


def kinds_table(benchmark: Benchmark) -> str:
    """Return told, cause first and repaired per kind."""
    rows: dict[str, list[int]] = {}
    for name, plant in benchmark.plants.items():
        result = benchmark.results[name]
        told = result.told
        counts = rows.setdefault(plant.fault.kind, [0, 0, 0, 0])
        counts[0] += 1
        if told is not None:
            counts[1] += told.told
            counts[2] += told.cause == 1
            counts[3] += bool(told.remedy) and reaches(result.again, plant.good)
    lines = [f"| {kind} | {' | '.join(map(str, counts))} |" for kind, counts in rows.items()]
    return "\n".join(["| kind | plants | told | cause first | repaired |", "|---|---:|---:|---:|---:|", *lines])


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=sorted(PLANTS), help="set to run; all by default")
    parser.add_argument("--what", choices=["plants", "healthy"], help="kind of case to run; both by default")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="part of a name; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="seed of data, models and training")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run folders here")
    parser.add_argument("--check", action="store_true", help="make every repair, whatever the verdict said")
    parser.add_argument("--beside", action="store_true", help="train a sound run with the next seed first, beside each")
    parser.add_argument("--write", action="store_true", help="store the scores in benchmarks/verdicts.json")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    args = parser.parse_args(words)
    if args.write and (args.only or args.what or args.check or args.beside):
        parser.error("expected whole sets for --write: leave out --only, --what, --check and --beside")
    sets = [args.set] if args.set else sorted(PLANTS)
    benchmark = Benchmark(sets, args.only, what=args.what, check=args.check, quiet=args.json)
    if args.list:
        for name in (*benchmark.plants, *benchmark.healthy):
            print(f"{benchmark.set_of[name]}  {name}")
        return 0
    if not benchmark.orders():
        parser.error(f"expected a part of a name that --list prints, got --only {' --only '.join(args.only)}")
    benchmark.show(HEAD)
    plants = [Order(name=name) for name in benchmark.plants]
    how = {"seed": args.seed, "jobs": args.jobs, "keep": args.keep, "beside": args.beside}
    run_orders(plants, after=benchmark.after, **how)
    benchmark.show(f"\n{HEALTHY_HEAD}")
    healthy = [Order(name=name) for name in benchmark.healthy]
    run_orders(healthy, after=benchmark.after, **how)
    if args.write:
        store({each: benchmark.scores(each) for each in sets}, args.seed)
    totals = {each: benchmark.totals(each) for each in sets}
    if args.json:
        results = {name: asdict(result) for name, result in benchmark.results.items()}
        print(json.dumps({"seed": args.seed, "totals": totals, "results": results}, indent=1))
        return 0
    print(f"\n{kinds_table(benchmark)}\n")
    for each in sets:
        print(total_row(each, totals[each]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
