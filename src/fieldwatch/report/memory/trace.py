"""What was recorded about memory over a run, from whichever file, as columns in MB (2**20 bytes)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import mebibytes

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
MB = 2**20
in_mib = partial(mebibytes, unit="MiB")
"""Format memory always in MiB: a leak of some MiB per snapshot would not show in GiB."""


@dataclass(frozen=True, kw_only=True)
class LargestTensor:
    """One of the largest tensors at the end.

    Attributes:
        size: MB.
        shape: as text.
        dtype: such as ``"float32"``.
        owner: whose it is, such as ``"means (parameters)"``; empty where the log does not know.
        views: how many tensors look into it; 0 where the log does not know.
    """

    size: float
    shape: str
    dtype: str
    owner: str = ""
    views: int = 0


@dataclass(frozen=True, kw_only=True)
class RecordedCurve:
    """Another recorded quantity of the same run: ``[m]`` steps and ``[m]`` values."""

    steps: Steps
    values: Floats


def _columns() -> dict[str, Floats]:
    return {}


def _events() -> dict[str, Steps]:
    return {}


@dataclass(frozen=True, kw_only=True)
class MemoryHistory:
    """A run's memory as columns; every size in MB, NaN where it is not known.

    Attributes:
        label: a short name of the input, unique among those shown together.
        kind: which file it comes from.
        files: the files that were read.
        steps: ``[n]`` iterations, ascending.
        allocated: ``[n]``, held by tensors.
        reserved: ``[n]``, held by the allocator.
        fragmentation: ``[n]`` percent: the idle share of what the allocator holds.
        tensors: ``[n]``, how many there were.
        categories: ``[n]`` by what the memory is for.
        components: ``[n]`` by watched group or registered data.
        dtypes: ``[n]`` by type of the entries.
        account: ``[n]`` by part, adding up to ``allocated``; empty where the log has no such account.
        fragments: ``[n]`` by part: what the idle share consists of; empty where the log does not know.
        large_counts: ``[n]``, how many tensors were above the threshold.
        large_threshold: that threshold.
        largest: the largest tensors at the end.
        began: when the first snapshot was taken, as text.
        ended: when the last one was taken.
        dropped: how many snapshots were damaged or cut off, and left out.
        replaced: how many snapshots a resumed run has gone back over.
        device: whose memory, such as ``cuda:0``; empty where the log does not say it.
        notes: what a reader should know about the file.
        events: kind to the ``[k]`` steps of the run's events (growth, evaluation, finding ...).
        loss: ``Loss/total`` of the run.
        peak: ``Memory/peak_MB`` of the run.
    """

    label: str
    kind: Literal["tensor log", "memory.jsonl", "journal"]
    files: tuple[Path, ...]
    steps: Steps
    allocated: Floats
    reserved: Floats
    fragmentation: Floats
    tensors: Floats
    categories: Mapping[str, Floats] = field(default_factory=_columns)
    components: Mapping[str, Floats] = field(default_factory=_columns)
    dtypes: Mapping[str, Floats] = field(default_factory=_columns)
    account: Mapping[str, Floats] = field(default_factory=_columns)
    fragments: Mapping[str, Floats] = field(default_factory=_columns)
    large_counts: Floats
    large_threshold: int = 100
    largest: tuple[LargestTensor, ...] = ()
    began: str = ""
    ended: str = ""
    device: str = ""
    dropped: int = 0
    replaced: int = 0
    notes: tuple[str, ...] = ()
    events: Mapping[str, Steps] = field(default_factory=_events)
    loss: RecordedCurve | None = None
    peak: RecordedCurve | None = None

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def stack(self) -> Mapping[str, Floats]:
        """The parts to draw on top of each other: the account where there is one, else the categories."""
        return self.account or self.categories

    @property
    def knows_owners(self) -> bool:
        """Whether the categories can be trusted: the original profiler filed tensors wrongly and knew no optimizer."""
        return self.kind == "memory.jsonl" or "optimizer" in self.categories
