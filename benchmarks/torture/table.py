"""The table of promises: prints it, and writes it between its markers in docs/reliability.md."""

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rows import Row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
PROMISES = {
    "P1": "A kill never costs more than the work since the last acknowledged save",
    "P2": "An acknowledged save is on the disk",
    "P3": "No silent damage",
    "P4": "Resume is the same run",
    "P5": "Saving is nearly free",
    "P6": "The interval tunes itself",
    "P7": "A full disk pauses checkpoints, not the run, and old checkpoints stay intact",
    "P8": "Non-finite values never reach parameters or moments",
    "P9": "Spikes roll back",
    "P10": "Preemption loses no work",
    "P11": "No run ends without a recorded cause",
    "P12": "A hang leaves stacks on the disk",
    "P13": "Out of memory leads to smaller parts, not to the end",
    "P14": "Validation cannot hurt training",
    "P15": "One writer",
    "P16": "A crash loop stops",
    "P17": "Checkpoints from others are safe to open",
    "P18": "Retention keeps the union of its rules",
    "P19": "The record stays in order",
    "P20": "A long run with faults ends like an undisturbed one",
}
HEAD = """# Reliability

The promises of a run, and their tests. `make torture` tries to break every promise and rewrites the first table.
`python benchmarks/reliability_scoreboard.py` runs the same trials with other ways of saving and rewrites the second.
`make mutants` breaks the code on purpose, one place at a time, and rewrites the third, which shows whether the first
notices.
"""


def machine(folder: Path) -> str:
    """Describe the machine without its name."""
    import torch  # noqa: PLC0415  takes seconds, and only this function needs it

    kernel = ".".join(platform.release().split(".")[:2])
    facts = f"{os.cpu_count()} cores, {file_system(folder)}, Linux {kernel}, Python {platform.python_version()}"
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    return f"{datetime.now(UTC).date().isoformat()}, {facts}, torch {torch.__version__}, {gpu}"


def file_system(folder: Path) -> str:
    """Return the kind of file system of a folder; ``unknown`` if the system does not report it."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "an unknown file system"
    lines = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    place = folder.resolve()
    above = [(point, kind) for point, kind in lines if place.is_relative_to(point)]
    return max(above, key=lambda one: len(one[0]))[1] if above else "an unknown file system"


def filled_up(rows: Sequence[Row], reason: str) -> list[Row]:
    """Return the rows in the order of their promises, with a row for each promise that was not run."""
    present = {row.promise for row in rows}
    absent = [
        Row(promise=name, what="nothing", wanted=text, verdict="not run", why=reason)
        for name, text in PROMISES.items()
        if name not in present
    ]
    return sorted([*rows, *absent], key=lambda row: int(row.promise[1:]))


def summary(rows: Sequence[Row]) -> str:
    """Return how many promises hold."""
    verdicts = {name: {row.verdict for row in rows if row.promise == name} for name in PROMISES}
    holds = [name for name, found in verdicts.items() if found == {"holds"}]
    broken = [name for name, found in verdicts.items() if "does not hold" in found]
    partly = [name for name, found in verdicts.items() if found == {"holds", "not run"}]
    idle = [name for name, found in verdicts.items() if found <= {"not run"}]
    parts = (("hold", holds), ("hold as far as run", partly), ("do not hold", broken), ("not run", idle))
    return "; ".join(f"{len(names)} {what}{': ' if names else ''}{', '.join(names)}" for what, names in parts)


def text(rows: Sequence[Row]) -> str:
    """Format the rows for a terminal: one line per row, the details below."""
    lines = list[str]()
    for row in rows:
        lines.append(f"{row.promise:4} {row.verdict.upper() if row.verdict != 'holds' else 'holds':14} {row.what}")
        lines.extend(f"{'':19} {name}: {value}" for name, value in details(row))
    return "\n".join([*lines, "", summary(rows)])


def details(row: Row) -> list[tuple[str, str]]:
    """Return the remaining fields of a row that are not empty."""
    pairs = (("wanted", row.wanted), ("found", row.found), ("why", row.why))
    return [(name, value) for name, value in pairs if value]


def markdown(rows: Sequence[Row], head: str) -> str:
    """Format the rows for the page."""
    lines = [
        *(head, "", f"{summary(rows)}.", ""),
        "| promise | what was run | wanted | found | verdict |",
        "|---|---|---|---|---|",
    ]
    said = set[str]()
    for row in counted(rows):
        name = row.promise if row.promise in said else f"**{row.promise}** {PROMISES[row.promise]}"
        said.add(row.promise)
        verdict = f"**{row.verdict}**" if row.verdict != "holds" else "holds"
        cells = (name, row.what, row.wanted, row.found, f"{verdict}: {row.why}" if row.why else verdict)
        lines.append("| " + " | ".join(plain(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def counted(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, with those of one group that hold merged into one."""
    told = dict[str, Row]()
    for row in rows:
        if row.group and row.verdict == "holds" and row.group not in told:
            of_it = [one for one in rows if one.group == row.group]
            held = sum(one.verdict == "holds" for one in of_it)
            told[row.group] = replace(row, what=row.group, found=f"{held} of {len(of_it)}", why="")
    shown = list[Row]()
    for row in rows:
        one = told.get(row.group, row) if row.verdict == "holds" else row
        shown += [] if one in shown else [one]
    return shown


def plain(cell: str) -> str:
    """Return a cell without line breaks, pipes and folder names of this machine."""
    one_line = " ".join(cell.split()).replace("|", "\\|")
    return re.sub(r"/(?:tmp|dev/shm|var/tmp)/[\w.-]+(?:/[\w.-]+)*", "<folder>", one_line)[:400]


def part(name: str) -> str:
    """Return the text between the markers of the page; empty if they are missing."""
    page = PAGE.read_text() if PAGE.exists() else ""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end {name} -->\n", page, re.DOTALL)
    return found[1] if found else ""


def put(name: str, content: str) -> None:
    """Replace the text between the markers of the page, or append it."""
    page = PAGE.read_text() if PAGE.exists() else HEAD
    pattern = re.compile(rf"<!-- {name} -->.*?<!-- end {name} -->\n", re.DOTALL)
    new = f"<!-- {name} -->\n{content}<!-- end {name} -->\n"
    PAGE.write_text(pattern.sub(lambda _: new, page) if pattern.search(page) else f"{page}\n{new}")
    print(f"wrote the part {name} of docs/{PAGE.name}")
