"""Bookkeeping of damaged lines in a run's record: they are skipped, counted and reported as one event per file."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DAMAGED = "damaged_record"
"""Kind of the events that report damage. Readers generate them; a resumed run also writes them to its record."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Damage found in one file.

    Attributes:
        file: name of the file in the run folder.
        lines: number of skipped lines; 0 if the file as a whole is missing or unreadable.
        first: 1-based number of the first skipped line; 0 if there is none.
        problem: description of the problem with that line or with the file.
        steps: number of steps without a row because of the damage, inferred from the rows around it.
    """

    file: str
    lines: int
    first: int
    problem: str
    steps: int = 0

    @property
    def message(self) -> str:
        """One-sentence summary for the user."""
        if not self.lines:
            return f"{self.file} {self.problem}"
        count = "1 line" if self.lines == 1 else f"{self.lines} lines"
        lost = (
            "" if not self.steps else "; 1 step has no row" if self.steps == 1 else f"; {self.steps} steps have no row"
        )
        return f"{self.file}: {count} skipped (line {self.first} {self.problem}){lost}"

    def as_event(self, step: int) -> dict[str, Any]:
        """Return the damage as an event of a run at ``step``."""
        facts = {"file": self.file, "lines": self.lines, "first": self.first, "lost_steps": self.steps}
        return {"kind": DAMAGED, "step": max(step, 0), "message": self.message, **facts}


class DamageTally:
    """Counts damaged lines per file while one or more files are read."""

    def __init__(self) -> None:
        self._by_file: dict[str, Damage] = {}

    def add(self, path: Path, number: int, problem: str) -> None:
        """Count a damaged line.

        Args:
            path: path of the file.
            number: 1-based number of the line.
            problem: description of the problem, such as "is not a line of JSON".
        """
        previous = self._by_file.get(path.name)
        # The first damaged line determines the reported problem; it also replaces a note about the whole file.
        if previous is None or not previous.lines:
            self._by_file[path.name] = Damage(file=path.name, lines=1, first=number, problem=problem)
        else:
            self._by_file[path.name] = replace(previous, lines=previous.lines + 1)

    def add_file(self, path: Path, problem: str) -> None:
        """Record that a file as a whole is unusable or truncated."""
        # Damaged lines carry more information than a note about the file, so do not replace an existing entry.
        self._by_file.setdefault(path.name, Damage(file=path.name, lines=0, first=0, problem=problem))

    def lost(self, path: Path, steps: int) -> None:
        """Add to the number of steps without a row because of damage in a file."""
        previous = self._by_file.get(path.name)
        if previous is not None and steps > 0:
            self._by_file[path.name] = replace(previous, steps=previous.steps + steps)

    @property
    def entries(self) -> tuple[Damage, ...]:
        """Damage found so far, one entry per file."""
        return tuple(self._by_file.values())

    def events(self, step: int) -> list[dict[str, Any]]:
        """Return all damage as events of a run at ``step``."""
        return [damage.as_event(step) for damage in self._by_file.values()]

    def __bool__(self) -> bool:
        """Whether any damage was found."""
        return bool(self._by_file)


def same_damage(event: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    """Whether two events report the same damage."""
    # Compare facts rather than messages: the wording may differ between versions.
    return all(event.get(key) == recorded.get(key) for key in ("file", "lines", "first", "lost_steps"))
