"""Curves of recorded values as SVG: thinned without losing peaks, with gaps where a value is not finite."""

import html

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base.cell.framing import Html
from fieldwatch.base.printing import printable
from fieldwatch.base.text_format import number

Floats = NDArray[np.float64]
MOST_POINTS = 400
"""Number of values above which a curve is thinned."""
_WIDE = 100
"""Ratio of the largest to the smallest value from which the axis is logarithmic."""


def curve(name: str, steps: Floats, values: Floats, *, last: float | None = None) -> Html:
    """Return a figure with the curve of a metric, its range, and its last value.

    Args:
        name: name of the metric.
        steps: ``[n]`` steps in ascending order; at least one.
        values: ``[n]`` values, of which some may not be finite.
        last: last value, if it is none of ``values``.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        said = "no finite value"
    else:
        logarithmic = ", log axis" if _is_wide(finite) else ""
        said = f"{number(finite.min())} to {number(finite.max())}{logarithmic}"
    bad = len(values) - len(finite)
    gaps = f"; {bad:,} {'value is' if bad == 1 else 'values are'} not finite" if bad else ""
    last = float(values[-1]) if last is None else last
    caption = (f"{printable(name)}: {number(last)}", f"{said}{gaps}", f"step {number(steps[0])} to {number(steps[-1])}")
    texts = "".join(
        f"<span{' class=quiet' if place else ''}>{html.escape(text)}</span>" for place, text in enumerate(caption)
    )
    return Html(f"<figure>{_svg(name, steps, values, 600, 130)}<figcaption>{texts}</figcaption></figure>")


def sparkline(name: str, steps: Floats, values: Floats) -> Html:
    """Return a small curve for a table."""
    return Html(_svg(name, steps, values, 120, 22).replace("<svg", '<svg width="120" height="22"', 1))


def _svg(name: str, steps: Floats, values: Floats, width: int, height: int) -> str:
    path = _path(steps, values, width, height)
    label = html.escape(f"curve of {printable(name)}", quote=True)
    return (
        f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'<path d="{path}"/></svg>'
    )


def _path(steps: Floats, values: Floats, width: int, height: int) -> str:
    """Return the path of a curve; a value that is not finite interrupts it."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    kept = _kept(values)
    x = steps[kept]
    y = values[kept]
    if _is_wide(finite):
        y = np.log(y, where=np.isfinite(y), out=np.full(len(y), np.nan))
        finite = np.log(finite)
    low = float(finite.min())
    high = float(finite.max())
    begin = float(x[0])
    end = float(x[-1])
    across = (x - begin) / (end - begin or 1.0) * width
    # Two pixels at the top and bottom for the width of the line.
    down = height - 2 - (y - low) / (high - low or 1.0) * (height - 4)
    parts: list[str] = []
    drawing = False
    for horizontal, vertical in zip(across, down, strict=True):
        if not np.isfinite(vertical):
            drawing = False
            continue
        parts.append(f"{'L' if drawing else 'M'}{horizontal:.1f} {vertical:.1f}")
        drawing = True
    return "".join(parts)


def _kept(values: Floats) -> NDArray[np.intp]:
    """Return the places of the values to draw: the smallest and the largest of each of equal parts, and both ends."""
    count = len(values)
    if count <= MOST_POINTS:
        return np.arange(count)
    kept = {0, count - 1}
    for part in np.array_split(np.arange(count), MOST_POINTS // 2):
        here = values[part]
        known = part[np.isfinite(here)]
        # One gap stands for all of a part.
        kept.update(part[~np.isfinite(here)][:1].tolist())
        if len(known):
            kept.update((int(known[values[known].argmin()]), int(known[values[known].argmax()])))
    return np.array(sorted(kept))


def _is_wide(finite: Floats) -> bool:
    return bool(finite.min() > 0 and finite.max() > _WIDE * finite.min())
