"""Record the CUDA allocator's history and write snapshots for ``fieldwatch memory`` and pytorch.org/memory_viz."""

import glob
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from fieldwatch.measure.clock import SpanLabels

Stacks: TypeAlias = Literal["python", "all"]
Context: TypeAlias = Literal["state", "alloc", "all"]

SUFFIX = ".pickle"
_DRAFT = ".partial"

# These functions have a leading underscore but are the documented API.
_memory: Any = torch.cuda.memory
_record_history: Callable[..., Any] = _memory._record_memory_history  # noqa: SLF001  see above
_dump_snapshot: Callable[[str], Any] = _memory._dump_snapshot  # noqa: SLF001  see above
_set_label: Callable[[str], Any] | None = getattr(_memory, "_set_memory_metadata", None)  # not in older versions


class AllocatorHistory:
    """Records a bounded history of CUDA allocations with their call stacks, and dumps the allocator's state to files.

    There is no such allocator on a CPU: :attr:`refusal` then gives the reason, and nothing is recorded or written.

    The object is also a listener of the clock: while recording, it labels allocations with the innermost span.

    Args:
        device: device of the model.
        record: function that switches torch's recording on or off.
        dump: function that writes torch's pickle to a path.
        label: function that sets the label of the following allocations.

    Attributes:
        refusal: reason why neither history nor snapshots are available; empty on CUDA.
        recording: whether this object is recording the history.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        record: Callable[..., Any] = _record_history,
        dump: Callable[[str], Any] = _dump_snapshot,
        label: Callable[[str], Any] | None = _set_label,
    ) -> None:
        self.refusal = ""
        if device.type != "cuda":
            self.refusal = f"no allocator snapshot on {device}: only torch's CUDA allocator supports it; train on a GPU"
        self.recording = False
        self._record = record
        self._dump = dump
        self._label = label
        self._labels = SpanLabels(self._apply_label)

    def start(
        self,
        *,
        max_entries: int = 100_000,
        stacks: Stacks = "python",
        context: Context = "alloc",
        skip_actions: Sequence[str] = ("free_requested",),
    ) -> None:
        """Start recording, at a cost of about 2 us per allocation.

        Args:
            max_entries: number of most recent events to keep; with its stack, each takes a few KB in a file.
            stacks: ``python``, or ``all`` to include C++ frames, which is slow.
            context: events that get a stack: ``alloc`` for allocations, ``all`` for all events, ``state`` for memory
                that is still in use.
            skip_actions: kinds of events to discard.

        Raises:
            ValueError: if ``max_entries`` is less than 1.
        """
        if max_entries < 1:
            raise ValueError(f"allocator history: max_entries must be at least 1 (default 100,000), got {max_entries}")
        if self.refusal:
            return
        options: dict[str, Any] = {"skip_actions": list(skip_actions)}
        known = inspect.signature(self._record).parameters
        if "skip_actions" not in known:  # older torch: the same number of events then covers less time
            options = {}
        self._record("all", context=context, stacks=stacks, max_entries=max_entries, **options)
        self.recording = True

    def stop(self) -> None:
        """Stop recording, if this object started it."""
        if self.recording:
            self._record(None)
            # Clear the label: it outlives the recording and would apply to later allocations.
            self._apply_label("")
            self.recording = False

    def dump(self, path: Path, *, keep: int = 5) -> Path | None:
        """Write the allocator's state and history to a file atomically. Does not synchronize, but may take seconds.

        Args:
            path: path of the file, such as ``snapshot_1000.pickle``; an existing file is replaced.
            keep: maximum number of ``.pickle`` files with the same prefix (``snapshot_``) in the folder; the oldest
                ones are deleted.

        Returns:
            ``path``, or None if there is no CUDA allocator and nothing was written.

        Raises:
            ValueError: if the name does not end in ``.pickle``, or ``keep`` is less than 1.
            OSError: if the file cannot be written; no partial file remains.
        """
        if path.suffix != SUFFIX or keep < 1:
            raise ValueError(
                f"snapshot path must end in {SUFFIX} and keep must be at least 1, got {path} and keep={keep}"
            )
        if self.refusal:
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        # Write to a hidden draft first, so that a killed process never leaves a truncated snapshot under its name.
        draft = path.with_name(f".{path.name}{_DRAFT}")
        draft.unlink(missing_ok=True)  # a symbolic link of this name would redirect the write
        try:
            self._dump(str(draft))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        _prune(path, keep)
        return path

    def enter(self, name: str) -> None:
        """Handle the start of a span."""
        self._labels.enter(name)

    def leave(self, name: str) -> None:
        """Handle the end of a span."""
        self._labels.leave(name)

    def _apply_label(self, name: str) -> None:
        # Labels are global to the process, so set them only while this object records.
        if self.recording and self._label is not None:
            self._label(name)


def _prune(newest: Path, keep: int) -> None:
    """Delete the oldest snapshots with the same prefix, and partial files left by killed processes."""
    prefix, underscore, _ = newest.stem.partition("_")
    kind = glob.escape(prefix + underscore)
    folder = newest.parent
    for draft in folder.glob(f".{kind}*{SUFFIX}{_DRAFT}"):
        draft.unlink(missing_ok=True)
    others = [path for path in folder.glob(f"{kind}*{SUFFIX}") if path != newest and underscore]
    # Sort by modification time; the name breaks ties on file systems with coarse timestamps.
    others.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in others[: max(0, len(others) - keep + 1)]:
        path.unlink(missing_ok=True)
