"""Planted breaks: each breaks one thing in a copy of the source, and the torture rows that promise it must fail.

    python benchmarks/torture --mutants                  # all of them
    python benchmarks/torture --mutants hash,older       # only mutants whose names contain one of these words

A mutant is a small edit of one file of the package. Its trial is a part of the torture with small counts. The trial
runs once with an unchanged copy (the control: every named row must hold) and once with each of its mutants (every named
row must fail). A row that no mutant makes fail proves nothing.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rows import Row, rows_of
from table import plain

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
PACKAGE = "fieldwatch"
EXPECTED = "FIELDWATCH_TORTURE_SOURCE"
"""Environment variable of a trial: the folder from which ``fieldwatch`` must be imported."""
Edits = tuple[tuple[str, str], ...]
"""Texts that occur exactly once, with their replacements."""
PATIENCE = 600.0
"""Seconds after which a trial counts as hung; a row that never arrives has not noticed the break."""


class StaleMutantError(ValueError):
    """The text that a mutant replaces does not occur exactly once in its file."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One planted break.

    Attributes:
        name: short, unique name.
        breaks: description of the break.
        file: path below the package.
        edits: pairs of a text that occurs exactly once, and its replacement.
        trial: name of a trial in ``trials.py``.
        rows: the rows that must notice it: a promise, a space, and words of the row's description.
        also: a second file with its edits, if two places keep the same promise.
    """

    name: str
    breaks: str
    file: str
    edits: Edits
    trial: str
    rows: tuple[str, ...]
    also: tuple[tuple[str, Edits], ...] = ()

    @property
    def files(self) -> dict[str, Edits]:
        """Return all edits by file."""
        return {self.file: self.edits, **dict(self.also)}

    def applied(self, text: str, file: str = "") -> str:
        """Return the mutated text of one of its files, by default of the first.

        Raises:
            StaleMutantError: a text to replace is missing, or occurs more than once.
        """
        for old, new in self.files[file or self.file]:
            count = text.count(old)
            if count != 1:
                raise StaleMutantError(
                    f"mutant {self.name!r} expects {old!r} exactly once in {file or self.file}, got {count} times: "
                    "choose a new anchor, or remove the mutant with the code"
                )
            text = text.replace(old, new)
        return text


@dataclass(kw_only=True)
class Result:
    """Outcome of one mutant.

    Attributes:
        mutant: the mutant.
        missed: why it counts as not noticed, one text per row; empty if all rows noticed it.
        skipped: why it could not be tried; empty if it was.
        seconds: duration of its trial.
    """

    mutant: Mutant
    missed: list[str] = field(default_factory=list[str])
    skipped: str = ""
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """The verdict in one word, for the table."""
        if self.skipped:
            return "not run"
        return "**not noticed**" if self.missed else "noticed"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one trial.

    Attributes:
        rows: rows of the trial; empty if it failed to run.
        trouble: why it failed to run; empty if it ran.
        seconds: duration.
    """

    rows: list[Row]
    trouble: str
    seconds: float


def spoiled(mutant: Mutant, clean: Path, place: Path) -> Path:
    """Copy the package and plant the mutant; return the folder for PYTHONPATH."""
    shutil.copytree(clean, place)
    for file in mutant.files:
        path = place / PACKAGE / file
        text = mutant.applied(path.read_text(), file)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_text(text)
    return place


def clean_copy(place: Path) -> Path:
    """Copy the package without compiled modules."""
    shutil.copytree(SOURCE / PACKAGE, place / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def tried(trial: str, source: Path, folder: Path) -> Outcome:
    """Run a trial with the package of a folder, in a process group that ends with it."""
    folder.mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FIELDWATCH_")}
    environment |= {"PYTHONPATH": str(source), EXPECTED: str(source), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    environment["MKL_NUM_THREADS"] = "1"
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, str(HERE), "--trial", trial, "--folder", str(folder)]
    began = time.monotonic()
    said = folder.with_suffix(".stderr")
    with (
        said.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, env=environment
        ) as process,
    ):
        try:
            output = process.communicate(timeout=PATIENCE)[0]
            trouble = ""
        except subprocess.TimeoutExpired:
            output = ""
            trouble = f"no answer within {PATIENCE:.0f} s"
        finally:
            _end_group(process.pid)
    unmount_below(folder)
    seconds = time.monotonic() - began
    if process.returncode or not output.strip():
        last = said.read_text().strip().splitlines()[-1:]
        return Outcome(rows=[], trouble=trouble or f"exit {process.returncode}: {last}", seconds=seconds)
    return Outcome(rows=rows_of(json.loads(output.splitlines()[-1])), trouble="", seconds=seconds)


def unmount_below(folder: Path) -> None:
    """Unmount what a killed process has left mounted below the folder."""
    mounts = Path("/proc/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    points = [line.split()[1] for line in lines if Path(line.split()[1]).is_relative_to(folder.resolve())]
    for point in reversed(points):
        subprocess.run(["umount", "--lazy", point], check=False)


def _end_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def run_trial(name: str, folder: Path) -> list[Row]:
    """Run a trial in this process, which must have imported the package from the expected folder.

    Raises:
        RuntimeError: the package comes from another folder, so that the mutant would not be tested.
    """
    import fieldwatch  # noqa: PLC0415  depends on the environment

    expected = os.environ.get(EXPECTED, str(SOURCE))
    place = Path(fieldwatch.__file__).resolve()
    if not place.is_relative_to(Path(expected).resolve()):
        raise RuntimeError(f"the trial expects fieldwatch from {expected}, got {place}")
    from trials import TRIALS  # noqa: PLC0415  imports torch, which only a trial needs

    return rows_of(TRIALS[name](folder))


def of_row(pattern: str, rows: Iterable[Row]) -> list[Row]:
    """Return the rows that a mutant's pattern matches."""
    promise, _, words = pattern.partition(" ")
    return [row for row in rows if row.promise == promise and (words in row.what or words == row.group)]


def judge(mutant: Mutant, control: Outcome, outcome: Outcome) -> Result:
    """Compare the rows of a mutant's trial with those of the control."""
    result = Result(mutant=mutant, seconds=outcome.seconds)
    for pattern in mutant.rows:
        before = of_row(pattern, control.rows)
        after = of_row(pattern, outcome.rows)
        if before and all(row.verdict == "not run" for row in before):
            result.skipped = before[0].why or "its trial cannot run here"
        elif not before or any(row.verdict != "holds" for row in before):
            why = control.trouble or "; ".join(f"{row.found} {row.why}".strip() for row in before) or "no such row"
            result.missed.append(f"{pattern}: the control does not hold ({why[:200]})")
        elif not any(row.verdict == "does not hold" for row in after):
            found = outcome.trouble or "; ".join(row.found for row in after) or "no such row"
            result.missed.append(f"{pattern}: {found[:200]}")
    return result


def run_mutants(
    mutants: Sequence[Mutant], folder: Path, *, jobs: int = 2, tell: Callable[[str], None] = lambda _: None
) -> list[Result]:
    """Try every mutant; all controls run first, since they also compile the copy from which the mutants are made."""
    clean = clean_copy(folder / "clean")
    trials = sorted({mutant.trial for mutant in mutants})

    def control(trial: str) -> tuple[str, Outcome]:
        outcome = tried(trial, clean, folder / f"control-{trial}")
        shutil.rmtree(folder / f"control-{trial}", ignore_errors=True)
        tell(f"control {trial}: {outcome.seconds:.0f} s {outcome.trouble}")
        return trial, outcome

    def one(numbered: tuple[int, Mutant]) -> Result:
        number, mutant = numbered
        source = spoiled(mutant, clean, folder / f"{number}-source")
        outcome = tried(mutant.trial, source, folder / f"{number}")
        result = judge(mutant, controls[mutant.trial], outcome)
        shutil.rmtree(source)
        shutil.rmtree(folder / f"{number}", ignore_errors=True)
        tell(f"{mutant.name}: {result.verdict}, {outcome.seconds:.0f} s {'; '.join(result.missed)}")
        return result

    with ThreadPoolExecutor(jobs) as pool:
        controls: Mapping[str, Outcome] = dict(pool.map(control, trials))
        return list(pool.map(one, enumerate(mutants)))


def summary(results: Sequence[Result]) -> str:
    """Return how many mutants are noticed."""
    ran = [result for result in results if not result.skipped]
    noticed = sum(not result.missed for result in ran)
    left = f"; {len(results) - len(ran)} not run" if len(ran) < len(results) else ""
    return f"{noticed} of {len(ran)} planted breaks are noticed{left}"


def text(results: Sequence[Result]) -> str:
    """Format the results for a terminal."""
    lines = [
        f"{result.verdict.strip('*'):12} {result.seconds:4.0f} s  {result.mutant.name}: {result.mutant.breaks}"
        for result in results
    ]
    details = [f"             {words}" for result in results for words in (*result.missed, result.skipped) if words]
    return "\n".join([*lines, *details, "", summary(results)])


def markdown(results: Sequence[Result], table: str, head: str) -> str:
    """Format the results for the page: which rows notice which break, and which rows no break makes fail."""
    lines = [head, "", f"{summary(results)}.", "", "| planted break | rows that must fail | noticed | seconds |"]
    lines.append("|---|---|---|---:|")
    for result in results:
        rows = "; ".join(result.mutant.rows)
        why = "; ".join([*result.missed, result.skipped]).strip("; ")
        verdict = f"{result.verdict}: {why}" if why else result.verdict
        cells = (result.mutant.breaks, rows, verdict)
        lines.append("| " + " | ".join(plain(cell) for cell in cells) + f" | {result.seconds:.0f} |")
    uncovered = rows_without(table, [result.mutant for result in results if not result.missed and not result.skipped])
    if uncovered:
        lines += ["", f"Rows of the table above that no planted break makes fail: {'; '.join(uncovered)}."]
    return "\n".join(lines) + "\n"


def rows_without(table: str, mutants: Sequence[Mutant]) -> list[str]:
    """Return the rows of the page's table that ran and that none of these mutants makes fail."""
    patterns = [pattern.partition(" ")[::2] for mutant in mutants for pattern in mutant.rows]
    found = list[str]()
    for line in table.splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        promise = re.match(r"\**(P\d+)\b", cells[1].strip()) if len(cells) > 5 else None
        if promise is None or "not run" in cells[5]:
            continue
        what = cells[2].strip()
        if not any(name == promise[1] and words in what for name, words in patterns):
            found.append(f"{promise[1]} {what[:80]}")
    return found
