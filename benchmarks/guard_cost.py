"""What the guard adds to an optimizer's step: every optimizer of torch.optim, three model sizes, on this machine.

Two costs are compared with the bare ``optimizer.step()``, in the same process and in turns:

* *guarded*: ``guarded_step(optimizer, flag)``, which refuses the step when the flag says so,
* *update*: what ``step.update(optimizer)`` does besides recording: gradient norms, the flag, the guarded step.

The target is that *guarded* takes at most 1.15 times the bare step, or 20 us more. Processor time counts.

    python benchmarks/guard_cost.py                      # the table, about ten minutes, 2 GB of memory
    python benchmarks/guard_cost.py --only Adam SGD --sizes 2k 295k
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch.guard import Verdict, guarded_step
from fieldwatch.measure import ParameterGroups, gradient_norms

SIZES = {"2k": (2, 32), "295k": (16, 136), "50M": (12, 2041)}
"""Number of square matrices and their width: 2,048, 295,936 and 49,988,172 parameters."""
FACTOR, MICROSECONDS = 1.15, 20.0
NEEDS = {"LBFGS": "needs a closure, which step.update(..., closure=...) takes; not timed"}
SPARSE = "SparseAdam"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Median microseconds of processor time per step."""

    optimizer: str
    size: str
    bare: float
    guarded: float
    update: float
    added: float

    @property
    def factor(self) -> float:
        """Ratio of the guarded step to the bare one."""
        return (self.bare + self.added) / self.bare

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        return self.factor <= FACTOR or self.added <= MICROSECONDS


def optimizers() -> dict[str, type[Optimizer]]:
    """Return every optimizer of torch."""
    found = {name: getattr(torch.optim, name) for name in dir(torch.optim)}
    kinds = {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, Optimizer)}
    return {name: kind for name, kind in sorted(kinds.items()) if kind is not Optimizer}


def model(size: str, *, sparse: bool) -> nn.ParameterList:
    """Return square matrices with a gradient each; a sparse gradient touches every 16th row."""
    count, width = SIZES[size]
    weights = nn.ParameterList([nn.Parameter(torch.randn(width, width)) for _ in range(count)])
    for weight in weights:
        weight.grad = 1e-3 * torch.randn(width, width)
        if sparse:
            rows = torch.arange(0, width, 16)
            weight.grad = torch.sparse_coo_tensor(rows[None], weight.grad[rows], weight.shape, check_invariants=False)
    return weights


def ways(optimizer: Optimizer, watched: ParameterGroups, flag: Tensor) -> dict[str, Callable[[], Any]]:
    """Return the timed functions by name."""

    def update() -> None:
        norms = gradient_norms(watched)
        assert norms is not None  # noqa: S101  every parameter has a gradient
        guarded_step(optimizer, Verdict(norms.total).refused())

    return {"bare": optimizer.step, "guarded": lambda: guarded_step(optimizer, flag), "update": update}


def measure(name: str, kind: type[Optimizer], size: str, seconds: float) -> Cost:
    """Time the functions in turns; a sparse gradient has no norm, so its update is not timed."""
    torch.manual_seed(0)
    weights = model(size, sparse=name == SPARSE)
    optimizer = kind(weights.parameters(), lr=1e-6)
    watched = ParameterGroups()
    watched.add(model=weights)
    timed = ways(optimizer, watched, torch.tensor(0.0))
    if name == SPARSE:
        timed["update"] = timed["guarded"]
    for way in timed.values():
        way()
    began = time.process_time()
    optimizer.step()
    calls = max(1, min(200, int(0.02 / max(time.process_time() - began, 1e-6))))
    taken: dict[str, list[float]] = {way: [] for way in timed}
    end = time.monotonic() + seconds
    gc.disable()
    while time.monotonic() < end or len(taken["bare"]) < 5:
        for way, call in timed.items():
            began = time.process_time()
            for _ in range(calls):
                call()
            taken[way].append((time.process_time() - began) / calls * 1e6)
    gc.enable()
    added = statistics.median(b - a for a, b in zip(taken["bare"], taken["guarded"], strict=True))
    medians = {way: statistics.median(values) for way, values in taken.items()}
    return Cost(optimizer=name, size=size, added=added, **medians)


def table(costs: list[Cost]) -> str:
    """Format the costs in Markdown, with the number of optimizers that meet the target."""
    lines = [
        "| optimizer | parameters | bare, us | added by the guard, us | factor | whole update, us | goal |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for one in costs:
        met = "met" if one.holds else "**not met**"
        times = f"{one.bare:,.0f} | {one.added:+,.1f} | {one.factor:.3f} | {one.update:,.0f}"
        lines.append(f"| {one.optimizer} | {one.size} | {times} | {met} |")
    lines += [f"| {name} | | | | | | {why} |" for name, why in NEEDS.items()]
    met = sum(one.holds for one in costs)
    lines.append(f"\n{met} of {len(costs)} take at most {FACTOR} times the bare step, or {MICROSECONDS:.0f} us more.")
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    known = [name for name in optimizers() if name not in NEEDS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=known, default=known, metavar="OPTIMIZER", help=", ".join(known))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="numbers of parameters")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per optimizer and size")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    costs = [measure(name, optimizers()[name], size, asked.seconds) for name in asked.only for size in asked.sizes]
    if asked.json:
        json.dump([asdict(cost) for cost in costs], sys.stdout, indent=1)
    else:
        print(table(costs))
    return 0 if all(cost.holds for cost in costs) else 1


if __name__ == "__main__":
    sys.exit(main())
