"""Makes docs/limits.md from the figures of docs/benchmarks.md: what fieldwatch aims at, and what it reaches.

`python docs/limits_page.py` prints the page. `make bench` measures everything anew, and rewrites both pages.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent
HEAD = """# Limits

What fieldwatch aims at, what it reaches, and where it falls short and why. Each goal is the figure of the best tool
for the same job, or close to the limit that the machine sets. The figures are those of
[benchmarks.md](benchmarks.md), which names the machine and the command of each section; `make bench` measures all of
them and rewrites both pages. P20 comes from `make torture` ([reliability.md](reliability.md)).

Figures of processor time depend on what else the machine does. "Beside" was measured in the same run.
"""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of a benchmark.

    Attributes:
        what: what was measured, with its unit.
        value: the figure.
        beside: other figures of the same run, in words.
        section: section of benchmarks.md, or another page.
    """

    what: str
    value: float
    beside: str = ""
    section: str


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure and what it should be.

    Attributes:
        figure: the figure.
        wanted: the bound.
        most: whether the figure may be at most the bound; else it has to be at least the bound.
    """

    figure: Figure
    wanted: float
    most: bool = True

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.figure.value <= self.wanted if self.most else self.figure.value >= self.wanted


class Pages:
    """The tables of the pages with figures.

    Args:
        benchmarks: content of benchmarks.md.
        reliability: content of reliability.md.
    """

    def __init__(self, benchmarks: str, reliability: str) -> None:
        found = re.findall(r"(?s)<!-- (\w+) -->\n(.*?)<!-- end \1 -->", benchmarks)
        self._sections: dict[str, str] = dict(found)
        self.reliability = reliability

    def rows(self, section: str) -> list[list[str]]:
        """Return the cells of all tables of a section, row by row, without the lines below the heads.

        Raises:
            LookupError: benchmarks.md has no such section.
        """
        if section not in self._sections:
            raise LookupError(f"docs/benchmarks.md has no section {section}: python benchmarks/all.py {section}")
        return list(table_rows(self._sections[section]))

    def row(self, section: str, *start: str) -> list[str]:
        """Return the first row whose first cells begin with the given words.

        Raises:
            LookupError: there is none.
        """
        for cells in self.rows(section):
            if all(cell.startswith(word) for cell, word in zip(cells, start, strict=False)):
                return cells
        raise LookupError(f"the section {section} of docs/benchmarks.md has no row {' | '.join(start)}")


def table_rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of the tables in a text."""
    for line in text.splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|:\- ]+", line):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def number(text: str) -> float:
    """Return the first number of a cell.

    Raises:
        ValueError: it has none.
    """
    found = re.search(r"[-+]?\d[\d,]*\.?\d*|[-+]?\.\d+", text)
    if found is None:
        raise ValueError(f"no number in {text!r}")
    return float(found[0].replace(",", ""))


def both_ways(cell: str) -> float:
    """Return the sum of forward and backward of a cell such as '0.99 / 1.31'."""
    return sum(number(part) for part in cell.split("/"))


def toolkit_goals(pages: Pages) -> Iterator[Goal]:
    """Yield the goals of benchmarks/limits.py, which prints them beside its figures."""
    for what, value, wanted, met, beside in pages.rows("limits"):
        if met:
            yield Goal(
                figure=Figure(what=what, value=number(value), beside=beside, section="Limits"), wanted=number(wanted)
            )


RASTERIZER = {("5,000", "128"): 0.80, ("20,000", "256"): 0.76, ("100,000", "512"): 0.79}
"""Largest time per number of Gaussians and size of the image, as a fraction of that of commit 933e0269. Then it is 0.8,
0.6 and 0.45 times that of an earlier prototype, of which the commit took 0.99, 0.79 and 0.57 times."""


def kernel_goals(pages: Pages) -> Iterator[Goal]:
    """Yield the goals of the splat kernels and of the step of the normals pipeline."""
    for (count, size), wanted in RASTERIZER.items():
        cells = pages.row("rasterizer_before", f"{count} @ {size}")
        figure = Figure(
            what=f"rasterizer, {count} Gaussians at {size} pixels / commit 933e0269",
            value=number(cells[3]),
            beside=f"ms before {cells[1]}; now {cells[2]}; results {cells[4]}",
            section="Rasterizer before",
        )
        yield Goal(figure=figure, wanted=wanted)
    one, two = (
        {cells[0]: both_ways(cells[1]) for cells in half if "@" in cells[0] and "Gaussians" not in cells[0]}
        for half in halves(pages.rows("splats_kernels"))
    )
    gains = {name: one[name] / two[name] for name in one}
    least = min(gains, key=lambda name: gains[name])
    figure = Figure(
        what="rasterizer, one thread / two threads, by the clock",
        value=round(gains[least], 2),
        beside=f"the least of {len(gains)} sizes: {least} pixels; the largest is {max(gains.values()):.2f}",
        section="Splats kernels",
    )
    yield Goal(figure=figure, wanted=1.8, most=False)
    cells = pages.row("normals_cpu", "1")
    figure = Figure(
        what="normals, ms a step per 12,000 samples",
        value=round(1000 / number(cells[3]) * 12000 / number(cells[2]), 1),
        beside=f"{cells[4]} steps/s in plain torch, {cells[3]} by the kernels, with {cells[2]} samples",
        section="Normals cpu",
    )
    yield Goal(figure=figure, wanted=16)


def halves(rows: list[list[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows of one thread and those of two: each half begins with the same head."""
    heads = [place for place, cells in enumerate(rows) if cells[0] == "Gaussians @ pixels"]
    return rows[heads[0] : heads[1]], rows[heads[1] :]


def video_goals(pages: Pages) -> Iterator[Goal]:
    """Yield the goals of the video pipeline."""
    for section, clip in (("video_codecs", "builtin"), ("video_codecs_long", "bunny"), ("video_codecs_long", "film")):
        cells = pages.row(section, clip, "60")
        figure = Figure(
            what=f"video file of {clip} / x264 veryslow 4:4:4 of the same PSNR",
            value=number(cells[6]),
            beside=f"/ x265 {cells[7]}; / SVT-AV1 {cells[8]}; {cells[3]} dB",
            section=title(section),
        )
        yield Goal(figure=figure, wanted=1)
    for section, clip in (
        ("video_between_long", "bunny"),
        ("video_between", "occluders"),
        ("video_between", "pan"),
    ):
        cells = pages.row(section, clip, "network, curved")
        other = pages.row(section, clip, "FFmpeg")
        figure = Figure(
            what=f"video, held-out frames of {clip}, dB beside the mean of neighbors",
            value=number(cells[3]),
            beside=f"FFmpeg {other[3]}",
            section=title(section),
        )
        yield Goal(figure=figure, wanted=3, most=False)


def surface_goals(pages: Pages) -> Iterator[Goal]:
    """Yield the goals of meshes of rooms and of surfaces from normal maps."""
    head, room = pages.rows("kitchen_mesh")[:2]
    by_name = dict(zip(head, room, strict=True))
    beside = f"Chamfer {by_name['Chamfer']}; held out {by_name['held out']}; training {by_name['training']}"
    for what, column, wanted, most in (
        ("mesh of photos of a room, % of the surface within 0.2 % of its diameter", "within 0.2 %", 95, False),
        ("mesh of photos of a room, normals of planes, median, degrees", "normals, median", 3, True),
    ):
        value = number(by_name[column])
        yield Goal(
            figure=Figure(what=what, value=value, beside=beside, section="Kitchen mesh"), wanted=wanted, most=most
        )
    head = pages.rows("normals_objects")[0]
    for name in ("vase", "jug"):
        found = dict(zip(head, pages.row("normals_objects", name), strict=True))
        beside = f"{found['CPU, s']} s of one core"
        for what, column, wanted in (("normals, degrees", "MAE, degrees", 1.3), ("Chamfer, %", "Chamfer, %", 0.03)):
            figure = Figure(
                what=f"surface from normal maps of a {name}, {what}",
                value=number(found[column]),
                beside=beside,
                section="Normals objects",
            )
            yield Goal(figure=figure, wanted=wanted)


def restart_goals(pages: Pages) -> Iterator[Goal]:
    """Yield the goal of promise P20."""
    for cells in table_rows(pages.reliability):
        if cells[0] == "P20" and "under a supervisor" in cells[1] and cells[2].startswith("goodput"):
            figure = Figure(
                what="steps that count, with a fault every 20 s and restarts as new processes, %",
                value=number(cells[3]),
                beside=cells[3].partition(", ")[2],
                section="Reliability",
            )
            yield Goal(figure=figure, wanted=number(cells[2]), most=False)


PARTS: dict[str, Callable[[Pages], Iterator[Goal]]] = {
    "The toolkit": toolkit_goals,
    "Kernels": kernel_goals,
    "Video": video_goals,
    "Surfaces": surface_goals,
    "Restarts": restart_goals,
}
WHY = {
    "24 scalars and a norm, journal only": (
        "The floor beside it, a norm and one binary row, takes half of the time. Reading 24 scalars takes 4.5 us, "
        "the row 2, and no other call more than 2 us; [0005](decisions/0005-ring-recorder.md) lists them."
    ),
    "README's use: the loop": (
        "In the quickest twentieth of the steps it takes 90 us if the optimizer does nothing, and 125 us beside "
        "Adam, whose work empties the caches: the same instructions. torch's norms, its wrapper around the "
        "optimizer and the total of six terms are nearly half of its parts ([0005](decisions/0005-ring-recorder.md))."
    ),
    "README's use: the writer thread": (
        "The journal and the transfer are half of it, and cannot wait: a killed process must not lose more than "
        "64 rows ([0005](decisions/0005-ring-recorder.md))."
    ),
    "ending a step": (
        "Half of it is `.item()` of as many scalars; the rest are the row, the heartbeat, the clock and the "
        "memory ([0005](decisions/0005-ring-recorder.md))."
    ),
    "slowest step / median step": (
        "Details are spread over steps ([0074](decisions/0074-details-are-spread.md)). The slowest step is one in "
        "which Python collects reference cycles, which the loop does not control."
    ),
    "normals, ms a step": (
        "The field and its backward pass take 16 ms alone, because the table of 2^18 rows does not fit into the "
        "cache. The search for samples became one kernel; Adam on touched blocks, wider vectors and prefetching "
        "changed nothing ([0023](decisions/0023-sdf-field-and-rendering-in-c.md))."
    ),
    "video file of": (
        "A network of 1.5 M weights for 32 frames leaves 0.8 bits per weight in a file of x264's size, and fewer "
        "weights end below x264's quality. Published networks that beat x265 share their weights over hundreds of "
        "frames, and train on a GPU ([0077](decisions/0077-video-files.md))."
    ),
    "mesh of photos of a room": (
        "Depth is the limit, not fusion: of the true depths, fusion makes 99.1 %. More pixels and steps still "
        "help, but less and less: 61.7 % at 160 pixels and 900 steps, 80.3 % at 320 and 3,000, and this at 480 "
        "and 4,500 ([0078](decisions/0078-flat-walls.md))."
    ),
    "surface from normal maps of a vase": (
        "More steps bring little: it is 1.39 after the 10,000 of the preset ([normals.md](normals.md))."
    ),
    "surface from normal maps of a jug": (
        "The flat bottom of the jug's foot is seen at a low angle, and bulges by a quarter of a pixel "
        "([normals.md](normals.md))."
    ),
    "steps that count": (
        "Nine tenths of what a new process imports is torch's own, and an optimizer of torch loads its compiler "
        "at its first step. A second process that waits with torch loaded would avoid it, and keep its memory for "
        "the whole training ([reliability.md](reliability.md)). With a fault every hour instead of every 20 s, "
        "restarts take a thousandth of the time."
    ),
}
"""Why a goal is not reached, by the first words of the figure."""
BY_HAND = """## Without a compiler

The wheel carries the kernels for Linux on x86-64 (two kinds: with AVX2 and FMA, and without) and on arm64, and for
macOS on arm64; the fitting one is chosen when it is loaded. If a compiler has no OpenMP, the kernels are built
without it. Two kinds were wanted that there are not: x86-64-v4, since the kernels work on eight numbers at once,
which AVX2 holds; and Windows, since the toolkit locks files as POSIX systems do. `scripts/prebuild.py` makes them.
"""


def reason(goal: Goal) -> str:
    """Return why a goal is not reached.

    Raises:
        LookupError: nobody has said why.
    """
    for start, why in WHY.items():
        if goal.figure.what.startswith(start):
            return why
    raise LookupError(f"docs/limits_page.py does not say why '{goal.figure.what}' is not reached")


def title(section: str) -> str:
    """Return the heading of a section of benchmarks.md."""
    return section.replace("_", " ").capitalize()


def linked(section: str) -> str:
    """Return a link to a section of benchmarks.md, or to a page."""
    if section == "Reliability":
        return "[P20](reliability.md)"
    return f"[{section}](benchmarks.md#{section.lower().replace(' ', '-')})"


def page(pages: Pages) -> str:
    """Return the page.

    Raises:
        LookupError: a figure or a reason is missing.
    """
    parts = {name: list(goals(pages)) for name, goals in PARTS.items()}
    every = [goal for goals in parts.values() for goal in goals]
    lines = [HEAD, f"{sum(goal.met for goal in every)} of {len(every)} goals are reached.", ""]
    for name, goals in parts.items():
        lines += [f"## {name}", "", "| what | reached | wanted | | beside | section |", "|---|---:|---:|---|---|---|"]
        lines += [*map(table_line, goals), ""]
        lines += [f"* {why}" for why in reasons(goals)]
        lines += [""] if lines[-1] else []
    return "\n".join([*lines, BY_HAND])


def table_line(goal: Goal) -> str:
    """Return the line of a goal."""
    figure = goal.figure
    wanted = f"{'at most' if goal.most else 'at least'} {goal.wanted:g}"
    cells = [figure.what, f"{figure.value:g}", wanted, "met" if goal.met else "**not met**", figure.beside]
    return f"| {' | '.join([*cells, linked(figure.section)])} |"


def reasons(goals: list[Goal]) -> list[str]:
    """Return why goals are not reached, each reason once, with the figures that it explains."""
    explained: dict[str, list[str]] = {}
    for goal in goals:
        if not goal.met:
            explained.setdefault(reason(goal), []).append(f"**{goal.figure.what}**")
    return [f"{'; '.join(names)}: {why}" for why, names in explained.items()]


def current() -> str:
    """Return the page of the figures that are stored."""
    return page(Pages((DOCS / "benchmarks.md").read_text(), (DOCS / "reliability.md").read_text()))


if __name__ == "__main__":
    sys.stdout.write(current())
