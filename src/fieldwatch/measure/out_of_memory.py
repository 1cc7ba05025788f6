"""Callbacks that run when a CUDA allocation fails, before the exception unwinds the stack and frees memory."""

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import torch

Observer: TypeAlias = Callable[[int, int, int, int], None]
"""Signature of torch's observers: device index, requested bytes, limit, free bytes."""

_core: Any = torch._C  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch's only way to attach an observer


@dataclass(frozen=True, kw_only=True)
class FailedAllocation:
    """A request that the CUDA allocator could not serve, in bytes.

    Attributes:
        device: index of the device.
        requested: size of the request.
        limit: total memory of the device, or the limit of the process if one is set.
        free: free memory on the device, as reported by the driver.
    """

    device: int
    requested: int
    limit: int
    free: int


OnOutOfMemory: TypeAlias = Callable[[FailedAllocation], None]


class OutOfMemorySubscription:
    """The registration of one callback. End it with :meth:`detach`, or use it as a context manager.

    Attributes:
        failures: exceptions that the callback raised, in order; they are printed and never mask torch's error.
    """

    def __init__(self, callback: OnOutOfMemory, detach: Callable[["OutOfMemorySubscription"], None]) -> None:
        self.failures: list[Exception] = []
        self._callback = callback
        self._detach = detach

    def detach(self) -> None:
        """Unregister the callback."""
        self._detach(self)

    def call(self, event: FailedAllocation) -> None:
        """Call the callback; record and print its exceptions, so that torch can raise its error."""
        try:
            self._callback(event)
        except Exception as error:  # noqa: BLE001  code of strangers in torch's allocator: must not mask its error
            self.failures.append(error)
            # Do not use logging: its handlers may need memory, or may already be closed.
            sys.stderr.write("fieldwatch: the out-of-memory handler failed with the following error; torch's follows\n")
            traceback.print_exception(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


def _attach_to_torch(observer: Observer) -> None:
    if not torch.cuda.is_available():
        raise RuntimeError("on_out_of_memory requires a CUDA device, but none is available: call it on a GPU only")
    torch.cuda.init()  # the allocator must exist
    _core._cuda_attach_out_of_memory_observer(observer)  # noqa: SLF001  see above


class OutOfMemoryNotifier:
    """Dispatches one observer in torch to any number of callbacks, since torch cannot detach an observer.

    Args:
        attach: attaches an observer to torch; called once, for the first callback.
    """

    def __init__(self, attach: Callable[[Observer], None] = _attach_to_torch) -> None:
        self._attach = attach
        self._attached = False
        # Thread-local: a failure in another thread must still be reported.
        self._notifying = threading.local()
        self._subscriptions: tuple[
            OutOfMemorySubscription, ...
        ] = ()  # replaced, never mutated: a notification in progress iterates over its own tuple

    def subscribe(self, callback: OnOutOfMemory) -> OutOfMemorySubscription:
        """Register ``callback``; callbacks are called in order of registration."""
        # Attach lazily: attaching initializes CUDA, which a CPU run must not do.
        if not self._attached:
            self._attach(self.notify)
            self._attached = True
        # Replace the tuple instead of appending: a notification in another thread may be iterating over it.
        subscription = OutOfMemorySubscription(callback, self._detach)
        self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def notify(self, device: int, requested: int, limit: int, free: int) -> None:
        """Call all callbacks, unless this thread is already inside one of them."""
        # A callback that runs out of memory itself must not start another round of callbacks.
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

    At that moment nothing has been freed yet, so a census and a snapshot show what fills the memory. The callback runs
    in the thread of the failed request, after the allocator has emptied its cache and tried again. It also runs for
    errors that are caught and handled later, for example when cuDNN tries several workspace sizes. It should not
    allocate CUDA memory; a failure inside a callback triggers no further callbacks.

    Returns:
        The subscription; call its ``detach`` to unregister the callback.

    Raises:
        RuntimeError: if there is no CUDA device.
    """
    return _NOTIFIER.subscribe(callback)
