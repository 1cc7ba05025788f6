"""Charts as inline SVG: the plot is stretched to the width of the page, labels are HTML of constant size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from fieldwatch.base import number
from fieldwatch.report.memory.trace import Floats, Steps

WIDE = 1000
HIGH = 240
MOST_MARKS = 400


@dataclass(frozen=True, kw_only=True)
class ChartArea:
    """One layer of a stacked chart: name, CSS class of its color, ``[m]`` values."""

    name: str
    colour: str
    values: Floats


@dataclass(frozen=True, kw_only=True)
class ChartLine:
    """One line: name, CSS class of its color, ``[m]`` values with NaN for gaps."""

    name: str
    colour: str
    values: Floats


def chart(  # noqa: PLR0913  one parameter per kind of layer
    title: str,
    unit: str,
    steps: Steps,
    *,
    areas: Sequence[ChartArea] = (),
    lines: Sequence[ChartLine] = (),
    marks: Mapping[str, Steps] | None = None,
) -> str:
    """Return a chart with its legend as HTML.

    Args:
        title: title, also for screen readers.
        unit: unit of the vertical axis, which starts at 0.
        steps: ``[m]`` ascending values of the horizontal axis.
        areas: layers of the stack, from bottom to top.
        lines: lines in front of the areas.
        marks: steps of events by kind, drawn as vertical lines.
    """
    tops = np.cumsum([np.where(np.isfinite(area.values), area.values, 0) for area in areas], axis=0)
    highest = max([float(tops[-1].max())] if len(areas) else [0.0])
    highest = max([highest, *(float(np.nanmax(line.values)) for line in lines if np.isfinite(line.values).any())])
    ticks = _ticks(highest)
    x = _scaled(steps.astype(np.float64), float(steps[0]), float(steps[-1]))
    drawn = [_grid(ticks)]
    lower = np.zeros(len(steps))
    for area, upper in zip(areas, tops, strict=True):
        drawn.append(_area(area, x, _height(lower, ticks), _height(upper, ticks)))
        lower = upper
    drawn += [_line(line, x, ticks) for line in lines]
    drawn += [_marks(kind, told, steps) for kind, told in (marks or {}).items()]
    labels = "".join(f"<span>{number(tick, 3)}</span>" for tick in reversed(ticks))
    along = "".join(f"<span>{step}</span>" for step in _along(steps))
    return (
        f'<figure class="chart"><figcaption>{escape(title)} <small>{escape(unit)}</small></figcaption>'
        f'<div class="frame"><div class="up">{labels}</div>'
        f'<div class="plot"><svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{"".join(drawn)}</svg><div class="hair"></div></div>'
        f'<div class="along">{along}</div></div>'
        f"{_legend(areas, lines, marks or {})}</figure>"
    )


def _grid(ticks: Sequence[float]) -> str:
    places = [HIGH - HIGH * tick / ticks[-1] for tick in ticks]
    return "".join(f'<path class="grid" d="M0 {place:.1f}H{WIDE}"/>' for place in places)


def _area(area: ChartArea, x: Floats, lower: Floats, upper: Floats) -> str:
    there = _points(x, upper)
    back = _points(x[::-1], lower[::-1])
    return f'<path class="area {area.colour}" d="M{there}L{back}Z"><title>{escape(area.name)}</title></path>'


def _line(line: ChartLine, x: Floats, ticks: Sequence[float]) -> str:
    known = np.isfinite(line.values)
    if not known.any():
        return ""
    points = _points(x[known], _height(line.values[known], ticks))
    return f'<path class="line {line.colour}" d="M{points}"><title>{escape(line.name)}</title></path>'


def _marks(kind: str, told: Steps, steps: Steps) -> str:
    """Return vertical lines at events, evenly thinned to at most 400 per kind."""
    inside = told[(told >= steps[0]) & (told <= steps[-1])]
    if len(inside) > MOST_MARKS:
        inside = inside[np.linspace(0, len(inside) - 1, MOST_MARKS).astype(int)]
    places = _scaled(inside.astype(np.float64), float(steps[0]), float(steps[-1]))
    drawn = [
        f'<path d="M{place:.1f} 0V{HIGH}"><title>{escape(kind)} at {step}</title></path>'
        for place, step in zip(places.tolist(), inside.tolist(), strict=True)
    ]
    return f'<g class="mark {mark_class(kind)}">{"".join(drawn)}</g>'


def mark_class(kind: str) -> str:
    """Return the CSS class of an event's color."""
    known = {"growth": "m0", "evaluation": "m1", "loss spike": "m2", "finding": "m3", "refusal": "m3"}
    return known.get(kind, "m4")


def _legend(areas: Sequence[ChartArea], lines: Sequence[ChartLine], marks: Mapping[str, Steps]) -> str:
    entries = [(area.name, f"key {area.colour}") for area in reversed(areas)]
    entries += [(line.name, f"key thin {line.colour}") for line in lines]
    entries += [(f"{kind} ({len(told)})", f"key mark {mark_class(kind)}") for kind, told in marks.items()]
    shown = "".join(f'<li><i class="{style}"></i>{escape(name)}</li>' for name, style in entries)
    return f'<ul class="legend">{shown}</ul>'


def _points(x: Floats, y: Floats) -> str:
    return "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


def _height(values: Floats, ticks: Sequence[float]) -> Floats:
    return HIGH - HIGH * np.clip(values / ticks[-1], 0, 1)


def _scaled(values: Floats, low: float, high: float) -> Floats:
    """Scale values to the range from 0 to the width of the chart."""
    return (values - low) * (WIDE / (high - low)) if high > low else np.zeros(len(values))


def _ticks(highest: float) -> list[float]:
    """Return round numbers from 0 to at least the highest value."""
    if not math.isfinite(highest) or highest <= 0:
        return [0.0, 1.0]
    rough = highest / 4
    scale = 10 ** math.floor(math.log10(rough))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= rough)
    return [step * i for i in range(math.ceil(highest / step) + 1)]


def _along(steps: Steps) -> list[int]:
    places = np.linspace(float(steps[0]), float(steps[-1]), 5) if len(steps) > 1 else steps[:1]
    return [int(place) for place in places]
