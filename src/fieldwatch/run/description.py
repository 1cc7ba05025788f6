"""`RunDescription`: config, phases, loss windows and metrics of a run, announced at the start of each segment."""

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
    tags,
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
"""Last step of a window without end."""


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """The declarations of a run, resolved.

    Attributes:
        config: resolved configuration as plain values.
        preset: configuration that the config was derived from, as plain values; empty for none.
        windows: loss term to the steps in which it should be active.
        phases: named intervals of training.
        about: further entries for ``run.json``.
        layout: layout of charts; None leaves it to the viewer.
        metrics: catalogue of declared metrics; None for those of the toolkit alone.
        data_findings: what a check of the data found before the first step.
    """

    config: Mapping[str, Any]
    preset: Mapping[str, Any]
    windows: Mapping[str, Window]
    phases: tuple[Phase, ...]
    about: Mapping[str, Any]
    layout: Layout | None
    metrics: Catalogue | None
    data_findings: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, Any], declared: Declared, about: Mapping[str, Any]) -> RunDescription:
        """Combine the declarations; if no layout is declared, derive one from the metrics."""
        metrics = declared.metrics
        return cls(
            config=config,
            preset=plain_values(declared.preset),
            windows=declared.windows,
            phases=tuple(declared.phases),
            about=about,
            layout=declared.layout or (default_layout(metrics) if metrics else None),
            metrics=metrics,
            data_findings=tuple(declared.data_findings),
        )

    def manifest(self, folder: Path, step: int, machine: Mapping[str, Any]) -> Manifest:
        """Return the run's manifest, with a new segment that starts at ``step`` after the earlier ones."""
        earlier = _earlier_segments(folder)
        return Manifest(
            config=self.config,
            # Without a preset, every setting would count as a difference.
            preset_difference=config_differences(self.preset, self.config) if self.preset else {},
            windows={term: (window.first, window.last) for term, window in self.windows.items()},
            phases=tuple((phase.name, phase.window.first, phase.window.last) for phase in self.phases),
            versions=versions(),
            git=git_state(),
            segments=(*earlier, {**new_segment(step), **machine}),
            about=self.about,
            # Readers know the metrics of the toolkit, so run.json lists only those that differ from them.
            metrics=tuple(metric for metric in self.metrics or () if TOOLKIT.find(metric.name) != metric),
        )

    def begin(
        self, folder: Path, record: RunRecord, step: int, total: int | None, machine: Mapping[str, Any]
    ) -> Manifest:
        """Begin a segment at ``step``: write the manifest, and announce the declarations.

        Args:
            folder: run folder.
            record: record of the run.
            step: first step of the segment.
            total: planned number of steps; None if unknown.
            machine: facts about the machine, for the segment.

        Returns:
            The new content of run.json.
        """
        manifest = self.manifest(folder, step, machine)
        # Write the manifest first: without it, the folder does not count as a run.
        manifest.write(folder)
        if total is not None:
            record.event("plan", step, steps=total)
        self.announce(record, step)
        return manifest

    def announce(self, record: RunRecord, step: int) -> None:
        """Send the declarations to rules and sinks at the start of a segment."""
        # The event stores windows as pairs of numbers, so an open end becomes a large step.
        windows = {name: (w.first, FOREVER if w.last is None else w.last) for name, w in self.windows.items()}
        record.event("windows", step, windows=windows)
        # Rules read only the history, so the values without training are announced there.
        baselines = {
            metric.name: {"value": metric.trivial, "better": metric.better}
            for metric in self.metrics or ()
            if metric.trivial is not None
        }
        if baselines:
            record.event(tags.BASELINES, step, baselines=baselines)
        for finding in self.data_findings:
            record.event(tags.DATA_CHECK, step, **finding)
        # Each phase event has the step at which the phase begins, which may be in the future.
        for phase in self.phases:
            record.event("phase", phase.window.first, name=phase.name)
        if self.layout is not None:
            record.show(LayoutSink, "layout", self.layout)
        if self.metrics is not None:
            record.show(TextSink, "text", "Guide/metrics", step, self.metrics.markdown())
        record.show(ConfigSink, "config", flattened(self.config), {})


def _earlier_segments(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """Return the segments of a run so far; none if there is no readable manifest."""
    try:
        # If run.json is damaged, the run continues without its earlier segments.
        return read_manifest(folder).segments if holds_run(folder) else ()
    except NotARun:
        return ()
