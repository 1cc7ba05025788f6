"""HTML for output cells of notebooks: cards with facts, curves and tables; without scripts and outside resources."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.base.cell.curves import curve, sparkline
    from fieldwatch.base.cell.framing import LEVELS, Html, Level, card, paragraphs, table

__all__ = ["LEVELS", "Html", "Level", "card", "curve", "paragraphs", "sparkline", "table"]

__getattr__, __dir__ = lazy_names(__name__)
