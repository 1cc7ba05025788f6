"""Histogram image of the distances of an evaluation in both directions, with thresholds."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, UInt8
from PIL import Image, ImageDraw, ImageFont

from fieldwatch.recon.mesh.error_colors import error_ramp
from fieldwatch.recon.mesh.evaluation import MeshEvaluation

_OVERSAMPLING = 2  # the image is drawn larger by this factor and scaled down, for smooth edges
_WIDTH = 960
_HEIGHT = 660
_LEFT = 70
_RIGHT = 930
_PANELS = ((110, 290), (390, 570))  # top and bottom of each panel
_BINS = 86
_INK = (32, 36, 44)
_GRAY = (110, 116, 128)
_GRID_COLOR = (222, 225, 231)
_CURVE_COLOR = (196, 64, 54)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pen:
    """Drawing functions in pixels of the final image."""

    draw: ImageDraw.ImageDraw

    def text(
        self,
        place: tuple[float, float],
        text: str,
        *,
        size: int = 13,
        color: tuple[int, int, int] = _INK,
        anchor: str = "ls",
    ) -> None:
        # The default font ships with Pillow, so the image does not depend on installed fonts.
        font = ImageFont.load_default(size * _OVERSAMPLING)
        self.draw.text((place[0] * _OVERSAMPLING, place[1] * _OVERSAMPLING), text, fill=color, font=font, anchor=anchor)

    def line(
        self, places: list[tuple[float, float]], *, color: tuple[int, int, int] = _GRID_COLOR, width: float = 1
    ) -> None:
        scaled = [(x * _OVERSAMPLING, y * _OVERSAMPLING) for x, y in places]
        self.draw.line(scaled, fill=color, width=round(width * _OVERSAMPLING), joint="curve")

    def box(self, low: tuple[float, float], high: tuple[float, float], color: tuple[int, ...]) -> None:
        corners = (low[0] * _OVERSAMPLING, low[1] * _OVERSAMPLING, high[0] * _OVERSAMPLING, high[1] * _OVERSAMPLING)
        self.draw.rectangle(corners, fill=color)


def error_histogram(
    evaluation: MeshEvaluation, *, title: str = "mesh and ground truth", scale: float | None = None
) -> UInt8[np.ndarray, "height width 3"]:
    """Draw histograms of the distances of an evaluation: mesh to ground truth above, ground truth to mesh below.

    Bars have the colors of :func:`error_colored`; the last bar includes everything beyond the scale. The curve is the
    fraction of points within a distance, from 0 to 100 %. Vertical lines mark the thresholds, with their fractions.

    Args:
        evaluation: result of `evaluate_mesh`.
        title: title of the image.
        scale: distance of the last color, at the right end of the axis; None uses 1.25 times the largest threshold.
    """
    limit = scale or error_scale(evaluation)
    image = Image.new("RGB", (_WIDTH * _OVERSAMPLING, _HEIGHT * _OVERSAMPLING), (255, 255, 255))
    pen = _Pen(draw=ImageDraw.Draw(image))
    pen.text((_LEFT, 36), title, size=19)
    subtitle = (
        f"Chamfer {evaluation.chamfer:.4g} ({evaluation.chamfer_percent:.3g} % of the diameter "
        f"{evaluation.diameter:.4g})    "
        f"normal consistency {evaluation.normal_consistency:.4f}    style {evaluation.style}, alignment "
        f"{evaluation.align}"
    )
    pen.text((_LEFT, 60), subtitle, color=_GRAY)
    names = ("accuracy: mesh to ground truth", "completeness: ground truth to mesh")
    means = (evaluation.accuracy, evaluation.completeness)
    shares = ([s.precision for s in evaluation.scores], [s.recall for s in evaluation.scores])
    marks = [s.threshold for s in evaluation.scores]
    for panel, (name, distances) in enumerate(zip(names, (evaluation.to_truth, evaluation.to_mesh), strict=True)):
        top, bottom = _PANELS[panel]
        heading = f"{name}    mean {means[panel]:.4g}, median {np.median(distances):.4g}, largest {distances.max():.4g}"
        pen.text((_LEFT, top - 22), heading, size=14)
        _draw_panel(pen, (top, bottom), distances, limit)
        _draw_marks(pen, (top, bottom), list(zip(marks, shares[panel], strict=True)), limit)
    _draw_legend(pen, limit, evaluation.lengths.cap)
    return np.asarray(image.resize((_WIDTH, _HEIGHT), Image.Resampling.LANCZOS))


def error_scale(evaluation: MeshEvaluation) -> float:
    """Return the default distance of the last color: 1.25 times the largest threshold."""
    return 1.25 * max(score.threshold for score in evaluation.scores)


def _x_of(value: float, limit: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * value / limit


def _draw_panel(pen: _Pen, span: tuple[int, int], distances: Float64[np.ndarray, "n"], limit: float) -> None:
    """Draw the bars, the cumulative curve and the axes."""
    top, bottom = span
    # The last bin collects everything beyond the limit.
    bins = np.minimum((distances / limit * _BINS).astype(np.int64), _BINS - 1)
    counts = np.bincount(bins, minlength=_BINS) / len(distances)
    highest = max(float(counts.max()), 1e-12)
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = bottom - share * (bottom - top)
        pen.line([(_LEFT, y), (_RIGHT, y)])
        pen.text((_LEFT - 8, y), f"{100 * highest * share:.3g} %", size=11, color=_GRAY, anchor="rm")
        pen.text((_RIGHT + 6, y), f"{100 * share:.0f}", size=10, color=_CURVE_COLOR, anchor="lm")
    colors = error_ramp((np.arange(_BINS) + 0.5) / _BINS)
    width = (_RIGHT - _LEFT) / _BINS
    for number in np.flatnonzero(counts):
        low = (_LEFT + number * width + 0.5, bottom - counts[number] / highest * (bottom - top))
        pen.box(low, (_LEFT + (number + 1) * width - 0.5, bottom), tuple(colors[number].tolist()))
    # Cumulative fraction by binary search in the sorted distances.
    ordered = np.sort(distances)
    steps = np.linspace(0, limit, 200)
    within = np.searchsorted(ordered, steps, side="right") / len(ordered)
    pen.line(
        [(_x_of(x, limit), bottom - y * (bottom - top)) for x, y in zip(steps, within, strict=True)],
        color=_CURVE_COLOR,
        width=1.5,
    )
    pen.line([(_LEFT, bottom), (_RIGHT, bottom)], color=_GRAY)
    for tick in np.linspace(0, limit, 6):
        end = tick == limit
        pen.text((_x_of(tick, limit), bottom + 18), f"{tick:.3g}{' and more' if end else ''}", size=11, color=_GRAY,
                 anchor="rs" if end else "ms")  # fmt: skip


def _draw_marks(pen: _Pen, span: tuple[int, int], marks: list[tuple[float, float]], limit: float) -> None:
    """Draw vertical lines at the thresholds with their fractions; labels that would overlap move to a lower row."""
    top, bottom = span
    row_ends: list[float] = []  # where each row of labels ends
    for threshold, share in sorted(marks):
        # Thresholds beyond the axis are not drawn.
        if threshold > limit:
            continue
        x = _x_of(threshold, limit)
        for y in range(top - 8, bottom, 7):
            pen.line([(x, y), (x, min(y + 4, bottom))], color=_INK)
        label = f"{threshold:.3g}: {100 * share:.1f} %"
        width = 7.0 * len(label)
        # The first row of labels whose last label ends to the left of this one.
        row = next((i for i, end in enumerate(row_ends) if x + 4 >= end), len(row_ends))
        row_ends[row : row + 1] = [x + 4 + width]
        base = top + 24 + 17 * row
        pen.box((x + 3, base - 12), (x + 3 + width, base + 4), (255, 255, 255))
        pen.text((x + 5, base), label, size=12)


def _draw_legend(pen: _Pen, limit: float, cap: float | None) -> None:
    """Draw the color scale and the meaning of the lines."""
    y = _HEIGHT - 42
    x = _LEFT
    width = 220
    for step, color in enumerate(error_ramp(np.linspace(0, 1, width))):
        pen.box((x + step, y), (x + step + 1, y + 12), tuple(color.tolist()))
    pen.text((x, y + 28), "0", size=11, color=_GRAY)
    pen.text((x + width, y + 28), f"{limit:.3g} and more", size=11, color=_GRAY, anchor="ms")
    pen.text((x + width + 24, y + 11), "color of the error", size=12)
    pen.line([(480, y + 7), (510, y + 7)], color=_CURVE_COLOR, width=1.5)
    pen.text((518, y + 11), "fraction of points within (right axis, %)", size=12)
    for start in range(0, 14, 7):
        pen.line([(770, y + start), (770, y + start + 4)], color=_INK)
    pen.text((780, y + 11), "threshold: fraction within", size=12)
    if cap is not None:
        pen.text((480, y + 28), f"means without distances above the cap of {cap:.3g}", size=11, color=_GRAY)
