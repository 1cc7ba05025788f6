"""The table of promises: printed, and written into docs/reliability.md between its markers."""

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
    "P2": "Acknowledged means on the platter",
    "P3": "No silent damage",
    "P4": "Resume is the same run",
    "P5": "Saving is nearly free",
    "P6": "The interval tunes itself",
    "P7": "A full disk pauses checkpoints, not the run, and never eats the old one",
    "P8": "Non-finite values never reach parameters or moments",
    "P9": "Spikes roll back",
    "P10": "Preemption-safe",
    "P11": "Never dies silently",
    "P12": "Hang: stacks on disk",
    "P13": "Out of memory shrinks, not kills",
    "P14": "Validation cannot hurt training",
    "P15": "One writer",
    "P16": "A crash loop stops",
    "P17": "Safe to open",
    "P18": "Retention is a union",
    "P19": "Logs stay monotone",
    "P20": "A long run with faults ends the same",
}
HEAD = """# Reliability

What a run promises, and how it is proved. `make torture` tries to break every promise and rewrites the first table;
`python benchmarks/reliability_scoreboard.py` puts other ways of saving through the same trials and rewrites the second.
`make mutants` breaks the code on purpose, one place at a time, and rewrites the third: does the first notice?
"""


def machine(folder: Path) -> str:
    """What it ran on, without its name."""
    import torch  # noqa: PLC0415  it takes seconds, and only this needs it

    kernel = ".".join(platform.release().split(".")[:2])
    facts = f"{os.cpu_count()} cores, {file_system(folder)}, Linux {kernel}, Python {platform.python_version()}"
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    return f"{datetime.now(UTC).date().isoformat()}, {facts}, torch {torch.__version__}, {gpu}"


def file_system(folder: Path) -> str:
    """The kind of file system a folder lies on; ``unknown`` where the system does not say."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "an unknown file system"
    lines = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    place = folder.resolve()
    above = [(point, kind) for point, kind in lines if place.is_relative_to(point)]
    return max(above, key=lambda one: len(one[0]))[1] if above else "an unknown file system"


def filled_up(rows: Sequence[Row], reason: str) -> list[Row]:
    """The rows in order of their promises; one that nothing was run for says so."""
    present = {row.promise for row in rows}
    absent = [
        Row(promise=name, what="nothing", wanted=text, verdict="not run", why=reason)
        for name, text in PROMISES.items()
        if name not in present
    ]
    return sorted([*rows, *absent], key=lambda row: int(row.promise[1:]))


def summary(rows: Sequence[Row]) -> str:
    """How many promises hold, by their rows."""
    verdicts = {name: {row.verdict for row in rows if row.promise == name} for name in PROMISES}
    holds = [name for name, found in verdicts.items() if found == {"holds"}]
    broken = [name for name, found in verdicts.items() if "does not hold" in found]
    partly = [name for name, found in verdicts.items() if found == {"holds", "not run"}]
    idle = [name for name, found in verdicts.items() if found <= {"not run"}]
    parts = (("hold", holds), ("hold as far as run", partly), ("do not hold", broken), ("not run", idle))
    return "; ".join(f"{len(names)} {what}{': ' if names else ''}{', '.join(names)}" for what, names in parts)


def text(rows: Sequence[Row]) -> str:
    """For a terminal: one line per row, the details below."""
    lines = list[str]()
    for row in rows:
        lines.append(f"{row.promise:4} {row.verdict.upper() if row.verdict != 'holds' else 'holds':14} {row.what}")
        lines.extend(f"{'':19} {name}: {value}" for name, value in details(row))
    return "\n".join([*lines, "", summary(rows)])


def details(row: Row) -> list[tuple[str, str]]:
    """What else is to be said of a row."""
    pairs = (("wanted", row.wanted), ("found", row.found), ("why", row.why))
    return [(name, value) for name, value in pairs if value]


def markdown(rows: Sequence[Row], head: str) -> str:
    """For the page."""
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
    """The rows, with those of one group that hold as one."""
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
    """A cell without what would break the table, or name a folder of this machine."""
    one_line = " ".join(cell.split()).replace("|", "\\|")
    return re.sub(r"/(?:tmp|dev/shm|var/tmp)/[\w.-]+(?:/[\w.-]+)*", "<folder>", one_line)[:400]


def part(name: str) -> str:
    """What stands between the markers of the page; empty where they are not."""
    page = PAGE.read_text() if PAGE.exists() else ""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end {name} -->\n", page, re.DOTALL)
    return found[1] if found else ""


def put(name: str, content: str) -> None:
    """Replace what stands between the markers of the page, or append it."""
    page = PAGE.read_text() if PAGE.exists() else HEAD
    pattern = re.compile(rf"<!-- {name} -->.*?<!-- end {name} -->\n", re.DOTALL)
    new = f"<!-- {name} -->\n{content}<!-- end {name} -->\n"
    PAGE.write_text(pattern.sub(lambda _: new, page) if pattern.search(page) else f"{page}\n{new}")
    print(f"wrote the part {name} of docs/{PAGE.name}")
