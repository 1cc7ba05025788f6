"""The examiner: evaluates the rules every few steps and reports each finding once."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from fieldwatch.base import MissingPathError
from fieldwatch.health.finding import RULE_FAILED, Finding, Severity, is_more_severe
from fieldwatch.health.places import with_places
from fieldwatch.health.rule import Rule
from fieldwatch.health.window import LOOKBACK, spacing
from fieldwatch.record import Block, DamageTally, History, holds_run, note_damage, read_blocks, read_events

_Key = tuple[str, str, int]
_APART = 1.0
"""Seconds of training between two examinations, which take about ten milliseconds."""


class Examiner:
    """Evaluates rules on a history and reports each finding once per rule, subject and phase.

    A finding is reported again only if its severity has risen. A rule that raises does not stop the run: the failure
    becomes a finding. The live run and :func:`examine` evaluate the rules at the same steps, so that both report the
    same findings.

    A fast loop would spend much of its time on rules. From step 1,024 on, an examination less than a second after the
    one before is left out, unless three have been; from step 4,096 on, unless 15 have been.

    Args:
        rules: callables that take a history and return a finding, several, or None.
        every: number of steps between two examinations; up to 16 times as many in a fast loop.

    Raises:
        ValueError: if ``every`` is not within 1 to 64. Rules look back 64 steps for phases that have ended since the
            last examination.
    """

    def __init__(self, rules: Iterable[Rule], *, every: int = 64) -> None:
        if not 1 <= every <= LOOKBACK:
            raise ValueError(
                f"Examiner(every={every}): expected 1 to {LOOKBACK}, because rules look back {LOOKBACK} steps"
            )
        self.rules = tuple(rules)
        self.every = every
        self._reported: dict[_Key, Severity] = {}
        self._reported_before: list[Finding] = []
        self._last_interval: int | None = None
        self._examined_interval = -1
        self._examined_at = -np.inf

    def examine(self, history: History) -> list[Finding]:
        """Evaluate all rules and return the new findings, ordered by step."""
        # Not done in mark_reported, because the key contains the phase, which the history did not know then.
        for finding in self._reported_before:
            self._is_new(finding, history)
        self._reported_before.clear()
        findings = [with_places(finding, history) for rule in self.rules for finding in _evaluate(rule, history)]
        findings.sort(key=lambda finding: (finding.step, finding.rule, finding.subject))
        return [finding for finding in findings if self._is_new(finding, history)]

    def mark_reported(self, findings: Iterable[Finding]) -> None:
        """Mark findings of an earlier part of the run as reported, so that a resumed run does not repeat them."""
        self._reported_before.extend(findings)

    def split(self, block: Block) -> Iterator[tuple[Block, bool]]:
        """Split a block at the steps where an examination is due.

        An examination is due after the row of the last step before a multiple of ``every``. If that step recorded
        nothing, it is due before the first later row; the part may then be empty.

        Yields:
            Each part with whether an examination is due after it.
        """
        start = 0
        for at, (step, seconds) in enumerate(zip(block.steps.tolist(), block.seconds.tolist(), strict=True)):
            number = step // self.every
            # The step that should have triggered an examination recorded nothing: examine before this later row.
            if self._last_interval is not None and number > self._last_interval + 1:
                if self._is_due(number - 1, seconds):
                    yield _rows(block, start, at), True
                    start = at
                self._last_interval = number - 1
            # This row completes an interval.
            if (step + 1) % self.every == 0 and self._last_interval != number:
                if self._is_due(number, seconds):
                    yield _rows(block, start, at + 1), True
                    start = at + 1
                self._last_interval = number
            # The very first row: the intervals before it need no examination.
            elif self._last_interval is None:
                self._last_interval = number - 1
        if start < len(block):
            yield _rows(block, start, len(block)), False

    def _is_due(self, interval: int, seconds: float) -> bool:
        """Return whether to examine after an interval, in a row with these seconds of training."""
        # A journal has whole microseconds: the live run must decide as those who read it.
        at = round(seconds, 6)
        # At fixed steps whatever the speed, so that a resumed run has the same findings.
        times = spacing((interval + 1) * self.every)
        fixed = (interval + 1) // times > (self._examined_interval + 1) // times
        if not (fixed or at - self._examined_at >= _APART):
            return False
        self._examined_interval = interval
        self._examined_at = at
        return True

    def _is_new(self, finding: Finding, history: History) -> bool:
        # A condition that persists into another phase is reported again: thresholds restart at phase borders.
        key = (finding.rule, finding.subject, history.phase_start(finding.step))
        known = self._reported.get(key)
        # Only a rise in severity is reported again.
        if known is not None and not is_more_severe(finding.severity, known):
            return False
        self._reported[key] = finding.severity
        return True


def examine(folder: Path | str, rules: Sequence[Rule], *, every: int = 64) -> list[Finding]:
    """Replay a run's record and evaluate the rules at the same steps as the live run did.

    Args:
        folder: run folder.
        rules: rules to evaluate.
        every: number of steps between two examinations in the live run.

    Returns:
        All findings, in the order in which the live run reported them.

    Raises:
        MissingPathError: if the folder does not exist.
    """
    if not Path(folder).is_dir():
        raise MissingPathError(f"no run folder at {folder}: pass the run folder that `fieldwatch train` printed")
    examiner = Examiner(rules, every=every)
    history = History()
    findings = list[Finding]()
    damage = DamageTally()
    # Resumed runs append events, so they are not always ordered by step.
    events = deque(sorted(_lasting_events(folder, damage), key=lambda event: event["step"]))

    def apply_rules(until: float) -> None:
        while events and events[0]["step"] < until:
            history.add_event(events.popleft())
        for finding in examiner.examine(history):
            findings.append(finding)
            history.add_event(finding.as_event())

    # Events enter the history when the replay passes their step, as they did in the live run.
    for block in read_blocks(folder, damage):
        for part, due in examiner.split(block):
            history.extend(part)
            if due:
                apply_rules((history.step // every + 1) * every)
    if holds_run(Path(folder)):
        note_damage(Path(folder), damage)
    # Only a complete read of the record shows all of its damage.
    events.extend(damage.events(history.step))
    apply_rules(float("inf"))
    return findings


def _lasting_events(folder: Path | str, damage: DamageTally) -> Iterator[dict[str, Any]]:
    """Yield the events of a run except the findings, which the replay computes again."""
    return (event for event in read_events(folder, damage) if event["kind"] != "finding")


def _evaluate(rule: Rule, history: History) -> Sequence[Finding]:
    """Return the findings of one rule; an exception of the rule becomes a finding."""
    try:
        return _as_findings(rule(history))
    except Exception as fault:  # noqa: BLE001  user code: a failing rule becomes a finding and training continues
        name = getattr(rule, "__name__", type(rule).__name__)
        text = f"the rule itself failed: {type(fault).__name__}: {fault}."
        remedy = "Fix the rule, or remove it from the run's rules; the other rules are still evaluated."
        step = max(history.step, 0)
        return [Finding(rule=name, step=step, severity="warning", message=text, remedy=remedy, subject=RULE_FAILED)]


def _as_findings(result: object) -> Sequence[Finding]:
    """Validate the return value of a rule, which may be any user-defined callable."""
    findings: list[Finding] = []
    results = cast("Sequence[object]", result) if isinstance(result, tuple | list) else (result,)
    for finding in results:
        if isinstance(finding, Finding):
            findings.append(finding)
        elif finding is not None:
            raise TypeError(f"it returned {type(finding).__name__}; expected a Finding, a tuple of Findings, or None")
    return findings


def _rows(block: Block, start: int, end: int) -> Block:
    """Return the rows ``start`` to ``end`` (exclusive) of a block."""
    # Most blocks are not split: avoid the copy.
    if start == 0 and end == len(block):
        return block
    part = slice(start, end)
    return Block(
        axis=block.axis,
        columns=block.columns,
        steps=block.steps[part],
        seconds=block.seconds[part],
        positions=block.positions[part],
        values=np.ascontiguousarray(block.values[part]),
        samples=block.samples[part],
    )
