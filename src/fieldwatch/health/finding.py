"""Findings: the result of a health rule, with its step, severity, message and remedy."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from fieldwatch.base import InputError, percent

Severity = Literal["note", "warning", "error"]
"""Severity of a finding, in ascending order."""
# In ascending order: severities are compared by index.
_RANKS: tuple[Severity, ...] = get_args(Severity)
RULE_FAILED = "rule failed"
"""Subject of the finding about a rule that raised an exception."""
CERTAIN = 0.9
LIKELY = 0.7
"""Confidences from which a finding counts as certain or likely."""
_EXPLANATION = ("because_of", "confidence")
_REQUIRED = ("rule", "step", "severity", "message", "remedy")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem that a rule detected.

    Attributes:
        rule: name of the rule.
        step: first step (0-based) at which the condition had held for the rule's patience.
        severity: ``"note"`` (worth knowing), ``"warning"`` (needs attention) or ``"error"`` (the run is spoiled).
        message: description of the problem, with the measured values.
        remedy: advice on how to fix it.
        subject: affected term, group, sample or metric; empty if the rule has only one subject.
        action: comma-separated actions that the run should take automatically, such as ``"checkpoint"``, ``"cap"`` or
            ``"checkpoint,cap"``; empty for none.
        limit: argument of the action: the maximum model size for ``"cap"``.
        because_of: what most likely caused the finding: the label of another finding, or an event with its step;
            empty for a finding that may be a cause itself. Set by :func:`~fieldwatch.health.explain`.
        confidence: how certain the finding names what is wrong, from 0 to 1; None before it was explained.

    Raises:
        ValueError: if the step is negative, the rule name is empty, or the confidence is outside of 0 to 1.
    """

    rule: str
    step: int
    severity: Severity
    message: str
    remedy: str
    subject: str = ""
    action: str = ""
    limit: float | None = None
    because_of: str = ""
    confidence: float | None = None

    def __post_init__(self) -> None:
        """Validate the rule name and the step."""
        if not self.rule:
            raise ValueError("a finding was created without a rule name: pass rule=, the name of the rule")
        if self.step < 0:
            raise ValueError(f"finding of {self.rule}: expected a 0-based step of 0 or more, got {self.step}")
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise ValueError(f"finding of {self.rule}: expected a confidence of 0 to 1, got {self.confidence}")

    def as_event(self) -> dict[str, Any]:
        """Return the finding as the JSON object that is written to ``events.jsonl``."""
        event = {"kind": "finding", **asdict(self)}
        # Findings are written before they are explained: then these two hold nothing yet.
        return event if self.is_explained else {key: event[key] for key in event if key not in _EXPLANATION}

    @classmethod
    def from_json(cls, event: Mapping[str, Any]) -> "Finding":
        """Create a finding from a JSON object such as its event; unknown keys are ignored.

        Raises:
            InputError: if a key is missing or the severity is unknown.
        """
        missing = [key for key in _REQUIRED if key not in event]
        if missing:
            raise InputError(f"a finding event lacks {', '.join(missing)}: it needs at least {', '.join(_REQUIRED)}")
        if event["severity"] not in _RANKS:
            raise InputError(f"a finding event has severity {event['severity']!r}: expected one of {', '.join(_RANKS)}")
        texts = {key: str(event[key]) for key in ("rule", "message", "remedy")}
        # Events written by earlier versions have no subject, action or limit.
        texts |= {key: str(event.get(key) or "") for key in ("subject", "action", "because_of")}
        limit = event.get("limit")
        confidence = event.get("confidence")
        return cls(
            **texts,
            step=int(event["step"]),
            severity=event["severity"],
            limit=None if limit is None else float(limit),
            confidence=None if confidence is None else float(confidence),
        )

    @property
    def is_explained(self) -> bool:
        """Whether :func:`~fieldwatch.health.explain` has judged the finding."""
        return self.confidence is not None

    @property
    def certainty(self) -> str:
        """The confidence in words: certain, likely or possible; empty before the finding was explained."""
        if self.confidence is None:
            return ""
        return "certain" if self.confidence >= CERTAIN else "likely" if self.confidence >= LIKELY else "possible"

    @property
    def label(self) -> str:
        """Rule, subject and step on one line, as other findings refer to this one."""
        subject = f" [{self.subject}]" if self.subject else ""
        return f"{self.rule}{subject} at step {self.step}"

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions as a tuple; empty if there are none."""
        return tuple(self.action.split(",")) if self.action else ()

    def __str__(self) -> str:
        """Return the finding on one line."""
        return f"{self.severity}: {self.label}: {self.message} {self.remedy}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002, FBT001  IPython's protocol
        """Print the finding in a notebook or in IPython."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        """Return the finding as the output of a notebook's cell."""
        from fieldwatch.base.cell import Level, card, paragraphs  # noqa: PLC0415  at first use

        facts = (f"{self.certainty} ({percent(self.confidence, 0)})",) if self.is_explained else ()
        cause = f"Most likely because of {self.because_of}." if self.because_of else ""
        levels: Mapping[Severity, Level] = {"note": "notes", "warning": "findings", "error": "failed"}
        return card(
            self.label,
            level=levels[self.severity],
            label=self.severity,
            headline=self.message,
            facts=facts,
            parts=[paragraphs([self.remedy, cause])],
        )


def findings_in(events: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield the findings among the events; malformed finding events are skipped."""
    for event in events:
        if event.get("kind") == "finding":
            try:
                yield Finding.from_json(event)
            # Other tools may write events of kind "finding" with other keys.
            except (TypeError, ValueError):
                continue


def first_per_subject(findings: Iterable[Finding | None]) -> tuple[Finding, ...]:
    """Return the first finding of each subject, and those that are more severe than all before; None is no finding."""
    kept: list[Finding] = []
    highest: dict[str, Severity] = {}
    for finding in findings:
        if finding is None:
            continue
        known = highest.get(finding.subject)
        if known is None or is_more_severe(finding.severity, known):
            highest[finding.subject] = finding.severity
            kept.append(finding)
    return tuple(kept)


def worst(findings: Iterable[Finding]) -> Severity | None:
    """Return the highest severity among the findings, None if there are none."""
    severities = {finding.severity for finding in findings}
    return next((severity for severity in reversed(_RANKS) if severity in severities), None)


def exit_code(findings: Iterable[Finding], *, stopped: bool = False) -> int:
    """Return the exit status of a command that examined a run.

    Args:
        findings: all findings of the run.
        stopped: whether the run was stopped because it could not continue.

    Returns:
        0 if there is nothing above a note, 1 for warnings or errors, 3 for a stopped run.
    """
    if stopped:
        return 3
    return 0 if worst(findings) in (None, "note") else 1


def training_exit_code(findings: Iterable[Finding], *, strict: bool = False) -> int:
    """Return the exit status of a completed training.

    Warnings do not fail a training by default, so that ``train ... && next ...`` continues.

    Args:
        findings: all findings of the run.
        strict: whether warnings count as errors.

    Returns:
        1 if there is an error, or with ``strict`` a warning; else 0.
    """
    counted = ("warning", "error") if strict else ("error",)
    return int(worst(findings) in counted)


def rank_of(severity: Severity) -> int:
    """Return the place of a severity in ascending order: 0 for a note."""
    return _RANKS.index(severity)


def is_more_severe(first: Severity, second: Severity) -> bool:
    """Return whether the first severity is higher than the second."""
    return _RANKS.index(first) > _RANKS.index(second)
