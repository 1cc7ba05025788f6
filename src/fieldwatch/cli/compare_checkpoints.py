"""Ranking of the checkpoints of one run, and a picture of their curves."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from fieldwatch import Checkpoints
from fieldwatch.base import InputError

# Colors of the picture, RGB.
_PAPER = (24, 25, 29)
_INK = (236, 236, 236)
_FAINT = (90, 92, 98)
_LINES = ((90, 170, 250), (250, 170, 80), (120, 210, 130), (220, 120, 220))
# Size of one curve and its left margin, pixels.
_WIDTH = 640
_HEIGHT = 150
_MARGIN = 44

Announce = Callable[[int], object]
"""Callback that receives the step of each checkpoint before it is evaluated."""


@dataclass(frozen=True, kw_only=True)
class CheckpointRow:
    """One checkpoint of a ranking.

    Attributes:
        step: number of finished steps, as `--checkpoint` takes it.
        iteration: nominal iteration, as counted in the papers.
        figures: measured values by column name; None if a value cannot be measured.
        score: score of the ranking, lower is better.
    """

    step: int
    iteration: int
    figures: Mapping[str, float | None]
    score: float = math.nan

    def flat(self) -> dict[str, Any]:
        """Return a row for CSV and JSON, with lower-case column names."""
        names = {name: name.lower().replace("%", "percent").replace(" ", "_") for name in self.figures}
        return {
            "step": self.step,
            "iteration": self.iteration,
            **{names[name]: value for name, value in self.figures.items()},
            "score": self.score,
        }


@dataclass(frozen=True, kw_only=True)
class CheckpointRanking:
    """Ranking of a run's checkpoints.

    Attributes:
        rows: checkpoints, the best first.
        columns: format string of each column.
        ranked_by: description of the score, for people.
        left_out: reasons for skipped checkpoints, by step.
    """

    rows: tuple[CheckpointRow, ...]
    columns: Mapping[str, str]
    ranked_by: str
    left_out: Mapping[int, str] = field(default_factory=dict)


def stored_steps(store: Checkpoints, folder: Path) -> list[int]:
    """Return the steps of the stored checkpoints.

    Raises:
        InputError: the run has no checkpoint.
    """
    steps = store.steps()
    if not steps:
        raise InputError(f"{folder} has no checkpoint: continue the training, or lower --checkpoint-interval")
    return steps


def refuse_empty_ranking(rows: Sequence[CheckpointRow], left_out: Mapping[int, str], folder: Path) -> None:
    """Refuse a run whose checkpoints are all unreadable.

    Raises:
        InputError: there is no row.
    """
    if not rows:
        step, why = next(iter(left_out.items()))
        raise InputError(f"none of {len(left_out)} checkpoints of {folder} can be read; step {step}: {why}")


def curves(ranking: CheckpointRanking) -> UInt8[np.ndarray, "height width 3"]:
    """Plot each column over the iterations, one below the other; a ring marks the best checkpoint."""
    rows = sorted(ranking.rows, key=lambda row: row.step)
    names = [name for name in ranking.columns if any(row.figures.get(name) is not None for row in rows)]
    canvas = Image.new("RGB", (_WIDTH, max(len(names), 1) * _HEIGHT + 22), _PAPER)
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(size=12)
    for position, name in enumerate(names):
        points = [(row.iteration, value) for row in rows if (value := row.figures.get(name)) is not None]
        # The best checkpoint may lack this value.
        best = next((p for p in points if p[0] == ranking.rows[0].iteration), None)
        _curve(
            draw, font, position, (name, ranking.columns[name]), points, best, (rows[0].iteration, rows[-1].iteration)
        )
    draw.text((_MARGIN, canvas.height - 18), f"iteration {rows[0].iteration:,}", _INK, font)
    last = f"{rows[-1].iteration:,}"
    draw.text((_WIDTH - 12 - draw.textlength(last, font), canvas.height - 18), last, _INK, font)
    return np.asarray(canvas)


def _curve(  # noqa: PLR0913, PLR0917  canvas, position, label, points, marked point and axis range
    draw: ImageDraw.ImageDraw,
    font: Any,
    position: int,
    label: tuple[str, str],
    points: Sequence[tuple[int, float]],
    best: tuple[int, float] | None,
    across: tuple[int, int],
) -> None:
    top = position * _HEIGHT + 24
    bottom = (position + 1) * _HEIGHT - 8
    low, high = (end(value for _, value in points) for end in (min, max))

    def at(point: tuple[int, float]) -> tuple[float, float]:
        # One checkpoint, or equal values: no division by zero, and a flat curve in the middle.
        x = (point[0] - across[0]) / max(across[1] - across[0], 1)
        y = (point[1] - low) / (high - low) if high > low else 0.5
        return _MARGIN + x * (_WIDTH - _MARGIN - 16), bottom - y * (bottom - top)

    name, form = label
    draw.line([(_MARGIN, bottom + 3), (_WIDTH - 10, bottom + 3)], _FAINT)
    draw.text((_MARGIN, top - 22), f"{name}   {form.format(low)} to {form.format(high)}", _INK, font)
    line = [at(point) for point in points]
    color = _LINES[position % len(_LINES)]
    if len(line) > 1:
        draw.line(line, color, 2)
    for x, y in line:
        draw.ellipse((x - 3, y - 3, x + 3, y + 3), color)
    if best is not None:
        x, y = at(best)
        draw.ellipse((x - 7, y - 7, x + 7, y + 7), outline=_INK, width=2)
