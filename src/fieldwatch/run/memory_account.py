"""`MemoryAccount`: the tensor memory of one step, as tags for charts, a JSON line and a text log entry."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fieldwatch.measure import Fragmentation
from fieldwatch.measure.census import Census
from fieldwatch.record.memory import LargeTensor, TensorSnapshot
from fieldwatch.run.profile import MB, Profile

LISTED = 5
"""Maximum number of large tensors listed in the text log."""


@dataclass(frozen=True, kw_only=True)
class MemoryAccount:
    """Tensor memory of one step.

    Attributes:
        step: 0-based index of the step.
        time: time of the account.
        moment: ``update`` (before the optimizer step), or ``end`` for a step without an update.
        census: every allocated byte with its owner.
        saved_at_peak: bytes saved for the backward pass at their peak, by span; None if they were not tracked.
        peaks: peak of the allocated bytes within each span.
        fragmentation: reserved but unused memory at the time of the census, by reason.
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
        """Bytes by category: kinds of owners, the peak of tensors saved for the backward pass, and the remainder."""
        categories = {**self.census.by_kind(), "other": self.census.remainder}
        # The category is absent rather than 0 if it was not tracked.
        if self.saved_at_peak is not None:
            categories["activations"] = sum(self.saved_at_peak.values())
        return categories

    @property
    def idle_percent(self) -> float:
        """``(reserved - allocated) / reserved * 100`` of the census, recorded as ``fragmentation_percent``."""
        reserved = self.census.reserved
        return (reserved - self.census.allocated) / reserved * 100 if reserved else 0.0

    @property
    def sums(self) -> dict[str, int]:
        """Parts of the account in bytes; they add up exactly to ``allocated``."""
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
        """Return all tags of the account; sizes are in MiB."""
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
        """Return the account as a line of ``memory.jsonl``; sizes are in bytes."""
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
        """Return the account in the format of the original text log."""
        census = self.census
        large = census.large(profile.large_mb * MB)
        return TensorSnapshot(
            # The text log counts iterations from 1.
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
