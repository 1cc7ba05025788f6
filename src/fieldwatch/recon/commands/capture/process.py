"""Run a capture in a process of its own, and show its progress."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fieldwatch.cli.kit import BadInput, check_writable
from fieldwatch.recon.commands.capture.worker import REFUSED
from fieldwatch.recon.data.capture import CaptureSettings, find_source, record_for

WORKER = "fieldwatch.recon.commands.capture.worker"
TITLES = {
    "frames": "choosing photos",
    "features": "detecting features",
    "matching": "matching photos",
    "mapping": "finding cameras",
    "masks": "making masks",
}


class CaptureFailedError(RuntimeError):
    """The process that finds cameras has failed; the message says how, and what to do."""


def capture(path: Path, out: Path, settings: CaptureSettings, console: Console, *, overwrite: bool = False) -> None:
    """Find the cameras of a film or photos in another process; complete stages are not repeated.

    Args:
        path: film or folder of photos.
        out: folder of the scene.
        settings: settings of the capture.
        console: console for the progress.
        overwrite: whether to replace another capture in the folder.

    Raises:
        InputError: the input or the folder cannot be used.
        CaptureFailedError: the process crashed, or was killed.
    """
    refuse_missing_library(masks=settings.masks)
    # Cheap checks first, without another process.
    record_for(out, find_source(path), overwrite=overwrite)
    check_writable(out)
    job = {"input": str(path), "out": str(out), "settings": asdict(settings), "overwrite": overwrite}
    with tempfile.TemporaryFile() as said, _Worker(said) as process, _bars(console) as show:
        process.send(job)
        refused = ""
        for line in process:
            told: dict[str, Any] = json.loads(line)
            refused = told.get("refused", refused)
            if "stage" in told:
                show(told["stage"], told["done"], told["total"])
        code = process.wait()
        if code == REFUSED and refused:
            raise BadInput(refused)
        if code:
            raise CaptureFailedError(_failure(code, said, out))


def refuse_missing_library(*, masks: bool = False) -> None:
    """Refuse to start without the libraries of the extra, and that of masks.

    Raises:
        BadInput: one of them is not installed.
    """
    if masks and find_spec("scipy") is None:
        raise BadInput("--masks needs the package scipy, which is not installed: pip install 'fieldwatch[photos,mesh]'")
    for name in ("pycolmap", "av"):
        if find_spec(name) is None:
            raise BadInput(
                f"finding cameras needs the package {name}, which is not installed: pip install 'fieldwatch[photos]'"
            )


class _Worker:
    """The running process: lines to it and from it."""

    def __init__(self, said: IO[bytes]) -> None:
        self._process = subprocess.Popen(  # noqa: S603  our own module, no shell
            [sys.executable, "-m", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
        )

    def send(self, job: dict[str, Any]) -> None:
        """Send the job; standard input stays open, and ends with this process."""
        stdin = cast("IO[bytes]", self._process.stdin)
        stdin.write(json.dumps(job).encode() + b"\n")
        stdin.flush()

    def __iter__(self) -> Iterator[bytes]:
        return iter(cast("IO[bytes]", self._process.stdout))

    def wait(self) -> int:
        """Wait for the end, and return the exit code; negative numbers are signals."""
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # COLMAP's loops do not look for signals; the record and the database are valid at every moment.
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            cast("IO[bytes]", pipe).close()
        self._process.wait()


@contextmanager
def _bars(console: Console) -> Iterator[Any]:
    """Yield a function that shows the progress of a stage; bars disappear when the result is printed."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(TITLES[stage], total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield show


def _failure(code: int, said: IO[bytes], out: Path) -> str:
    said.seek(0)
    last = "\n".join(said.read().decode(errors="replace").strip().splitlines()[-12:])
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    memory = ", which often means that memory ran out: use --threads 1" if code == -signal.SIGKILL else ""
    return (
        f"the process that finds cameras {how}{memory}. The same command continues after the last complete "
        f"part of {out}." + (f" Its last lines:\n{last}" if last else "")
    )
