"""Account of a run: everything it recorded, as one JSON-serializable dictionary that a page can draw."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from fieldwatch.base import MissingPathError
from fieldwatch.health import Finding, explain
from fieldwatch.record import Catalogue, History, Manifest, Metric, read_events, read_history, read_manifest
from fieldwatch.report.account.distributions_panel import distributions
from fieldwatch.report.account.findings import crash_of, findings_on_record, joined_findings
from fieldwatch.report.account.imported import explain_empty
from fieldwatch.report.account.marks import marks_of, phases_of
from fieldwatch.report.account.material import Material
from fieldwatch.report.account.memory_panel import memory
from fieldwatch.report.account.quality_panel import quality
from fieldwatch.report.account.record_panels import checkpoints, config, environment, events_panel, growth, more, ranks
from fieldwatch.report.account.run_status import run_facts, run_status
from fieldwatch.report.account.series import all_series
from fieldwatch.report.account.snapshot_panel import snapshot
from fieldwatch.report.account.training_panels import conflicts, gradients, losses, timing
from fieldwatch.report.account.verdict import outcome_of, verdict_of
from fieldwatch.report.page import Panel

BUDGET = 2_000_000
"""Default limit for the JSON of all series, in bytes."""


def account_of(folder: Path | str, *, budget: int = BUDGET) -> dict[str, Any]:
    """Return the account of a run folder, whatever the state of the run and however few rows it has.

    Args:
        folder: run folder.
        budget: approximate limit for the JSON of all series, in bytes.

    Raises:
        MissingPathError: if the folder does not exist.
        NotARun: if the folder contains no run (a ValueError).
        CorruptRecord: if a line of the record cannot be read (a ValueError).
    """
    if not Path(folder).is_dir():
        raise MissingPathError(f"no run folder at {folder}: give the folder that `fieldwatch train` printed")
    # Raises NotARun before a long journal is read for nothing.
    read_manifest(folder)
    return account_from(read_history(folder), Path(folder), budget=budget)


def account_from(  # noqa: PLR0913  each is something the caller may already have read
    history: History,
    folder: Path,
    *,
    events: Sequence[Mapping[str, Any]] | None = None,
    findings: Sequence[Finding] | None = None,
    metrics: Sequence[Metric] = (),
    budget: int = BUDGET,
    pictures: bool = True,
) -> dict[str, Any]:
    """Return the account of a run whose record has already been read, for live views.

    Args:
        history: rows of the run.
        folder: run folder.
        events: events of the run; None reads them.
        findings: findings of the rules; None uses those that the live run recorded.
        metrics: units and meanings in addition to those that the run declared.
        budget: approximate limit for the JSON of all series, in bytes.
        pictures: whether to include pictures; a view that refreshes every few seconds can leave them out.

    Raises:
        NotARun: if the folder contains no run.
        CorruptRecord: if the events cannot be read.
    """
    manifest = read_manifest(folder)
    events = list(read_events(folder)) if events is None else events
    status = run_status(folder, history, events)
    catalogue = _catalogue(manifest, metrics)
    material = Material(
        folder=folder,
        manifest=manifest,
        history=history,
        events=events,
        status=status,
        catalogue=catalogue,
        series=all_series(history, catalogue, budget),
    )
    found = findings_on_record(events, history) if findings is None else findings
    merged = joined_findings(explain(found, events), history.names())
    crash = crash_of(folder, status)
    # Panels add derived series to `material.series`, so they are made before it is returned.
    panels = _panels(material, pictures=pictures)
    snapshot_drawn, snapshot_data = snapshot(folder)
    return {
        "format": 1,
        "run": run_facts(folder, manifest, history, status),
        "verdict": verdict_of(status, merged, crash, outcome=outcome_of(history)),
        "findings": merged,
        "crash": crash,
        "phases": phases_of(manifest, events),
        "marks": marks_of(manifest, events, status.crashes),
        "series": material.series,
        "panels": [*panels, *snapshot_drawn],
        "snapshot": snapshot_data,
        "json_of": f"fieldwatch {metadata.version('fieldwatch')}, {datetime.now(UTC).isoformat(timespec='seconds')}",
    }


def _panels(material: Material, *, pictures: bool) -> list[Panel]:
    """Return all panels in reading order; the panels with fixed ids are always present."""
    fixed = [
        losses(material),
        gradients(material),
        conflicts(material),
        memory(material),
        timing(material),
        quality(material, pictures=pictures),
        distributions(material),
        growth(material),
        checkpoints(material),
        events_panel(material),
        config(material),
        environment(material),
        *ranks(material),
    ]
    # Last, because it shows the metrics that none of the others has taken.
    return explain_empty([*fixed, *more(material, fixed)], material.manifest)


def _catalogue(manifest: Manifest, metrics: Sequence[Metric]) -> Catalogue:
    """Return the meanings of all metrics: the given ones take precedence over those of the run and the toolkit."""
    # The last entry of a name wins, and a Catalogue does not accept a name twice.
    return Catalogue({metric.name: metric for metric in (*manifest.catalogue(), *metrics)}.values())
