"""Rules that compare the loss terms with their declared windows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.threshold import threshold
from fieldwatch.health.window import Span, between, first_sustained, on_steps, spans
from fieldwatch.record import History, Series, tags

PRIMARY = ("rendering", "rgb", "color", "photometric", "image", "pixel", "normal", "mask", "depth", "data")
"""Usual names of data terms. A pipeline with other names passes its own to the rule."""


def _declared(history: History) -> Iterator[tuple[str, int, int, Series | None]]:
    """Yield the terms whose declared window has begun: name, first and last step so far, and recordings in between."""
    for term, (first, last) in history.windows.items():
        end = min(last, history.step)
        if first <= end:
            name = tags.COMPONENT.tag(term)
            yield term, first, end, between(history[name], first, end) if name in history else None


@dataclass(frozen=True, kw_only=True)
class DeclaredButZero(HealthRule):
    """A loss term that is declared active is exactly zero for a long time."""

    patience: int = threshold(
        200, unit="recordings", reason="masks and selections may be empty for a while, but not for this long"
    )
    remedy: ClassVar[str] = (
        "The term has no effect: check its inputs, whether its mask or selection is ever non-empty, and whether the "
        "surface that it needs exists by then; otherwise declare a later window."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per term, where it had been zero for ``patience`` recordings."""
        findings: list[Finding] = []
        for term, first, _, series in _declared(history):
            zero = None if series is None else first_sustained(series.values == 0, patience=self.patience)
            if series is not None and zero is not None:
                text = (
                    f"term '{term}', declared active from step {first}, was exactly 0 {self.patience} times in a row."
                )
                findings.append(self.finding(int(series.steps[zero]), text, subject=term))
        return tuple(findings)


@dataclass(frozen=True, kw_only=True)
class DeclaredButAbsent(HealthRule):
    """A loss term that is declared active is not recorded for a long time."""

    patience: int = threshold(200, unit="steps", reason="a term may be computed only every few steps")
    remedy: ClassVar[str] = (
        "Add the term to the step's terms within its window (check for a misspelled name, a branch that is never taken "
        "and a swallowed exception), or correct the declared window."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per term, where it had been missing for ``patience`` steps."""
        findings: list[Finding] = []
        for term, first, end, series in _declared(history):
            known = first - 1 if series is None or not len(series) else int(series.steps[-1])
            if end - known >= self.patience:
                text = f"term '{term}', declared active from step {first}, {_when(known, first)}."
                findings.append(self.finding(known + self.patience, text, subject=term))
        return tuple(findings)


def _when(known: int, first: int) -> str:
    return "was never recorded" if known < first else f"was last recorded at step {known}"


@dataclass(frozen=True, kw_only=True)
class UndeclaredTerm(HealthRule):
    """A loss term is recorded outside its declared window, or was never declared while others were."""

    severity: ClassVar[Severity] = "note"
    remedy: ClassVar[str] = (
        "Declare when the term is active, so that its absence can be detected and a phase border is set at its start."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per term, its first undeclared step."""
        if not history.windows:
            return ()
        findings: list[Finding] = []
        for term, name in tags.COMPONENT.parts(history.names()).items():
            first, last = history.windows.get(term, (0, -1))
            steps = history[name].steps
            if steps[0] >= first and steps[-1] <= last:
                continue
            outside = (steps < first) | (steps > last)
            why = f"outside its window {first} to {last}" if term in history.windows else "without a declared window"
            step = int(steps[outside][0])
            findings.append(self.finding(step, f"term '{term}' was recorded at step {step}, {why}.", subject=term))
        return tuple(findings)


@dataclass(frozen=True, kw_only=True)
class TermDominates(HealthRule):
    """A regularizer contributes several times more to the total loss than the largest data term.

    Attributes:
        primary: names of the data terms; all other terms count as regularizers.
    """

    primary: Sequence[str] = PRIMARY
    ratio: float = threshold(
        3.0,
        unit="times the largest data term",
        reason="a regularizer this strong decides the result instead of the data",
    )
    warmup: int = threshold(200, unit="recordings", reason="an eikonal term may dominate while the field forms")
    patience: int = threshold(64, unit="recordings", reason="a single batch is not a trend")
    remedy: ClassVar[str] = (
        "Lower the weight of the regularizer until it stays below the data term. If your data terms have other names, "
        "pass them to the rule: TermDominates(primary=(...))."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per regularizer and phase, where it had dominated for too long."""
        terms = tags.WEIGHTED.parts(history.names())
        data = [history[name] for term, name in terms.items() if term in self.primary]
        others = [name for term, name in terms.items() if term not in self.primary]
        if not data:
            return ()
        return tuple(found for span in spans(history, *others) if (found := self._judge(span, data)))

    def _judge(self, span: Span, data: Sequence[Series]) -> Finding | None:
        main = _largest([on_steps(series, span.series.steps) for series in data])
        high = (main > 0) & (np.abs(span.values) > self.ratio * main)
        at = first_sustained(high, patience=self.patience, warmup=self.warmup)
        if at is None:
            return None
        term = tags.WEIGHTED.part(span.name) or span.name
        times = abs(span.values[at]) / main[at]
        text = f"regularizer '{term}' adds {span.values[at]:.4g} to the total, {times:.1f} times the largest data term."
        return self.finding(span.step(at), text, subject=term)


def _largest(series: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    largest = np.abs(series[0])
    for part in series[1:]:
        # fmax ignores NaN: a term that was not recorded at a step must not hide the others.
        largest = np.fmax(largest, np.abs(part))
    return largest
