"""``--supervise``: a small parent, without torch, that starts the training, watches it, and starts it again."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fieldwatch.cli.ending import BadInput
from fieldwatch.cli.flags import dashed
from fieldwatch.monitor import Supervisor

FLAG = "--supervise"
COMMANDS = ("train video", "train splats", "train normals", "resume")
"""The commands that can be supervised."""


@dataclass(frozen=True, kw_only=True)
class WatchFlags:
    """What watches over a training."""

    supervise: bool = False
    """Train in a process of its own, and start it again from the last good checkpoint after a crash, a kill or a hang.
    Every start that ended badly is in RUN/crash/attempts.jsonl; 3 restarts without a new step end it (exit code 4)."""
    hang_timeout: float | None = None
    """Seconds without a sign of life in the loop after which it counts as hung: the stacks of all threads go to
    RUN/black_box/stacks.txt, and a supervised training is started again. Default: 20 times what each part of a step
    usually takes, at least a minute; 0 never."""

    @property
    def timeout(self) -> float | Literal["auto"] | None:
        """As `Run` takes it.

        Raises:
            BadInput: it is no time.
        """
        if self.hang_timeout is not None and not 0 <= self.hang_timeout < float("inf"):
            raise BadInput(f"--hang-timeout {self.hang_timeout}: wanted seconds above 0, or 0 for no watch")
        return "auto" if self.hang_timeout is None else self.hang_timeout or None


def is_supervised(name: str, arguments: Sequence[str]) -> bool:
    """Whether this command line asks for a supervisor."""
    return name in COMMANDS and FLAG in arguments


def supervise(name: str, arguments: Sequence[str]) -> int:
    """Run the command in processes of its own until it is done.

    Returns:
        The exit code of the last of them; 128 + the signal when stopped; 4 when restarts brought no new step.
    """
    words = [word for word in arguments if word != FLAG]

    def command(folder: Path | None) -> list[str]:
        rest = words if folder is None or name == "resume" else going_on(words, folder)
        return [sys.executable, "-m", "fieldwatch", *name.split(), *rest]

    def tell(line: str) -> None:
        sys.stderr.write(f"fieldwatch {name} {FLAG}: {line}\n")
        sys.stderr.flush()

    return Supervisor(command, tell=tell).run()


def going_on(words: Sequence[str], folder: Path) -> list[str]:
    """The same command line, to go on with the run that it began in this folder."""
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, _ = word.partition("=")
        if dashed(flag) == "--resume":
            del rest[: 0 if equals else 1]
        else:
            kept.append(word)
    return [*kept, "--resume", "auto", "--out", str(folder)]
