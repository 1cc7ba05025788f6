"""`LeftBehind`: a hook of a module that its copies do not get."""

from contextlib import nullcontext
from typing import Any


class LeftBehind:
    """Base class of hooks that are left behind when their module is copied: one that does nothing takes their place."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes the hook of the copy."""
        return getattr, (nullcontext(), "__exit__")
