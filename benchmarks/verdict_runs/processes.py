"""Runs each case in a process of its own, so that no run sees the generators, the memory or the handlers of another."""

import contextlib
import io
import json
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from .cases import Order, RefusedError
from .judging import Ran

LIMIT = 300.0
"""Seconds after which a run is ended."""


def work(order: Order, seed: int, answer: Path, *, examined: bool, beside: bool) -> None:
    """Train one run in this process, ask for its verdict if that is wanted, and write what it left into a file."""
    import torch  # noqa: PLC0415  the process that starts the others need not have it

    from .sets import sound_training_of, training_of  # noqa: PLC0415  the same

    torch.set_num_threads(1)
    folder = answer.parent / "run"
    with (answer.parent / "output.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    ended = "finished"
    message = ""
    figure = None
    if beside and not order.repaired:
        earlier = answer.parent / "earlier"
        sound_training_of(order)(earlier, seed + 1)
        # The case makes its own data, in the same place.
        for made in answer.parent.iterdir():
            if made.is_dir() and made != earlier:
                shutil.rmtree(made)
    try:
        figure = training_of(order)(folder, seed)
    except RefusedError as refused:
        ended = "refused"
        message = str(refused)
    except Exception as error:  # noqa: BLE001  whatever a broken run raises is a result
        ended = "raised"
        message = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    exit_code, findings, deaths = _health(folder) if examined else (0, [], [])
    used = resource.getrusage(resource.RUSAGE_SELF)
    ran = Ran(
        ended=ended,
        message=message,
        exit_code=exit_code,
        findings=findings,
        deaths=deaths,
        figure=figure,
        seconds=used.ru_utime + used.ru_stime,
    )
    answer.write_text(json.dumps(asdict(ran)))


def _health(folder: Path) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
    """Ask ``fieldwatch health RUN --json``."""
    from fieldwatch.cli import main  # noqa: PLC0415  only where torch is

    if not (folder / "run.json").is_file():
        return 2, [], []
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(["health", str(folder), "--json"])
    verdict = json.loads(printed.getvalue())
    return code, verdict["findings"], verdict["post_mortems"]


@dataclass(frozen=True, kw_only=True)
class _Running:
    order: Order
    process: BaseProcess
    answer: Path
    until: float


def run_orders(  # noqa: PLR0913  what to run, and how
    orders: Sequence[Order],
    *,
    seed: int,
    jobs: int,
    after: Callable[[Order, Ran], Sequence[Order]],
    keep: Path | None = None,
    examined: bool = True,
    beside: bool = False,
) -> None:
    """Make runs, several at a time.

    Args:
        orders: runs to make.
        seed: seed of all of them.
        jobs: number of processes.
        after: called with each run that is over; returns further ones.
        keep: folder that keeps the run folders; None to remove them.
        examined: ask for the verdict on each run.
        beside: train a sound run with the next seed first, in a folder beside that of the run.
    """
    context = multiprocessing.get_context("forkserver")
    # The process that forks the others imports what they need once; it does not inherit sys.path.
    paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    context.set_forkserver_preload(["torch", "fieldwatch.cli", "verdict_runs.sets"])
    waiting = list(orders)
    running: list[_Running] = []
    with tempfile.TemporaryDirectory(prefix="verdicts-") as place:
        while waiting or running:
            while waiting and len(running) < jobs:
                order = waiting.pop(0)
                folder = (keep or Path(place)) / (
                    order.name.replace(" ", "_") + ("-repaired" if order.repaired else "")
                )
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                answer = folder / "answer.json"
                process = context.Process(
                    target=work, args=(order, seed, answer), kwargs={"examined": examined, "beside": beside}
                )
                process.start()
                running.append(_Running(order=order, process=process, answer=answer, until=time.monotonic() + LIMIT))
            for one in list(running):
                if one.process.is_alive() and time.monotonic() < one.until:
                    continue
                running.remove(one)
                # The new orders come first: a plant and its repair are printed together.
                waiting[:0] = after(one.order, _ended(one))
                if keep is None:
                    shutil.rmtree(one.answer.parent)
            time.sleep(0.05)


def _ended(one: _Running) -> Ran:
    if one.process.is_alive():
        one.process.kill()
        one.process.join()
        return Ran(ended="raised", message=f"took longer than {LIMIT:.0f} seconds")
    one.process.join()
    if not one.answer.is_file():
        return Ran(ended="raised", message=f"the process ended with {one.process.exitcode}")
    return Ran(**json.loads(one.answer.read_text()))
