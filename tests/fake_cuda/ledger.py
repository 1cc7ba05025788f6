"""What happened on the pretended device."""

import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

_SOURCE = "/src/fieldwatch/"
_BLOCK = 512


class Memory:
    """Memory that tensors of the pretended device hold; views and their base hold it once.

    What an operation needs while it runs, and what an allocator rounds up or cannot return, is not part of it; each
    tensor is rounded up to 512 bytes, as in torch's allocator.

    Attributes:
        allocated: bytes in use.
        peak: most bytes in use since `reset_peak`.
    """

    def __init__(self) -> None:
        self.allocated = 0
        self.peak = 0
        self._holders: Counter[int] = Counter()
        # Tensors end in any thread, also while one is counted here: the collector may run at any time.
        self._lock = threading.RLock()

    def hold(self, storage: Any) -> "_Hold":
        """Count a storage as used while the returned object exists, or another one for the same storage."""
        return _Hold(self, storage)

    def holds(self, storage: Any) -> bool:
        """Whether a tensor of the device uses a storage."""
        return self._holders[storage._cdata] > 0

    def reset_peak(self) -> None:
        """Let the peak begin at what is used now."""
        self.peak = self.allocated

    def _add(self, key: int, size: int) -> None:
        with self._lock:
            if not self._holders[key]:
                self.allocated += size
                self.peak = max(self.peak, self.allocated)
            self._holders[key] += 1

    def _remove(self, key: int, size: int) -> None:
        with self._lock:
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self.allocated -= size


class _Hold:
    """An attribute of a tensor, which ends with it. A weak reference would keep `Module.to` from exchanging tensors."""

    def __init__(self, memory: Memory, storage: Any) -> None:
        self._memory = memory
        self._storage = storage  # kept: its address must not be given to another one before it is released
        self._size = -(-storage.nbytes() // _BLOCK) * _BLOCK
        memory._add(storage._cdata, self._size)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Store nothing of it with a tensor."""
        return type(None), ()

    def __del__(self) -> None:
        self._memory._remove(self._storage._cdata, self._size)


@dataclass(kw_only=True)
class Ledger:
    """Counts of a pretended device, of launches and waits in the main thread: others may wait.

    A place is a line of the project, or "?" outside of it.

    Attributes:
        launches: kernels launched, by operation.
        launch_places: kernels launched, by operation and place.
        waits: times at which the host waited for the device, by cause and place.
        unordered: sums whose order, and with it whose last bits, differ from run to run, by operation and place.
        uploads: copies from the host to the device, by place.
        capturing: whether a graph is recorded now, so that nothing is launched.
    """

    launches: Counter[str] = field(default_factory=Counter)
    launch_places: Counter[tuple[str, str]] = field(default_factory=Counter)
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    unordered: Counter[tuple[str, str]] = field(default_factory=Counter)
    uploads: Counter[str] = field(default_factory=Counter)
    capturing: ClassVar[bool] = False

    def launch(self, operation: str) -> None:
        """Count a kernel, which a capture does not launch."""
        if self.capturing or threading.current_thread() is not threading.main_thread():
            return
        self.launches[operation] += 1
        self.launch_places[operation, place()] += 1

    def wait(self, cause: str) -> None:
        """Count a wait of the host, which a capture refuses."""
        if self.capturing and threading.current_thread() is threading.main_thread():
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({cause})")
        if threading.current_thread() is threading.main_thread():
            self.waits[cause, place()] += 1

    def add_unordered(self, operation: str) -> None:
        """Count a sum in no fixed order."""
        self.unordered[operation, place()] += 1

    def upload(self) -> None:
        """Count a copy from the host to the device."""
        self.uploads[place()] += 1

    def copy(self) -> "Ledger":
        """Return the counts so far."""
        return Ledger(**{name: Counter(counts) for name, counts in vars(self).items()})

    def since(self, earlier: "Ledger") -> "Ledger":
        """Return what was counted since an earlier copy."""
        return Ledger(**{name: counts - getattr(earlier, name) for name, counts in vars(self).items()})


def place() -> str:
    """Return the innermost line of the project on the stack, as ``run/step.py:120 update``."""
    frame = sys._getframe(1)
    while frame is not None:
        _, inside, name = frame.f_code.co_filename.rpartition(_SOURCE)
        if inside:
            return f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "?"
