"""Optional capabilities of sinks besides receiving rows, one protocol each."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record.charts.layout import Layout
from fieldwatch.record.disk.backlog import WriteBacklog
from fieldwatch.record.row import Block


@runtime_checkable
class Closable(Protocol):
    """A sink that must be closed at the end of the run."""

    def close(self) -> None:
        """Write remaining data and release files and other resources."""
        ...


@runtime_checkable
class BatchSink(Protocol):
    """A sink that takes several blocks at once. Other sinks are called with one block after the other."""

    def extend(self, blocks: Sequence[Block]) -> None:
        """Add consecutive blocks, in order."""
        ...


@runtime_checkable
class Flushable(Protocol):
    """A sink that may buffer rows."""

    def flush(self) -> None:
        """Write all buffered data."""
        ...


@runtime_checkable
class Rewindable(Protocol):
    """A sink that can undo everything written after a mark, so that a resumed run shows one continuous curve."""

    def mark(self) -> dict[str, Any]:
        """Return the current write position as plain JSON values, to be stored in a checkpoint."""
        ...

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Remove everything written after the mark; with None, remove everything."""
        ...


@runtime_checkable
class Deferrable(Protocol):
    """A sink that can queue writes while the disk is full. Other sinks are dropped when they run into a full disk."""

    def defer_to(self, backlog: WriteBacklog) -> None:
        """From now on, queue writes in a backlog while the disk is full."""
        ...


@runtime_checkable
class ImageSink(Protocol):
    """A sink that supports images."""

    def image(self, name: str, position: int, png_bytes: bytes, width: int, height: int) -> None:
        """Log an encoded PNG of ``width`` x ``height`` pixels under ``name`` at ``position``."""
        ...


@runtime_checkable
class HistogramSink(Protocol):
    """A sink that supports histograms."""

    def histogram(self, name: str, position: int, values: NDArray[np.floating[Any]]) -> None:
        """Log the distribution of all entries of ``values`` under ``name`` at ``position``."""
        ...


@runtime_checkable
class TextSink(Protocol):
    """A sink that supports text."""

    def text(self, name: str, position: int, markdown: str) -> None:
        """Log Markdown under ``name`` at ``position``."""
        ...


@runtime_checkable
class ConfigSink(Protocol):
    """A sink that supports hyperparameters and final metrics."""

    def config(self, flat_config: Mapping[str, Any], final_metrics: Mapping[str, float]) -> None:
        """Log the configuration (dotted names to plain values) and the final metrics (empty at the start of a run)."""
        ...


@runtime_checkable
class LayoutSink(Protocol):
    """A sink that supports chart layouts."""

    def layout(self, layout: Layout) -> None:
        """Set the arrangement of charts on tabs."""
        ...


@runtime_checkable
class VerdictSink(Protocol):
    """A sink that keeps the verdict on a run."""

    def verdict(self, verdict: Mapping[str, Any]) -> None:
        """Replace the verdict: ``level``, ``state`` and the number of ``errors``, ``warnings`` and ``notes``.

        A run calls it with the level ``running`` at each start, and again at its end.
        """
        ...


@runtime_checkable
class EventSink(Protocol):
    """A sink that also receives the run's events (findings, refusals, phases)."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Log one event: a mapping with ``kind``, ``step`` and further keys that depend on the kind."""
        ...
