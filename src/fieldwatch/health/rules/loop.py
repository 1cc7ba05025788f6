"""Rules for faults of the loop itself: modes, frozen and forgotten parameters, old gradients, detached terms, rates.

The run checks the loop while it trains and records what it sees as events; these rules judge the events.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity, first_per_subject
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.poor_results import ends_poorly
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import between, excused, first_sustained, on_steps, planned_steps
from fieldwatch.record import TOOLKIT, History, Series, tags


def _names(names: Sequence[str], count: int) -> str:
    """Return a list of names in words, with the number of those that are not listed."""
    shown = [f"'{name}'" for name in names[:3]]
    rest = count - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def _new_phase(history: History, since: int, until: int) -> bool:
    """Return whether the loop declared a new phase after step ``since``, up to step ``until``."""
    return any(since < event["step"] <= until for event in history.events("phase"))


def _evaluated(history: History, since: int, until: int) -> str:
    """Return a metric of the loop that was recorded from step ``since`` to ``until`` and not at most steps, or ""."""
    for name in history.names():
        # The toolkit's own metrics are no results of an evaluation.
        if TOOLKIT.find(name) is not None:
            continue
        steps = history[name].steps
        recorded = bool(np.any((steps >= since) & (steps <= until)))
        # A metric of most steps belongs to the training.
        if recorded and 2 * len(steps) <= history.step + 1 - max(history.first, 0):
            return name
    return ""


@dataclass(frozen=True, kw_only=True)
class NoSteps(HealthRule):
    """A training was prepared, and its loop made no step.

    Attributes:
        kind: kind of the events to report.
    """

    severity: ClassVar[Severity] = "error"
    kind: str = tags.NO_STEPS
    remedy: ClassVar[str] = (
        "Check what the loop iterates over: the path and split of the data, a filter that leaves nothing, an iterator "
        "that was used up before, a number of epochs or steps of 0. A DataLoader with drop_last=True has no batch if "
        "there are fewer samples than batch_size."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding for a run without any step."""
        events = history.events(self.kind)
        # A later segment may have trained.
        if not events or tags.TOTAL in history:
            return ()
        empty = cast("Sequence[Mapping[str, Any]]", events[-1].get("loaders", ()))
        text = "the run ended without a single step: nothing was trained"
        finding = self.finding(int(events[-1]["step"]), f"{text}, its loop had nothing to iterate over.")
        if not empty:
            return (finding,)
        first = empty[0]
        message = (
            f"{text}, because the data loader '{first['name']}' has no batch: {first['rows']} samples, batch_size="
            f"{first['batch_size']}, drop_last={first['drop_last']}."
        )
        if not first["drop_last"] or not first["rows"]:
            return (replace(finding, message=message),)
        remedy = (
            f"Use drop_last=False, or a batch_size of at most {first['rows']}, or more data: fewer samples than one "
            "batch leave nothing once the last, smaller batch is dropped."
        )
        return (replace(finding, message=message, remedy=remedy),)


@dataclass(frozen=True, kw_only=True)
class ClippedTooEarly(HealthRule):
    """The loop clips gradients before the backward pass computes them, as its source shows.

    Attributes:
        kind: kind of the events with the lines of the loop.
    """

    kind: str = tags.LOOP_SOURCE
    remedy: ClassVar[str] = (
        "Clip after loss.backward() and before optimizer.step(), or pass step.update(optimizer, clip=...): gradients "
        "that are clipped earlier are those of the last step, or none."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per place."""
        events = history.events(self.kind)
        order = cast("Sequence[Mapping[str, Any]]", events[-1].get("order", ())) if events else ()
        lines = [int(each["line"]) for each in order if each["what"] == "clip before backward"]
        # A loop may be tried out for a few steps, but its order is a fact from the first one on.
        if not lines or history.step < 0:
            return ()
        file = events[-1]["file"]
        text = f"{file}:{lines[0]} clips the gradients before the backward pass of the same step: nothing is clipped."
        return (self.finding(int(events[-1]["step"]), text, subject=f"{file}:{lines[0]}"),)


@dataclass(frozen=True, kw_only=True)
class ModeChanged(HealthRule):
    """A trained module was switched to eval mode during the training, or a frozen one to train mode, and stayed in it.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "mode"
    patience: int = threshold(
        8, unit="updates", reason="a GAN that switches modes within or between steps switches back within 5 updates"
    )
    remedy: ClassVar[str] = (
        "Call model.train() after each evaluation, or evaluate in a run.evaluation(...) block, which restores the mode "
        "of every tracked module. If the change is intended, record it as a phase: run.event('phase', name=...)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module and mode."""
        return first_per_subject(self._judge(history, event) for event in history.events(self.kind))

    def _judge(self, history: History, event: Mapping[str, Any]) -> Finding | None:
        if event["updates"] < self.patience or not self._is_fault(history, event):
            return None
        subject = f"{event['item']} in {event['to']} mode"
        return self.finding(int(event["step"]), self._text(history, event), subject=subject)

    def _is_fault(self, history: History, event: Mapping[str, Any]) -> bool:
        if _new_phase(history, event["since"], event["first"]):
            return False
        # Before the first update, a loop may choose its mode; an evaluation that comes first does not mean to.
        if event["since"] < 0 and not _evaluated(history, -1, int(event["first"])):
            return False
        # To train mode: an unfrozen module is switched on purpose, one that stays frozen is not.
        if event["to"] == "train":
            return bool(event["frozen"])
        # To eval mode: freezing layers, or only their statistics, is an established practice.
        return bool(event["whole"]) or not (event["frozen"] or event["only_norms"])

    def _text(self, history: History, event: Mapping[str, Any]) -> str:
        first = int(event["first"])
        since = int(event["since"])
        what = _names(event["modules"], int(event["count"]))
        when = f"between the updates of steps {since} and {first}" if since >= 0 else "before the first update"
        text = f"{what} changed to {event['to']} mode {when}"
        metric = _evaluated(history, since, first)
        text += f", where '{metric}' was recorded" if metric else ""
        if event["to"] == "train":
            return f"{text}: the statistics or dropout of these frozen modules are active."
        return f"{text}: their dropout is off and their running statistics no longer follow the data."


@dataclass(frozen=True, kw_only=True)
class FrozenDuringTraining(HealthRule):
    """Parameters stopped requiring a gradient during the training.

    A warning if an evaluation was recorded at that time, since it may have left them frozen; otherwise a note.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "requires_grad"
    patience: int = threshold(
        8, unit="updates", reason="a GAN that freezes its critic for the generator's steps unfreezes it sooner"
    )
    early: float = threshold(0.1, unit="fraction of the planned steps", reason="too early to have learned anything")
    lasting: int = threshold(32, unit="updates", reason="what is frozen for so long after a few updates stays frozen")
    remedy: ClassVar[str] = (
        "Call requires_grad_(True) after the code that froze them; an evaluation needs only torch.no_grad(), which a "
        "run.evaluation(...) block sets. If the change is intended, record it as a phase: run.event('phase', name=...)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per set of frozen parameters."""
        return first_per_subject(self._judge(history, event) for event in history.events(self.kind))

    def _judge(self, history: History, event: Mapping[str, Any]) -> Finding | None:
        since = int(event["since"])
        first = int(event["first"])
        # An event without frozen parameters reports parameters that were unfrozen.
        if not event["frozen"] or event["updates"] < self.patience or _new_phase(history, since, first):
            return None
        metric = _evaluated(history, since, first)
        # Who freezes on purpose does so before the first update, or later than at once.
        planned = planned_steps(history)
        at_once = planned is not None and 0 < first <= self.early * planned and bool(event["frozen_in_optimizers"])
        severity: Severity = "warning" if metric or (at_once and event["updates"] >= self.lasting) else "note"
        names = _names(event["frozen"], int(event["frozen_count"]))
        text = f"{names} stopped requiring a gradient between the updates of steps {since} and {first}"
        text += f", where '{metric}' was recorded." if metric else "."
        return self.finding(int(event["step"]), text, subject=event["frozen"][0], severity=severity)


@dataclass(frozen=True, kw_only=True)
class NotInOptimizer(HealthRule):
    """Parameters of a tracked module have gradients, but no optimizer updates them.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "not_in_optimizer"
    patience: int = threshold(
        32, unit="updates", reason="an optimizer that the run does not know would have changed the parameters by then"
    )
    remedy: ClassVar[str] = (
        "Create the optimizer after the last change of the model, or call optimizer.add_param_group(...). If the "
        "parameters are meant to stay as they are, freeze them with requires_grad_(False), which also saves time."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per event."""
        return tuple(
            self.finding(int(event["step"]), self._text(event), subject=event["names"][0])
            for event in history.events(self.kind)
            if event["updates"] >= self.patience
        )

    def _text(self, event: Mapping[str, Any]) -> str:
        count = int(event["count"])
        text = (
            f"{count} parameters with gradients are in no optimizer and have not changed within {event['updates']} "
            f"updates: {_names(event['names'], count)}"
        )
        replaced = int(event["replaced"])
        if not replaced:
            return f"{text}."
        return (
            f"{text}; {replaced} parameters without gradients are in an optimizer but in no tracked module, so a layer "
            "was probably replaced after the optimizer was created."
        )


@dataclass(frozen=True, kw_only=True)
class LooseParameters(HealthRule):
    """The loss depends on parameters that no module lists and no optimizer updates.

    A module hides its parts from ``parameters()`` if it keeps them in a plain list or mapping. A warning if a tracked
    module holds them, or if the result is poor at the end; otherwise a note, since a network that only measures (a
    perceptual loss) is not meant to learn.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "loose_parameters"
    share: float = threshold(
        0.01, unit="fraction of the parameters behind the loss", reason="smaller parts hardly limit the model"
    )
    remedy: ClassVar[str] = (
        "Keep submodules in nn.ModuleList or nn.ModuleDict and parameters in nn.ParameterList, so that parameters() "
        "and state_dict() list them, or give them to the optimizer and to run.track(...) yourself. If they are meant "
        "to stay as they are, freeze them with requires_grad_(False)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per event."""
        return first_per_subject(self._judge(history, event) for event in history.events(self.kind))

    def _judge(self, history: History, event: Mapping[str, Any]) -> Finding | None:
        if event["share"] < self.share:
            return None
        count = int(event["count"])
        inside = bool(event["inside"])
        poor = not inside and ends_poorly(history)
        severity: Severity = "warning" if inside or poor else "note"
        where = "in a plain list or attribute of a module" if inside else "in no tracked module"
        text = (
            f"the loss depends on {count} parameters ({percent(event['share'], 0)} of all) that are {where} and in no "
            f"optimizer, and have not changed within {event['updates']} updates: {_names(event['names'], count)}."
        )
        step = history.step if poor else int(event["step"])
        return self.finding(step, text, subject=event["names"][0], severity=severity)


@dataclass(frozen=True, kw_only=True)
class UnclearedGradient(HealthRule):
    """Gradients are not cleared between updates, so that each update uses the sum of all gradients so far."""

    patience: int = threshold(8, unit="recordings", reason="a single skipped zero_grad() has no lasting effect")
    remedy: ClassVar[str] = (
        "Call optimizer.zero_grad() before each backward pass, or after each update if several backward passes "
        "accumulate. step.backward(objective, batch) clears the gradients itself."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where gradients had been left over for ``patience`` recordings."""
        if tags.UNCLEARED not in history:
            return ()
        left = history[tags.UNCLEARED]
        at = first_sustained(left.values > 0, patience=self.patience)
        if at is None:
            return ()
        step = int(left.steps[at])
        since = int(left.steps[at - self.patience + 1])
        text = f"gradients accumulate over updates since step {since} or earlier, because nothing clears them"
        growth = _growth(history, step)
        text += (
            f"; the gradient norm has gone from {number(growth[0], 3)} to {number(growth[1], 3)}." if growth else "."
        )
        return (self.finding(step, text, subject=tags.TOTAL_NORM),)


def _growth(history: History, step: int) -> tuple[float, float] | None:
    """Return the first total gradient norm and that of a step."""
    if tags.TOTAL_NORM not in history:
        return None
    values = between(history[tags.TOTAL_NORM], 0, step).values
    return (float(values[0]), float(values[-1])) if len(values) else None


@dataclass(frozen=True, kw_only=True)
class TermWithoutGradient(HealthRule):
    """A loss term has no gradient with respect to any tracked parameter, so it has no effect on the training.

    A note if some parameters are frozen, since the term may depend on these.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "term_without_gradient"
    patience: int = threshold(
        32, unit="steps", reason="a selection may be empty for a few batches, and its term constant"
    )
    measured: int = threshold(
        3, unit="recordings", reason="number of attributions in a row that found no gradient in any group"
    )
    remedy: ClassVar[str] = (
        "Look for detach(), .item(), .data, torch.no_grad(), rounding or an argmax between the parameters and the "
        "term. If the term is only to be recorded, use step.record(...) or give it the weight 0."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per term."""
        seen = (self._judge(history, event) for event in history.events(self.kind))
        names = history.names()
        # Without attributions there is nothing to look up for any term and group.
        groups = list(tags.GROUP_NORM.parts(names)) if tags.GRADIENT_SHARE.parts(names) else []
        terms = tags.COMPONENT.parts(names) if groups else {}
        return first_per_subject((*seen, *(self._without_share(history, term, groups) for term in terms)))

    def _judge(self, history: History, event: Mapping[str, Any]) -> Finding | None:
        if event["steps"] < self.patience or not _is_nonzero(history, event):
            return None
        term = str(event["term"])
        why = "is detached" if event["detached"] else "does not depend on any tracked parameter"
        text = f"term '{term}' {why} since step {event['first']}: it is in the loss, but has no gradient."
        severity: Severity = "note" if event["frozen"] else "warning"
        return self.finding(int(event["step"]), text, subject=term, severity=severity)

    def _without_share(self, history: History, term: str, groups: Sequence[str]) -> Finding | None:
        """Return a finding at the step at which attribution had found no gradient of a term for long enough."""
        shares = [tags.GRADIENT_SHARE.tag(f"{group}_{term}") for group in groups]
        series = [history[name] for name in shares if name in history]
        if not series:
            return None
        steps = series[0].steps
        largest = np.max([on_steps(one, steps) for one in series], axis=0)
        at = first_sustained(largest == 0, patience=self.measured)
        if at is None:
            return None
        text = f"the gradient of term '{term}' was exactly 0 in every parameter group {self.measured} times."
        return self.finding(int(steps[at]), text, subject=term)


def _is_nonzero(history: History, event: Mapping[str, Any]) -> bool:
    """Return whether a term had a value in the steps of an event; an empty selection has the constant 0."""
    name = tags.COMPONENT.tag(event["term"])
    return name in history and bool(np.any(between(history[name], event["first"], event["step"]).values))


@dataclass(frozen=True, kw_only=True)
class RateJump(HealthRule):
    """A learning rate rose within one step to many times its highest value so far, in the middle of a phase.

    A warning if the loss was higher afterwards, or is not recorded; otherwise a note, since the jump may be a warm-up.

    Attributes:
        loss: loss metric.
        kinds: kinds of events that explain a new rate.
    """

    loss: str = tags.TOTAL
    kinds: Sequence[str] = ("phase", "rolled_back")
    ratio: float = threshold(
        10.0,
        unit="times the highest rate so far",
        reason="schedules rise gradually; restarts return to an earlier rate",
    )
    patience: int = threshold(16, unit="recordings", reason="number of losses before and after the jump to compare")
    remedy: ClassVar[str] = (
        "Check the scheduler's factors and the calls that set param_group['lr']. If the new rate is intended, record a "
        "phase: run.event('phase', name=...), or declare one with Declared(phases=...)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first jump of each parameter group."""
        groups = tags.LEARNING_RATE.parts(history.names())
        findings = (self._judge(history, group, history[name]) for group, name in groups.items())
        return tuple(finding for finding in findings if finding)

    def _judge(self, history: History, group: str, rates: Series) -> Finding | None:
        values = rates.values
        if len(values) < 2:
            return None
        highest = np.maximum.accumulate(values[:-1])
        jumps = np.concatenate(([False], (highest > 0) & (values[1:] > self.ratio * highest)))
        if not jumps.any():
            return None
        jumps &= ~excused(history, self.kinds, rates.steps, 1) & ~_at_border(history, rates.steps, jumps)
        for at in np.flatnonzero(jumps):
            step = int(rates.steps[at])
            worse = self._is_worse(history, step)
            if worse is None:
                continue
            known, severity = worse
            text = (
                f"the learning rate of '{group}' went from {number(values[at - 1], 3)} to {number(values[at], 3)} at "
                f"step {step}"
            )
            text += ", and the loss rose." if severity == "warning" else "."
            return self.finding(known, text, subject=group, severity=severity)
        return None

    def _is_worse(self, history: History, step: int) -> tuple[int, Severity] | None:
        """Return when the consequence of a jump was known, and its severity; None if it is not known yet."""
        if self.loss not in history:
            return step, "warning"
        series = history[self.loss]
        at = int(np.searchsorted(series.steps, step))
        before = series.values[max(at - self.patience, 0) : at]
        # The update with the new rate acts on the losses of later steps.
        after = series.values[at + 1 : at + 1 + self.patience]
        # A loss that is not finite needs no comparison, and may end the run.
        broken = np.flatnonzero(~np.isfinite(after))
        if len(broken):
            return int(series.steps[at + 1 + broken[0]]), "warning"
        if len(after) < self.patience or not len(before):
            return None
        rose = bool(np.median(after) > np.median(before))
        return int(series.steps[at + self.patience]), "warning" if rose else "note"


def _at_border(history: History, steps: NDArray[np.float64], jumps: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return at which jumps a phase begins."""
    borders = np.zeros(len(steps), np.bool_)
    for at in np.flatnonzero(jumps):
        borders[at] = history.phase_start(int(steps[at])) == int(steps[at])
    return borders
