"""What a run says about itself before it begins: its config, and what its loss terms are meant to do when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldwatch.measure import Phase, Window
from fieldwatch.record import (
    TOOLKIT,
    Catalogue,
    Layout,
    Manifest,
    ShowsConfig,
    ShowsLayout,
    ShowsText,
    config_differences,
    default_layout,
    flat,
    git_state,
    holds_run,
    new_segment,
    plain,
    read_manifest,
    versions,
)
from fieldwatch.run.recording import Recording

FOREVER = 2**31 - 1
"""The last step of a window that ends with the run."""


@dataclass(frozen=True, kw_only=True)
class Declared:
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
    def of(  # noqa: PLR0913  everything a run may declare
        cls,
        config: Mapping[str, Any],
        preset: Any,
        windows: Mapping[str, Window] | None,
        phases: Sequence[Phase],
        about: Mapping[str, Any] | None,
        *,
        metrics: Catalogue | None,
        layout: Layout | None,
    ) -> "Declared":
        """Put the declarations together; metrics bring a guide, and a layout where none is given."""
        return cls(
            config=config,
            preset=plain(preset),
            windows=windows or {},
            phases=tuple(phases),
            about=about or {},
            layout=layout or (default_layout(metrics) if metrics else None),
            metrics=metrics,
        )

    def manifest(self, folder: Path, step: int) -> Manifest:
        """The run's manifest, with a new segment that starts at ``step``; earlier segments are kept."""
        earlier = read_manifest(folder).segments if holds_run(folder) else ()
        return Manifest(
            config=self.config,
            preset_difference=config_differences(self.preset, self.config) if self.preset else {},
            windows={term: (window.first, window.last) for term, window in self.windows.items()},
            phases=tuple((phase.name, phase.window.first, phase.window.last) for phase in self.phases),
            versions=versions(),
            git=git_state(),
            segments=(*earlier, new_segment(step)),
            about=self.about,
            metrics=tuple(metric for metric in self.metrics or () if TOOLKIT.find(metric.name) != metric),
        )

    def begin(self, folder: Path, recording: Recording, step: int, total: int) -> None:
        """Begin a segment at ``step``, of ``total`` planned steps: in the manifest, and for rules and sinks."""
        self.manifest(folder, step).write(folder)
        recording.event("plan", step, steps=total)
        self.announce(recording, step)

    def announce(self, recording: Recording, step: int) -> None:
        """Tell rules and sinks, at the start of a segment."""
        windows = {name: (w.first, FOREVER if w.last is None else w.last) for name, w in self.windows.items()}
        recording.event("windows", step, windows=windows)
        for phase in self.phases:
            recording.event("phase", phase.window.first, name=phase.name)
        if self.layout is not None:
            recording.show(ShowsLayout, "layout", self.layout)
        if self.metrics is not None:
            recording.show(ShowsText, "text", "Guide/metrics", step, self.metrics.markdown())
        recording.show(ShowsConfig, "config", flat(self.config), {})
