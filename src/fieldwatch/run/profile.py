"""`Profile`: when the tensor profile is taken, and how its metrics are named."""

from dataclasses import dataclass

from fieldwatch.base import InputError
from fieldwatch.record.memory import ProfileNames

MB = 2**20


@dataclass(frozen=True, kw_only=True)
class Profile:
    """When to attribute tensor memory to its owners, and how the metrics are named.

    Attributes:
        interval: number of steps between two profiles; 0 takes only snapshots.
        window: first and last step (0-based, inclusive) in which profiles are taken; None for all steps.
        names: prefix of the tags.
        large_mb: size in MiB from which a storage is listed individually.
        activations: whether to track tensors saved for the backward pass. torch does not support ``torch.func.grad``
            and similar functions during such a step, so disable it for a loop that uses them.
        snapshot_at: steps (0-based) at whose end a snapshot of the CUDA allocator is written.

    Raises:
        InputError: a value is out of range.
    """

    interval: int = 50
    window: tuple[int, int] | None = None
    names: ProfileNames = "TensorProfiling"
    large_mb: int = 100
    activations: bool = True
    snapshot_at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the ranges of all values."""
        # An interval of 0 makes sense only together with snapshots.
        if self.interval < 0 or (self.interval == 0 and not self.snapshot_at):
            raise InputError(f"the profile interval must be at least 1 step, e.g. 50, got {self.interval}")
        if self.window is not None and not 0 <= self.window[0] <= self.window[1]:
            first, last = self.window
            raise InputError(
                f"the profile window must be FIRST LAST with 0 <= FIRST <= LAST, e.g. 1000 2000, got {first} {last}"
            )
        if self.large_mb < 1:
            raise InputError(f"the size of large tensors must be at least 1 MiB (default 100), got {self.large_mb} MiB")
        if any(step < 0 for step in self.snapshot_at):
            raise InputError(f"snapshot steps must be 0-based and at least 0, got {self.snapshot_at}")

    def due(self, step: int) -> bool:
        """Return whether a step is profiled: it ends an interval of ``interval`` steps, and is inside the window."""
        first, last = self.window or (0, step)
        return self.interval > 0 and first <= step <= last and (step + 1) % self.interval == 0
