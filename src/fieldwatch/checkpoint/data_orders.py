"""Which data orders a training draws from: an order that is drawn from and not kept is a forgotten one."""

import weakref
from collections import deque
from typing import Any

_used_orders: "deque[weakref.ref[Any]]" = deque(maxlen=64)


def note_used(order: Any) -> None:
    """Note that a batch was drawn from an order; on any thread."""
    _used_orders.append(weakref.ref(order))


def take_used_orders() -> list[Any]:
    """Return the orders that were drawn from lately, each once, and forget about them."""
    orders: dict[int, Any] = {}
    # Popped one by one: another thread may append meanwhile.
    while _used_orders:
        order = _used_orders.popleft()()
        if order is not None:
            orders[id(order)] = order
    return list(orders.values())
