"""Which finding explains which others, and which recorded events explain findings that follow them at once.

A fault of a run fires several rules. The tables below name the consequences of each cause, so that a reader sees the
cause first and everything else below it. A cause explains its consequences only if it began before them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from fieldwatch.health.finding import CERTAIN, LIKELY, RULE_FAILED, Finding, Severity, rank_of
from fieldwatch.health.rules import RULES
from fieldwatch.health.window import DISTURBANCES

_LOSSES = frozenset(("LossSpike", "LossJump", "LossOscillating", "LossNotDecreasing", "SampleSpike"))
_GRADIENTS = frozenset(("GradientExploding", "GradientVanishing", "UpdateRatio", "ParameterDrift", "GroupImbalance"))
_STOPPED = frozenset(("DeadGroup", "UnchangedParameters"))
_RESULTS = frozenset(
    {
        *(
            "BarelyLearned",
            "ChanceLevel",
            "Collapse",
            "EndedEarly",
            "HeldOutGap",
            "LosesToSimpleModel",
            "NoProgress",
            "Overfitting",
            "Overtraining",
            "PartNotLearned",
            "ProgressLost",
        ),
        *("TrainingGap", "RewardNotRising", "WorseSinceChange", "WorseThanEarlier", "WorseThanNothing", "WorstSample"),
    }
)
_INCIDENTS = frozenset({"RefusedUpdates", "RolledBack", "DeclaredButZero"})
_UNTRAINED = frozenset({"LossNotDecreasing", "RateTooLow", "TermNotLearned", "UpdateRatio"})
_LOST_GRADIENTS = frozenset({"GradientVanishing", "OutputUnused", "SamplesIgnored"})
_OF_RATES = frozenset({"ConstantOutput", "DecayTooHigh", "NonFinite", "TermDominates", "TermNotLearned"})
_OUTLIERS = _RESULTS - {"HeldOutGap", "TrainingGap", "WorseThanNothing"} | {"GradientExploding", "RateTooHigh"}
_EVERYTHING = _LOSSES | _GRADIENTS | _STOPPED | _RESULTS | _INCIDENTS

EXPLAINS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        # Data that were read wrong come first, then the program, then its settings, then the course of training.
        "NoSteps": _EVERYTHING | {"NotKept"},
        "ClippedTooEarly": _EVERYTHING | _OF_RATES | {"RateTooHigh", "RateTooLow", "UnboundedLoss"},
        "ClipsNothing": _EVERYTHING | _OF_RATES | {"RateTooHigh", "UnboundedLoss", "ConstantInput"},
        "BatchesRepeated": _RESULTS | _UNTRAINED | {"SameBatch"},
        "EvaluatedOnTraining": _RESULTS | {"EvaluationOutput"},
        "HalfParameters": _EVERYTHING | {"HalfUnderflow", "NonFinite", "RateTooLow"},
        "InitialLoss": _EVERYTHING | _OF_RATES | {"RateTooHigh", "AlwaysClipped"},
        "NonFinite": _LOSSES | _STOPPED | _INCIDENTS | _RESULTS | {"GradientExploding"},
        "NotInOptimizer": _RESULTS | _UNTRAINED | {"ConstantOutput", "NotKept", "UnchangedParameters"},
        "LooseParameters": _RESULTS | _UNTRAINED | {"ConstantOutput"},
        "NotKept": frozenset(("LossJump",)),
        "FrozenNormsMove": _RESULTS | {"EvaluationOutput", "ModeChanged"},
        "PaddingLookedUp": _RESULTS | _UNTRAINED,
        "RowsNeverTrained": _RESULTS | {"EvaluationInput", "EvaluationOutput"},
        "EvaluationRandom": _RESULTS | {"EvaluationDraws", "EvaluationOutput"},
        "SamplesMixed": _RESULTS | _UNTRAINED | {"EvaluationOutput"},
        "RoundedInput": _RESULTS | _UNTRAINED,
        "TermAlwaysZero": _RESULTS | _UNTRAINED | {"DeclaredButZero", "TermDominates", "TermWithoutGradient"},
        "MixedGradients": _EVERYTHING | {"EvaluationOutput", "OutputsGrow", "RateTooHigh", "TermDominates"},
        "ClassAsNumber": _RESULTS | _UNTRAINED,
        "LossForm": _EVERYTHING | _UNTRAINED | _OF_RATES | {"InputIgnored", "NormalizedOverBatch", "RateTooHigh"},
        "NegativeLoss": _EVERYTHING | _UNTRAINED | _OF_RATES | {"RateTooHigh", "TrainingGap", "UnboundedLoss"},
        "OutputRange": _RESULTS | _UNTRAINED | {"ConstantOutput", "InputIgnored", "NoDiversity"},
        "EqualUnits": _RESULTS | _UNTRAINED | {"ConstantOutput", "InputIgnored"},
        "OptimizerRenewed": _EVERYTHING | _UNTRAINED | {"NotKept"},
        "PerfectFromStart": _RESULTS | {"LossNotDecreasing", "NormalizedOverBatch"},
        "NormalizedOverBatch": _RESULTS | _UNTRAINED | {"InputIgnored", "LossNotDecreasing"},
        "FutureVisible": _RESULTS,
        "FrozenDuringTraining": _RESULTS | _UNTRAINED | {"DeadGroup", "UnchangedParameters"},
        "FrozenOutput": _RESULTS | _UNTRAINED,
        "NeverTrained": _RESULTS | _UNTRAINED | {"ConstantOutput", "UnchangedParameters"},
        "UnchangedParameters": _RESULTS | _UNTRAINED,
        "DeclaredButAbsent": _RESULTS,
        "PositionIgnored": _RESULTS | _UNTRAINED,
        "PaddingCounts": _RESULTS | _UNTRAINED,
        "UnmixedBatches": _RESULTS | _LOSSES | {"GradientExploding", "ParameterDrift", "RateTooHigh", "SameBatch"},
        "TargetAmongInputs": _RESULTS | {"EvaluationOutput"},
        "ConstantArgument": _RESULTS | _UNTRAINED | {"EvaluationInput", "SameBatch"},
        "ConstantInput": _RESULTS
        | _UNTRAINED
        | {"ConstantOutput", "EvaluationInput", "GradientVanishing", "TermDominates"},
        "SameBatch": _RESULTS | _UNTRAINED,
        "EvaluationInput": _RESULTS | {"EvaluationOutput"},
        # Dropout draws random numbers.
        "EvaluatedInTrainMode": _RESULTS - {"WorseThanNothing"} | {"EvaluationDraws"},
        "EvaluationDraws": _RESULTS - {"WorseThanNothing"} | {"LossSpike", "SampleSpike"},
        "UnclearedGradient": _EVERYTHING | {"RateTooHigh", "TermDominates"},
        # Outputs and samples without gradients follow from terms and numbers that lose them.
        "TermWithoutGradient": _RESULTS | _LOST_GRADIENTS | {"LossNotDecreasing", "TermNotLearned"},
        "ModeChanged": _RESULTS | {"EvaluationOutput", "LossJump", "LossSpike"},
        "HalfUnderflow": _RESULTS | _UNTRAINED | _LOST_GRADIENTS | {"UnchangedParameters"},
        "OutputUnused": _RESULTS | _UNTRAINED | {"ConstantOutput"},
        "SamplesIgnored": _RESULTS | _UNTRAINED,
        "ScalerSkips": _EVERYTHING | _UNTRAINED,
        "BatchOfOne": _RESULTS | {"EvaluationOutput"},
        "StaleAverage": _RESULTS | {"EvaluationOutput"},
        "CopyNeverUpdated": _RESULTS | _LOSSES,
        "RateEndsEarly": _RESULTS | _UNTRAINED,
        "RateStartsLate": _RESULTS | _UNTRAINED,
        "WrongSample": _LOSSES
        | _RESULTS - {"HeldOutGap", "TrainingGap", "WorseThanNothing"}
        | {"GradientExploding", "RateTooHigh", "SampleSpike", "WorstSample"},
        "InputScale": _EVERYTHING
        | _OF_RATES
        | {"RateTooHigh", "RateTooLow", "AlwaysClipped", "ConstantOutput", "NoDiversity"},
        "OddSetting": _EVERYTHING | _OF_RATES | {"EvaluationOutput", "RateTooHigh", "RateTooLow", "LossNotDecreasing"},
        "DoubtfulSetting": _EVERYTHING | _OF_RATES | {"RateTooHigh", "RateTooLow"},
        "RateTooHigh": _EVERYTHING | _OF_RATES | {"AlwaysClipped"},
        "RateJump": _EVERYTHING | _OF_RATES | {"RateStartsLate"},
        "AlwaysClipped": _RESULTS | _UNTRAINED,
        "DecayTooHigh": _RESULTS | _UNTRAINED | {"ConstantOutput", "GradientVanishing", "ParameterDrift"},
        "GroupTooSlow": _RESULTS | _UNTRAINED | {"GradientVanishing", "InputIgnored", "TermDominates"},
        "TermDominates": _RESULTS | {"GradientExploding", "GradientVanishing", "LossNotDecreasing", "TermConflict"},
        "TermNotLearned": _RESULTS | {"LossNotDecreasing", "GradientVanishing"},
        "GradientVanishing": _RESULTS | _STOPPED | _UNTRAINED | {"ConstantOutput", "NoDiversity"},
        "GradientExploding": _LOSSES | _STOPPED | _RESULTS | {"ParameterDrift", "RolledBack", "UpdateRatio"},
        "ConstantOutput": _RESULTS | _UNTRAINED | {"DeadGroup", "NoDiversity"},
        "DeadGroup": _RESULTS | {"LossNotDecreasing", "RateTooLow"},
        "RateTooLow": _RESULTS | {"LossNotDecreasing", "TermNotLearned", "UpdateRatio"},
        "DoubtfulData": _RESULTS | {"WrongSample", "SampleSpike", "LossNotDecreasing"},
        "LossJump": _RESULTS | {"LossSpike", "LossOscillating", "SampleSpike", "ParameterDrift", "GradientExploding"},
        "MapsDisagree": _RESULTS,
        "InvertedWeights": _RESULTS,
        "OutputsGrow": _RESULTS | _LOSSES,
        "FrozenBody": _RESULTS | _UNTRAINED,
        "EvaluationOutput": _RESULTS,
        "EmbeddingsShrink": _RESULTS | {"InputIgnored", "LossNotDecreasing", "NoDiversity"},
        "InputIgnored": _RESULTS | {"LossNotDecreasing"},
        "NoDiversity": _RESULTS | {"InputIgnored"},
        "UnboundedLoss": _RESULTS | _LOSSES | {"GradientExploding", "ParameterDrift"},
        # It names what was changed since the result was good, but not why that matters, as those above do.
        "BestNotCopied": _RESULTS | {"LossNotDecreasing"},
        "PairsConfused": _RESULTS | {"LossNotDecreasing"},
        "WorseSinceChange": _RESULTS | {"LossNotDecreasing", "TermNotLearned", "UpdateRatio"},
        "HeldOutGap": _RESULTS,
        "TrainingGap": _RESULTS,
        "WorseThanNothing": _RESULTS | {"LossNotDecreasing"},
        "ChanceLevel": _RESULTS | {"LossNotDecreasing"},
        "LossNotDecreasing": frozenset(("NoProgress", "HeldOutGap", "TrainingGap")),
        "Overtraining": frozenset(("Overfitting",)),
        "TensorsKept": frozenset(("MemoryGrowing", "MemoryLeak", "OutOfMemoryAhead", "StepOutlier")),
        "MemoryLeak": frozenset(("MemoryGrowing", "OutOfMemoryAhead")),
    }
)
"""Consequences of each cause, by rule; earlier causes explain later ones."""

BROAD = frozenset(
    {"DoubtfulSetting", "NonFinite", "RateTooHigh", "RateJump", "TermDominates", "GradientVanishing", "RateTooLow"}
)
"""Causes that spoil everything, so that they also explain the findings of rules that the toolkit does not know."""

AT_THE_END = _RESULTS | {
    "AlwaysClipped",
    "BestNotCopied",
    "EmbeddingsShrink",
    "EvaluatedOnTraining",
    "EvaluationRandom",
    "FrozenNormsMove",
    "MixedGradients",
    "PaddingLookedUp",
    "PairsConfused",
    "PerfectFromStart",
    "RoundedInput",
    "RowsNeverTrained",
    "SamplesMixed",
    "StepsSlowDown",
    "TermAlwaysZero",
    "BatchOfOne",
    "ClassAsNumber",
    "ClippedTooEarly",
    "DecayTooHigh",
    "ConstantArgument",
    "CopyNeverUpdated",
    "EvaluationInput",
    "EvaluationOutput",
    "FrozenBody",
    "FutureVisible",
    "GroupTooSlow",
    "InputIgnored",
    "InputScale",
    "MapsDisagree",
    "NoDiversity",
    "NormalizedOverBatch",
    "OddSetting",
    "OutputUnused",
    "OutputsGrow",
    "PaddingCounts",
    "PositionIgnored",
    "RateEndsEarly",
    "RateStartsLate",
    "RateTooHigh",
    "RateTooLow",
    "SameBatch",
    "SamplesIgnored",
    "StaleAverage",
    "TargetAmongInputs",
    "TensorsKept",
    "TermNotLearned",
    "UnboundedLoss",
    "UnmixedBatches",
    "WrongSample",
}
"""Rules that judge the whole run when it ends, so their step does not say when the condition began."""

_OF_RESUMING = frozenset({"NotKept"})
"""Rules about what will be missing after a resume."""
EXACT = frozenset({"NonFinite", "NotKept"})
"""Rules without patience, whose findings name the step at which the condition began."""

DOUBTS = frozenset({"DoubtfulData", "DoubtfulSetting"})
"""Rules whose notes are as serious as what they explain."""

_FOLLOW = frozenset(("LossSpike", "LossJump", "SampleSpike", "GradientExploding", "LossOscillating"))
"""Rules whose findings follow such events."""
SLACK = 64
"""Steps by which a cause may be noticed later than its consequences: rules have different patience."""
NEAR = 16
"""Steps after an event within which it is the first suspect."""
MOST = 0.5
"""If events are so frequent that more than this fraction of all steps follows one, none of them is a suspect."""

_FACTS = frozenset(
    {
        "AnomalyDetection",
        "BatchesRepeated",
        "BestNotCopied",
        "CheckpointsFail",
        "ClippedTooEarly",
        "ClipsNothing",
        "DamagedRecord",
        "DeadGroup",
        "DeclaredButAbsent",
        "DeclaredButZero",
        "DiskFull",
        "EvaluatedInTrainMode",
        "EvaluatedOnTraining",
        "EvaluationDraws",
        "EvaluationRandom",
        "FellBack",
        "FrozenNormsMove",
        "FutureVisible",
        "HalfParameters",
        "HalfUnderflow",
        "InvertedWeights",
        "LooseParameters",
        "LossForm",
        "NegativeLoss",
        "OptimizerRenewed",
        "ScalerSkips",
        "MemoryLeak",
        "NoSteps",
        "NonFinite",
        "NotInOptimizer",
        "NotKept",
        "RateJump",
        "RowsNeverTrained",
        "OutputUnused",
        "TensorsKept",
        "TermWithoutGradient",
        "UnchangedParameters",
        "WorseThanNothing",
    }
)
_SYMPTOMS = (
    _LOSSES | _RESULTS - {"WorseSinceChange", "WorseThanNothing"} | {"StepOutlier", "ParameterDrift", "UpdateRatio"}
)
POSSIBLE = 0.4
"""Confidence in rules that read off a fact, that test for one cause, and that see symptoms of many causes."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A cause with its consequences.

    Attributes:
        cause: the finding that explains the others; its ``confidence`` is set.
        consequences: the findings that it explains, in order of step; their ``because_of`` is set.
    """

    cause: Finding
    consequences: tuple[Finding, ...] = ()

    @property
    def severity(self) -> Severity:
        """Highest severity of the cause and its consequences."""
        return max((self.cause, *self.consequences), key=lambda finding: rank_of(finding.severity)).severity


def diagnose(findings: Iterable[Finding], events: Iterable[Mapping[str, Any]] = ()) -> tuple[Diagnosis, ...]:
    """Group findings by cause, the most serious and most likely cause first.

    A note that was reported again because its severity rose is left out.

    Args:
        findings: findings of a run.
        events: events of the run; growth, prunes, resets and new phases explain findings that follow them at once.
    """
    everything = _without_outranked_notes(list(findings))
    steps = _disturbances(events, max((finding.step for finding in everything), default=0))
    causes = [_cause_of(finding, everything) for finding in everything]
    groups: dict[int, list[Finding]] = {}
    for at, finding in enumerate(everything):
        root = _root(at, causes)
        groups.setdefault(root, [])
        if root != at:
            label = everything[root].label
            groups[root].append(replace(finding, because_of=label, confidence=confidence_of(finding)))
    found = [
        Diagnosis(
            cause=replace(
                everything[root],
                severity=_severity(everything[root], members),
                because_of=_event_before(everything[root], steps),
                confidence=confidence_of(everything[root]),
            ),
            consequences=tuple(sorted(members, key=lambda finding: finding.step)),
        )
        for root, members in groups.items()
    ]
    return tuple(sorted(found, key=_urgency))


def _without_outranked_notes(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out notes with a warning or an error of the same rule and subject after them."""
    serious = {(each.rule, each.subject): at for at, each in enumerate(findings) if each.severity != "note"}
    return [
        each
        for at, each in enumerate(findings)
        if each.severity != "note" or serious.get((each.rule, each.subject), -1) < at
    ]


def explain(findings: Iterable[Finding], events: Iterable[Mapping[str, Any]] = ()) -> tuple[Finding, ...]:
    """Return the findings with ``because_of`` and ``confidence``: each cause, followed by its consequences.

    Args:
        findings: findings of a run.
        events: events of the run, see :func:`diagnose`.
    """
    return tuple(finding for each in diagnose(findings, events) for finding in (each.cause, *each.consequences))


def confidence_of(finding: Finding) -> float:
    """Return how certain a finding names what is wrong."""
    if finding.rule in _FACTS:
        return CERTAIN
    return POSSIBLE if finding.rule in _SYMPTOMS else LIKELY


_ORDER = tuple(EXPLAINS)
_TOOLKIT = frozenset(rule.__name__ for rule in RULES)


def _severity(cause: Finding, members: Iterable[Finding]) -> Severity:
    """Return the severity of a cause: a doubt is as serious as what it explains, anything else as it was found."""
    if cause.rule not in DOUBTS:
        return cause.severity
    return max((cause, *members), key=lambda finding: rank_of(finding.severity)).severity


def _urgency(diagnosis: Diagnosis) -> tuple[int, int, int]:
    rule = diagnosis.cause.rule
    place = _ORDER.index(rule) if rule in EXPLAINS else len(_ORDER)
    # What a resumed run would lack has not harmed this one, unless something followed from it.
    if rule in _OF_RESUMING and not diagnosis.consequences:
        place = len(_ORDER) + 1
    return (-rank_of(diagnosis.severity), place, diagnosis.cause.step)


def _cause_of(finding: Finding, everything: Sequence[Finding]) -> int | None:
    """Return the index of the most likely cause of a finding, None if no other finding explains it."""
    suspects = [
        (_ORDER.index(other.rule), other.step, at)
        for at, other in enumerate(everything)
        if _may_explain(other, finding)
        and _is_above(other, finding)
        and _is_earlier(other, finding)
        # A note is too weak to explain a problem, except for doubts that were there before the first step.
        and (other.severity != "note" or finding.severity == "note" or other.rule in DOUBTS)
    ]
    if suspects:
        return min(suspects)[2]
    if finding.rule not in _FOLLOW:
        return None
    # Spikes of several samples within a few steps are one disturbance: the first stands for all.
    same = [
        (other.step, at)
        for at, other in enumerate(everything)
        if other.rule == finding.rule and finding.step - SLACK <= other.step and other.severity == finding.severity
    ]
    first = min(same)[1]
    return first if everything[first] is not finding else None


def _may_explain(cause: Finding, consequence: Finding) -> bool:
    if consequence.rule in EXPLAINS.get(cause.rule, ()):
        return True
    return cause.rule in BROAD and consequence.rule not in _TOOLKIT and consequence.subject != RULE_FAILED


def _is_above(cause: Finding, consequence: Finding) -> bool:
    """Return whether a finding is nearer to the root than another, so that no two findings explain each other."""
    # Known before the first step, and explained by nothing.
    if cause.rule in DOUBTS and cause.severity != "note":
        return True
    return consequence.rule not in EXPLAINS or _ORDER.index(cause.rule) < _ORDER.index(consequence.rule)


def _is_earlier(cause: Finding, consequence: Finding) -> bool:
    slack = 0 if cause.rule in EXACT else SLACK
    return cause.rule in AT_THE_END or cause.step <= consequence.step + slack


def _root(at: int, causes: Sequence[int | None]) -> int:
    """Follow the causes up to the one that nothing explains."""
    seen = {at}
    while (above := causes[at]) is not None and above not in seen:
        seen.add(above)
        at = above
    return at


def _disturbances(events: Iterable[Mapping[str, Any]], last: int) -> list[tuple[int, str]]:
    """Return step and kind of the events that may explain a finding; none if they are too frequent to tell."""
    steps = sorted({(int(event["step"]), str(event["kind"])) for event in events if event["kind"] in DISTURBANCES})
    # A phase that starts with the run disturbs nothing.
    steps = [(step, kind) for step, kind in steps if step > 0]
    covered = len({step + after for step, _ in steps for after in range(NEAR + 1)})
    return steps if covered <= MOST * max(last + 1, 1) else []


def _event_before(finding: Finding, steps: Sequence[tuple[int, str]]) -> str:
    """Return the last event right before a finding that follows such events; empty if there is none."""
    if finding.rule not in _FOLLOW:
        return ""
    near = [(step, kind) for step, kind in steps if step <= finding.step <= step + NEAR]
    return f"event {near[-1][1]} at step {near[-1][0]}" if near else ""
