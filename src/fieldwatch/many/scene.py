"""A planned scene: pipeline, flags, resources and number of retries."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self


def _no_variables() -> dict[str, str]:
    return {}


@dataclass(frozen=True, kw_only=True)
class PlannedScene:
    """One scene of a plan.

    Attributes:
        name: name of the scene and of its run folder.
        pipeline: name of an installed pipeline.
        flags: command-line arguments of all other keys of the scene, in the order of the plan.
        cpus: number of processors; tensor operations use as many threads.
        gpus: number of GPUs; fractions below 1 require Ray. None gives it one if there are any, unless its flags choose
            the CPU.
        memory_gib: required memory in GiB; 0 if unspecified.
        retries: maximum number of retries after crashes.
        timeout: time limit of one attempt in seconds; None for no limit.
        env: additional environment variables of its process.
    """

    name: str
    pipeline: str
    flags: Mapping[str, tuple[str, ...]]
    cpus: float = 1.0
    gpus: float | None = None
    memory_gib: float = 0.0
    retries: int = 2
    timeout: float | None = None
    env: Mapping[str, str] = field(default_factory=_no_variables)

    def with_gpus(self, available: float) -> Self:
        """Return the scene with a number of GPUs, if the plan leaves it open."""
        if self.gpus is not None:
            return self
        on_cpu = any(word in {"cpu", "--device=cpu"} for word in self.flags.get("device", ()))
        return replace(self, gpus=0.0 if on_cpu else min(1.0, available))

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments that follow `fieldwatch train PIPELINE`."""
        return tuple(argument for arguments in self.flags.values() for argument in arguments)

    def command(self, folder: Path) -> tuple[str, ...]:
        """Return the arguments of the command that trains the scene in a folder, or resumes the run in it."""
        return ("train", self.pipeline, *self.arguments, "--out", str(folder), "--resume", "auto")
