"""What a run says about itself before it begins: its config, and what its loss terms are meant to do when."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldwatch.measure import Phase, Window
from fieldwatch.record import (
    Layout,
    Manifest,
    ShowsConfig,
    ShowsLayout,
    ShowsText,
    config_differences,
    flat,
    git_state,
    holds_run,
    new_segment,
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
        guide: Markdown that explains the metrics; empty for none.
    """

    config: Mapping[str, Any]
    preset: Mapping[str, Any]
    windows: Mapping[str, Window]
    phases: tuple[Phase, ...]
    about: Mapping[str, Any]
    layout: Layout | None
    guide: str

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
        )

    def announce(self, recording: Recording, step: int) -> None:
        """Tell rules and sinks, at the start of a segment."""
        windows = {name: (w.first, FOREVER if w.last is None else w.last) for name, w in self.windows.items()}
        recording.event("windows", step, windows=windows)
        for phase in self.phases:
            recording.event("phase", phase.window.first, name=phase.name)
        if self.layout is not None:
            recording.show(ShowsLayout, "layout", self.layout)
        if self.guide:
            recording.show(ShowsText, "text", "Guide/metrics", step, self.guide)
        recording.show(ShowsConfig, "config", flat(self.config), {})
