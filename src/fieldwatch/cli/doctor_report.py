"""Reports of ``fieldwatch doctor`` about a data set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fieldwatch.base import number
from fieldwatch.cli.output import COLORS

Severity = Literal["note", "warning", "error"]


@dataclass(frozen=True, kw_only=True)
class DataFinding:
    """A problem of a data set or of a machine.

    Attributes:
        name: name of the check.
        severity: `"error"` (training would fail or learn something else), `"warning"` (worth a look) or `"note"`.
        message: observation, with numbers.
        remedy: advice.
        certain: whether a warning spoils a training for certain, whatever its figures say.
    """

    name: str
    severity: Severity
    message: str
    remedy: str
    certain: bool = False


@dataclass(frozen=True, kw_only=True)
class MachineCheck:
    """Result of a pipeline's machine check.

    Attributes:
        facts: values for ``--json``, by name.
        label: label of its row in the table.
        text: text of that row.
        findings: problems.
    """

    facts: Mapping[str, Any]
    label: str
    text: str
    findings: tuple[DataFinding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """Contents and problems of a data set.

    Attributes:
        path: folder or file.
        kind: description of its kind.
        facts: contents, by name.
        notes: remarks of the reader, such as skipped files.
        findings: problems, the most severe first.
        command: command that uses the data.
        files: written files, by content.
    """

    path: Path
    kind: str
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    findings: tuple[DataFinding, ...]
    command: str
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])

    @property
    def has_problems(self) -> bool:
        """Whether a finding is worse than a note."""
        return any(finding.severity != "note" for finding in self.findings)


def print_report(console: Console, report: DataReport) -> None:
    """Print kind, contents and findings of a data set."""
    console.print(Text.assemble((f"{report.path}", "bold"), f": {report.kind}"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name, value in report.facts.items():
        table.add_row(f"  {name}", Text(fact_text(value)))
    console.print(table)
    # `Text`, never markup: paths and names of photos may hold square brackets.
    for note in report.notes:
        console.print(Text(f"  note: {note}"), soft_wrap=True)
    print_checks(console, report.findings)
    console.print(Text(f"  for: {report.command}"), soft_wrap=True)


def print_checks(console: Console, findings: Sequence[DataFinding]) -> None:
    """Print the findings of checks."""
    if not findings:
        console.print("[green]healthy[/]: no check found a problem", markup=True)
    for finding in findings:
        head = Text.assemble((finding.severity, COLORS[finding.severity]), f"  {finding.name}")
        console.print(head, soft_wrap=True)
        console.print(Padding(Text(f"{finding.message}\n-> {finding.remedy}"), (0, 0, 0, 4)))


def fact_text(value: Any) -> str:
    """Format a fact for people."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {fact_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(fact_text(item) for item in value) or "none"
    return number(value) if isinstance(value, float) else str(value)
