"""What the toolkit costs a training, beside its peers and beside the limit that the machine sets; every row in one run.

Processor time is counted, by thread where work is spread over several: that of the training loop, and that of the
thread that writes the record. So the figures hold on a machine that others use, too. Each part runs in a process of
its own, with one thread. Peers that are not installed are reported as missing, see benchmarks/requirements.txt.

    python benchmarks/limits.py                        # all parts, some minutes, 6 GB of memory
    python benchmarks/limits.py --only loop closing    # some parts
    python benchmarks/limits.py --json
"""

import argparse
import csv
import importlib
import io
import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

SCALARS = 24
STEPS = 4096
WRITER = "fieldwatch-writer"
TERMS = 6


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure.

    Attributes:
        what: what was measured, with its unit.
        value: the figure of fieldwatch.
        goal: largest value that meets the goal; None for a figure without one.
        beside: figures of peers and limits, measured in the same process, by name; None if a peer is not installed.
    """

    what: str
    value: float
    goal: float | None = None
    beside: Mapping[str, float | None]


class Threads:
    """Processor time in seconds of this thread and of the thread that writes the record."""

    def __init__(self) -> None:
        self._writers = [t for t in threading.enumerate() if t.name == WRITER and t.ident is not None]

    def read(self) -> tuple[float, float]:
        """Return both times."""
        clocks = [time.pthread_getcpuclockid(t.ident) for t in self._writers if t.ident is not None]
        return time.thread_time(), sum(map(time.clock_gettime, clocks))


def microseconds(
    call: Callable[[], Any], calls: int, *, blocks: int = 9, spent: Callable[[], float] = lambda: 0.0
) -> float:
    """Return the median processor time of a call in microseconds, over blocks of calls.

    Args:
        call: function to measure.
        calls: number of calls per block.
        blocks: number of blocks.
        spent: function that returns the seconds of a part of the work that does not count.
    """
    found: list[float] = []
    for _ in range(blocks):
        began = time.thread_time() - spent()
        for _ in range(calls):
            call()
        found.append((time.thread_time() - spent() - began) / calls * 1e6)
    return statistics.median(found)


def small_model() -> tuple[Any, list[Any]]:
    """Return two layers with 2,112 parameters, and their gradients."""
    import torch  # noqa: PLC0415  parts that do not need it measure processes without it
    from torch import nn  # noqa: PLC0415

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    for parameter in model.parameters():
        parameter.grad = 1e-3 * torch.randn_like(parameter)
    return model, [p.grad for p in model.parameters()]


def grouped_norms(gradients: Any) -> Any:
    """Return the total norm by torch's fused calls, as ``torch.nn.utils.get_total_norm`` does."""
    import torch  # noqa: PLC0415

    with torch.no_grad():
        fused: Any = torch._foreach_norm  # noqa: SLF001  # pyright: ignore[reportPrivateImportUsage]  torch's clipping uses it
        return torch.linalg.vector_norm(torch.stack(fused(gradients, 2.0)))


def in_run(  # noqa: PLR0913  a loop, and what it runs in
    folder: Path,
    body: Callable[[Any], Any],
    *,
    steps: int,
    blocks: int,
    prepare: Callable[[Any], Any],
    spent: Callable[[], float] = lambda: 0.0,
    **options: Any,
) -> tuple[float, float]:
    """Run ``body(step)`` in a run; return microseconds per step of the loop's thread and of the writer's thread.

    ``spent`` returns the seconds of a part of the loop that does not count.
    """
    from fieldwatch.run import Run, Saving  # noqa: PLC0415

    loops: list[float] = []
    writers: list[float] = []
    with Run(folder, saving=Saving(every=None), **options) as run:
        prepare(run)
        threads = Threads()
        began, written = threads.read()
        began -= spent()
        for step in run.steps(steps * blocks):
            body(step)
            if (step.index + 1) % steps == 0:
                loops.append((threads.read()[0] - spent() - began) / steps * 1e6)
                run.flush()
                began, writer = threads.read()
                began -= spent()
                writers.append((writer - written) / steps * 1e6)
                written = writer
    # The first block warms up: caches, layouts, the optimizer's state.
    return statistics.median(loops[1:]), statistics.median(writers[1:])


def recording() -> Iterator[Row]:
    """Record 24 scalars and a gradient norm, to the journal only."""
    import torch  # noqa: PLC0415

    from fieldwatch.measure import ParameterGroups, gradient_norms  # noqa: PLC0415
    from fieldwatch.run import Outputs  # noqa: PLC0415

    model, gradients = small_model()
    watched = ParameterGroups()
    watched.add(model=model)
    scalars = {f"Loss/part{k}": torch.rand(()) for k in range(SCALARS)}

    def body(step: Any) -> None:
        step.record(scalars)
        norms = gradient_norms(watched)
        step.record({"Gradients/total_norm": norms.total} if norms is not None else {})

    with tempfile.TemporaryDirectory(prefix="limits-") as name:
        folder = Path(name)
        loop, writer = in_run(
            folder / "run",
            body,
            steps=STEPS,
            blocks=7,
            prepare=lambda run: run.track(groups={"model": model}),
            outputs=Outputs(sinks=(), rules=()),
        )
        beside = {
            "norm and one binary row": binary_rows(folder / "rows", scalars, gradients),
            "Lightning CSV": lightning_csv(folder / "csv", scalars, gradients),
        }
    yield Row(what="24 scalars and a norm, journal only: the loop, us a step", value=loop, goal=30, beside=beside)
    yield Row(what="the same: the writer thread, us a row", value=writer, beside={})


def binary_rows(path: Path, scalars: dict[str, Any], gradients: Sequence[Any]) -> float:
    """Measure the least that a row can cost: the norm, a read of each scalar, and one packed row to an open file."""
    pack = struct.Struct(f"<{len(scalars) + 1}f").pack
    with path.open("wb") as file:
        return microseconds(
            lambda: file.write(pack(*[v.item() for v in scalars.values()], grouped_norms(gradients).item())), 2048
        )


def lightning_csv(folder: Path, scalars: dict[str, Any], gradients: Sequence[Any]) -> float | None:
    """Measure Lightning's CSV logger, which writes every 100 steps."""
    try:
        loggers = importlib.import_module("lightning.pytorch.loggers")
    except ImportError:
        return None
    logger = loggers.CSVLogger(folder)
    step = iter(range(1 << 30))

    def call() -> None:
        values = {name: value.item() for name, value in scalars.items()}
        logger.log_metrics(values | {"norm": grouped_norms(gradients).item()}, next(step))

    return microseconds(call, 500)


def loop() -> Iterator[Row]:
    """Use a run as the README does: six terms, guarded update, rules, TensorBoard and log."""
    import torch  # noqa: PLC0415

    from fieldwatch.guard import Verdict, guarded_step  # noqa: PLC0415
    from fieldwatch.measure import Terms  # noqa: PLC0415

    class Adam(torch.optim.Adam):
        """Adam that measures its own processor time, so that it can be subtracted."""

        spent = 0.0

        def step(self, closure: Any = None) -> Any:
            """Step, and add the time."""
            began = time.thread_time()
            super().step(closure)
            self.spent += time.thread_time() - began

    model, gradients = small_model()
    losses = list(torch.rand(TERMS).unbind())
    optimizer = Adam(model.parameters(), lr=1e-6)

    def guard() -> None:
        guarded_step(optimizer, Verdict(losses[0]).refused(grouped_norms(gradients)))

    floor = microseconds(guard, 512, spent=lambda: optimizer.spent)
    weighted = microseconds(lambda: sum(0.5 * loss for loss in losses), 2048)

    def body(step: Any) -> None:
        step.observe(Terms(**{f"part{k}": (0.5, loss) for k, loss in enumerate(losses)}), sample=step.index % 100)
        step.update(optimizer)

    with tempfile.TemporaryDirectory(prefix="limits-") as name:
        folder = Path(name)
        loop, writer = in_run(
            folder / "run",
            body,
            steps=2048,
            blocks=6,
            prepare=lambda run: run.track(model=model, optimizer=optimizer),
            spent=lambda: optimizer.spent,
        )
        journal = folder / "run" / "journal.jsonl"
        rows = 6 * 2048
        board = sum(p.stat().st_size for p in (folder / "run" / "tensorboard").iterdir())
        sizes = {"journal": journal.stat().st_size / rows, "TensorBoard": board / rows}
        terms = {f"part{k}": loss for k, loss in enumerate(losses)}
        board_us = summary_writer(folder / "board", terms, gradients)
        beside = {"guard and norm alone": floor, "the terms' sum by torch": weighted, "torch TensorBoard": board_us}
    yield Row(what="README's use: the loop, us a step beside the optimizer", value=loop, goal=100, beside=beside)
    yield Row(what="README's use: the writer thread, us a row", value=writer, goal=30, beside={})
    yield Row(what="README's use: bytes a row of the journal", value=sizes["journal"], beside=sizes)


def summary_writer(folder: Path, terms: dict[str, Any], gradients: Sequence[Any]) -> float | None:
    """Measure torch's writer with the values that a step of the README's loop records."""
    try:
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder))
    except ImportError:
        return None
    steps = iter(range(1 << 30))
    names = [f"{kind}_{name}" for name in terms for kind in ("value", "weighted", "share")]

    def call() -> None:
        step = next(steps)
        norm = grouped_norms(gradients).item()
        values = [term.item() for term in terms.values()]
        for name, value in zip(names, [each for term in values for each in (term, term, term)], strict=True):
            writer.add_scalar(name, value, step)
        for name in ("norm", "total", "group", "rate", "time"):
            writer.add_scalar(name, norm, step)

    found = microseconds(call, 200)
    writer.close()
    return found


def closing() -> Iterator[Row]:
    """Close a step with 24 recorded scalars."""
    import torch  # noqa: PLC0415

    from fieldwatch.run import Outputs, Run, Saving  # noqa: PLC0415

    scalars = {f"Loss/part{k}": torch.rand(()) for k in range(SCALARS)}
    spent: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="limits-") as name,
        Run(name, saving=Saving(every=None), outputs=Outputs(sinks=(), rules=())) as run,
    ):
        steps = run.steps(20_000)
        began = 0.0
        for step in steps:
            if step.index:
                spent.append(time.thread_time() - began)
            step.record(scalars)
            began = time.thread_time()
    values = list(scalars.values())
    items = microseconds(lambda: [value.item() for value in values], 4096)
    clock = microseconds(time.thread_time, 4096)
    yield Row(
        what="ending a step of 24 scalars and beginning the next, us",
        value=statistics.mean(sorted(spent)[: int(0.99 * len(spent))]) * 1e6,
        goal=10,
        beside={
            ".item() of as many scalars": items,
            "the median": statistics.median(spent) * 1e6,
            "reading the clock": clock,
        },
    )


def norms() -> Iterator[Row]:
    """Norms of 4 gradients, and of 1,000 groups."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    from fieldwatch.measure import ParameterGroups, gradient_norms  # noqa: PLC0415

    model, gradients = small_model()
    watched = ParameterGroups()
    watched.add(model=model)
    raw = microseconds(lambda: grouped_norms(gradients), 2048)
    ours = microseconds(lambda: gradient_norms(watched), 2048)
    yield Row(what="norms of 4 gradients, us", value=ours, goal=18, beside={"raw foreach norms": raw})
    many = {f"g{k}": nn.ParameterList([nn.Parameter(torch.randn(16, 16))]) for k in range(1000)}
    watched = ParameterGroups()
    watched.add(**many)
    for group in many.values():
        group[0].grad = torch.randn(16, 16)
    gradients = [group[0].grad for group in many.values()]
    raw = microseconds(lambda: grouped_norms(gradients), 32)
    ours = microseconds(lambda: gradient_norms(watched), 32)
    yield Row(what="norms of 1,000 groups / raw foreach norms", value=ours / raw, goal=1.1, beside={"raw, us": raw})


def details() -> Iterator[Row]:
    """Compare steps that record details with the others."""
    for groups, shape, steps in ((1000, (32, 32), 150), (20, (1581, 1581), 110)):
        yield detail_row(groups, shape, steps)


def detail_row(groups: int, shape: tuple[int, int], steps: int) -> Row:
    """Train ``steps`` steps with this many groups, and compare the slowest step with the median one."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    from fieldwatch.measure import Terms  # noqa: PLC0415
    from fieldwatch.run import Run, Saving  # noqa: PLC0415

    torch.manual_seed(0)
    owners = {f"g{k}": nn.ParameterList([nn.Parameter(0.01 * torch.randn(shape))]) for k in range(groups)}
    parameters = [group[0] for group in owners.values()]
    optimizer = torch.optim.Adam(parameters, lr=1e-6, fused=True)
    for parameter in parameters:
        parameter.grad = 1e-3 * torch.randn(shape)
    loss = torch.rand(())
    spent: list[float] = []
    with tempfile.TemporaryDirectory(prefix="limits-") as name, Run(name, saving=Saving(every=None)) as run:
        run.track(groups=owners)
        steps_of_run = run.steps(steps)
        began = time.thread_time()
        for step in steps_of_run:
            if step.index:
                spent.append(time.thread_time() - began)
            began = time.thread_time()
            step.observe(Terms(part=(1.0, loss)))
            step.update(optimizer)
    # The first steps allocate the optimizer's state and measure batches.
    spent = spent[8:]
    usual = statistics.median(spent)
    count = sum(p.numel() for p in parameters)
    return Row(
        what=f"slowest step / median step, {groups:,} groups, {count / 1e6:,.0f} M parameters",
        value=max(spent) / usual,
        goal=2,
        beside={"median, ms": usual * 1e3, "slowest, ms": max(spent) * 1e3},
    )


def rows_of(count: int) -> tuple[tuple[str, ...], np.ndarray[Any, Any]]:
    """Return names and values of 24 curves, as float32 computes them."""
    rng = np.random.default_rng(0)
    names = tuple(f"Loss/component_{k:02d}" for k in range(SCALARS))
    values = np.exp(0.1 * rng.standard_normal((count, SCALARS)) - 1e-6 * np.arange(count)[:, None])
    return names, values.astype(np.float32).astype(np.float64)


def write_record(folder: Path, count: int) -> tuple[tuple[str, ...], np.ndarray[Any, Any]]:
    """Write a run's journal; return its names and values."""
    from fieldwatch.record import Block, Journal, Manifest  # noqa: PLC0415

    names, values = rows_of(count)
    Manifest(config={}).write(folder)
    with Journal(folder) as journal:
        for first in range(0, count, 64):
            at = np.arange(first, min(first + 64, count))
            seconds = (at * 0.0213).astype(np.float64)
            journal.append(
                Block(axis="step", columns=names, steps=at, seconds=seconds, positions=at, values=values[at])
            )
    return names, values


def record() -> Iterator[Row]:
    """Write a record, and read it back; write the same as CSV and Parquet, and read them by polars."""
    from fieldwatch.record import JOURNAL, read_history  # noqa: PLC0415

    count = 100_000
    with tempfile.TemporaryDirectory(prefix="limits-") as name:
        folder = Path(name)
        names, values = write_record(folder, count)
        size = (folder / JOURNAL).stat().st_size / count
        with (folder / "rows.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("step", "seconds", *names))
            singles = values.astype(np.float32)
            writer.writerows((i, round(i * 0.0213, 6), *map(str, singles[i])) for i in range(count))
        of_csv = (folder / "rows.csv").stat().st_size / count
        of_parquet = write_parquet(folder, names, values)
        reads = [processor_time(lambda: read_history(folder)) for _ in range(3)]
        ours = min(reads) / count * 1e6
        peers = polars_times(folder, count)
    parquet = {"Parquet": None if of_parquet is None else of_parquet / count}
    yield Row(
        what="bytes a row of 24 scalars, journal",
        value=size,
        goal=150,
        beside={"CSV": of_csv, **parquet, "float32": 4.0 * (SCALARS + 1)},
    )
    yield Row(what="reading back, us a row", value=ours, goal=1.5, beside=peers)


def processor_time(call: Callable[[], Any]) -> float:
    """Return the processor time of all threads during a call, in seconds."""
    began = time.process_time()
    call()
    return time.process_time() - began


def write_parquet(folder: Path, names: Sequence[str], values: np.ndarray[Any, Any]) -> int | None:
    """Write the values as Parquet; return its size in bytes."""
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        return None
    columns = {"step": np.arange(len(values)), "seconds": np.arange(len(values)) * 0.0213}
    columns |= {name: values[:, k].astype(np.float32) for k, name in enumerate(names)}
    parquet.write_table(arrow.table(columns), folder / "rows.parquet")
    return (folder / "rows.parquet").stat().st_size


def polars_times(folder: Path, count: int) -> dict[str, float | None]:
    """Read CSV and Parquet by polars; return microseconds a row."""
    try:
        polars = importlib.import_module("polars")
    except ImportError:
        return {"polars, CSV": None, "polars, Parquet": None}
    found: dict[str, float | None] = {}
    for kind, read in (("CSV", polars.read_csv), ("Parquet", polars.read_parquet)):
        path = folder / f"rows.{kind.lower()}"
        times = [processor_time(lambda read=read, path=path: read(path)) for _ in range(3)] if path.exists() else []
        found[f"polars, {kind}"] = min(times) / count * 1e6 if times else None
    return found


def rotation() -> Iterator[Row]:
    """Record 10 of 10,000 tags in each step, with the default sinks and rules."""
    import torch  # noqa: PLC0415

    tags = [f"View/loss_{k:04d}" for k in range(10_000)]
    values = [torch.rand(()) for _ in range(10)]

    def body(step: Any) -> None:
        first = step.index * 10 % len(tags)
        step.record(dict(zip(tags[first : first + 10], values, strict=True)))

    with tempfile.TemporaryDirectory(prefix="limits-") as name:
        folder = Path(name)
        loop, writer = in_run(folder / "run", body, steps=2000, blocks=4, prepare=lambda _: None)
        beside: dict[str, float | None] = {"torch TensorBoard": rotating_writer(folder / "board", tags, values)}
    yield Row(
        what="10 of 10,000 tags in rotation, us a step of both threads",
        value=loop + writer,
        goal=150,
        beside=beside | {"the loop alone": loop},
    )


def rotating_writer(folder: Path, tags: Sequence[str], values: Sequence[Any]) -> float | None:
    """Measure torch's writer with the same values."""
    try:
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder))
    except ImportError:
        return None
    steps = iter(range(1 << 30))

    def call() -> None:
        step = next(steps)
        first = step * 10 % len(tags)
        for tag, value in zip(tags[first : first + 10], values, strict=True):
            writer.add_scalar(tag, value.item(), step)

    began = time.process_time()
    for _ in range(2000):
        call()
    writer.close()
    return (time.process_time() - began) / 2000 * 1e6


def checkpoint() -> Iterator[Row]:
    """Take and write snapshots of 1 GB."""
    import torch  # noqa: PLC0415

    from fieldwatch.checkpoint import BackgroundWorker, Checkpoints, HostBuffers, Retention  # noqa: PLC0415
    from fieldwatch.run.saving import free_memory  # noqa: PLC0415

    torch.manual_seed(0)
    items = {"model": {f"p{k}": torch.randn(2_500_000) for k in range(100)}}
    nbytes = 4 * 2_500_000 * 100
    stalls: list[float] = []
    durable: list[float] = []
    with tempfile.TemporaryDirectory(prefix="limits-", dir=os.environ.get("LIMITS_DISK")) as name:
        checkpoints = Checkpoints(Path(name), keep=Retention(last=1))
        buffers = HostBuffers(free_memory)
        checkpoints.take(0, items, buffers.copy_arrays)
        worker = BackgroundWorker()
        for step in range(1, 5):
            began = time.perf_counter()
            cpu = time.thread_time()
            draft = checkpoints.take(step, items, buffers.copy_arrays)
            stalls.append((time.thread_time() - cpu) * 1e3)
            worker.begin(lambda draft=draft: save_and_release(checkpoints, draft))
            worker.wait()
            worker.raise_failure()
            durable.append(time.perf_counter() - began)
        worker.close()
        plain = written_plainly(Path(name) / "plain", items["model"])
    target = torch.empty(nbytes // 4)
    source = torch.randn(nbytes // 4)
    copy = microseconds(lambda: target.copy_(source), 1, blocks=5) / 1e3
    del target, source
    beside: dict[str, float | None] = {"one copy": copy}
    peer = distributed_checkpoint(items)
    yield Row(
        what="checkpoint of 1 GB: the copy, ms of the loop's thread",
        value=statistics.median(stalls),
        goal=250,
        beside=beside | {"distributed checkpoint": peer[0]},
    )
    yield Row(
        what="checkpoint of 1 GB: until it is on the disk, s of the clock",
        value=statistics.median(durable),
        goal=8,
        beside={"distributed checkpoint": peer[1], "write and sync": plain},
    )


def save_and_release(checkpoints: Any, draft: Any) -> None:
    """Write a snapshot as the thread of a run does."""
    checkpoints.write(draft)
    draft.release()


def written_plainly(path: Path, tensors: dict[str, Any]) -> float:
    """Return the seconds in which the tensors' bytes are written to a file and synced, without hashes."""
    began = time.perf_counter()
    with path.open("wb") as file:
        for tensor in tensors.values():
            file.write(tensor.numpy())
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - began


def distributed_checkpoint(items: dict[str, Any]) -> tuple[float | None, float | None]:
    """Measure torch's asynchronous checkpoint: ms of the loop's thread, and s until it is there."""
    import torch  # noqa: PLC0415

    # Typed as Any, since torch does not export their names.
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")
    distributed: Any = importlib.import_module("torch.distributed")
    saver: Any = importlib.import_module("torch.distributed.checkpoint.state_dict_saver")

    stalls: list[float] = []
    durable: list[float] = []
    with tempfile.TemporaryDirectory(prefix="limits-", dir=os.environ.get("LIMITS_DISK")) as name:
        distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
        staging = importlib.import_module("torch.distributed.checkpoint.staging")
        # A cached stager needs pinned memory, which torch refuses without an accelerator.
        stager = staging.BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())
        for step in range(3):
            began = time.perf_counter()
            cpu = time.thread_time()
            writer = dcp.FileSystemWriter(Path(name) / str(step % 2), sync_files=True)
            future = dcp.async_save(
                items,
                storage_writer=writer,
                async_stager=stager,
                async_checkpointer_type=saver.AsyncCheckpointerType.THREAD,
            )
            stalls.append((time.thread_time() - cpu) * 1e3)
            future.result()
            durable.append(time.perf_counter() - began)
        distributed.destroy_process_group()
    # The first one allocates the stager's memory.
    return statistics.median(stalls[1:]), statistics.median(durable[1:])


TINY_VIDEO = (
    "--device=cpu --threads=1 --rows=2 --columns=2 --teacher=descriptor --batch=2 --between-weight=0 --epochs=1 "
    "--grid-cells 4 2 --grid-widths 8 8 --grid-channels 4 2 --grid-periods 1 2 --grid-static 4 0 --grid-blocks 1 1 "
    "--grid-kernel=3"
)


def start() -> Iterator[Row]:
    """Start processes: the help of a command, and a training until its first step."""
    python = child_seconds([sys.executable, "-c", "pass"])
    wandb = child_seconds([sys.executable, "-m", "wandb", "--help"])
    words = [sys.executable, "-m", "fieldwatch", "train", "video"]
    yield Row(
        what="train video --help, ms",
        value=1e3 * (child_seconds([*words, "--help"]) or float("nan")),
        goal=400,
        beside={"Python": python and 1e3 * python, "wandb --help": wandb and 1e3 * wandb},
    )
    torch = child_seconds([sys.executable, "-c", "import torch"]) or float("nan")
    # torch's optimizers load its compiler when they are created. Those of the pipelines do not.
    compiler = child_seconds([sys.executable, "-c", "import torch._dynamo"]) or float("nan")
    first = 1e3 * (until_first_step([*words, *TINY_VIDEO.split()]) - torch)
    yield Row(
        what="a training's first step, ms after torch's import",
        value=first,
        goal=300,
        beside={"import torch": 1e3 * torch, "torch's compiler": 1e3 * (compiler - torch)},
    )


def child_seconds(words: Sequence[str], *, tries: int = 3) -> float | None:
    """Return the processor time of a process, the least of some tries; None if it fails."""
    found: list[float] = []
    for _ in range(tries):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        if subprocess.run(words, capture_output=True, check=False).returncode:
            return None
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


FIRST_STEP = """
import sys, time
from fieldwatch.run.session import Session
begin = Session.begin_step
def stop(self):
    sys.stderr.write(f"FIRST {time.process_time()}\\n")
    raise SystemExit(0)
Session.begin_step = stop
sys.argv[0] = "fieldwatch"
from fieldwatch.cli import main
sys.exit(main())
"""


def until_first_step(words: Sequence[str], *, tries: int = 3) -> float:
    """Return the processor time of a training process until its first step begins, the least of some tries."""
    found: list[float] = []
    for _ in range(tries):
        with tempfile.TemporaryDirectory(prefix="limits-") as name:
            line = [words[0], "-c", FIRST_STEP, *words[3:], "--out", f"{name}/run"]
            ended = subprocess.run(line, capture_output=True, text=True, check=False)
        marks = [one for one in ended.stderr.splitlines() if one.startswith("FIRST")]
        if not marks:
            sys.exit(f"the training did not reach its first step: {ended.stderr[-2000:]}")
        found.append(float(marks[0].split()[1]))
    return min(found)


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "recording": recording,
    "loop": loop,
    "closing": closing,
    "norms": norms,
    "details": details,
    "record": record,
    "rotation": rotation,
    "checkpoint": checkpoint,
    "start": start,
}


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table."""
    print("| what | fieldwatch | goal | | beside, in the same process |")
    print("|---|---:|---:|---|---|")
    for row in rows:
        peers = (f"{name} {'not installed' if v is None else f'{v:,.4g}'}" for name, v in row["beside"].items())
        goal = row["goal"]
        met = "" if goal is None else "met" if row["value"] <= goal else "**not met**"
        limit = "" if goal is None else f"{goal:,g}"
        print(f"| {row['what']} | {row['value']:,.3g} | {limit} | {met} | {'; '.join(peers)} |")
    print(f"\nProcessor time. Load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")
    print("A loaded machine takes more processor time for the same work: compare the figures of a row with each other.")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        text = io.StringIO()
        json.dump([asdict(row) for row in PARTS[asked.part]()], text)
        print(text.getvalue())
        return 0
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    rows: list[dict[str, Any]] = []
    for part in asked.only:
        ended = subprocess.run([sys.executable, __file__, "--part", part], capture_output=True, text=True, check=False)
        if ended.returncode:
            sys.exit(f"{part} failed:\n{ended.stderr[-3000:]}")
        rows += json.loads(ended.stdout.splitlines()[-1])
    if asked.json:
        json.dump(rows, sys.stdout, indent=1)
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
