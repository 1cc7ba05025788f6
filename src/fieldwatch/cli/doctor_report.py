"""What the doctor says about a data set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fieldwatch.cli.output import COLORS

Severity = Literal["note", "warning", "error"]


@dataclass(frozen=True, kw_only=True)
class DataFinding:
    """One thing that is wrong with data, or with a machine.

    Attributes:
        name: of the check.
        severity: `"error"` (training would fail or learn something else), `"warning"` (look at it) or `"note"`.
        message: what was seen, with numbers.
        remedy: what to do.
    """

    name: str
    severity: Severity
    message: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class MachineCheck:
    """What a pipeline found on this machine.

    Attributes:
        facts: for ``--json``, by name.
        label: of its line in the table.
        text: that line.
        findings: what is wrong.
    """

    facts: Mapping[str, Any]
    label: str
    text: str
    findings: tuple[DataFinding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """What a data set holds.

    Attributes:
        path: where it is.
        kind: what it is, for people.
        facts: what it holds, by name.
        notes: what was done while reading.
        findings: the gravest first.
        command: what takes it.
        files: what was written, by what it is.
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
        """Whether something is worse than a note."""
        return any(finding.severity != "note" for finding in self.findings)


def print_report(console: Console, report: DataReport) -> None:
    """Show what a data set is, what it holds and what is wrong with it."""
    console.print(Text.assemble((f"{report.path}", "bold"), f": {report.kind}"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name, value in report.facts.items():
        table.add_row(f"  {name}", Text(fact_text(value)))
    console.print(table)
    for note in report.notes:
        console.print(Text(f"  note: {note}"), soft_wrap=True)
    print_checks(console, report.findings)
    console.print(Text(f"  for: {report.command}"), soft_wrap=True)


def print_checks(console: Console, findings: Sequence[DataFinding]) -> None:
    """Show what checks found."""
    if not findings:
        console.print("[green]healthy[/]: no check found anything", markup=True)
    for finding in findings:
        head = Text.assemble((finding.severity, COLORS[finding.severity]), f"  {finding.name}")
        console.print(head, soft_wrap=True)
        console.print(Padding(Text(f"{finding.message}\n-> {finding.remedy}"), (0, 0, 0, 4)))


def fact_text(value: Any) -> str:
    """A fact as people read it."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {fact_text(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(fact_text(one) for one in value) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
