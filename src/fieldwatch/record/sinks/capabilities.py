"""What a sink may be able to do besides taking rows: each ability is a protocol of its own."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record.charts.layout import Layout
from fieldwatch.record.disk.backlog import WriteBacklog


@runtime_checkable
class Closable(Protocol):
    """Must be told when the run is over."""

    def close(self) -> None:
        """Write what is left and let go of files."""
        ...


@runtime_checkable
class Flushable(Protocol):
    """May hold rows back."""

    def flush(self) -> None:
        """Write what is held back."""
        ...


@runtime_checkable
class Rewindable(Protocol):
    """Can take back what it wrote after a point, so that a resumed run shows one clean curve."""

    def mark(self) -> dict[str, Any]:
        """Return where it stands now, in plain JSON values; goes into the checkpoint."""
        ...

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Cut everything written after the mark; None cuts everything."""
        ...


@runtime_checkable
class Deferrable(Protocol):
    """Can let what a full disk refuses wait. A sink that cannot is dropped when it meets a full disk."""

    def defer_to(self, backlog: WriteBacklog) -> None:
        """Let what a full disk refuses wait there from now on."""
        ...


@runtime_checkable
class ImageSink(Protocol):
    """Can show images."""

    def image(self, name: str, position: int, png_bytes: bytes, width: int, height: int) -> None:
        """Show an encoded PNG of ``width`` x ``height`` pixels under ``name`` at ``position``."""
        ...


@runtime_checkable
class HistogramSink(Protocol):
    """Can show distributions."""

    def histogram(self, name: str, position: int, values: NDArray[np.floating[Any]]) -> None:
        """Show the distribution of all entries of ``values`` under ``name`` at ``position``."""
        ...


@runtime_checkable
class TextSink(Protocol):
    """Can show text."""

    def text(self, name: str, position: int, markdown: str) -> None:
        """Show Markdown under ``name`` at ``position``."""
        ...


@runtime_checkable
class ConfigSink(Protocol):
    """Can show a run's configuration beside its outcome."""

    def config(self, flat_config: Mapping[str, Any], final_metrics: Mapping[str, float]) -> None:
        """Show the configuration (flat names to plain values) and the final metrics (empty at the start)."""
        ...


@runtime_checkable
class LayoutSink(Protocol):
    """Can arrange charts."""

    def layout(self, layout: Layout) -> None:
        """Arrange the charts in tabs."""
        ...


@runtime_checkable
class EventSink(Protocol):
    """Wants the run's events (findings, refusals, phases) as well as its rows."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Take one event: ``kind``, ``step`` and the kind's own entries."""
        ...
