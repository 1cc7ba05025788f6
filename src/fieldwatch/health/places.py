"""Lines of the user's program that a remedy is about: the backward call, the optimizer, the data loader."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

from fieldwatch.health.finding import Finding
from fieldwatch.record import History, tags

_CALLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "AlwaysClipped": ("clip",),
        "ChanceLevel": ("loss",),
        "ClassAsNumber": ("loss",),
        "BatchesRepeated": ("loader",),
        "DataStarved": ("loader",),
        "DecayTooHigh": ("optimizer",),
        "EvaluatedInTrainMode": ("evaluation",),
        "EvaluatedOnTraining": ("evaluation",),
        "EvaluationDraws": ("evaluation",),
        "EvaluationRandom": ("evaluation",),
        "FrozenOutput": ("optimizer",),
        "GradientExploding": ("clip", "optimizer", "backward"),
        "InitialLoss": ("loss",),
        "LooseParameters": ("optimizer",),
        "LossForm": ("loss",),
        "MixedGradients": ("clear", "backward"),
        "NegativeLoss": ("loss",),
        "NeverTrained": ("backward", "optimizer"),
        "NoSteps": ("loader",),
        "NonFinite": ("backward", "clip"),
        "NotInOptimizer": ("optimizer",),
        "OptimizerRenewed": ("optimizer",),
        "OutputUnused": ("loss",),
        "RateEndsEarly": ("schedule",),
        "RateJump": ("schedule", "optimizer"),
        "RateStartsLate": ("schedule",),
        "RateTooHigh": ("optimizer", "schedule"),
        "RateTooLow": ("optimizer", "schedule"),
        "RefusedUpdates": ("backward",),
        "SameBatch": ("loader",),
        "SamplesIgnored": ("loss",),
        "TensorsKept": ("hook", "backward"),
        "TermAlwaysZero": ("loss",),
        "TermWithoutGradient": ("loss",),
        "UnclearedGradient": ("clear", "backward"),
        "UnmixedBatches": ("loader",),
    }
)
"""Kinds of calls that the remedy of a rule asks to look at, the most likely one first."""
_OF_ITEMS = frozenset(
    {
        *("ConstantOutput", "DeadGroup", "EqualUnits", "FrozenBody", "FrozenOutput", "LooseParameters", "NeverTrained"),
        *("NotInOptimizer", "OddSetting", "OutputsGrow", "OutputUnused", "StaleAverage", "CopyNeverUpdated"),
    }
)
"""Rules whose remedy is about a module, which their subject names."""
_ITEM = "item:"
_WORD = re.compile(r"\w+")


def with_places(finding: Finding, history: History) -> Finding:
    """Return a finding whose remedy ends with the lines of the program that it is about, if they are known.

    Args:
        finding: finding of a rule.
        history: record of the run, with the event of its source.
    """
    if not finding.remedy or (finding.rule not in _CALLS and finding.rule not in _OF_ITEMS):
        return finding
    events = history.events(tags.LOOP_SOURCE)
    if not events:
        return finding
    event = events[-1]
    found = list(dict.fromkeys(_places(finding, event)))
    if not found:
        return finding
    return replace(finding, remedy=f"{finding.remedy} See {'; '.join(found)}.")


def loaders(history: History) -> Sequence[Mapping[str, Any]]:
    """Return the facts of the data loaders in the scope of the loop."""
    events = history.events(tags.LOOP_SOURCE)
    return cast("Sequence[Mapping[str, Any]]", events[-1].get("loaders", ())) if events else ()


def place(event: Mapping[str, Any], line: int, text: str = "") -> str:
    """Return a line as file and number, with its text."""
    return f"{event['file']}:{line}" + (f" ({text})" if text else "")


def _places(finding: Finding, event: Mapping[str, Any]) -> Iterator[str]:
    lines = cast("Mapping[str, Sequence[Sequence[Any]]]", event.get("lines", {}))
    for kind in _CALLS.get(finding.rule, ()):
        if kind in lines:
            yield from (place(event, int(line), str(text)) for line, text in lines[kind])
            break
    if finding.rule in _OF_ITEMS:
        # A subject is the name of a module, or of a parameter in it.
        first = _WORD.match(finding.subject)
        item = f"{_ITEM}{first.group()}" if first else ""
        yield from (place(event, int(line), str(text)) for line, text in lines.get(item, ())[:1])
