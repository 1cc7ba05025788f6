"""The ledger: a durable log of the driver's actions, one line each, synced to disk before the driver continues."""

import fcntl
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final

import orjson

from fieldwatch.base import InputError
from fieldwatch.many.scene import PlannedScene
from fieldwatch.many.verdict import DONE, SceneAttempt
from fieldwatch.record import LineFile, read_lines

LEDGER: Final = "many.jsonl"
"""Name of the ledger in the output folder of all scenes."""


class OutInUse(InputError, RuntimeError):  # noqa: N818  named after the finding
    """Raised when another driver uses the output folder."""


@dataclass(frozen=True, kw_only=True)
class SceneHistory:
    """History of one scene according to the ledger.

    Attributes:
        arguments: pipeline and flags of its last start; empty if it was never started.
        attempts: attempts that ended, and attempts whose end was not recorded.
    """

    arguments: tuple[str, ...] = ()
    attempts: tuple[SceneAttempt, ...] = ()

    @property
    def done(self) -> bool:
        """Whether the scene has been trained to the end."""
        return bool(self.attempts) and self.attempts[-1].state in DONE


@final
class Ledger:
    """The ledger file, locked for this driver. Use it as a context manager.

    Args:
        out: output folder of all scenes; created if missing.

    Raises:
        OutInUse: on entering, if another driver uses the folder.
        CorruptRecord: on entering, if a line other than the last is damaged.
    """

    def __init__(self, out: Path) -> None:
        self._out = out

    def __enter__(self) -> Self:
        """Lock the folder and read the ledger."""
        self._out.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._out / ".many.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            # The kernel releases the lock when the process ends, so no stale lock can block the next driver.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            os.close(self._lock)
            raise OutInUse(
                f"another train-many is using {self._out}: wait for it, stop it, or choose another folder with --out"
            ) from error
        # Open the file before reading: opening truncates a torn last line.
        self._file = LineFile(self._out / LEDGER)
        self.past = read_ledger(self._out / LEDGER)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the ledger and release the folder."""
        self._file.close()
        os.close(self._lock)

    def began(self, scene: PlannedScene, number: int) -> None:
        """Record that an attempt is about to be submitted."""
        self.write("try", scene=scene.name, number=number, pipeline=scene.pipeline, words=scene.arguments)

    def ended(self, scene: str, attempt: SceneAttempt) -> None:
        """Record the result of an attempt."""
        self.write("ended", scene=scene, **attempt.as_json())

    def write(self, kind: str, **facts: Any) -> None:
        """Write one line and sync it to the disk."""
        line = {"kind": kind, "time": round(time.time(), 3), **facts}
        self._file.append(orjson.dumps(line, default=str) + b"\n")
        self._file.sync()


def read_ledger(path: Path) -> Mapping[str, SceneHistory]:
    """Read the history of each scene; an attempt whose end was not recorded counts as stopped."""
    arguments: dict[str, tuple[str, ...]] = {}
    attempts: dict[str, dict[int, SceneAttempt]] = {}
    for _, line in read_lines(path):
        kind = line.get("kind")
        scene = line.get("scene", "")
        if kind == "try":
            arguments[scene] = (line["pipeline"], *line["words"])
            # Replaced by the "ended" line, if there is one.
            unfinished = SceneAttempt(number=line["number"], state="stopped", cause="the driver ended during it")
            attempts.setdefault(scene, {})[line["number"]] = unfinished
        elif kind == "ended":
            # Ignore fields that this version does not know.
            facts = {name: line[name] for name in SceneAttempt.__dataclass_fields__ if name in line}
            attempts.setdefault(scene, {})[line["number"]] = SceneAttempt(**facts)
    return {
        scene: SceneHistory(arguments=arguments.get(scene, ()), attempts=tuple(numbered.values()))
        for scene, numbered in attempts.items()
    }
