"""The ledger: what the driver did, one line each, on the disk before it goes on; it survives whatever ends that."""

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
"""Its name, in the folder of all scenes."""


class OutInUse(InputError, RuntimeError):  # noqa: N818  says what is the matter
    """Another driver works in the folder."""


@dataclass(frozen=True, kw_only=True)
class SceneHistory:
    """What the ledger says of one scene.

    Attributes:
        arguments: the command line it was last started with; empty for never.
        attempts: those that ended, and those that nobody saw end.
    """

    arguments: tuple[str, ...] = ()
    attempts: tuple[SceneAttempt, ...] = ()

    @property
    def done(self) -> bool:
        """Whether it is trained to its end."""
        return bool(self.attempts) and self.attempts[-1].state in DONE


@final
class Ledger:
    """The file, open for this driver alone. Use it with ``with``.

    Args:
        out: the folder of all scenes; made if missing.

    Raises:
        OutInUse: (on entering) another driver works there.
        CorruptRecord: (on entering) a line before the last cannot be read.
    """

    def __init__(self, out: Path) -> None:
        self._out = out

    def __enter__(self) -> Self:
        """Take the folder."""
        self._out.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._out / ".many.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            # A lock of the kernel ends with its process: no stale lock file can keep the next driver out.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            os.close(self._lock)
            raise OutInUse(
                f"another train-many works in {self._out}: wait for it, stop it, or choose another folder with --out"
            ) from error
        self._file = LineFile(self._out / LEDGER)
        self.past = read_ledger(self._out / LEDGER)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give the folder back."""
        self._file.close()
        os.close(self._lock)

    def began(self, scene: PlannedScene, number: int) -> None:
        """Note that a try is about to be ordered."""
        self.write("try", scene=scene.name, number=number, pipeline=scene.pipeline, words=scene.arguments)

    def ended(self, scene: str, attempt: SceneAttempt) -> None:
        """Note how a try ended."""
        self.write("ended", scene=scene, **attempt.as_json())

    def write(self, kind: str, **facts: Any) -> None:
        """Write one line; it is on the disk when this returns."""
        line = {"kind": kind, "time": round(time.time(), 3), **facts}
        self._file.append(orjson.dumps(line, default=str) + b"\n")
        self._file.sync()


def read_ledger(path: Path) -> Mapping[str, SceneHistory]:
    """What it says of each scene; a try that nobody saw end counts as stopped."""
    words: dict[str, tuple[str, ...]] = {}
    tries: dict[str, dict[int, SceneAttempt]] = {}
    for _, line in read_lines(path):
        kind = line.get("kind")
        scene = line.get("scene", "")
        if kind == "try":
            words[scene] = (line["pipeline"], *line["words"])
            # Replaced by the line "ended" where there is one.
            unseen = SceneAttempt(number=line["number"], state="stopped", cause="the driver ended during it")
            tries.setdefault(scene, {})[line["number"]] = unseen
        elif kind == "ended":
            facts = {name: line[name] for name in SceneAttempt.__dataclass_fields__ if name in line}
            tries.setdefault(scene, {})[line["number"]] = SceneAttempt(**facts)
    return {
        scene: SceneHistory(arguments=words.get(scene, ()), attempts=tuple(numbered.values()))
        for scene, numbered in tries.items()
    }
