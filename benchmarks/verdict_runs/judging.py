"""What a verdict said of a run, and how right it was."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .cases import Plant

SERIOUS = ("warning", "error")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What one run left.

    Attributes:
        ended: "finished", "refused" (a command did not accept its input) or "raised".
        message: text of the refusal or the exception.
        exit_code: exit code of ``fieldwatch health``.
        findings: its findings, as JSON.
        deaths: its post-mortems, as JSON.
        figure: figure of merit; None if the training did not end.
        seconds: processor time.
    """

    ended: str
    message: str = ""
    exit_code: int = 0
    findings: Sequence[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    deaths: Sequence[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    figure: float | None = None
    seconds: float = 0.0

    def reaches(self, good: float) -> bool:
        """Return whether the run is sound: whether it ended, with a figure of merit that is good enough."""
        return self.figure is not None and self.figure >= good

    @property
    def serious(self) -> list[dict[str, Any]]:
        """Findings above a note, the reason of a refusal first and that of a crash last, as they are printed."""
        found = [finding for finding in self.findings if finding["severity"] in SERIOUS]
        for death in self.deaths:
            text = str(death.get("error", ""))
            remedy = str(death.get("advice", text))
            found.append({"rule": "died", "severity": "error", "subject": "", "message": text, "remedy": remedy})
        if self.ended != "refused":
            return found
        refusal = {"rule": "refused", "severity": "error", "subject": ""}
        return [{**refusal, "message": self.message, "remedy": self.message}, *found]


@dataclass(frozen=True, kw_only=True)
class Told:
    """How a verdict of a broken run is judged.

    Attributes:
        told: whether anything above a note was said.
        cause: place of the first finding that names the cause, from 1; 0 if none does.
        findings: number of findings above a note.
        remedy: remedy that names the right flag, line or data; empty if none does.
    """

    told: bool
    cause: int
    findings: int
    remedy: str


def judge(plant: Plant, ran: Ran) -> Told:
    """Judge what was said of a broken run.

    The remedy is that of the first finding that names the cause. If none does, the remedy of any finding counts: it
    repairs the run, although the reader does not learn why.
    """
    serious = ran.serious
    named = [place for place, finding in enumerate(serious) if names_cause(plant, finding)]
    advising = [serious[named[0]]] if named else serious
    remedies = [str(finding["remedy"]) for finding in advising]
    right = [remedy for remedy in remedies if re.search(plant.fault.remedy, remedy, re.IGNORECASE)]
    return Told(
        told=bool(serious),
        cause=named[0] + 1 if named else 0,
        findings=len(serious),
        remedy=right[0] if right else "",
    )


def names_cause(plant: Plant, finding: dict[str, Any]) -> bool:
    """Whether a finding names the cause, with one of the names of the plant."""
    text = " ".join(str(finding[key]) for key in ("rule", "subject", "message"))
    return bool(re.search(plant.fault.cause, text, re.IGNORECASE)) and (
        not plant.names or any(name in text for name in plant.names)
    )
