"""`card`: a framed piece of HTML for one object, which every notebook shows, also one that runs no scripts."""

import html
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Final, Literal

from fieldwatch.base.printing import printable

Level = Literal["healthy", "notes", "findings", "failed", "running", "empty"]
LEVELS: Final[tuple[Level, ...]] = ("healthy", "notes", "findings", "failed", "running", "empty")
"""Kinds of a card, as on the page of a run: each has its color."""


class Html(str):
    """Text that is HTML already, made by a function of this package; any other text is escaped."""

    __slots__ = ()


def card(  # noqa: PLR0913  the parts of a card
    title: str,
    *,
    level: Level,
    label: str,
    headline: str,
    facts: Sequence[str] = (),
    parts: Iterable[Html] = (),
) -> Html:
    """Return a card.

    The colors are those of the notebook's theme, light or dark; without a theme, those of the text around the card.

    Args:
        title: name of the object.
        level: color of the label.
        label: state or kind in a word or two.
        headline: what matters, in a sentence.
        facts: short texts next to the title.
        parts: pieces below the headline.
    """
    head = f"<b>{_escaped(title)}</b>" + "".join(f'<span class="quiet">{_escaped(fact)}</span>' for fact in facts)
    said = f'<span class="label {level}">{_escaped(label)}</span> {_escaped(headline)}'
    return Html(
        f'<div class="fieldwatch-cell"><style>{_style()}</style>'
        f'<p class="head">{head}</p><p class="said">{said}</p>{"".join(parts)}</div>'
    )


def paragraphs(texts: Iterable[str]) -> Html:
    """Return paragraphs; empty texts are left out."""
    return Html("".join(f"<p>{_escaped(text)}</p>" for text in texts if text))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Iterable[int] = ()) -> Html:
    """Return a table.

    Args:
        columns: headings.
        rows: texts, or `Html`, of every row.
        numeric: places of the columns that are aligned to the right.
    """
    right = frozenset(numeric)

    def line(cells: Sequence[str], kind: str) -> str:
        marks = (' class="number"' if place in right else "" for place in range(len(cells)))
        inside = (f"<{kind}{mark}>{_escaped(cell)}</{kind}>" for mark, cell in zip(marks, cells, strict=True))
        return f"<tr>{''.join(inside)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return Html(f'<div class="wide"><table><thead>{line(columns, "th")}</thead><tbody>{body}</tbody></table></div>')


def _escaped(text: str) -> str:
    # Names come from files of others.
    return text if isinstance(text, Html) else html.escape(printable(text))


@cache
def _style() -> str:
    lines = (files("fieldwatch.base.cell") / "assets" / "cell.css").read_text("utf-8").splitlines()
    return "".join(line.strip() for line in lines if not line.startswith("/*"))
