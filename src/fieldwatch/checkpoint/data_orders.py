"""Which data orders a training draws from: an order that is drawn from and not kept is a forgotten one."""

import weakref
from collections import deque
from typing import Any

_latest: "deque[weakref.ref[Any]]" = deque(maxlen=64)


def note_used(order: Any) -> None:
    """Note that a batch was drawn from an order; on any thread."""
    _latest.append(weakref.ref(order))


def take_used_orders() -> list[Any]:
    """Return the orders that were drawn from lately, each once, and forget about them."""
    found: dict[int, Any] = {}
    while _latest:
        order = _latest.popleft()()
        if order is not None:
            found[id(order)] = order
    return list(found.values())
