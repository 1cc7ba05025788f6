"""Memory of a run over time as columns, whatever file they come from; sizes are in MiB."""

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
MIB = 2**20
in_mib = partial(mebibytes, unit="MiB")
"""Format memory always in MiB: a leak of some MiB per snapshot would not show in GiB."""


@dataclass(frozen=True, kw_only=True)
class LargestTensor:
    """One of the largest tensors at the last snapshot.

    Attributes:
        size: size in MiB.
        shape: shape as text.
        dtype: dtype, such as ``"float32"``.
        owner: name and kind of the owner, such as ``"means (parameters)"``; empty if unknown.
        views: number of tensors that share its storage; 0 if unknown.
    """

    size: float
    shape: str
    dtype: str
    owner: str = ""
    views: int = 0


@dataclass(frozen=True, kw_only=True)
class RecordedCurve:
    """Another recorded quantity of the same run: ``[m]`` steps and ``[m]`` values.

    It has its own steps, since a run records its loss more often than snapshots of its memory.
    """

    steps: Steps
    values: Floats


def _columns() -> dict[str, Floats]:
    return {}


def _events() -> dict[str, Steps]:
    return {}


@dataclass(frozen=True, kw_only=True)
class MemoryHistory:
    """Memory of a run as columns, one row per snapshot; sizes are in MiB, and NaN if unknown.

    Attributes:
        label: short name of the input, unique among those shown together.
        kind: format of the file that it comes from.
        files: files that were read.
        steps: ``[n]`` iterations, ascending.
        allocated: ``[n]`` memory allocated by tensors.
        reserved: ``[n]`` memory reserved by the allocator.
        fragmentation: ``[n]`` idle fraction of the reserved memory, in percent.
        tensors: ``[n]`` number of tensors.
        categories: ``[n]`` memory by purpose.
        components: ``[n]`` memory by watched group or registered data.
        dtypes: ``[n]`` memory by dtype.
        account: ``[n]`` memory by part; the parts add up to ``allocated``. Empty if the log has no account.
        fragments: ``[n]`` idle memory by reason; empty if unknown.
        large_counts: ``[n]`` number of tensors above the threshold.
        large_threshold: threshold for large tensors.
        largest: largest tensors at the last snapshot.
        began: time of the first snapshot as text; empty if unknown.
        ended: time of the last snapshot as text; empty if unknown.
        dropped: number of damaged or truncated snapshots, which were skipped.
        replaced: number of snapshots that a resumed run has repeated.
        device: device of the memory, such as ``cuda:0``; empty if unknown.
        notes: remarks on the file for the reader.
        events: ``[k]`` ascending steps of the run's events by kind (growth, evaluation, finding ...).
        loss: ``Loss/total`` of the run; None if not recorded.
        peak: ``Memory/peak_MB`` of the run; None if not recorded.
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
        """Parts for a stacked chart: those of the account if there is one, else the categories."""
        # Categories may overlap and leave gaps, so their sum is not the allocated memory.
        return self.account or self.categories

    @property
    def knows_owners(self) -> bool:
        """Whether the categories are reliable: the original profiler assigned tensors wrongly."""
        # It also had no category for the optimizer, by which its logs are recognized.
        return self.kind == "memory.jsonl" or "optimizer" in self.categories
