"""A rich console that prints untrusted text safely."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fieldwatch.base import printable


class Terminal(Console):
    r"""A rich console for untrusted text: tags, events, rules, file and run names.

    Control characters and escape sequences are printed as ``\x1b`` and the like, everywhere: in lines, tables and
    progress bars. Markup and emoji codes are disabled, so that a tag with square brackets or colons cannot become a
    link or a color. To print trusted markup, pass ``markup=True`` for that string alone.

    Args:
        **options: keyword arguments of :class:`rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        # Callers may override the safe defaults explicitly.
        chosen: dict[str, Any] = {"markup": False, "emoji": False, **options}
        super().__init__(**chosen)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with control characters escaped."""
        for segment in super().render(renderable, options):
            # rich marks its cursor movements as control segments: those must pass unescaped, everything else must not.
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
