"""The cost of memory accounting: the census, the always-on counters, and the tensor profile.

    python benchmarks/memory_cost.py            # the table, about a minute
    python benchmarks/memory_cost.py --json

The model is shaped like 3DGS (6 groups, Adam), with 300,000 live Python objects as in a real process. The census and
the garbage collector walk of the original tools answer the same question. The profile is measured in a whole run
(record, files, tags): steps with and without a profile, by processor time of the process, in alternating blocks.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fieldwatch import Outputs, Profile, Run, Saving, Terms
from fieldwatch.measure import AllocatorCounters, ParameterGroups, take_census

OBJECTS = 300_000
GAUSSIANS = 20_000
INTERVAL = 50
STEP_MS = 10.0
GROUPS = {"means": 3, "sh0": 3, "shN": 45, "opacity": 1, "scale": 3, "quaternion": 4}


class Splats:
    """A model in the shape of Gaussian splats, and a loss that uses all of it."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self.groups = {name: nn.Parameter(torch.randn(GAUSSIANS, k, device=device)) for name, k in GROUPS.items()}
        self.optimizer = torch.optim.Adam([{"params": [p]} for p in self.groups.values()], lr=1e-3, fused=True)
        self.images = torch.zeros(20, 256, 256, 3, dtype=torch.uint8, device=device)

    def terms(self) -> Terms:
        """Return two terms with saved activations."""
        opacity = self.groups["opacity"].sigmoid()
        color = (self.groups["sh0"] * opacity).square().mean() + self.groups["shN"].square().mean()
        shape = self.groups["scale"].exp().mean() + self.groups["quaternion"].square().mean()
        return Terms(color=(1.0, color), shape=(0.1, shape + self.groups["means"].square().mean()))


def gc_walk() -> dict[str, float]:
    """Check every object of the process for tensors, as the original tools do."""
    found: dict[str, float] = {}
    for thing in gc.get_objects():
        if torch.is_tensor(thing):
            kind = "parameters" if thing.is_leaf and not thing.requires_grad else "activations"
            found[kind] = found.get(kind, 0.0) + thing.element_size() * thing.nelement() / 2**20
    return found


def microseconds(call: Callable[[], Any], repeats: int, inside: int = 1) -> float:
    """Return the median processor time of a call."""
    call()
    times = []
    for _ in range(repeats):
        began = time.process_time_ns()
        for _ in range(inside):
            call()
        times.append((time.process_time_ns() - began) / 1e3 / inside)
    return statistics.median(times)


def per_step(splats: Splats, *, steps: int, profile: Profile | None) -> float:
    """Return the microseconds of processor time per step of a run, files included."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Run(folder, profile=profile, saving=Saving(every=None), outputs=Outputs(rules=())) as run,
    ):
        run.track(
            groups={name: [parameter] for name, parameter in splats.groups.items()}, data={"images": splats.images}
        )
        began = 0
        for step in run.steps(steps + 1):
            if step.index == 1:  # the first block opens files
                began = time.process_time_ns()
            with step.span("render"):
                terms = splats.terms()
            splats.optimizer.zero_grad()
            with step.span("backward"):
                terms.total.backward()
            step.observe(terms)
            step.update(splats.optimizer)
        run.flush()
        return (time.process_time_ns() - began) / 1e3 / steps


def profile_cost(splats: Splats, *, blocks: int, steps: int) -> float:
    """Return the microseconds that a profile adds to a step: the median over pairs of blocks."""
    pairs = [
        (per_step(splats, steps=steps, profile=None), per_step(splats, steps=steps, profile=Profile(interval=1)))
        for _ in range(blocks)
    ]
    return statistics.median(profiled - plain for plain, profiled in pairs)


def measure(device: torch.device, *, quick: bool) -> dict[str, float]:
    """Return every figure of the table in microseconds."""
    splats = Splats(device)
    splats.terms().total.backward()
    splats.optimizer.step()
    watched = ParameterGroups()
    watched.add(**{name: [parameter] for name, parameter in splats.groups.items()})
    watched.stepped_by((splats.optimizer,))
    held: list[Tensor | list[int]] = [[i] for i in range(OBJECTS)]
    counters = AllocatorCounters(device)

    def census() -> Any:
        return take_census(
            watched, optimizers=[splats.optimizer], data={"images": splats.images}, device=splats.images.device
        )

    def count() -> None:
        counters.sample()
        counters.take()

    figures = {
        "gc walk": microseconds(gc_walk, 5 if quick else 15),
        "census": microseconds(census, 51, inside=10),
        "counters": microseconds(count, 51, inside=200) + microseconds(watched.nbytes, 51, inside=200),
    }
    del held
    figures["profiled step"] = profile_cost(splats, blocks=3 if quick else 9, steps=40)
    return figures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(torch.device(options.device), quick=options.quick)
    if options.json:
        print(json.dumps(found))
        return
    share = found["profiled step"] / INTERVAL / (STEP_MS * 1e3) * 100
    ratio = found["gc walk"] / found["census"]
    print(f"on {options.device}, processor time, medians")
    print(f"gc walk, {OBJECTS:,} live objects       {found['gc walk']:10,.0f} us")
    print(
        f"census, 6 groups with Adam, data    {found['census']:10,.0f} us   {ratio:,.0f} times cheaper, goal 100: "
        f"{'met' if ratio >= 100 else 'NOT met'}"
    )
    print(
        f"always-on counters, per step        {found['counters']:10,.1f} us   goal below 20: "
        f"{'met' if found['counters'] < 20 else 'NOT met'}"
    )
    print(
        f"a profiled step, additional time    {found['profiled step']:10,.0f} us   every {INTERVAL}th step of 10 ms: "
        f"{share:.2f} %, goal below 0.5: {'met' if share < 0.5 else 'NOT met'}"
    )


if __name__ == "__main__":
    main()
