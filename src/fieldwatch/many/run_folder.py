"""Read run folders for the driver, during and after training, without importing torch or evaluating rules."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import orjson

from fieldwatch.health import Finding, findings_in
from fieldwatch.monitor import LatestValues, StateWord, state_of
from fieldwatch.record import DAMAGED, JOURNAL, NotARun, read_events, read_history, read_manifest

LOSS: Final = "Loss/total"
_CURVE_POINTS: Final = 120


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Summary of a run folder.

    Attributes:
        state: state of the run in one word; see `state_of`.
        steps: number of completed steps; None if there are none.
        total: number of planned steps; None if not recorded.
        training_seconds: training time over all segments.
        metrics: last value of each quality metric, by tag.
        findings: findings of the rules.
        curve: subsampled loss curve as ``(step, loss)`` pairs, finite values only.
        damage: description of damaged parts of the record; empty if there are none.
    """

    state: StateWord = "not started"
    steps: int | None = None
    total: int | None = None
    training_seconds: float = 0.0
    metrics: Mapping[str, float]
    findings: tuple[Finding, ...] = ()
    curve: tuple[tuple[float, float], ...] = ()
    damage: str = ""


def read_run(folder: Path, measured: tuple[str, ...]) -> RunSummary:
    """Read a run folder. Damage is reported in the summary instead of raising an error.

    Args:
        folder: run folder; may be missing.
        measured: prefixes of the tags of its quality metrics.
    """
    # An attempt that failed early may have no journal.
    if not (folder / JOURNAL).exists():
        return RunSummary(state=state_of(folder).word, metrics={})
    history = read_history(folder)
    events = list(read_events(folder))
    findings = tuple(findings_in(events))
    damage = "; ".join(str(event.get("message")) for event in history.events(DAMAGED))
    names = [name for name in history.names() if name.startswith(measured)]
    if LOSS not in history:
        return RunSummary(state=state_of(folder).word, metrics={}, damage=damage)
    loss = history[LOSS]
    known = len(loss) > 0
    return RunSummary(
        state=state_of(folder).word,
        steps=int(loss.steps[-1]) + 1 if known else None,
        total=_planned(events),
        training_seconds=float(loss.seconds[-1]) if known else 0.0,
        metrics={name: float(history[name].values[-1]) for name in names},
        findings=findings,
        curve=_thinned(loss.steps, loss.values) if known else (),
        damage=damage,
    )


def has_warnings(folder: Path) -> bool:
    """Whether the rules reported a finding more severe than a note."""
    return any(event["kind"] == "finding" and event.get("severity") != "note" for event in _events(folder))


def last_start(folder: Path) -> tuple[int, int] | None:
    """Return the number of starts of a run and the step of the last start; None if it was never started."""
    try:
        segments = read_manifest(folder).segments
    except NotARun:
        return None
    return (len(segments), int(segments[-1]["step"])) if segments else None


@final
class LiveProgress:
    """Progress of a run during training.

    Args:
        folder: run folder; may not exist yet.

    Attributes:
        total: number of planned steps; None if unknown.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._latest = LatestValues(folder)
        self.total: int | None = None

    def refresh(self) -> None:
        """Read new rows of the run's journal."""
        self._latest.read()
        # Read the events only until the plan is found.
        if self.total is None and self._latest.step is not None:
            self.total = _planned(list(_events(self._folder)))

    @property
    def step(self) -> int | None:
        """Number of completed steps; None before the first recorded step."""
        return None if self._latest.step is None else self._latest.step + 1

    @property
    def loss(self) -> float | None:
        """Last total loss; None if it is unknown or not a number."""
        value = self._latest.values.get(LOSS)
        return float(value) if isinstance(value, int | float) else None


def _events(folder: Path) -> list[dict[str, Any]]:
    return list(read_events(folder))


def _planned(events: list[dict[str, Any]]) -> int | None:
    plans = [event.get("steps") for event in events if event.get("kind") == "plan"]
    return int(plans[-1]) if plans and isinstance(plans[-1], int) else None


def _thinned(steps: Any, values: Any) -> tuple[tuple[float, float], ...]:
    finite = np.isfinite(values)
    steps = steps[finite]
    values = values[finite]
    # Evenly spaced samples that include both ends; `unique` drops duplicates from rounding.
    chosen = np.unique(np.linspace(0, max(len(steps) - 1, 0), min(len(steps), _CURVE_POINTS)).round().astype(int))
    return tuple((float(steps[i]), float(values[i])) for i in chosen) if len(steps) else ()


def json_of(summary: RunSummary) -> dict[str, Any]:
    """Return the summary as plain JSON values; non-finite metrics become strings."""
    plain = orjson.loads(orjson.dumps({**summary.__dict__, "findings": [f.as_event() for f in summary.findings]}))
    return plain | {"metrics": {name: v if np.isfinite(v) else str(v) for name, v in summary.metrics.items()}}
