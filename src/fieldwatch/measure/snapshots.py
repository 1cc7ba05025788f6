"""The CUDA allocator's history, and its snapshots on disk for ``fieldwatch memory`` and pytorch.org/memory_viz."""

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

# Their names have a leading underscore, and are the documented way all the same.
_memory: Any = torch.cuda.memory
_record_history: Callable[..., Any] = _memory._record_memory_history  # noqa: SLF001  see above
_dump_snapshot: Callable[[str], Any] = _memory._dump_snapshot  # noqa: SLF001  see above
_set_label: Callable[[str], Any] | None = getattr(_memory, "_set_memory_metadata", None)  # not in older ones


class AllocatorHistory:
    """Records who asked the CUDA allocator for memory, a bounded number of events, and dumps its state to files.

    On a CPU there is no such allocator: then :attr:`refusal` says so, and nothing is recorded or written.

    As a listener of the clock it labels allocations with the innermost span, while it records.

    Args:
        device: where the model lives.
        record: switches torch's recording on or off.
        dump: writes torch's pickle to a path.
        label: names the allocations that follow.

    Attributes:
        refusal: why there will be no history and no snapshot; empty on CUDA.
        recording: whether the history is being recorded by this object.
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
            self.refusal = f"no allocator snapshot on {device}: only torch's CUDA allocator writes one; train on a GPU"
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
        """Begin to record; about 2 us an allocation.

        Args:
            max_entries: events that are kept, the newest ones; with their stacks some KB each in a file.
            stacks: ``python``, or ``all`` for C++ too, which is slow.
            context: which events get a stack: ``alloc`` those that allocate.
            skip_actions: kinds of events that are not kept.

        Raises:
            ValueError: there is no room for an event.
        """
        if max_entries < 1:
            raise ValueError(f"an allocator history of {max_entries} entries: wanted at least 1, 100,000 is usual")
        if self.refusal:
            return
        options: dict[str, Any] = {"skip_actions": list(skip_actions)}
        known = inspect.signature(self._record).parameters
        if "skip_actions" not in known:  # older torch: the same number of events then reaches less far back
            options = {}
        self._record("all", context=context, stacks=stacks, max_entries=max_entries, **options)
        self.recording = True

    def stop(self) -> None:
        """Stop recording, if this object started it."""
        if self.recording:
            self._record(None)
            # Labels outlive the recording: without this, later allocations keep the last one.
            self._apply_label("")
            self.recording = False

    def dump(self, path: Path, *, keep: int = 5) -> Path | None:
        """Write the allocator's state and history, whole or not at all; it waits for no kernel, but takes seconds.

        Args:
            path: the file, such as ``snapshot_1000.pickle``; a file of this name is replaced.
            keep: how many ``.pickle`` files whose names begin alike (``snapshot_``) may be in the folder then; the
                oldest ones are deleted.

        Returns:
            ``path``; None where there is no CUDA allocator: then nothing is written.

        Raises:
            ValueError: the name does not end in ``.pickle``, or none may be kept.
            OSError: it could not be written; nothing of it stays.
        """
        if path.suffix != SUFFIX or keep < 1:
            raise ValueError(
                f"a snapshot in {path} with {keep} kept: wanted a name that ends in {SUFFIX}, and 1 or more"
            )
        if self.refusal:
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}{_DRAFT}")
        draft.unlink(missing_ok=True)  # a link from elsewhere would be written through
        try:
            self._dump(str(draft))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        _prune(path, keep)
        return path

    def enter(self, name: str) -> None:
        """A span begins."""
        self._labels.enter(name)

    def leave(self, name: str) -> None:
        """A span ends."""
        self._labels.leave(name)

    def _apply_label(self, name: str) -> None:
        if self.recording and self._label is not None:
            self._label(name)


def _prune(newest: Path, keep: int) -> None:
    """Delete the oldest snapshots of this one's kind, and what a killed process left half written."""
    prefix, underscore, _ = newest.stem.partition("_")
    kind = glob.escape(prefix + underscore)
    folder = newest.parent
    for draft in folder.glob(f".{kind}*{SUFFIX}{_DRAFT}"):
        draft.unlink(missing_ok=True)
    others = [path for path in folder.glob(f"{kind}*{SUFFIX}") if path != newest and underscore]
    others.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in others[: max(0, len(others) - keep + 1)]:
        path.unlink(missing_ok=True)
