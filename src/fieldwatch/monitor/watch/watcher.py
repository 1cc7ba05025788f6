"""Watching a run that another process trains: each look reads what is new, and says how the run stands."""

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

from fieldwatch.health import forecast
from fieldwatch.monitor.age import age
from fieldwatch.monitor.black_box import read_black_box
from fieldwatch.monitor.gpu import read_gpu
from fieldwatch.monitor.nvml import Nvml
from fieldwatch.monitor.processes import Processes
from fieldwatch.monitor.readings import Gpu
from fieldwatch.monitor.standing import RunState, place_of, state_of
from fieldwatch.monitor.watch.choosing import qualities_among
from fieldwatch.monitor.watch.remembered import Remembered
from fieldwatch.monitor.watch.view import Curve, Memory, Process, Progress, Saved, Term, View
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
"""Seconds without a row after which that is mentioned, where steps are not slow."""
USUAL_STEPS: Final = 20.0
"""So many usual steps may pass without a row."""
_PIECE: Final = 1 << 22
_FORECAST_EVERY: Final = 10.0
_USUAL: Final = 64
_MIB: Final = 2.0**20


@final
class Watcher:
    """Watches one run; its memory and the work of a look do not grow with the run. Nothing is ever written.

    Args:
        folder: the run folder; it may come into being later.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._follower = JournalFollower(folder, limit=_PIECE)
        self._past = Remembered()
        self._processes = Processes()
        self._nvml: Nvml | None = None
        self._manifest: tuple[tuple[int, int], Manifest] | None = None
        self._forecast: tuple[float, int, str] = (-math.inf, -1, "")
        self._trouble = ""
        self._damage: tuple[Damage, ...] = ()
        self._manifest_damage: tuple[Damage, ...] = ()

    def look(self, budget: float = math.inf) -> View:
        """Return how the run stands now.

        Args:
            budget: seconds after which reading is left off (at a first look on a long run); the view says so.

        Raises:
            NotARun: the folder holds a run.json that is none of ours.
        """
        now = datetime.now(UTC)
        if not holds_run(self.folder):
            return View(time=now, folder=self.folder, pipeline="", state=state_of(self.folder))
        manifest = self._read_manifest()
        reading = self._follow(time.monotonic() + budget)
        bands = self._past.bands
        row_age = self._row_age()
        state = self._with_row_age(state_of(self.folder), row_age)
        pipeline = manifest.about.get("pipeline")
        return View(
            time=now,
            folder=self.folder,
            pipeline=pipeline if isinstance(pipeline, str) else OWN_LOOP,
            state=state,
            progress=self._progress(manifest, state),
            rows=bands.rows,
            age=row_age,
            total=self._curve(tags.TOTAL, tags.TOTAL),
            terms=tuple(self._terms()),
            gradient=self._curve(tags.TOTAL_NORM, "total"),
            groups=tuple(self._groups()),
            refused=round(bands.total("Guard/refused")),
            qualities=tuple(self._named(qualities_among(bands.names()))),
            memory=self._memory(state),
            spans=tuple(self._spans()),
            machine=tuple(self._named(name for name in bands.names() if tags.kind(name) == tags.MACHINE)),
            gpus=tuple(self._gpus(state)),
            process=self._process(state),
            saved=self._saved(),
            findings=tuple(self._past.findings),
            counts=dict(self._past.counts),
            events=tuple(self._past.events),
            trouble=self._trouble,
            reading=reading,
        )

    def close(self) -> None:
        """Give NVML back; more than once is fine."""
        if self._nvml is not None:
            self._nvml.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _read_manifest(self) -> Manifest:
        try:
            about = (self.folder / "run.json").stat()
            made = about.st_mtime_ns, about.st_ino
        except FileNotFoundError:  # lost, with checkpoints that say what it was
            made = (0, 0)
        if self._manifest is None or self._manifest[0] != made:
            damage = DamageTally()
            self._manifest = made, read_manifest(self.folder, damage)
            self._manifest_damage = damage.entries
        return self._manifest[1]

    def _follow(self, until: float) -> bool:
        """Take in what is new; returns whether there is more."""
        more = True
        self._trouble = ""
        try:
            while more and time.monotonic() < until:
                update = self._follower.poll()
                self._past.take(update)
                more = update.more
                self._damage = update.damage
        except OSError as error:
            more = False
            self._trouble = f"the record cannot be read now: {error}"
        self._trouble = "; ".join(filter(None, (self._trouble, *(one.message for one in self._damaged()))))
        return more

    def _damaged(self) -> tuple[Damage, ...]:
        """What is damaged so far: lines of the record, and run.json."""
        return (*self._manifest_damage, *self._damage)

    def _row_age(self) -> float | None:
        if not self._past.bands.rows:
            return None
        try:
            return max(0.0, time.time() - (self.folder / JOURNAL).stat().st_mtime)
        except OSError:
            return None

    def _with_row_age(self, state: RunState, row_age: float | None) -> RunState:
        """Add to a running run that it has recorded no row for long: it may be in an evaluation, or wait for data."""
        speed = self._past.speed
        allowed = max(QUIET, USUAL_STEPS / speed if speed else 0.0)
        if state.word != "running" or row_age is None or row_age <= allowed:
            return state
        beat = read_black_box(self.folder)
        return replace(state, detail=f"no row for {age(row_age)}" + (f", {place_of(beat)}" if beat else ""))

    def _progress(self, manifest: Manifest, state: RunState) -> Progress:
        past = self._past
        beat = None if state.ended else read_black_box(self.folder)
        done = max(past.bands.step + 1, beat.step if beat is not None else 0)
        speed = past.speed
        planned = past.planned
        left = None if planned is None else max(0, planned - done)
        phase, first, last = _phase(manifest, max(0, done - 1))
        running = not state.ended and left is not None and speed is not None
        return Progress(
            done=done,
            planned=planned,
            eta=cast("int", left) / cast("float", speed) if running else None,
            seconds=past.seconds,
            now=None if state.ended else speed,
            mean=past.mean_speed,
            phase=phase,
            phase_first=first,
            phase_last=last if last is not None or planned is None else planned - 1,
        )

    def _curve(self, name: str, label: str) -> Curve | None:
        last = self._past.bands.last(name)
        if last is None:
            return None
        metric = TOOLKIT.find(name)
        unit = metric.unit if metric is not None else ""
        trend = self._past.bands.trend(name)
        return Curve(name=name, label=label, unit=unit, last=last[1], step=last[0], trend=trend)

    def _named(self, names: Iterable[str]) -> Iterator[Curve]:
        for name in names:
            curve = self._curve(name, name)
            if curve is not None:
                yield curve

    def _terms(self) -> list[Term]:
        """Return the terms; shares are those of the last 64 steps of this phase together: not every step has all."""
        bands = self._past.bands
        history = self._past.history
        since = max(history.phase_start(max(0, history.step)), history.step - _USUAL + 1)
        names = tags.COMPONENT.parts(bands.names())
        parts = {term: self._added(tags.WEIGHTED.tag(term), since) for term in names}
        whole = sum(abs(part) for part in parts.values() if part is not None)
        terms: list[Term] = []
        for term, name in names.items():
            part = parts[term]
            curve = cast("Curve", self._curve(name, term))
            weight = bands.last(tags.WEIGHT.tag(term))
            told = part / whole if part is not None and whole > 0 else None
            weighed = weight[1] if weight else None
            terms.append(Term(curve=curve, weight=weighed, share=told, active=curve.step >= since))
        return sorted(terms, key=lambda term: (not term.active, -abs(term.share or 0.0)))

    def _added(self, name: str, since: int) -> float | None:
        """Return the sum of a metric's finite values from a step on; None where nothing was recorded since."""
        history = self._past.history
        if name not in history:
            return None
        series = history[name].last(_USUAL)
        values = series.values[series.steps >= since]
        return float(values[np.isfinite(values)].sum()) if len(values) else None

    def _groups(self) -> Iterator[Curve]:
        for group, name in tags.GROUP_NORM.parts(self._past.bands.names()).items():
            yield cast("Curve", self._curve(name, group))

    def _spans(self) -> list[Curve]:
        history = self._past.history
        spans = list[Curve]()
        for label, name in tags.SPAN.parts(self._past.bands.names()).items():
            if name not in history or "minutes" in name:
                continue
            recent = history[name].last(_USUAL)
            recent = recent[recent.steps.searchsorted(history.step - _USUAL) :]
            curve = self._curve(name, label)
            if curve is not None and len(recent):
                per_step = float(recent.values.sum()) / min(_USUAL, history.step - history.first + 1)
                spans.append(replace(curve, last=per_step))
        labels = {span.label for span in spans}
        inside = {label for label in labels for other in labels if label.startswith(f"{other}_")}
        outer = [span for span in spans if span.label not in inside]
        return sorted(outer, key=lambda span: (span.label != "step", -span.last))

    def _memory(self, state: RunState) -> Memory:
        def last(name: str) -> float | None:
            found = self._past.bands.last(name)
            return found[1] if found is not None and math.isfinite(found[1]) else None

        reserved = last("Memory/reserved_MB")
        return Memory(
            device=reserved is not None,
            allocated=last("Memory/allocated_MB"),
            peak=last("Memory/peak_MB"),
            reserved=reserved,
            capacity=last("Memory/capacity_MB"),
            trend=self._curve("Memory/peak_MB", "peak"),
            forecast="" if state.ended else self._foretold(device=reserved is not None),
        )

    def _foretold(self, *, device: bool) -> str:
        asked, step, text = self._forecast
        now = time.monotonic()
        past = self._past
        if now - asked >= _FORECAST_EVERY and past.bands.step != step:
            found = forecast(past.history, end=past.planned)
            text = "" if found is None else found.text(memory="GPU memory" if device else "memory")
            self._forecast = now, past.bands.step, text
        return text

    def _here(self, state: RunState) -> bool:
        return not state.ended and state.pid is not None and state.host in ("", platform.node())

    def _process(self, state: RunState) -> Process | None:
        facts = self._processes.facts(state.pid) if state.pid is not None and self._here(state) else None
        if facts is None:
            return None
        held = facts.resident_bytes
        return Process(cpu_percent=facts.cpu_percent, resident=None if held is None else held / _MIB)

    def _gpus(self, state: RunState) -> list[Gpu]:
        """Return the GPUs that the run's process uses; all of them where the driver does not say which."""
        if not self._here(state):
            return []
        if self._nvml is None:
            self._nvml = Nvml()
        gpus = [read_gpu(self._nvml, index) for index in range(self._nvml.count())]
        own = [gpu for gpu in gpus if any(process.pid == state.pid for process in gpu.processes)]
        return own or gpus

    def _saved(self) -> Saved | None:
        event = self._past.checkpoint
        if event is None:
            return None
        path = str(event.get("path", ""))
        metrics = event.get("metrics")
        named = cast("Mapping[object, object]", metrics).items() if isinstance(metrics, Mapping) else ()
        return Saved(
            step=int(event["step"]) + 1,
            ago=_age_of(self.folder / path) if path else None,
            path=path,
            metrics={str(key): value for key, value in named},
            count=_count(self.folder / "checkpoints"),
            failures=self._past.failures,
        )


def _phase(manifest: Manifest, step: int) -> tuple[str, int, int | None]:
    found = ("", 0, cast("int | None", None))
    for name, first, last in manifest.phases:
        if first <= step and (last is None or step <= last):
            found = name, first, last
    return found


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
