"""Quality panel: evaluation metrics, the worst views or frames, and pictures."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import SampleLosses
from fieldwatch.report.account.event_pictures import newest_pictures
from fieldwatch.report.account.material import Material, Panel, group, lines, table
from fieldwatch.report.account.pictures import picture_of, read_png
from fieldwatch.report.account.run_status import readable
from fieldwatch.report.account.series import number

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
PICTURE_BYTES = 600_000
MOST_PICTURES = 8
_PREFIXES = ("Eval/", "Test/", "Validation/", "Reference/", "Surface/", "Quality/")
_WORSE_IF_HIGH = ("mae", "l1", "l2", "mse", "lpips", "loss", "error", "median")
_WORSE_IF_LOW = ("psnr", "ssim", "iou", "clip_sim", "f_score")
_NAMES = ("name", "view", "frame", "sample", "image")
_ROWS = 12
_VISITS = 3
_LINES = 12


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
        if _moves(material, name):
            charts.setdefault(_chart_of(material, name), []).append(name)
    judged = sorted(charts, key=lambda title: not any(material.series[name]["better"] for name in charts[title]))
    for title in judged:
        members = charts[title]
        for start in range(0, len(members), _LINES):
            shown = members[start : start + _LINES]
            labels = {name: name.partition("/")[2] or name for name in shown}
            more = f" ({start // _LINES + 1})" if len(members) > _LINES else ""
            yield lines(title + more, shown, "By step.", labels=labels)


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
    newest = sorted({path for path in tables if path.is_file()}, key=lambda path: (path.stat().st_mtime, path.name))
    for path in reversed(newest):
        made = _worst_table(path, folder)
        if made is not None:
            yield made
            return


def _worst_table(path: Path, folder: Path) -> Panel | None:
    try:
        with path.open(newline="", errors="replace") as file:
            rows = [row for row, _ in zip(csv.DictReader(file), range(100_000), strict=False)]
    except (OSError, csv.Error):
        return None
    heads = [head for head in (rows[0] if rows else {}) if head]
    name = next((head for head in heads if head.lower() in _NAMES), None)
    judge = next((head for head in heads if head.lower() in (*_WORSE_IF_LOW, *_WORSE_IF_HIGH)), None)
    if name is None or judge is None:
        return None
    high = judge.lower() in _WORSE_IF_HIGH
    known = [row for row in rows if _number(row.get(judge)) is not None]
    known.sort(key=lambda row: (_number(row[judge]) or 0.0) * (-1 if high else 1))
    told = [{head: _cell(row.get(head)) for head in heads} for row in known[:_ROWS]]
    columns = [(head, head, all(not isinstance(row[head], str) for row in told)) for head in heads]
    about = f"The worst {len(told)} of {len(known)} by {judge}, of {readable(path.relative_to(folder))}."
    return table("Worst views", columns, told, about)


def _worst_samples(losses: SampleLosses) -> Iterator[Panel]:
    """Yield a table of the samples with the highest loss at their last visits."""
    if len(losses) < 2:
        return
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
        ("last", "last seen", True),
    )
    about = f"Mean loss of the last {_VISITS} visits of each sample: the highest {len(rows)} of {len(losses)}."
    yield table("Worst samples in training", columns, rows, about)


def _late_means(values: Floats, ends: Places, counts: Places) -> tuple[Floats, NDArray[np.bool_]]:
    """Return each sample's mean loss over its last visits, without non-finite values, and which samples have one."""
    finite = np.isfinite(values)
    sums = np.zeros(len(counts))
    told = np.zeros(len(counts))
    for back in range(1, _VISITS + 1):
        there = counts >= back
        at = ends[there] - back
        sums[there] += np.where(finite[at], values[at], 0.0)
        told[there] += finite[at]
    return sums / np.maximum(told, 1), told > 0


def _pictures(material: Material) -> list[dict[str, Any]]:
    found: list[tuple[str, str, bytes, int]] = []
    for shown in newest_pictures(material.folder, MOST_PICTURES):
        words, step = _when(material, shown.tag, shown.position)
        found.append((shown.tag, f"shown during training, {words}", shown.png, step))
    for path in sorted((material.folder / "products").glob("*.png"))[:MOST_PICTURES]:
        name = readable(path.name)
        found.append((name, f"products/{name}", read_png(path), material.status.last or 0))
    found.sort(key=lambda one: not one[0].startswith(("Eval/", "Test/")))
    found = found[:MOST_PICTURES]
    items: list[dict[str, Any]] = []
    left = PICTURE_BYTES
    for place, (title, caption, png, step) in enumerate(found):
        picture = picture_of(png, left // (len(found) - place))
        if picture is not None and all(picture.source != item["src"] for item in items):
            left -= len(picture.source)
            size = f"{picture.width} x {picture.height}"
            items.append({"title": title, "caption": f"{caption}, {size}", "step": step, "src": picture.source})
    return items


def _when(material: Material, tag: str, position: int) -> tuple[str, int]:
    """Return a picture's time as text and its step; metrics of the same prefix tell whether positions are epochs."""
    for name in material.named(tag.partition("/")[0] + "/"):
        series = material.series[name]
        if position in series.get("epochs", ()):
            step = series["x"][series["epochs"].index(position)]
            return f"epoch {position} (step {step})", step
    return f"step {position}", min(position, material.status.last or position)


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
