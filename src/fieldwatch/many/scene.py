"""A scene: what is to be trained, with what, and how often it may be tried."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


def _no_variables() -> dict[str, str]:
    return {}


@dataclass(frozen=True, kw_only=True)
class PlannedScene:
    """One scene of a plan.

    Attributes:
        name: of the scene and of its run folder.
        pipeline: name of an installed pipeline.
        flags: every other key of the scene with its words on the command line, in the plan's order.
        cpus: processors it takes; its tensor operations get as many threads.
        gpus: GPUs it takes; a share of one on Ray only.
        memory_gib: memory it takes; 0 does not say.
        retries: how often it is tried again after a crash.
        timeout: seconds one try may take; None for any time.
        env: environment variables of its process.
    """

    name: str
    pipeline: str
    flags: Mapping[str, tuple[str, ...]]
    cpus: float = 1.0
    gpus: float = 0.0
    memory_gib: float = 0.0
    retries: int = 2
    timeout: float | None = None
    env: Mapping[str, str] = field(default_factory=_no_variables)

    @property
    def arguments(self) -> tuple[str, ...]:
        """What stands behind `fieldwatch train PIPELINE`."""
        return tuple(word for arguments in self.flags.values() for word in arguments)

    def command(self, folder: Path) -> tuple[str, ...]:
        """The words of the command that trains it in a folder, or goes on with the run found there."""
        return ("train", self.pipeline, *self.arguments, "--out", str(folder), "--resume", "auto")
