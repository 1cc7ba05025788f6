"""Constructors of the panels that the page's script draws."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Panel = dict[str, Any]
"""A panel of a page, as plain values that the page's script draws."""
Row = Mapping[str, Any]


def lines(
    title: str, names: Sequence[str], about: str, *, labels: Mapping[str, str] | None = None, log: bool = False
) -> Panel:
    """Return a panel with several series on one chart."""
    return {
        "id": slug(title),
        "title": title,
        "kind": "lines",
        "about": about,
        "series": list(names),
        "log": log,
        "labels": dict(labels or {}),
    }


def stack(  # noqa: PLR0913  what a stacked chart shows
    title: str,
    areas: Sequence[str],
    about: str,
    *,
    over: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    colors: Mapping[str, int] | None = None,
) -> Panel:
    """Return a panel with amounts stacked on each other.

    Args:
        title: heading.
        areas: names of the stacked series, from the bottom up.
        about: description.
        over: names of series drawn as lines over the areas, such as their total.
        labels: short names in the legend, by name.
        colors: place of an area's color in the palette, by name; by default its place in ``areas``.
    """
    return {
        "id": slug(title),
        "title": title,
        "kind": "stack",
        "amounts": True,
        "about": about,
        "series": list(areas),
        "lines": list(over),
        "labels": dict(labels or {}),
        "colors": dict(colors or {}),
    }


def text(title: str, paragraphs: Iterable[str], about: str = "") -> Panel:
    """Return a panel of plain text, one paragraph a line."""
    return {"id": slug(title), "title": title, "kind": "text", "about": about, "text": "\n".join(paragraphs)}


def table(title: str, columns: Iterable[tuple[str, str, bool]], rows: Iterable[Row], about: str) -> Panel:
    """Return a table panel; a column is (key, title, whether it is numeric). Columns without values are dropped."""
    body = [dict(row) for row in rows]
    # Compared with None and "", since 0 is a value.
    kept = [
        {"key": key, "title": head, "number": is_number}
        for key, head, is_number in columns
        if any(row.get(key) not in (None, "") for row in body) or not body
    ]
    return {"id": slug(title), "title": title, "kind": "table", "about": about, "columns": kept, "rows": body}


def facts(title: str, pairs: Iterable[tuple[str, Any]], about: str) -> Panel:
    """Return a panel of names and values; pairs without a value are dropped."""
    known = [{"name": name, "value": value} for name, value in pairs if value not in (None, "")]
    return {"id": slug(title), "title": title, "kind": "facts", "about": about, "facts": known}


def points(
    title: str, places: Sequence[float], colors: Sequence[int], cameras: Iterable[Mapping[str, Any]], about: str
) -> Panel:
    """Return a panel of colored points and cameras in space, which the reader can turn; +z is up.

    Args:
        title: heading.
        places: x, y, z of every point; most of them inside the unit sphere.
        colors: red, green, blue of every point, 0 to 255.
        cameras: "name", and "corners": x, y, z of the camera and of the four corners of its picture.
        about: description.
    """
    return {
        "id": slug(title),
        "title": title,
        "kind": "points",
        "about": about,
        "points": list(places),
        "colors": list(colors),
        "cameras": [dict(camera) for camera in cameras],
    }


def group(identity: str, title: str, about: str, parts: Sequence[Panel], why: str) -> Panel:
    """Return a panel of several parts; without parts, an empty panel with the reason ``why``."""
    if not parts:
        return {"id": identity, "title": title, "kind": "empty", "about": about, "why": why}
    # Ids become anchors of the page: several panels have a part with the same title.
    named = [part | {"id": f"{identity}-{part['id']}"} for part in parts]
    return {"id": identity, "title": title, "kind": "group", "about": about, "parts": named}


def slug(text: str) -> str:
    """Return a text as part of an id: lowercase letters, digits and hyphens."""
    words = "".join(char if char.isalnum() and char.isascii() else " " for char in text.lower()).split()
    return "-".join(words) or "part"
