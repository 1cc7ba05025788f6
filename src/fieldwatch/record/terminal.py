"""A terminal that shows foreign text and does not obey it."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fieldwatch.base import printable


class Terminal(Console):
    r"""rich's console for text that may come from anywhere: tags, events, rules, names of files and runs.

    Escape sequences and other control characters are shown as ``\x1b`` and the like, in whatever is printed: lines,
    tables, progress bars. Square brackets and colons mean nothing in plain strings, so that a tag cannot become a link
    or a color; where a string of ours has markup, say ``markup=True`` for it alone.

    Args:
        **options: of rich's console.
    """

    def __init__(self, **options: Any) -> None:
        chosen: dict[str, Any] = {"markup": False, "emoji": False, **options}
        super().__init__(**chosen)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with foreign control characters made visible."""
        for segment in super().render(renderable, options):
            # rich's own control segments move the cursor, and must pass; text that came from outside must not.
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
