"""Rules for non-finite values, and for updates that were refused because of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import Span, first_sustained, on_steps, phases, spans, trailing_count
from fieldwatch.record import History, tags

_Bad = Mapping[str, NDArray[np.float64]]
_USUAL = 32
_RECENT = 16
_EXPLODED = 100.0
"""A norm of the last 16 steps that is a hundred times the median before them has exploded."""
_DIVERGED = (
    "Clip the gradient norm (step.update(..., clip=1.0), or after the backward pass and before the update) and lower "
    "the learning rate; check its schedule if the rate has grown. If the values of one term overflow first, check its "
    "divisions, logarithms and square roots."
)
_BACKWARD = (
    "If the loss is scaled for float16, lower the scale (GradScaler(init_scale=...)), or use bfloat16. Otherwise look "
    "for an operation whose derivative is infinite although its value is not: a square root, norm or power at 0, "
    "acos at 1, a division that torch.where hides; add an epsilon inside, and check the data of that sample."
)
_RISEN = 1e3
"""A loss a thousand times its first value, rising step by step, has diverged."""


@dataclass(frozen=True, kw_only=True)
class NonFinite(HealthRule):
    """A loss term, the total loss or a gradient norm is NaN or infinite; names term, group, sample and exact step.

    Attributes:
        norms: tag prefixes under which ``<group>_norm`` is a gradient norm.
        losses: tag prefixes under which ``<name>_loss`` is a loss, in addition to the step's terms and total.
    """

    norms: Sequence[str] = (tags.GRADIENT.prefix,)
    losses: Sequence[str] = ()
    severity: ClassVar[Severity] = "error"
    remedy: ClassVar[str] = (
        "Check the data of that sample, and divisions, logarithms and square roots in the named term: clamp their "
        "arguments, do not replace NaN by 0. Keep the guard on, so that such updates are refused."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first refused and the first applied non-finite step of each phase."""
        bad = {
            name: steps
            for name in history.names()
            if self._is_watched(name) and len(steps := _bad_steps(history, name))
        }
        if not bad:
            return ()
        steps = np.unique(np.concatenate(list(bad.values())))
        # A gradient scaler finds its factor by trying: the steps that it skips are part of its work.
        steps = np.setdiff1d(steps, _steps_with(history, "Guard/scaler_skipped"))
        refused_mask = np.isin(steps, _steps_with(history, "Guard/refused"))
        # Refused and applied updates get separate findings, because only an applied one has changed the parameters.
        return tuple(
            self._describe(history, bad, int(part[0]), refused=refused)
            for first, last in phases(history)
            for refused, chosen in ((False, ~refused_mask), (True, refused_mask))
            if len(part := steps[chosen & (steps >= first) & (steps <= last)])
        )

    def _describe(self, history: History, bad: _Bad, step: int, *, refused: bool) -> Finding:
        culprits = [name for name, steps in bad.items() if step in steps]
        terms = list(tags.COMPONENT.parts(culprits))
        groups = [group for name in culprits if (group := self._group(name))]
        causes = [f"term '{term}'" for term in terms] + [f"the gradient of group '{group}'" for group in groups]
        what = ", ".join(causes or culprits)
        verb = "is" if len(causes or culprits) == 1 else "are"
        sample = _sample_at(history, step)
        where = f", sample '{sample}'" if sample else ""
        end = (
            "the update was refused and training continued."
            if refused
            else "no update was refused: the non-finite values reached the parameters."
        )
        # Terms come first: a term that is not finite makes the gradients of its groups non-finite, too.
        subject = (terms or groups or culprits)[0]
        level: Severity = "warning" if refused else "error"
        text = f"{what} {verb} not finite at step {step}{where}; {end}"
        finding = self.finding(step, text, subject=subject, severity=level)
        grown = _growth_before(history, step)
        risen = None if grown else _rise_before(history, step) or _jump_before(history, step)
        if grown is not None or risen is not None:
            what = "gradient norm" if grown is not None else "loss"
            before, after = grown or risen or (0.0, 0.0)
            text += (
                f" The {what} had exploded before, from {number(before, 3)} to {number(after, 3)}: the run diverged."
            )
            return replace(finding, message=text, remedy=_DIVERGED)
        if not terms and tags.TOTAL not in culprits and groups:
            text += " The loss itself was finite: only the backward pass overflowed."
            return replace(finding, message=text, remedy=_BACKWARD)
        return finding

    def _is_watched(self, name: str) -> bool:
        if tags.kind(name) == tags.LOSS:
            return name == tags.TOTAL or tags.COMPONENT.part(name) is not None
        if name.startswith(tuple(self.norms)):
            return name.endswith("_norm")
        return name.startswith(tuple(self.losses)) and name.endswith("_loss")

    def _group(self, name: str) -> str:
        """Return the parameter group of a gradient norm; empty for the total norm and for other metrics."""
        group = name.rpartition("/")[2].removesuffix("_norm")
        return group if name.startswith(tuple(self.norms)) and group != "total" else ""


def _growth_before(history: History, step: int) -> tuple[float, float] | None:
    """Return the usual gradient norm and the largest one right before a step, if the norm has exploded."""
    if tags.TOTAL_NORM not in history:
        return None
    norms = history[tags.TOTAL_NORM]
    before = norms.values[norms.steps < step]
    before = before[np.isfinite(before)]
    if len(before) < _USUAL:
        return None
    usual = float(np.median(before[:-_RECENT]))
    highest = float(np.max(before[-_RECENT:]))
    return (usual, highest) if highest > _EXPLODED * usual else None


def _jump_before(history: History, step: int) -> tuple[float, float] | None:
    """Return the first loss and that of a step, if the updates in between have made it a thousand times as large."""
    if tags.TOTAL not in history:
        return None
    loss = history[tags.TOTAL]
    now = loss.values[loss.steps == step]
    first = float(loss.start.values[0]) if len(loss.start) else float("nan")
    if not len(now) or step <= loss.start.steps[0] or not first > 0:
        return None
    return (first, float(now[0])) if np.isfinite(now[0]) and now[0] > _RISEN * first else None


def _rise_before(history: History, step: int) -> tuple[float, float] | None:
    """Return the first loss and the last one before a step, if it had exploded by then."""
    if tags.TOTAL not in history:
        return None
    losses = history[tags.TOTAL]
    before = np.abs(losses.values[losses.steps < step])
    before = before[np.isfinite(before)]
    if len(before) < 2 or not before[0] > 0 or not before[-1] > _RISEN * before[0]:
        return None
    return float(before[0]), float(before[-1])


def _bad_steps(history: History, name: str) -> NDArray[np.float64]:
    series = history[name]
    finite = np.isfinite(series.values)
    # The common case of a healthy series needs no copy.
    return series.steps[:0] if finite.all() else series.steps[~finite]


def _steps_with(history: History, name: str) -> NDArray[np.float64]:
    """Return the steps at which a flag was recorded as set."""
    if name not in history:
        return np.empty(0)
    series = history[name]
    return series.steps[series.values > 0]


def _sample_at(history: History, step: int) -> str:
    """Return the sample whose loss is not finite at a step, else the only sample of the step, else an empty string."""
    samples: list[str] = []
    for name, series in history.sample_losses().items():
        at = int(np.searchsorted(series.steps, step))
        if at < len(series) and series.steps[at] == step:
            # A sample with a non-finite loss is the culprit. Without one, the culprit is known only if the step has a
            # single sample.
            if not np.isfinite(series.values[at]):
                return name
            samples.append(name)
    return samples[0] if len(samples) == 1 else ""


@dataclass(frozen=True, kw_only=True)
class RefusedUpdates(HealthRule):
    """A large fraction of the updates is refused, so the run makes little progress."""

    count: int = threshold(
        4, unit="updates", reason="a few refusals are normal with loss scaling, and NonFinite names each one anyway"
    )
    share: float = threshold(0.02, unit="fraction of updates", reason="one lost step in fifty is more than bad luck")
    standstill: float = threshold(
        0.5, unit="fraction of updates", reason="with half of all updates lost, the run no longer trains"
    )
    window: int = threshold(
        256, unit="steps", reason="long enough to estimate the fraction, short enough to see it rise"
    )
    settled: int = threshold(16, unit="steps", reason="fewer steps are not enough to detect a standstill")
    remedy: ClassVar[str] = (
        "Fix the cause that NonFinite names. If the values overflow, lower the learning rate or the clipping "
        "threshold; with loss scaling, lower the initial scale."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where the fraction of refused updates exceeded ``share`` (warning) and ``standstill`` (error)."""
        return tuple(found for span in spans(history, "Guard/refused") for found in self._judge(history, span))

    def _judge(self, history: History, span: Span) -> Iterator[Finding]:
        refused = span.values > 0
        # After a rollback the run skips updates on purpose; these are not refusals.
        if "Guard/skipped" in history:
            refused &= ~(on_steps(history["Guard/skipped"], span.series.steps) > 0)
        if np.count_nonzero(refused) < self.count:
            return
        ends = np.arange(1, len(refused) + 1)
        rows = np.minimum(ends, self.window)
        # Refusals within the window that ends at each recording.
        lost = trailing_count(refused, self.window)
        many = (lost >= self.count) & (lost >= self.share * rows)
        # A standstill also fulfills the condition of the warning.
        stopped = many & (lost >= self.standstill * rows) & (ends >= self.settled)
        levels: tuple[tuple[NDArray[np.bool_], Severity], ...] = ((many, "warning"), (stopped, "error"))
        for mask, level in levels:
            at = first_sustained(mask)
            if at is not None:
                text = (
                    f"{lost[at]:.0f} of the last {rows[at]} updates were refused ({percent(lost[at] / rows[at], 0)})."
                )
                yield self.finding(span.step(at), text, severity=level)
