"""Memory flags of every training command: the profiling switch and allocator snapshots."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from fieldwatch.cli.output import BadInput
from fieldwatch.record.memory import ProfileNames
from fieldwatch.run import Profile

SWITCH = "--profile-tensors"
USUAL = str(Profile().interval)
_YES = ("true", "yes", "on")
_NO = ("false", "no", "off")


@dataclass(frozen=True, kw_only=True)
class ProfileFlags:
    """Memory profile of a training."""

    profile_tensors: Annotated[int | None, tyro.conf.arg(metavar="[INTERVAL]")] = None
    """Attribute every byte of tensor memory to its owner at every INTERVAL-th step (50 if no number is given): see
    TensorBoard, memory.jsonl and profiles/. By default only allocated memory and its peak are recorded."""
    profile_window: tuple[int, int] | None = None
    """Profile only from step FIRST to step LAST (0-based, both included)."""
    profile_names: ProfileNames = "TensorProfiling"
    """First part of the tags."""
    profile_large_mb: int = 100
    """Size in MiB from which a tensor is listed separately."""
    profile_activations: bool = True
    """Also account for tensors saved for the backward pass."""
    snapshot_at: tuple[int, ...] = ()
    """Steps (0-based) at whose end a snapshot of the CUDA allocator is written; `fieldwatch memory FILE` reads it."""

    def chosen(self) -> Profile | None:
        """Return the requested profile; None without one.

        Raises:
            InputError: a flag needs another one, or a number is invalid.
        """
        if self.profile_tensors is None and self.profile_window is not None:
            raise BadInput(f"--profile-window needs {SWITCH}: give both, or leave the window out")
        if self.profile_tensors is None and not self.snapshot_at:
            return None
        return Profile(
            interval=self.profile_tensors or 0,
            window=self.profile_window,
            names=self.profile_names,
            large_mb=self.profile_large_mb,
            activations=self.profile_activations,
            snapshot_at=self.snapshot_at,
        )


def spelled_out(words: Sequence[str]) -> list[str]:
    """Add the default interval to a switch without number; also accept the original's ``--profile_tensors True``."""
    out: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag not in (SWITCH, SWITCH.replace("-t", "_t")):
            out.append(word)
            continue
        follows = value if equals else (rest[0] if rest else "")
        # A number, or yes or no, behind the switch belongs to it; any other word is the next argument.
        if follows.lower() in (*_YES, *_NO) or follows.lstrip("-").isdigit():
            rest = rest if equals else rest[1:]
        elif equals:
            raise BadInput(f"{SWITCH} {value!r}: expected a number of steps, or nothing for every {USUAL}th step")
        else:
            follows = USUAL
        if follows.lower() not in _NO:
            out += [SWITCH, USUAL if follows.lower() in _YES else follows]
    return out
