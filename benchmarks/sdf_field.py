"""The cost of a neural SDF: its native kernel compared with plain torch, with and without the native encoding.

    python benchmarks/sdf_field.py                          # one and two threads, with plain torch
    python benchmarks/sdf_field.py --threads 1 --points 16384 --no-reference

8 levels of 16 to 256 cells, a table of 2^17 rows per level, 64 hidden units, random points. `values` is `HashSdf` under
`no_grad`, `gradient` is `with_gradient` under `no_grad`, `training` is `with_gradient`, a loss of values and gradient
lengths, and backward to all parameters; `poses` is the same with gradients of the points. Every figure is the
minimum of several runs: processor time of the calling thread with one thread, wall time with more. Numbers in brackets
are multiples of the kernel's time. `autograd` uses no kernel and computes the gradient by double backward.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fieldwatch.recon.render import HashEncoding, HashSdf, native_available

LONG = 1.0  # seconds after which two runs suffice
STAGES = ("values", "gradient", "training", "poses")
BACKENDS = ("kernel", "torch, native encoding", "autograd")


class PlainEncoding(HashEncoding):
    """The encoding in torch."""

    def _takes(self, points: Tensor) -> bool:  # noqa: ARG002  the kernel takes none
        return False


class Composed(HashSdf):
    """The field in torch."""

    def _takes(self, points: Tensor) -> bool:  # noqa: ARG002  the kernel takes none
        return False


class Differentiated(Composed):
    """The field in torch, its gradient by autograd."""

    def with_gradient(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return signed distance and gradient."""
        with torch.enable_grad():
            points = points.clone() if points.requires_grad else points.clone().requires_grad_()
            value = self(points)
            (gradient,) = torch.autograd.grad(value.sum(), points, create_graph=True)
        return value, gradient


KINDS = ((HashSdf, HashEncoding), (Composed, HashEncoding), (Differentiated, PlainEncoding))  # of the backends


def field(kind: type[HashSdf], encoding: type[HashEncoding]) -> HashSdf:
    """Return the measured field."""
    chance = torch.Generator().manual_seed(0)
    grid = encoding(
        levels=8, base_resolution=16, finest_resolution=256, table_bits=17, features_per_level=2, generator=chance
    )
    return kind(encoding=grid, generator=chance)


def stage(name: str, made: HashSdf, points: Tensor) -> None:
    """Run one stage."""
    if name in {"values", "gradient"}:
        with torch.no_grad():
            made(points) if name == "values" else made.with_gradient(points)
        return
    points = points.detach().requires_grad_(name == "poses")
    made.zero_grad()
    value, gradient = made.with_gradient(points)
    (value.abs().mean() + (gradient.norm(dim=-1) - 1).square().mean()).backward()


def least(run: Callable[[], object], repeats: int) -> float:
    """Return the milliseconds of the fastest run."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: list[float] = []
    while len(times) < repeats and (len(times) < 2 or times[-1] < LONG):
        began = clock()
        run()
        times.append(clock() - began)
    return 1e3 * min(times)


def table(points: Tensor, repeats: int, backends: dict[str, HashSdf]) -> None:
    """Print the figures for one number of points."""
    print(f"\n{len(points)} points, {torch.get_num_threads()} thread(s), ms")
    print(f"{'':10}" + "".join(f"{name:>26}" for name in backends))
    for name in STAGES:
        took = [least(partial(stage, name, made, points), repeats) for made in backends.values()]
        print(f"{name:10}" + "".join(f"{ms:>16.1f} ({ms / took[0]:5.1f} x)" for ms in took))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--points", type=int, nargs="+", default=[16_384, 65_536])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--no-reference", action="store_true", help="leave out plain torch by double backward")
    options = parser.parse_args()
    there, reason = native_available()
    if not there:
        raise SystemExit(reason)
    shown = 2 if options.no_reference else 3
    backends = {name: field(*kinds) for name, kinds in zip(BACKENDS[:shown], KINDS[:shown], strict=True)}
    for threads in options.threads:
        torch.set_num_threads(threads)
        for count in options.points:
            points = torch.rand(count, 3, generator=torch.Generator().manual_seed(1)) * 2 - 1
            table(points, options.repeats, backends)


if __name__ == "__main__":
    main()
