"""Watches a run of another process: each refresh reads new records and returns the state of the run."""

import math
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast, final

import numpy as np

from fieldwatch.health.forecast import forecast
from fieldwatch.monitor.age import age
from fieldwatch.monitor.black_box import read_black_box
from fieldwatch.monitor.gpu import read_gpu
from fieldwatch.monitor.nvml import Nvml
from fieldwatch.monitor.processes import Processes
from fieldwatch.monitor.readings import Gpu
from fieldwatch.monitor.run_state import RunState, loop_position, state_of
from fieldwatch.monitor.watch.choosing import qualities_among
from fieldwatch.monitor.watch.run_view import (
    LastCheckpoint,
    MemoryUse,
    MetricCurve,
    ProcessUse,
    RunProgress,
    RunView,
    TermShare,
)
from fieldwatch.monitor.watch.watched_record import WatchedRecord
from fieldwatch.record import (
    JOURNAL,
    TOOLKIT,
    Damage,
    DamageTally,
    JournalFollower,
    Manifest,
    holds_run,
    read_manifest,
    tags,
)

OWN_LOOP: Final = "own loop"
QUIET: Final = 60.0
"""Seconds without a row after which the view reports it, unless steps are slow."""
USUAL_STEPS: Final = 20.0
"""Number of typical step times that may pass without a row."""
_CHUNK_BYTES: Final = 1 << 22
# Seconds between two forecasts.
_FORECAST_EVERY: Final = 10.0
_RECENT_STEPS: Final = 64
_MIB: Final = 2.0**20


@final
class Watcher:
    """Watches one run, without writing anything; memory and work per refresh do not grow with the run.

    Args:
        folder: run folder, which may be created later.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._follower = JournalFollower(folder, limit=_CHUNK_BYTES)
        self._record = WatchedRecord()
        self._processes = Processes()
        self._nvml: Nvml | None = None
        # Modification time and inode of run.json, with its contents.
        self._manifest: tuple[tuple[int, int], Manifest] | None = None
        self._forecast: tuple[float, int, str] = (-math.inf, -1, "")
        self._read_error = ""
        self._damage: tuple[Damage, ...] = ()
        self._manifest_damage: tuple[Damage, ...] = ()

    def refresh(self, budget: float = math.inf) -> RunView:
        """Read new records and return the current state of the run.

        Args:
            budget: maximum seconds to spend on reading, for the first refresh of a long run; the view then has
                ``reading`` set.

        Raises:
            NotARun: if the folder contains a run.json of another program.
        """
        now = datetime.now(UTC)
        # The run may not have started yet.
        if not holds_run(self.folder):
            return RunView(time=now, folder=self.folder, pipeline="", state=state_of(self.folder))
        manifest = self._read_manifest()
        reading = self._follow(time.monotonic() + budget)
        envelopes = self._record.envelopes
        row_age = self._row_age()
        state = self._with_row_age(state_of(self.folder), row_age)
        pipeline = manifest.about.get("pipeline")
        return RunView(
            time=now,
            folder=self.folder,
            pipeline=pipeline if isinstance(pipeline, str) else OWN_LOOP,
            state=state,
            progress=self._progress(manifest, state),
            rows=envelopes.rows,
            age=row_age,
            total=self._curve(tags.TOTAL, tags.TOTAL),
            terms=tuple(self._terms()),
            gradient=self._curve(tags.TOTAL_NORM, "total"),
            groups=tuple(self._groups()),
            refused=round(envelopes.total("Guard/refused")),
            qualities=tuple(self._curves(qualities_among(envelopes.names()))),
            memory=self._memory(state),
            spans=tuple(self._spans()),
            machine=tuple(self._curves(name for name in envelopes.names() if tags.kind(name) == tags.MACHINE)),
            gpus=tuple(self._gpus(state)),
            process=self._process(state),
            saved=self._saved(),
            findings=tuple(self._record.findings),
            counts=dict(self._record.counts),
            events=tuple(self._record.events),
            trouble=self._read_error,
            reading=reading,
        )

    def close(self) -> None:
        """Close NVML; may be called repeatedly."""
        if self._nvml is not None:
            self._nvml.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _read_manifest(self) -> Manifest:
        try:
            about = (self.folder / "run.json").stat()
            # A replaced file has another inode, even within one tick of the clock.
            made = about.st_mtime_ns, about.st_ino
        # Lost, but the checkpoints contain a copy.
        except FileNotFoundError:
            made = (0, 0)
        if self._manifest is None or self._manifest[0] != made:
            damage = DamageTally()
            self._manifest = made, read_manifest(self.folder, damage)
            self._manifest_damage = damage.entries
        return self._manifest[1]

    def _follow(self, until: float) -> bool:
        """Read new records until a time, and return whether there are more."""
        more = True
        self._read_error = ""
        try:
            # Read in chunks, so that a long record does not delay the first view.
            while more and time.monotonic() < until:
                update = self._follower.poll()
                self._record.update(update)
                more = update.more
                self._damage = update.damage
        except OSError as error:
            more = False
            self._read_error = f"the record cannot be read: {error}"
        self._read_error = "; ".join(filter(None, (self._read_error, *(one.message for one in self._damaged()))))
        return more

    def _damaged(self) -> tuple[Damage, ...]:
        """Return the damage found so far, in the record and in run.json."""
        return (*self._manifest_damage, *self._damage)

    def _row_age(self) -> float | None:
        if not self._record.envelopes.rows:
            return None
        try:
            return max(0.0, time.time() - (self.folder / JOURNAL).stat().st_mtime)
        except OSError:
            return None

    def _with_row_age(self, state: RunState, row_age: float | None) -> RunState:
        """Add a detail to a running run that has recorded no row for long: it may be evaluating or waiting for data."""
        speed = self._record.speed
        allowed = max(QUIET, USUAL_STEPS / speed if speed else 0.0)
        if state.word != "running" or row_age is None or row_age <= allowed:
            return state
        beat = read_black_box(self.folder)
        return replace(state, detail=f"no row for {age(row_age)}" + (f", {loop_position(beat)}" if beat else ""))

    def _progress(self, manifest: Manifest, state: RunState) -> RunProgress:
        record = self._record
        beat = None if state.ended else read_black_box(self.folder)
        # Rows are written in blocks, so the black box is ahead of them.
        done = max(record.envelopes.step + 1, beat.step if beat is not None else 0)
        speed = record.speed
        planned = record.planned
        remaining = None if planned is None else max(0, planned - done)
        phase, first, last = _phase(manifest, max(0, done - 1))
        running = not state.ended and remaining is not None and speed is not None
        return RunProgress(
            done=done,
            planned=planned,
            eta=cast("int", remaining) / cast("float", speed) if running else None,
            seconds=record.seconds,
            now=None if state.ended else speed,
            mean=record.mean_speed,
            phase=phase,
            phase_first=first,
            # An open phase lasts until the planned end.
            phase_last=last if last is not None or planned is None else planned - 1,
        )

    def _curve(self, name: str, label: str) -> MetricCurve | None:
        last = self._record.envelopes.last(name)
        if last is None:
            return None
        metric = TOOLKIT.find(name)
        unit = metric.unit if metric is not None else ""
        trend = self._record.envelopes.trend(name)
        return MetricCurve(name=name, label=label, unit=unit, last=last[1], step=last[0], trend=trend)

    def _curves(self, names: Iterable[str]) -> Iterator[MetricCurve]:
        for name in names:
            curve = self._curve(name, name)
            if curve is not None:
                yield curve

    def _terms(self) -> list[TermShare]:
        """Return the loss terms, active ones and large fractions first."""
        # Fractions are computed over the last 64 steps of this phase, because not every step has all terms.
        envelopes = self._record.envelopes
        history = self._record.history
        since = max(history.phase_start(max(0, history.step)), history.step - _RECENT_STEPS + 1)
        names = tags.COMPONENT.parts(envelopes.names())
        sums = {term: self._recent_sum(tags.WEIGHTED.tag(term), since) for term in names}
        whole = sum(abs(term_sum) for term_sum in sums.values() if term_sum is not None)
        terms: list[TermShare] = []
        for term, name in names.items():
            term_sum = sums[term]
            curve = cast("MetricCurve", self._curve(name, term))
            weight = envelopes.last(tags.WEIGHT.tag(term))
            term_share = term_sum / whole if term_sum is not None and whole > 0 else None
            weight_value = weight[1] if weight else None
            terms.append(TermShare(curve=curve, weight=weight_value, share=term_share, active=curve.step >= since))
        return sorted(terms, key=lambda term: (not term.active, -abs(term.share or 0.0)))

    def _recent_sum(self, name: str, since: int) -> float | None:
        """Return the sum of a metric's finite values since a step; None if nothing was recorded since."""
        history = self._record.history
        if name not in history:
            return None
        series = history[name].last(_RECENT_STEPS)
        values = series.values[series.steps >= since]
        return float(values[np.isfinite(values)].sum()) if len(values) else None

    def _groups(self) -> Iterator[MetricCurve]:
        for group, name in tags.GROUP_NORM.parts(self._record.envelopes.names()).items():
            yield cast("MetricCurve", self._curve(name, group))

    def _spans(self) -> list[MetricCurve]:
        history = self._record.history
        spans = list[MetricCurve]()
        for label, name in tags.SPAN.parts(self._record.envelopes.names()).items():
            if name not in history or "minutes" in name:
                continue
            recent = history[name].last(_RECENT_STEPS)
            recent = recent[recent.steps.searchsorted(history.step - _RECENT_STEPS) :]
            curve = self._curve(name, label)
            if curve is not None and len(recent):
                # Averaged over all steps: a span that runs every tenth step takes a tenth of its time per step.
                per_step = float(recent.values.sum()) / min(_RECENT_STEPS, history.step - history.first + 1)
                spans.append(replace(curve, last=per_step))
        labels = {span.label for span in spans}
        # A label that continues another one after "_" is part of that span, and would be counted twice.
        inside = {label for label in labels for other in labels if label.startswith(f"{other}_")}
        outer = [span for span in spans if span.label not in inside]
        return sorted(outer, key=lambda span: (span.label != "step", -span.last))

    def _memory(self, state: RunState) -> MemoryUse:
        def last(name: str) -> float | None:
            record = self._record.envelopes.last(name)
            return record[1] if record is not None and math.isfinite(record[1]) else None

        reserved = last("Memory/reserved_MB")
        return MemoryUse(
            device=reserved is not None,
            allocated=last("Memory/allocated_MB"),
            peak=last("Memory/peak_MB"),
            reserved=reserved,
            capacity=last("Memory/capacity_MB"),
            trend=self._curve("Memory/peak_MB", "peak"),
            forecast="" if state.ended else self._memory_forecast(device=reserved is not None),
        )

    def _memory_forecast(self, *, device: bool) -> str:
        last_time, step, text = self._forecast
        now = time.monotonic()
        record = self._record
        # The forecast fits curves, which is too expensive for every refresh.
        # Nor is it repeated without new rows.
        if now - last_time >= _FORECAST_EVERY and record.envelopes.step != step:
            result = forecast(record.history, end=record.planned)
            text = "" if result is None else result.text(memory="GPU memory" if device else "memory")
            self._forecast = now, record.envelopes.step, text
        return text

    def _is_local(self, state: RunState) -> bool:
        # Process IDs of other hosts mean nothing here.
        return not state.ended and state.pid is not None and state.host in ("", platform.node())

    def _process(self, state: RunState) -> ProcessUse | None:
        facts = self._processes.facts(state.pid) if state.pid is not None and self._is_local(state) else None
        if facts is None:
            return None
        resident = facts.resident_bytes
        return ProcessUse(cpu_percent=facts.cpu_percent, resident=None if resident is None else resident / _MIB)

    def _gpus(self, state: RunState) -> list[Gpu]:
        """Return the GPUs that the training process uses; all GPUs if the driver does not report which."""
        if not self._is_local(state):
            return []
        if self._nvml is None:
            self._nvml = Nvml()
        gpus = [read_gpu(self._nvml, index) for index in range(self._nvml.count())]
        # In a container, the driver may report foreign pids; then all GPUs are shown.
        used = [gpu for gpu in gpus if any(process.pid == state.pid for process in gpu.processes)]
        return used or gpus

    def _saved(self) -> LastCheckpoint | None:
        event = self._record.checkpoint
        if event is None:
            return None
        path = str(event.get("path", ""))
        metrics = event.get("metrics")
        named = cast("Mapping[object, object]", metrics).items() if isinstance(metrics, Mapping) else ()
        return LastCheckpoint(
            step=int(event["step"]) + 1,
            ago=_age_of(self.folder / path) if path else None,
            path=path,
            metrics={str(key): value for key, value in named},
            count=_count(self.folder / "checkpoints"),
            failures=self._record.failures,
        )


def _phase(manifest: Manifest, step: int) -> tuple[str, int, int | None]:
    """Return the name, first and last step of the phase of a step; of overlapping phases the last one."""
    phase = ("", 0, cast("int | None", None))
    for name, first, last in manifest.phases:
        if first <= step and (last is None or step <= last):
            phase = name, first, last
    return phase


def _age_of(path: Path) -> float | None:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except (OSError, ValueError):
        return None


def _count(folder: Path) -> int:
    try:
        return sum(1 for place in folder.iterdir() if (place / "manifest.sha256").exists())
    except OSError:
        return 0
