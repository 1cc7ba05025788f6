"""Words for events: which kinds readers see, what they are called, and one line about each event."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.record.event_words.words import FOR_RULES, SHOWN_ELSEWHERE, event_text, event_title

__all__ = [
    "FOR_RULES",
    "SHOWN_ELSEWHERE",
    "event_text",
    "event_title",
]

__getattr__, __dir__ = lazy_names(__name__)
