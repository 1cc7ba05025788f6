"""Quality panel: evaluation metrics, the worst views or frames, and pictures."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import SampleLosses
from fieldwatch.report.account.event_pictures import newest_pictures
from fieldwatch.report.account.material import Material
from fieldwatch.report.account.pictures import picture_of, read_png
from fieldwatch.report.account.run_status import readable
from fieldwatch.report.account.series import number
from fieldwatch.report.page import Panel, group, lines, table

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
PICTURE_BYTES = 600_000
"""Maximum size in bytes of all pictures together, as data URIs."""
MOST_PICTURES = 8
_PREFIXES = ("Eval/", "Test/", "Validation/", "Reference/", "Surface/", "Quality/")
_WORSE_IF_HIGH = ("mae", "l1", "l2", "mse", "lpips", "loss", "error", "median")
_WORSE_IF_LOW = ("psnr", "ssim", "iou", "clip_sim", "f_score")
_NAMES = ("name", "view", "frame", "sample", "image")
"""Headings of the column that names the view or frame of a row."""
_ROWS = 12
_VISITS = 3
"""Number of last visits over which a sample's loss is averaged: a single one is noise."""
_LINES = 12
"""Maximum number of lines of a chart."""


def quality(material: Material, *, pictures: bool = True) -> Panel:
    """Return the quality panel: evaluation metrics, worst views or frames, worst training samples, pictures."""
    names = [*material.named(*_PREFIXES), *(name for name in ("Train/PSNR", "Train/psnr") if name in material.series)]
    parts: list[Panel] = []
    if names:
        parts.append(_summary(material, names))
        parts += _charts(material, names)
    parts += _worst_tables(material.folder)
    parts += _worst_samples(material.history.sample_losses())
    items = _pictures(material) if pictures else []
    if items:
        about = "The last pictures logged during training, and those in the products folder."
        parts.append({"id": "pictures", "title": "Pictures", "kind": "images", "about": about, "items": items})
    why = (
        "No evaluation was recorded: step.record({'Eval/...': value}) records one, observe(sample=...) names samples, "
        "step.image(name, pixels) logs a picture."
    )
    return group("quality", "Quality", "How good the result is, and where it is worst.", parts, why)


def _summary(material: Material, names: Sequence[str]) -> Panel:
    rows: list[dict[str, Any]] = []
    for name in names:
        series = material.series[name]
        best = {"higher": series["max"], "lower": series["min"]}.get(series["better"], [None, None])
        # Thinning always keeps the first row, so this is the first value of the run.
        first = next((value for value in series["y"] if value is not None), None)
        rows.append(
            {"metric": name, "unit": series["unit"], "first": first, "last": series["last"]}
            | {"best": best[0], "at": best[1], "meaning": series["meaning"]}
        )
    columns = (("metric", "metric", False), ("unit", "unit", False), ("first", "first", True), ("last", "last", True))
    columns += (("best", "best", True), ("at", "at step", True), ("meaning", "meaning", False))
    return table("Metrics", columns, rows, "First, last and best value of each evaluation metric.")


def _charts(material: Material, names: Sequence[str]) -> Iterator[Panel]:
    """Yield a chart per unit and prefix of the name, those with a better direction first; skip constant metrics."""
    charts: dict[str, list[str]] = {}
    for name in names:
        # A constant, such as the number of evaluated views, is in the table.
        if _moves(material, name):
            charts.setdefault(_chart_of(material, name), []).append(name)
    judged = sorted(charts, key=lambda title: not any(material.series[name]["better"] for name in charts[title]))
    for title in judged:
        members = charts[title]
        for start in range(0, len(members), _LINES):
            names_in_chart = members[start : start + _LINES]
            labels = {name: name.partition("/")[2] or name for name in names_in_chart}
            more = f" ({start // _LINES + 1})" if len(members) > _LINES else ""
            yield lines(title + more, names_in_chart, "By step.", labels=labels)


def _chart_of(material: Material, name: str) -> str:
    """Return the title of a metric's chart; metrics without a unit share one if they lie between 0 and 1."""
    series = material.series[name]
    head = name.rpartition("/")[0]
    if series["unit"]:
        return f"{head}, {series['unit']}"
    return f"{head}, 0 to 1" if series["min"][0] >= 0 and series["max"][0] <= 1 else name


def _moves(material: Material, name: str) -> bool:
    return material.series[name]["min"][0] != material.series[name]["max"][0]


def _worst_tables(folder: Path) -> Iterator[Panel]:
    """Yield the worst rows of the newest evaluation table that names views or frames."""
    tables = [
        *(folder / "evaluations").glob("*.csv"),
        *(folder / "products").glob("*.csv"),
        *folder.glob("eval*/*.csv"),
    ]
    by_age = sorted({path for path in tables if path.is_file()}, key=lambda path: (path.stat().st_mtime, path.name))
    # Tables without a column of names, such as totals per mesh, are passed over.
    for path in reversed(by_age):
        worst = _worst_table(path, folder)
        if worst is not None:
            yield worst
            return


def _worst_table(path: Path, folder: Path) -> Panel | None:
    try:
        with path.open(newline="", errors="replace") as file:
            # The file may be any CSV file of any size: what does not fit is cut off.
            rows = [row for row, _ in zip(csv.DictReader(file), range(100_000), strict=False)]
    except (OSError, csv.Error):
        return None
    heads = [head for head in (rows[0] if rows else {}) if head]
    name = next((head for head in heads if head.lower() in _NAMES), None)
    metric = next((head for head in heads if head.lower() in (*_WORSE_IF_LOW, *_WORSE_IF_HIGH)), None)
    if name is None or metric is None:
        return None
    high = metric.lower() in _WORSE_IF_HIGH
    known = [row for row in rows if _number(row.get(metric)) is not None]
    known.sort(key=lambda row: (_number(row[metric]) or 0.0) * (-1 if high else 1))
    worst = [{head: _cell(row.get(head)) for head in heads} for row in known[:_ROWS]]
    columns = [(head, head, all(not isinstance(row[head], str) for row in worst)) for head in heads]
    about = f"The worst {len(worst)} of {len(known)} by {metric}, of {readable(path.relative_to(folder))}."
    return table("Worst views", columns, worst, about)


def _worst_samples(losses: SampleLosses) -> Iterator[Panel]:
    """Yield a table of the samples with the highest loss at their last visits."""
    if len(losses) < 2:
        return
    # Visits are ordered by sample, so those of a sample are one slice.
    counts = np.bincount(losses.owners, minlength=len(losses.names))
    ends = np.cumsum(counts)
    means, known = _late_means(losses.visits.values, ends, counts)
    order = np.argsort(-np.where(known, means, -np.inf), kind="stable")[: min(_ROWS, int(known.sum()))]
    rows = [
        {"sample": losses.names[at], "loss": number(float(means[at])), "visits": int(counts[at])}
        | {"last": int(losses.visits.steps[ends[at] - 1])}
        for at in order.tolist()
    ]
    columns = (
        ("sample", "sample", False),
        ("loss", "loss", True),
        ("visits", "visits", True),
        ("last", "last visit at step", True),
    )
    about = f"Mean loss of the last {_VISITS} visits of each sample: the highest {len(rows)} of {len(losses)}."
    yield table("Worst samples in training", columns, rows, about)


def _late_means(values: Floats, ends: Places, counts: Places) -> tuple[Floats, NDArray[np.bool_]]:
    """Return each sample's mean loss over its last visits, without non-finite values, and which samples have one."""
    finite = np.isfinite(values)
    sums = np.zeros(len(counts))
    finite_counts = np.zeros(len(counts))
    # A loop over the visits, not over the samples, of which there can be millions.
    for back in range(1, _VISITS + 1):
        has_visit = counts >= back
        at = ends[has_visit] - back
        sums[has_visit] += np.where(finite[at], values[at], 0.0)
        finite_counts[has_visit] += finite[at]
    return sums / np.maximum(finite_counts, 1), finite_counts > 0


def _is_evaluation(title: str) -> bool:
    return title.startswith(("Eval/", "Test/"))


def _pictures(material: Material) -> list[dict[str, Any]]:
    candidates: list[tuple[str, str, bytes, int]] = []
    for logged in newest_pictures(material.folder, MOST_PICTURES):
        words, step = material.place_of(logged.position, material.epochs_like(logged.tag))
        candidates.append((logged.tag, f"logged during training, {words}", logged.png, step))
    for path in sorted((material.folder / "products").glob("*.png"))[:MOST_PICTURES]:
        name = readable(path.name)
        candidates.append((name, f"products/{name}", read_png(path), material.status.last or 0))
    # What a rule suspects first, then evaluations; the sort is stable, so the others stay in order.
    candidates.sort(key=lambda candidate: (not candidate[0].startswith("Suspects/"), not _is_evaluation(candidate[0])))
    candidates = candidates[:MOST_PICTURES]
    items: list[dict[str, Any]] = []
    remaining_bytes = PICTURE_BYTES
    for place, (title, caption, png, step) in enumerate(candidates):
        # What a small picture leaves of its share goes to the later ones.
        picture = picture_of(png, remaining_bytes // (len(candidates) - place))
        # An evaluation may log the same picture that it also writes to the products.
        if picture is not None and all(picture.source != item["src"] for item in items):
            remaining_bytes -= len(picture.source)
            size = f"{picture.width} x {picture.height}"
            items.append({"title": title, "caption": f"{caption}, {size}", "step": step, "src": picture.source})
    return items


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _cell(text: str | None) -> float | str | None:
    """Convert a cell to a number if possible; names such as 007 remain text."""
    value = _number(text)
    is_name = text is not None and text.isdigit() and text.startswith("0") and len(text) > 1
    return (text or None) if value is None or is_name else number(value)
