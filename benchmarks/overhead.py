"""The cost of recording a step on one small loop: fieldwatch, other libraries, and plain SummaryWriter calls.

Every recorder is compared with the same loop without recording, in the same process, in pairs of blocks (without, with,
without, with, ...). A block ends only when the recorded values are written. The process is bound to one core, and the
processor time of its threads and child processes is counted, so that background work cannot hide.

    python benchmarks/overhead.py --quick           # the table, about two minutes
    python benchmarks/overhead.py --json            # the full measurement, as JSON
    python benchmarks/overhead.py --steps-flat      # fieldwatch over 200,000 steps: time and memory per tenth
"""

import argparse
import contextlib
import importlib.metadata
import io
import json
import logging
import math
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from fieldwatch.measure import ParameterGroups, Terms, gradient_norms
from fieldwatch.run import Outputs, Run, Saving

NORM = "Gradients/total_norm"
LAYERS = 12
WIDTH = 32
BATCH = 64
TERMS = 8
PACKAGES = ("torch", "tensorboard", "lightning", "wandb", "trackio", "mlflow-skinny")
PLAIN = "plain SummaryWriter"
CSV = "Lightning CSV"
ONLY_NORM = "gradient norm alone"
JOURNAL = "fieldwatch, journal"
RECORD = "fieldwatch, record"
WHOLE = "fieldwatch, whole"


class Loop:
    """A small training loop: 24 parameter tensors in 3 groups, fused Adam, 24 scalars on the device per step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
        self.groups = {
            "encoder": nn.Sequential(*layers[:4]),
            "body": nn.Sequential(*layers[4:8]),
            "head": nn.Sequential(*layers[8:]),
        }
        self.layers = layers
        self.parameters = [parameter for layer in layers for parameter in layer.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=1e-4, fused=True)
        self.inputs = torch.randn(BATCH, WIDTH)
        self.wanted = torch.randn(BATCH, WIDTH)
        self.terms = Terms()
        self.scalars: dict[str, Tensor] = {}

    def compute(self) -> None:
        """Run forward and backward; compute gradients, loss terms and the 24 scalars."""
        self.optimizer.zero_grad()
        hidden = self.inputs
        scalars = dict[str, Tensor]()
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden)
            scalars[f"Activation/layer_{number}"] = hidden.detach().mean()
        errors = (hidden - self.wanted).square().mean(0).view(TERMS, -1).mean(1).unbind()
        self.terms = Terms(**{f"part{k}": (0.5, error) for k, error in enumerate(errors)})
        self.terms.total.backward()
        scalars |= {f"Loss/component_part{k}": error.detach() for k, error in enumerate(errors)}
        scalars["Loss/total"] = self.terms.total.detach()
        output = hidden.detach()
        scalars |= {"Output/mean": output.mean(), "Output/std": output.std(), "Output/max": output.max()}
        self.scalars = scalars

    def norm(self) -> Tensor:
        """Return the total gradient norm, by torch's function."""
        return get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def numbers(self) -> dict[str, float]:
        """Return the 24 scalars and the gradient norm, read by the host."""
        return {name: value.item() for name, value in self.scalars.items()} | {NORM: self.norm().item()}


@dataclass(frozen=True)
class Way:
    """An active recorder.

    Attributes:
        log: function called in every step between backward and update, with the index of the step.
        drain: function that writes buffered values.
        settle: seconds after which the library has no more background work, for libraries that offer no way to wait for
            it; their processor time counts.
        updates: whether ``log`` calls the optimizer.
    """

    log: Callable[[int], Any]
    drain: Callable[[], Any] = lambda: None
    settle: float = 0.0
    updates: bool = False


@contextmanager
def norm_alone(loop: Loop, _: Path) -> Iterator[Way]:
    """Read the total gradient norm and discard it."""
    yield Way(lambda _: loop.norm().item())


@contextmanager
def plain_summary_writer(loop: Loop, folder: Path) -> Iterator[Way]:
    """Use one ``.item()`` per parameter for the norm, and one ``add_scalar`` per scalar."""
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  a competitor

    writer = SummaryWriter(str(folder))

    def log(step: int) -> None:
        squares = 0.0
        for parameter in loop.parameters:
            if parameter.grad is not None:
                squares += parameter.grad.norm(2).item() ** 2
        writer.add_scalar(NORM, squares**0.5, step)
        for name, value in loop.scalars.items():
            writer.add_scalar(name, value.item(), step)

    yield Way(log, writer.flush)
    writer.close()


@contextmanager
def lightning(loop: Loop, folder: Path, *, kind: str) -> Iterator[Way]:
    """Use Lightning's ``TensorBoardLogger`` or ``CSVLogger`` (which writes every 100 steps)."""
    from lightning.pytorch import loggers  # noqa: PLC0415  a competitor

    logger = getattr(loggers, kind)(folder)
    drain = logger.save if kind == "CSVLogger" else logger.experiment.flush
    yield Way(lambda step: logger.log_metrics(loop.numbers(), step), drain)
    logger.finalize("success")


@contextmanager
def wandb_offline(loop: Loop, folder: Path) -> Iterator[Way]:
    """Use Weights & Biases, offline."""
    import wandb  # noqa: PLC0415  a competitor

    settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
    run = wandb.init(project="overhead", mode="offline", dir=str(folder), settings=settings)
    yield Way(lambda _: run.log(loop.numbers()), settle=0.5)
    run.finish()


@contextmanager
def trackio_local(loop: Loop, folder: Path) -> Iterator[Way]:
    """Use Trackio with its local database."""
    os.environ |= {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    import trackio  # noqa: PLC0415  a competitor; it reads the folder when it is imported

    run = trackio.init(project="overhead", embed=False, auto_log_gpu=False, auto_log_cpu=False)
    yield Way(lambda step: run.log(loop.numbers(), step=step), settle=1.2)
    trackio.finish()


@contextmanager
def mlflow_sqlite(loop: Loop, folder: Path) -> Iterator[Way]:
    """Use MLflow with an SQLite database."""
    import mlflow  # noqa: PLC0415  a competitor

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.create_experiment("overhead", artifact_location=str(folder / "artifacts"))
    mlflow.set_experiment("overhead")
    with mlflow.start_run():
        yield Way(lambda step: mlflow.log_metrics(loop.numbers(), step=step))


@contextmanager
def fieldwatch_record(loop: Loop, folder: Path, **options: Any) -> Iterator[Way]:
    """Record the 24 scalars and the gradient norm with journal, TensorBoard, log and rules; the loop updates itself."""
    with Run(folder, saving=Saving(every=None), **options) as run:
        run.track(groups={"model": loop.parameters})
        watched = ParameterGroups()
        watched.add(model=loop.parameters)
        steps = run.steps(1 << 40)

        def log(_: int) -> None:
            step = next(steps)
            step.record(loop.scalars)
            step.record({NORM: norms.total} if (norms := gradient_norms(watched)) else {})

        yield Way(log, run.flush)


@contextmanager
def fieldwatch_whole(loop: Loop, folder: Path) -> Iterator[Way]:
    """Record terms, weights, shares, samples, norms per group, details every 50 steps, and guard the update."""
    with Run(folder, saving=Saving(every=None)) as run:
        run.track(groups=loop.groups)
        steps = run.steps(1 << 40)

        def log(number: int) -> None:
            step = next(steps)
            step.observe(loop.terms, sample=f"view{number % 100}")
            step.record(loop.scalars)
            step.update(loop.optimizer)

        yield Way(log, run.flush, updates=True)


Opened = Callable[[Loop, Path], AbstractContextManager[Way]]
WAYS: dict[str, Opened] = {
    ONLY_NORM: norm_alone,
    JOURNAL: partial(fieldwatch_record, outputs=Outputs(sinks=(), rules=())),
    RECORD: fieldwatch_record,
    WHOLE: fieldwatch_whole,
    PLAIN: plain_summary_writer,
    "Lightning TensorBoard": partial(lightning, kind="TensorBoardLogger"),
    CSV: partial(lightning, kind="CSVLogger"),
    "W&B offline": wandb_offline,
    "Trackio": trackio_local,
    "MLflow": mlflow_sqlite,
}


@dataclass(frozen=True)
class Cost:
    """Microseconds per step: wall time, and processor time of all threads and child processes."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Result:
    """Microseconds that a recorder adds to a step, one difference per pair of blocks; ``note`` if there are none."""

    name: str
    wall: tuple[float, ...] = ()
    cpu: tuple[float, ...] = ()
    quietest: float = float("nan")
    steps: int = 0
    note: str = ""

    @property
    def median(self) -> float:
        """Median of the differences in processor time."""
        return statistics.median(self.cpu)


def cpu_seconds() -> float:
    """Return the processor time of this process's threads and of its living children.

    Linux reads the clock of another process to the nanosecond (``clock_getcpuclockid``); elsewhere psutil reports
    it to a hundredth of a second.
    """
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, OSError):
            if platform.system() == "Linux":
                total += time.clock_gettime(~child.pid << 3 | 2)
            else:
                total += sum(child.cpu_times()[:2])
    return total


def run_block(loop: Loop, way: Way, first: int, count: int) -> Cost:
    """Train ``count`` steps, recording from step ``first`` on, and wait until everything is written."""
    began = time.perf_counter()
    cpu = cpu_seconds()
    for number in range(first, first + count):
        loop.compute()
        way.log(number)
        if not way.updates:
            loop.optimizer.step()
    way.drain()
    wall = time.perf_counter() - began
    time.sleep(way.settle)
    return Cost(wall / count * 1e6, (cpu_seconds() - cpu) / count * 1e6)


def measure(name: str, *, pairs: int, seconds: float) -> Result:
    """Compare one recorder with no recording, in pairs of blocks of about ``seconds``."""
    loop = Loop()
    nothing = Way(lambda _: None)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="overhead-", ignore_cleanup_errors=True)))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))  # startup messages
        try:
            way = stack.enter_context(WAYS[name](loop, folder))
        except ImportError as error:
            return Result(name, note=f"not installed ({error.name}): pip install -r benchmarks/requirements.txt")
        run_block(loop, nothing, 0, 50)
        step = run_block(loop, way, 0, 100).wall
        wanted = seconds / step * 1e6
        count = math.ceil(wanted / 100) * 100 if wanted > 50 else 20  # whole cadences: details every 50 steps, ...
        without = list[Cost]()
        recorded = list[Cost]()
        for pair in range(pairs):
            without.append(run_block(loop, nothing, 0, count))
            recorded.append(run_block(loop, way, 100 + pair * count, count))
    wall = tuple(b.wall - a.wall for a, b in zip(without, recorded, strict=True))
    cpu = tuple(b.cpu - a.cpu for a, b in zip(without, recorded, strict=True))
    return Result(name, wall, cpu, min(b.cpu for b in recorded) - min(a.cpu for a in without), count)


def show(results: list[Result]) -> None:
    """Print the table, and whether fieldwatch meets its goals."""
    plain = next((r.median for r in results if r.name == PLAIN and not r.note), float("nan"))
    columns = f"{'CPU':>8}{'min .. max':>18}{'quietest':>10}{'wall':>8}{'min .. max':>18}{'/ plain':>9}"
    print(f"{'added per step, us':24}{columns}")
    for r in results:
        if r.note:
            print(f"{r.name:24}{r.note}")
            continue
        cpu, wall = (f"{min(values):.0f} .. {max(values):.0f}" for values in (r.cpu, r.wall))
        times = f"{r.median:>8.0f}{cpu:>18}{r.quietest:>10.0f}{statistics.median(r.wall):>8.0f}{wall:>18}"
        print(f"{r.name:24}{times}{r.median / plain:>9.3f}")
    known = {r.name: r.median for r in results if not r.note}
    for name in (JOURNAL, RECORD, WHOLE):
        for text, limit in targets(known).items():
            if name in known:
                print(f"{name}: {known[name]:.0f} us, goal {text}: {'met' if known[name] <= limit else 'NOT met'}")


def targets(known: dict[str, float]) -> dict[str, float]:
    """Return the goals in microseconds of processor time, if their baselines were measured."""
    found: dict[str, float] = {}
    if CSV in known:
        found[f"at most {known[CSV]:.0f} (Lightning CSV)"] = known[CSV]
    if PLAIN in known:
        found[f"at most {known[PLAIN] / 10:.0f} (a tenth of plain SummaryWriter)"] = known[PLAIN] / 10
    if ONLY_NORM in known:
        found[f"at most {known[ONLY_NORM] + 100:.0f} (gradient norm and 1 % of a 10 ms step)"] = known[ONLY_NORM] + 100
    return found


def show_flat(total: int) -> list[dict[str, float]]:
    """Record ``total`` steps of a loop that does nothing else; print time and memory for each tenth of them."""
    names = [f"Activation/layer_{k}" for k in range(23)]
    scalars = {name: torch.rand(()) for name in ("Loss/total", *names)}
    process = psutil.Process()
    rows = list[dict[str, float]]()
    print(f"{'steps':>10}{'CPU us/step':>13}{'wall us/step':>14}{'RSS MiB':>9}{'on disk MiB':>13}")
    with tempfile.TemporaryDirectory(prefix="overhead-") as name, Run(name, saving=Saving(every=None)) as run:
        began = time.perf_counter()
        cpu = cpu_seconds()
        for step in run.steps(total):
            step.record(scalars)
            if (step.index + 1) % (total // 10):
                continue
            run.flush()
            share = total / 10 / 1e6
            row = {"steps": step.index + 1, "cpu": (cpu_seconds() - cpu) / share}
            row |= {"wall": (time.perf_counter() - began) / share, "rss": process.memory_info().rss / 2**20}
            row["disk"] = sum(path.stat().st_size for path in Path(name).rglob("*") if path.is_file()) / 2**20
            rows.append(row)
            print("{steps:>10}{cpu:>13.1f}{wall:>14.1f}{rss:>9.1f}{disk:>13.1f}".format(**row), flush=True)
            began = time.perf_counter()
            cpu = cpu_seconds()
    return rows


def versions() -> dict[str, str]:
    """Return the results and the machine."""
    found = {"python": platform.python_version(), "machine": platform.processor() or platform.machine()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="12 pairs of blocks of 0.15 s instead of 40 of 0.3 s")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--only", nargs="+", choices=sorted(WAYS), metavar="NAME", help=", ".join(WAYS))
    parser.add_argument("--core", type=int, default=None, help="the core to stay on; default: the last allowed one")
    parser.add_argument("--steps-flat", type=int, nargs="?", const=200_000, metavar="N", help="fieldwatch over N steps")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    asked = parse()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # competitors' deprecations
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0)) if asked.core is None else asked.core})
    with contextlib.redirect_stdout(io.StringIO()) if asked.json else contextlib.nullcontext():
        if asked.steps_flat:
            found: list[Any] = show_flat(asked.steps_flat)
        else:
            pairs, seconds = (12, 0.15) if asked.quick else (40, 0.3)
            results = [measure(name, pairs=pairs, seconds=seconds) for name in asked.only or WAYS]
            show(results)
            found = [asdict(result) for result in results]
    if asked.json:
        print(json.dumps({"versions": versions(), "results": found}, indent=1))


if __name__ == "__main__":
    main()
