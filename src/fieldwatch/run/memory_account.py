"""One account of tensor memory in the words of the outside: tags for the charts, a snapshot for the text log."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fieldwatch.measure import Fragmentation
from fieldwatch.measure.census import Census
from fieldwatch.record.memory import LargeTensor, TensorSnapshot
from fieldwatch.run.profile import MB, Profile

LISTED = 5
"""Large tensors that the text log names."""


@dataclass(frozen=True, kw_only=True)
class MemoryAccount:
    """Where the bytes of one step were.

    Attributes:
        step: 0-based.
        time: when the account was taken.
        moment: ``update`` (before the optimizer stepped), or ``end`` of a step without an update.
        census: every byte and its owner.
        saved_at_peak: what was saved for backward when that was the most in the step, in bytes by span; None where
            that could not be followed.
        peaks: the most that was allocated within each span, in bytes.
        fragmentation: what lies idle at the moment of the census, and why.
    """

    step: int
    time: datetime
    moment: str
    census: Census
    saved_at_peak: Mapping[str, int] | None
    peaks: Mapping[str, int]
    fragmentation: Fragmentation

    @property
    def categories(self) -> dict[str, int]:
        """Bytes by category: what each kind of owner holds, the most that was saved for backward, and nobody's rest."""
        categories = {**self.census.by_kind(), "other": self.census.remainder}
        if self.saved_at_peak is not None:
            categories["activations"] = sum(self.saved_at_peak.values())
        return categories

    @property
    def idle_percent(self) -> float:
        """``(reserved - allocated) / reserved * 100`` of the census: recorded as ``fragmentation_percent``."""
        reserved = self.census.reserved
        return (reserved - self.census.allocated) / reserved * 100 if reserved else 0.0

    @property
    def sums(self) -> dict[str, int]:
        """The account's parts, which add up to ``allocated`` to the byte."""
        census = self.census
        return {
            "owners": census.owned,
            "saved": sum(census.saved.values()),
            "rounding": census.rounding,
            "workspace": census.workspace,
            "unattributed": census.unattributed,
            "allocated": census.allocated,
        }

    def tags(self, profile: Profile) -> dict[str, float]:
        """Every tag of the account, in MiB (counts and percent aside)."""
        census = self.census
        prefix = profile.names
        large = census.large(profile.large_mb * MB)
        sizes = {
            **{f"Tensor_Category/{name}": size for name, size in self.categories.items()},
            **{f"Tensor_DType/{name}": size for name, size in census.by_dtype().items()},
            "Large_Tensors/total": sum(tensor.nbytes for tensor in large),
            **{f"Component/{name}": size for name, size in census.by_component().items()},
            **{f"Peak/{name}": size for name, size in self.peaks.items()},
            **{f"Fragmentation/{name}": size for name, size in self.fragmentation.parts().items()},
            **{f"Account/{name}": size for name, size in self.sums.items()},
        }
        counts = {
            "Large_Tensors/count": float(len(large)),
            "Tensor_Count/total": float(len(census.owned_entries) + len(census.saved)),
            "fragmentation_percent": self.idle_percent,
        }
        return {f"{prefix}/{name}_MB": size / MB for name, size in sizes.items()} | {
            f"{prefix}/{name}": value for name, value in counts.items()
        }

    def line(self, profile: Profile) -> dict[str, Any]:
        """The account for programs: one line of ``memory.jsonl``, in bytes."""
        return self.census.as_json(
            self.step,
            self.moment,
            threshold=profile.large_mb * MB,
            time=self.time.isoformat(timespec="milliseconds"),
            large_threshold=profile.large_mb * MB,
            saved_at_peak=self.saved_at_peak,
            peaks=dict(self.peaks),
            fragmentation=self.fragmentation.parts(),
        )

    def snapshot(self, profile: Profile) -> TensorSnapshot:
        """The account in the grammar of the original text log."""
        census = self.census
        large = census.large(profile.large_mb * MB)
        return TensorSnapshot(
            iteration=self.step + 1,
            time=self.time,
            total_tensors=len(census.owned_entries) + len(census.saved),
            allocated=census.allocated / MB,
            reserved=census.reserved / MB,
            fragmentation=self.idle_percent,
            categories={name: size / MB for name, size in self.categories.items()},
            dtypes={name: size / MB for name, size in census.by_dtype().items()},
            large_count=len(large),
            large_threshold=profile.large_mb,
            largest=tuple(
                LargeTensor(size=tensor.nbytes / MB, shape=str(tensor.shape), dtype=tensor.dtype)
                for tensor in large[:LISTED]
            ),
        )
