"""Rules that compare the loss terms with their declared windows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import has_improved, is_evaluated, name_words, shows_learning
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import (
    Span,
    between,
    finished,
    first_sustained,
    is_signed,
    on_steps,
    planned_steps,
    spans,
)
from fieldwatch.record import History, Series, tags

_DETACHED = (
    "Check that the term depends on the parameters with a gradient: no .detach(), .item() or torch.no_grad() in "
    "its computation, no argmax or rounding, and parameters that the optimizer holds. If it does, its targets "
    "contradict each other: look at their signs (directions), units and order."
)
PRIMARY = ("rendering", "rgb", "color", "photometric", "image", "pixel", "normal", "mask", "depth", "data")
"""Usual names of data terms. A pipeline with other names passes its own to the rule."""
_REGULARIZERS = frozenset(
    {
        *("kl", "kld", "divergence", "prior", "penalty", "regularizer", "regularization", "reg", "decay", "tv"),
        *("sparsity", "smoothness", "eikonal", "commitment", "orthogonality", "ridge"),
    }
)
"""Words in the names of terms that restrict a model and say nothing about the data."""


_FEW = 16
"""Number of recordings at the start and at the end that are compared."""
_SETTLED = 64
"""Number of recordings after which gradients have settled."""


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
class TermAlwaysZero(HealthRule):
    """One of several loss terms is exactly 0 at all steps of a run, and no held-out result has improved.

    What it should teach is never learned: its mask or selection is empty, or nothing is matched with its targets.
    """

    count: int = threshold(100, unit="recordings", reason="masks and selections may be empty for a while")
    remedy: ClassVar[str] = (
        "Print what the term selects: a mask, the matched (positive) anchors or pairs, indices, a threshold of overlap "
        "or distance. If nothing is ever selected, change the sizes of the anchors, the scale or units of the targets, "
        "or the threshold, so that every target has a match."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per term."""
        names = tags.COMPONENT.parts(history.names())
        if not finished(history) or len(names) < 2 or has_improved(history) or not is_evaluated(history):
            return ()
        return tuple(
            self.finding(
                history.step,
                f"term '{term}' was exactly 0 at all {len(history[name])} recorded steps: it selects nothing and "
                "trains nothing.",
                subject=term,
            )
            for term, name in names.items()
            if len(history[name]) >= self.count
            and not history[name].values.any()
            and not history[name].start.values.any()
        )


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

    If no term has the name of a data term, a term counts as a regularizer if it dwarfs all others from the start and
    does not fall: the others cannot be learned then. A note if held-out results show that they are.

    Attributes:
        primary: names of the data terms; all other terms count as regularizers.
    """

    primary: Sequence[str] = PRIMARY
    ratio: float = threshold(
        3.0,
        unit="times the largest data term",
        reason="a regularizer this strong decides the result instead of the data",
    )
    unnamed: float = threshold(
        10.0,
        unit="times the largest other term",
        reason="without known names, only a term that dwarfs all others is certain to decide the result",
    )
    first: float = threshold(
        50.0, unit="times the largest data term", reason="so much at the start, and so much above the later gradients"
    )
    change: float = threshold(
        0.1, unit="fraction of its first value", reason="a data term that dominates falls when it is learned"
    )
    warmup: int = threshold(
        200,
        unit="steps",
        reason="an eikonal term may dominate while the field forms. At most a third of the planned steps",
    )
    patience: int = threshold(
        64, unit="recordings", reason="a single batch is not a trend. At most an eighth of the planned steps"
    )
    remedy: ClassVar[str] = (
        "Lower the weight of the regularizer until it stays below the data term. If your data terms have other names, "
        "pass them to the rule: TermDominates(primary=(...))."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per regularizer and phase, where it had dominated for too long."""
        terms = tags.WEIGHTED.parts(history.names())
        data = [history[name] for term, name in terms.items() if term in self.primary]
        others = [name for term, name in terms.items() if term not in self.primary]
        planned = planned_steps(history)
        warmup = self.warmup if planned is None else min(self.warmup, planned // 3)
        patience = self.patience if planned is None else max(min(self.patience, planned // 8), 1)
        if not data:
            found = (self._unnamed(history, name, list(terms.values()), warmup, patience) for name in terms.values())
        else:
            found = [self._judge(span, data, warmup, patience) for span in spans(history, *others)]
            if not any(found):
                found = [self._at_start(history, name, data) for name in others]
        return tuple(finding for finding in found if finding)

    def _judge(self, span: Span, data: Sequence[Series], warmup: int, patience: int) -> Finding | None:
        main = _largest([on_steps(series, span.series.steps) for series in data])
        high = (main > 0) & (np.abs(span.values) > self.ratio * main)
        # Steps, not recordings: a term may be computed only every few steps.
        skipped = int(np.searchsorted(span.series.steps, span.start + warmup))
        at = first_sustained(high, patience=patience, warmup=skipped)
        if at is None:
            return None
        term = tags.WEIGHTED.part(span.name) or span.name
        times = abs(span.values[at]) / main[at]
        text = (
            f"regularizer '{term}' adds {number(span.values[at])} to the total, {times:.1f} times the largest data "
            "term."
        )
        return self.finding(span.step(at), text, subject=term)

    def _at_start(self, history: History, name: str, data: Sequence[Series]) -> Finding | None:
        """Return a finding at the end if a regularizer dwarfed the data at first, and gradients have been small since.

        An optimizer that divides by the squares of past gradients remembers them.
        """
        if not finished(history) or tags.TOTAL_NORM not in history or history[name].steps[0] > max(history.first, 0):
            return None
        norms = history[tags.TOTAL_NORM].values
        first = float(np.nanmedian(np.abs(history[name].values[:3])))
        main = max(float(np.nanmedian(np.abs(series.values[:3]))) for series in data)
        if len(norms) < _SETTLED or main <= 0 or first < self.first * main:
            return None
        if float(np.nanmax(norms[:3])) < self.first * float(np.nanmedian(norms[_SETTLED // 2 :])):
            return None
        term = tags.WEIGHTED.part(name) or name
        text = (
            f"regularizer '{term}' began at {number(first / main, 3)} times the largest data term and dominates the "
            "gradients that the optimizer's step sizes come from."
        )
        return self.finding(history.step, text, subject=term)

    def _unnamed(self, history: History, name: str, names: Sequence[str], warmup: int, patience: int) -> Finding | None:
        series = history[name]
        others = [history[other] for other in names if other != name]
        if not others or series.steps[0] > max(history.first, 0):
            return None
        values = series.values
        rest = _largest([on_steps(other, series.steps) for other in others])
        high = (rest > 0) & (np.abs(values) > self.unnamed * rest)
        # From the start: a term that dominates because the others were learned decides nothing.
        began = float(np.nanmedian(values[:5]))
        if not high[: min(warmup, len(high))].all() or not np.isfinite(began):
            return None
        still = np.abs(values - began) < self.change * abs(began)
        at = first_sustained(high & still, patience=patience, warmup=warmup)
        if at is None:
            return self._regularized(history, name, names, high)
        term = tags.WEIGHTED.part(name) or name
        times = abs(values[at]) / rest[at]
        text = (
            f"term '{term}' dominates: it adds {number(values[at])} to the total, {times:.0f} times the largest other "
            "term, and has not changed since the start."
        )
        # It may train other parameters than those that the result comes from, such as those of a critic.
        severity: Severity = "note" if shows_learning(history) else "warning"
        return self.finding(int(series.steps[at]), text, subject=term, severity=severity)

    def _regularized(
        self, history: History, name: str, names: Sequence[str], high: NDArray[np.bool_]
    ) -> Finding | None:
        """Return a finding at the end if a term with the name of a regularizer dwarfed all others at every step.

        It falls as it wins, and a data term is no lower than at the start.
        """
        if not finished(history) or not high.all() or not is_regularizer(name) or has_improved(history):
            return None
        data = [history[other].values for other in names if not is_regularizer(other)]
        ends = [(float(np.nanmean(each[:_FEW])), float(np.nanmean(each[-_FEW:]))) for each in data]
        if not any(first > 0 and last > (1 - self.change) * first for first, last in ends):
            return None
        term = tags.WEIGHTED.part(name) or name
        text = (
            f"regularizer '{term}' dominates: it is more than {self.unnamed:g} times the largest other term at every "
            "step, and the data are fitted no better at the end than at the start."
        )
        return self.finding(history.step, text, subject=term)


def is_regularizer(name: str) -> bool:
    """Return whether the name of a term says that it restricts the model, whatever the data are."""
    return bool(name_words(name) & _REGULARIZERS)


@dataclass(frozen=True, kw_only=True)
class TermNotLearned(HealthRule):
    """A term makes up most of the final loss and is as high as at the start, because another term wins against it."""

    share: float = threshold(0.5, unit="fraction of the loss", reason="the largest remaining part of the loss")
    fall: float = threshold(0.15, unit="fraction of its first value", reason="a smaller fall is within the noise")
    learned: float = threshold(
        0.1, unit="fraction of its first value", reason="another term fell tenfold: the model can learn"
    )
    total: float = threshold(
        0.3, unit="fraction of the first loss", reason="then one term has won at the expense of the others"
    )
    certain: float = threshold(
        4.0, unit="standard errors", reason="a term that certainly falls in the second half is being learned, if late"
    )
    head: int = threshold(16, unit="recordings", reason="length of the initial mean")
    window: int = threshold(64, unit="recordings", reason="length of the final mean")
    remedy: ClassVar[str] = (
        "Lower the weight of the term that fell, by a factor of 10 to 1000, until the other one falls too; declare a "
        "later window for it if it has to be strong in the end. If the other term cannot fall with any weight, check "
        "that it depends on the parameters with a gradient (no .detach(), .item() or rounding in its computation), and "
        "that its targets do not contradict each other: their signs (directions), units and order."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, the term that was not learned, with the one that won."""
        terms = tags.WEIGHTED.parts(history.names())
        if not finished(history) or len(terms) < 2:
            return ()
        ends: dict[str, tuple[float, float]] = {}
        for term, name in terms.items():
            series = history[name]
            first, last = history.windows.get(term, (0, history.step))
            # Terms with a window or with both signs have no comparable start.
            if first > 0 or last < history.step or len(series) < self.head + self.window or is_signed(series.values):
                return ()
            # The highest of the first values: a term that wins falls within a few steps.
            head = float(np.nanmax(series.values[: self.head]))
            ends[term] = (head, float(np.nanmean(series.values[-self.window :])))
        start = sum(float(np.nanmean(history[name].values[:3])) for name in terms.values())
        total = sum(last for _, last in ends.values())
        for term, (_, last) in ends.items():
            head = float(np.nanmean(history[terms[term]].values[: self.head]))
            won = [other for other, (top, end) in ends.items() if other != term and end < self.learned * top]
            if not won or head <= 0 or last <= self.share * total or last <= (1 - self.fall) * head:
                continue
            if self._still_falls(history[terms[term]].values):
                continue
            if total > self.total * start:
                return (self._dominated(history, term, won[0], ends, last / total),)
            if last < (1 + self.fall) * head:
                text = (
                    f"term '{term}' began at {number(head)} and ended at {number(last)}, "
                    f"{percent(last / total, 0)} of the loss, while "
                    "others fell more than tenfold: it seems to have no gradient."
                )
                return (replace(self.finding(history.step, text, subject=term), remedy=_DETACHED),)
        return ()

    def _still_falls(self, values: NDArray[np.float64]) -> bool:
        """Return whether the last quarter of a term is certainly below the second one."""
        quarter = len(values) // 4
        before = values[quarter : 2 * quarter]
        after = values[-quarter:]
        error = float(np.sqrt((np.nanvar(before) + np.nanvar(after)) / max(quarter, 1)))
        return float(np.nanmean(before) - np.nanmean(after)) > self.certain * error

    def _dominated(
        self, history: History, term: str, winner: str, ends: Mapping[str, tuple[float, float]], share: float
    ) -> Finding:
        top, end = ends[winner]
        text = (
            f"term '{winner}' dominates: it fell from {number(top)} to {number(end)}, while '{term}' stayed at "
            f"{number(ends[term][1])}, {percent(share, 0)} of the loss: the loss is minimized at its expense, or "
            f"'{term}' has no "
            "gradient."
        )
        return self.finding(history.step, text, subject=winner)


def _largest(series: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    largest = np.abs(series[0])
    for part in series[1:]:
        # fmax ignores NaN: a term that was not recorded at a step must not hide the others.
        largest = np.fmax(largest, np.abs(part))
    return largest
