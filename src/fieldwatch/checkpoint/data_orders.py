"""Registry of the data orders that a training draws from, to detect those that no checkpoint saves."""

import weakref
from collections import deque
from typing import Any

# Weak references, so that the registry keeps no data set alive. Appending to a deque is thread-safe.
_used_orders: "deque[weakref.ref[Any]]" = deque(maxlen=64)


def note_used(order: Any) -> None:
    """Record that a batch was drawn from an order; may be called from any thread."""
    _used_orders.append(weakref.ref(order))


def take_used_orders() -> list[Any]:
    """Return the orders used since the last call, without duplicates, and clear the registry."""
    orders: dict[int, Any] = {}
    # Popped one by one, because another thread may append meanwhile.
    while _used_orders:
        order = _used_orders.popleft()()
        if order is not None:
            orders[id(order)] = order
    return list(orders.values())
