"""``--supervise``: a small parent process without torch that starts, monitors and restarts the training."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fieldwatch.base import InputError, printable
from fieldwatch.cli.flag_help import wants_help
from fieldwatch.cli.flags import dashed
from fieldwatch.cli.output import BadInput
from fieldwatch.monitor import PER_HOUR
from fieldwatch.record import NotARun, read_manifest
from fieldwatch.registry import working_pipelines

FLAG = "--supervise"
LIMIT = "--restarts-per-hour"
CHECKPOINT = "--checkpoint"
RESUME = "resume"
TRAIN = "train "


@dataclass(frozen=True, kw_only=True)
class WatchFlags:
    """Restarts after a crash or a hang."""

    supervise: bool = False
    """Train in a child process, and restart it from the last good checkpoint after a crash, a kill or a hang. Failed
    starts are listed in RUN/crash/attempts.jsonl; 3 restarts without a new step end it (exit code 4). It waits for
    what may pass by itself, such as a full disk or input that has disappeared."""
    restarts_per_hour: int = PER_HOUR
    """With --supervise: most restarts within an hour, even if each start gets further."""
    hang_timeout: float | None = None
    """Seconds without a heartbeat of the loop after which it counts as hung: the stacks of all threads go to
    RUN/black_box/stacks.txt, and a supervised training is restarted. Default: 20 times the usual duration of each part
    of a step, at least a minute; 0 never."""

    def __post_init__(self) -> None:
        """Check the limit.

        Raises:
            InputError: it is negative.
        """
        if self.restarts_per_hour < 0:
            raise BadInput(f"--restarts-per-hour {self.restarts_per_hour}: expected 0 or more")

    @property
    def timeout(self) -> float | Literal["auto"] | None:
        """The timeout as `Run` takes it: seconds, "auto", or None for off.

        Raises:
            BadInput: the value is negative or not finite.
        """
        if self.hang_timeout is not None and not 0 <= self.hang_timeout < float("inf"):
            raise BadInput(f"--hang-timeout {self.hang_timeout}: expected seconds greater than 0, or 0 to disable it")
        return "auto" if self.hang_timeout is None else self.hang_timeout or None


def is_supervised(name: str, arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for a supervisor: it starts or resumes a training with ``--supervise``."""
    if FLAG not in arguments or wants_help(arguments):
        return False
    return name == RESUME or name.startswith(TRAIN) or name in {each.trained_by for each in working_pipelines()[0]}


def supervise(name: str, arguments: Sequence[str]) -> int:
    """Run the command in child processes until it is finished.

    Returns:
        Exit code of the last child; 128 + the signal if stopped; 4 if restarts brought no new step.
    """
    # Its modules take a tenth of a second, and most commands have no supervisor.
    from fieldwatch.monitor import Supervisor, last_checkpoint  # noqa: PLC0415  at first use

    words = [word for word in arguments if word != FLAG]
    had_checkpoint = False
    starts_before = max((count_starts(Path(word)) for word in words), default=0) if name == RESUME else 0

    def command(folder: Path | None) -> list[str]:
        nonlocal had_checkpoint
        if folder is not None:
            # Once there was a checkpoint, a restart without one must fail instead of beginning at step 0.
            had_checkpoint = had_checkpoint or last_checkpoint(folder) is not None
        rest = words
        if folder is not None and name != RESUME:
            rest = resume_arguments(words, folder, must=had_checkpoint)
        # Once training has begun at the chosen checkpoint, a restart continues from the newest one.
        elif folder is not None and count_starts(folder) > starts_before:
            rest = without_flag(words, CHECKPOINT)
        return [sys.executable, "-m", "fieldwatch", *name.split(), *rest]

    def tell(line: str) -> None:
        sys.stderr.write(printable(f"fieldwatch {name} {FLAG}: {line}\n"))
        sys.stderr.flush()

    return Supervisor(command, announce=tell, per_hour=limit_of(words)).run()


def limit_of(words: Sequence[str]) -> int:
    """Return the value of --restarts-per-hour; the training itself refuses an invalid one."""
    values = [value for flag, value in _pairs(words) if dashed(flag) == LIMIT]
    return int(values[-1]) if values and values[-1].isdecimal() else PER_HOUR


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield flags with their values, written as one word or as two."""
    for position, word in enumerate(words):
        flag, equals, value = word.partition("=")
        yield flag, value if equals else " ".join(words[position + 1 : position + 2])


@contextmanager
def reporting_exit() -> Iterator[None]:
    """Report to the supervisor, if there is one, what ends this command, and whether the user must fix it."""
    try:
        yield
    except SystemExit as ending:
        if ending.code:
            _report_exit(ending, refused=_raised_by_parser(ending))
        raise
    except BaseException as error:
        _report_exit(error, refused=isinstance(error, InputError))
        raise


def _report_exit(error: BaseException, *, refused: bool) -> None:
    from fieldwatch.monitor import report_exit  # noqa: PLC0415  at first use: most commands end without an error

    report_exit(error, refused=refused)


def _raised_by_parser(ending: SystemExit) -> bool:
    """Return whether the parser of the flags ended the process, after it printed its message."""
    # tyro raises a plain SystemExit: only the traceback tells where it comes from.
    at = ending.__traceback__
    while at is not None:
        if str(at.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "tyro":
            return True
        at = at.tb_next
    return False


def resume_arguments(words: Sequence[str], folder: Path, *, must: bool = False) -> list[str]:
    """Return the command line that continues the run in a folder.

    Args:
        words: words of the first start.
        folder: run folder.
        must: whether the run had a checkpoint: then it is continued or refused, but never restarted.
    """
    return [*without_flag(words, "--resume"), "--resume", "must" if must else "auto", "--out", str(folder)]


def without_flag(words: Sequence[str], name: str) -> list[str]:
    """Return a command line without a flag and its value, written as one word or as two."""
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, _ = word.partition("=")
        if dashed(flag) == name:
            del rest[: 0 if equals else 1]
        else:
            kept.append(word)
    return kept


def count_starts(folder: Path) -> int:
    """Return how often training has begun in a run folder; 0 if it holds no readable run."""
    try:
        return len(read_manifest(folder).segments)
    except (NotARun, OSError):
        return 0
