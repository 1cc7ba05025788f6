"""What a supervisor tells the process that it starts, and what that process tells it: its run folder."""

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson

VARIABLE: Final = "FIELDWATCH_SUPERVISED"


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """A start under a supervisor.

    Attributes:
        supervisor: its pid.
        attempt: which start it is, from 1.
        cause: what ended the one before; empty at the first.
        patience: how many times longer than usual everything may take: after a hang that may have been none, it grows.
        channel: descriptor of the pipe into which the process writes its run folder.
    """

    supervisor: int
    attempt: int
    cause: str = ""
    patience: float = 1.0
    channel: int

    def environment(self) -> dict[str, str]:
        """What the process is given."""
        return {VARIABLE: orjson.dumps(asdict(self)).decode()}

    def say_folder(self, folder: Path) -> None:
        """Tell the supervisor which run this is; without one that listens, nothing happens."""
        with suppress(OSError):
            os.write(self.channel, str(folder.absolute()).encode() + b"\n")


def supervised() -> Supervised | None:
    """How this process was started, if by a supervisor: its own child, not a grandchild that inherited the variable."""
    told = os.environ.get(VARIABLE)
    if not told:
        return None
    try:
        found = Supervised(**orjson.loads(told))
    except (orjson.JSONDecodeError, TypeError):
        return None
    return found if found.supervisor == os.getppid() else None
