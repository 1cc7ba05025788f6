"""A finding: what a rule saw, since which step, and what to do about it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from fieldwatch.base import InputError

Severity = Literal["note", "warning", "error"]
"""How bad a finding is."""
_RANKS: tuple[Severity, ...] = get_args(Severity)
_REQUIRED = ("rule", "step", "severity", "message", "remedy")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule found.

    Attributes:
        rule: name of the rule.
        step: first step at which the condition had held for the rule's patience (0-based).
        severity: ``"note"`` (worth knowing), ``"warning"`` (look at it) or ``"error"`` (the run is spoilt).
        message: what was seen, with numbers.
        remedy: what to do.
        subject: the term, group, sample or metric it concerns; empty where the rule has only one.
        action: what the run should do about it by itself, such as ``"checkpoint"``, ``"cap"`` or ``"checkpoint,cap"``;
            empty for nothing.
        limit: the number that goes with the action: the largest size for ``"cap"``.

    Raises:
        ValueError: a negative step or an empty rule name.
    """

    rule: str
    step: int
    severity: Severity
    message: str
    remedy: str
    subject: str = ""
    action: str = ""
    limit: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no rule can mean."""
        if not self.rule:
            raise ValueError("a finding came without a rule name: name the rule that found it")
        if self.step < 0:
            raise ValueError(f"finding of {self.rule}: step {self.step}: wanted a 0-based step index, 0 or more")

    def as_event(self) -> dict[str, Any]:
        """Return the finding as the JSON object that stands in ``events.jsonl``."""
        return {"kind": "finding", **asdict(self)}

    @classmethod
    def from_json(cls, event: Mapping[str, Any]) -> "Finding":
        """Read a finding back from a JSON object such as its event; other keys are left alone.

        Raises:
            InputError: a key is missing, or a value is not possible.
        """
        missing = [key for key in _REQUIRED if key not in event]
        if missing:
            raise InputError(f"a finding event lacks {', '.join(missing)}: wanted at least {', '.join(_REQUIRED)}")
        if event["severity"] not in _RANKS:
            raise InputError(f"a finding event has severity {event['severity']!r}: wanted one of {', '.join(_RANKS)}")
        texts = {key: str(event[key]) for key in ("rule", "message", "remedy")}
        texts |= {key: str(event.get(key, "")) for key in ("subject", "action")}
        limit = event.get("limit")
        number = None if limit is None else float(limit)
        return cls(**texts, step=int(event["step"]), severity=event["severity"], limit=number)

    @property
    def actions(self) -> tuple[str, ...]:
        """The single actions."""
        return tuple(self.action.split(",")) if self.action else ()

    def __str__(self) -> str:
        """Return the finding on one line."""
        about = f" [{self.subject}]" if self.subject else ""
        return f"{self.severity}: {self.rule}{about} at step {self.step}: {self.message} {self.remedy}"


def findings_among(events: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield the findings among some events; an event that is no finding of ours is left out."""
    for event in events:
        if event.get("kind") == "finding":
            try:
                yield Finding.from_json(event)
            except (TypeError, ValueError):
                continue


def worst(findings: Iterable[Finding]) -> Severity | None:
    """Return the gravest severity among the findings, None if there are none."""
    found = {finding.severity for finding in findings}
    return next((severity for severity in reversed(_RANKS) if severity in found), None)


def exit_code(findings: Iterable[Finding], *, stopped: bool = False) -> int:
    """Return the exit status of a command that examined a run.

    Args:
        findings: all findings of the run.
        stopped: whether the run was stopped because it could not go on.

    Returns:
        0 for nothing above a note, 1 for warnings or errors, 3 for a stopped run.
    """
    if stopped:
        return 3
    return 0 if worst(findings) in (None, "note") else 1


def training_exit_code(findings: Iterable[Finding], *, strict: bool = False) -> int:
    """Return the exit status of a training that came to its end, so that ``train ... && next ...`` goes on.

    Args:
        findings: all findings of the run.
        strict: whether a warning counts as an error does.

    Returns:
        1 with an error among the findings, or with a warning where ``strict``; else 0.
    """
    counted = ("warning", "error") if strict else ("error",)
    return int(worst(findings) in counted)


def graver(one: Severity, other: Severity) -> bool:
    """Tell whether the first severity is graver than the second."""
    return _RANKS.index(one) > _RANKS.index(other)
