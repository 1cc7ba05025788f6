"""What a run says about itself before it begins: its config, and what its loss terms are meant to do when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldwatch.lazy import lazy_names
from fieldwatch.measure import Phase, Window
from fieldwatch.record import (
    TOOLKIT,
    Catalogue,
    Manifest,
    NotARun,
    git_state,
    holds_run,
    new_segment,
    read_manifest,
    versions,
)
from fieldwatch.record.charts import Layout, default_layout
from fieldwatch.record.config import config_differences, flattened, plain_values
from fieldwatch.record.sinks import ConfigSink, LayoutSink, TextSink
from fieldwatch.run.options import Declared

if TYPE_CHECKING:
    from fieldwatch.run.run_record import RunRecord

__getattr__, _ = lazy_names(__name__)  # resolves the quoted annotations at run time

FOREVER = 2**31 - 1
"""The last step of a window that ends with the run."""


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """The declarations of a run.

    Attributes:
        config: the resolved configuration, as plain values.
        preset: what it was derived from, as plain values; empty for nothing.
        windows: when each loss term is meant to be active.
        phases: named stretches of training.
        about: more facts for ``run.json``.
        layout: how charts are arranged; None leaves that to the viewer.
        metrics: what is recorded, and what it means; None for what the toolkit itself records.
    """

    config: Mapping[str, Any]
    preset: Mapping[str, Any]
    windows: Mapping[str, Window]
    phases: tuple[Phase, ...]
    about: Mapping[str, Any]
    layout: Layout | None
    metrics: Catalogue | None

    @classmethod
    def of(cls, config: Mapping[str, Any], declared: Declared, about: Mapping[str, Any]) -> RunDescription:
        """Put the declarations together; metrics bring a list of themselves, and a layout where none is given."""
        metrics = declared.metrics
        return cls(
            config=config,
            preset=plain_values(declared.preset),
            windows=declared.windows,
            phases=tuple(declared.phases),
            about=about,
            layout=declared.layout or (default_layout(metrics) if metrics else None),
            metrics=metrics,
        )

    def manifest(self, folder: Path, step: int) -> Manifest:
        """The run's manifest, with a new segment that starts at ``step``; earlier segments are kept."""
        earlier = _earlier_segments(folder)
        return Manifest(
            config=self.config,
            preset_difference=config_differences(self.preset, self.config) if self.preset else {},
            windows={term: (window.first, window.last) for term, window in self.windows.items()},
            phases=tuple((phase.name, phase.window.first, phase.window.last) for phase in self.phases),
            versions=versions(),
            git=git_state(),
            segments=(*earlier, new_segment(step)),
            about=self.about,
            # Every reader knows the toolkit's own metrics: run.json lists only what differs from them.
            metrics=tuple(metric for metric in self.metrics or () if TOOLKIT.find(metric.name) != metric),
        )

    def begin(self, folder: Path, record: RunRecord, step: int, total: int | None) -> Manifest:
        """Begin a segment at ``step``: in the manifest, and for rules and sinks.

        Args:
            folder: the run folder.
            record: the record.
            step: the first one of the segment.
            total: planned steps; None where that is not known.

        Returns:
            What run.json says now.
        """
        manifest = self.manifest(folder, step)
        manifest.write(folder)
        if total is not None:
            record.event("plan", step, steps=total)
        self.announce(record, step)
        return manifest

    def announce(self, record: RunRecord, step: int) -> None:
        """Tell rules and sinks, at the start of a segment."""
        windows = {name: (w.first, FOREVER if w.last is None else w.last) for name, w in self.windows.items()}
        record.event("windows", step, windows=windows)
        # Recorded at their own first step, which may lie ahead.
        for phase in self.phases:
            record.event("phase", phase.window.first, name=phase.name)
        if self.layout is not None:
            record.show(LayoutSink, "layout", self.layout)
        if self.metrics is not None:
            record.show(TextSink, "text", "Guide/metrics", step, self.metrics.markdown())
        record.show(ConfigSink, "config", flattened(self.config), {})


def _earlier_segments(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """Return the segments of a run so far; none where nothing is left that says so."""
    try:
        return read_manifest(folder).segments if holds_run(folder) else ()
    except NotARun:
        return ()
