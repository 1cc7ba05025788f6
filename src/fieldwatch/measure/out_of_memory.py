"""Calls back when CUDA memory runs out, before the exception unwinds what holds the memory."""

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import torch

Observer: TypeAlias = Callable[[int, int, int, int], None]
"""What torch calls: with the device, the bytes asked for, the limit, and what is free."""

_core: Any = torch._C  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch's only way to attach an observer


@dataclass(frozen=True, kw_only=True)
class FailedAllocation:
    """A request that CUDA's allocator could not serve, in bytes.

    Attributes:
        device: the number of the device.
        requested: what was asked for.
        limit: what the device has in all, or what the process may have of it, where that was limited.
        free: what the driver says is free on the device.
    """

    device: int
    requested: int
    limit: int
    free: int


OnOutOfMemory: TypeAlias = Callable[[FailedAllocation], None]


class OutOfMemorySubscription:
    """One callback's place among those that are called. End it by :meth:`detach`, or by ``with``.

    Attributes:
        failures: what the callback raised, the last one last; printed too, and never in the way of the real error.
    """

    def __init__(self, callback: OnOutOfMemory, detach: Callable[["OutOfMemorySubscription"], None]) -> None:
        self.failures: list[Exception] = []
        self._callback = callback
        self._detach = detach

    def detach(self) -> None:
        """Never call this callback again."""
        self._detach(self)

    def call(self, event: FailedAllocation) -> None:
        """Call the callback; what it raises is kept and printed, for torch must get to raise its own error."""
        try:
            self._callback(event)
        except Exception as error:  # noqa: BLE001  code of strangers, called by torch's allocator: torch raises its own
            self.failures.append(error)
            # Not logging: handlers may need memory, or be closed already.
            sys.stderr.write(
                "fieldwatch: the out-of-memory handler failed, as follows; torch's own error comes after it\n"
            )
            traceback.print_exception(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


def _attach_to_torch(observer: Observer) -> None:
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device, so nothing can be called when its memory runs out: ask on a GPU only")
    torch.cuda.init()  # the allocator must be there
    _core._cuda_attach_out_of_memory_observer(observer)  # noqa: SLF001  see above


class OutOfMemoryNotifier:
    """One observer in torch, and whom it calls: torch can attach an observer, but not detach it.

    Args:
        attach: hands an observer to torch; called once, for the first callback.
    """

    def __init__(self, attach: Callable[[Observer], None] = _attach_to_torch) -> None:
        self._attach = attach
        self._attached = False
        self._notifying = threading.local()
        self._subscriptions: tuple[
            OutOfMemorySubscription, ...
        ] = ()  # replaced, never changed: a notification under way keeps its own

    def subscribe(self, callback: OnOutOfMemory) -> OutOfMemorySubscription:
        """Call ``callback`` from now on, after those that were there before."""
        if not self._attached:
            self._attach(self.notify)
            self._attached = True
        subscription = OutOfMemorySubscription(callback, self._detach)
        self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def notify(self, device: int, requested: int, limit: int, free: int) -> None:
        """Call all; not when one of them runs out of memory itself."""
        # Per thread: a callback that runs out of memory itself must not call all callbacks again.
        if getattr(self._notifying, "now", False):
            return
        self._notifying.now = True
        try:
            for subscription in self._subscriptions:
                subscription.call(FailedAllocation(device=device, requested=requested, limit=limit, free=free))
        finally:
            self._notifying.now = False

    def _detach(self, subscription: OutOfMemorySubscription) -> None:
        self._subscriptions = tuple(other for other in self._subscriptions if other is not subscription)


_NOTIFIER = OutOfMemoryNotifier()


def on_out_of_memory(callback: OnOutOfMemory) -> OutOfMemorySubscription:
    """Call ``callback`` whenever a CUDA allocation fails, before the exception is raised.

    At that moment nothing has been unwound: census and snapshot show what fills the memory. The callback runs in the
    thread that asked, after the allocator has emptied its cache and tried again. It is also called where somebody
    catches the error and goes on (cuDNN trying out work space, a loop that retries). It should not use CUDA memory;
    when it runs out itself, nobody is called for that.

    Returns:
        The place among the callbacks, for detaching it.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    return _NOTIFIER.subscribe(callback)
