"""Data that the panels of a run are built from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldwatch.record import Catalogue, History, Manifest, tags
from fieldwatch.report.account.run_status import RunStatus
from fieldwatch.report.account.series import matching


@dataclass(frozen=True, kw_only=True)
class Material:
    """All data about a run.

    Attributes:
        folder: run folder.
        manifest: content of run.json.
        history: rows and events.
        events: all valid events, in order.
        status: state and progress of the run.
        catalogue: meanings of the metrics.
        series: series of the account, by name; panels may add derived ones.
    """

    folder: Path
    manifest: Manifest
    history: History
    events: Sequence[Mapping[str, Any]]
    status: RunStatus
    catalogue: Catalogue
    series: dict[str, dict[str, Any]]

    def named(self, *starts: str, end: str = "") -> list[str]:
        """Return the names of the series that start with any of ``starts`` and end with ``end``."""
        return [name for name in matching(self.series, *starts) if name.endswith(end)]

    def of_family(self, family: tags.Family) -> list[str]:
        """Return the names of the series of a family of tags."""
        return list(family.parts(self.series).values())

    def epochs_like(self, tag: str) -> dict[int, int]:
        """Map epochs to steps by the metrics with the same first part as a tag; empty if they are not by epoch."""
        epochs: dict[int, int] = {}
        for name in matching(self.history.names(), tag.partition("/")[0] + "/"):
            metric = self.catalogue.find(name)
            series = self.history[name]
            if (metric is None or metric.axis == "epoch") and (series.positions != series.steps).any():
                epochs |= zip(series.positions.astype(int).tolist(), series.steps.astype(int).tolist(), strict=True)
        return epochs

    def place_of(self, position: int, epochs: Mapping[int, int]) -> tuple[str, int]:
        """Return the time of a picture or histogram as text, and its step.

        Args:
            position: epoch or step at which it was logged.
            epochs: steps by epoch, from :meth:`epochs_like`.
        """
        if position in epochs:
            return f"epoch {position} (step {epochs[position]})", epochs[position]
        return f"step {position}", min(position, self.status.last or position)

    def of_kind(self, *kinds: str) -> list[Mapping[str, Any]]:
        """Return the events of the given kinds."""
        return [event for event in self.events if event["kind"] in kinds]
