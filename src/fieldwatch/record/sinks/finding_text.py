"""The text of a finding for tools that keep one text per rule."""

from collections.abc import Mapping
from typing import Any

_LONGEST = 5000
"""Maximum length of a tag in MLflow, in characters."""


def finding_text(event: Mapping[str, Any]) -> str:
    """Return the severity, step, message and remedy of a ``finding`` event as one text."""
    return f"{event['severity']} at step {event['step']}: {event['message']} {event['remedy']}"[:_LONGEST]
