"""When the tensor profile is taken, and how it is named."""

from dataclasses import dataclass

from fieldwatch.base import InputError
from fieldwatch.record.memory import ProfileNames

MB = 2**20


@dataclass(frozen=True, kw_only=True)
class Profile:
    """When to account for tensor memory, and how it is named.

    Attributes:
        interval: at every so many steps; 0 never, for snapshots alone.
        window: first and last step (0-based, both included) outside which nothing is done; None for all.
        names: what the tags begin with.
        large_mb: MiB from which on a storage is listed by itself.
        activations: whether to follow what is saved for backward. torch refuses ``torch.func.grad`` and its kin in a
            step in which that is followed: a loop that uses them switches it off.
        snapshot_at: steps (0-based) at whose end the CUDA allocator's snapshot is written.

    Raises:
        InputError: a number that makes no sense.
    """

    interval: int = 50
    window: tuple[int, int] | None = None
    names: ProfileNames = "TensorProfiling"
    large_mb: int = 100
    activations: bool = True
    snapshot_at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.interval < 0 or (self.interval == 0 and not self.snapshot_at):
            raise InputError(f"a tensor profile every {self.interval} steps: wanted 1 or more, e.g. 50")
        if self.window is not None and not 0 <= self.window[0] <= self.window[1]:
            first, last = self.window
            raise InputError(
                f"profile window {first} {last}: wanted FIRST LAST with 0 <= FIRST <= LAST, e.g. 1000 2000"
            )
        if self.large_mb < 1:
            raise InputError(f"large tensors from {self.large_mb} MiB on: wanted at least 1 MiB (the usual is 100)")
        if any(step < 0 for step in self.snapshot_at):
            raise InputError(f"snapshots at steps {self.snapshot_at}: wanted 0-based step numbers, 0 or more")

    def due(self, step: int) -> bool:
        """Whether the memory of this step is accounted for: after every ``interval`` steps, inside the window."""
        first, last = self.window or (0, step)
        return self.interval > 0 and first <= step <= last and (step + 1) % self.interval == 0
