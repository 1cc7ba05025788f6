"""Switches Nsight Systems on for the steps, or the finding, that `fieldwatch nsys train` asked for."""

import os
from collections.abc import Callable, Mapping

import torch

from fieldwatch.base import InputError
from fieldwatch.monitor.nsight import ON_FINDING, STEPS

CAPTURED_STEPS = 20
"""Steps that are recorded after a finding."""


class NsightCapture:
    """The range that a profiler outside records, bounded by ``cudaProfilerStart`` and ``cudaProfilerStop``.

    Args:
        take_request: whether a rule has found something worse than a note since the last time.
        environment: where `fieldwatch nsys train` leaves its wish.
        switch: called with True to begin and with False to end.

    Raises:
        ValueError: the environment's steps are no range.
    """

    def __init__(
        self,
        take_request: Callable[[], bool],
        *,
        environment: Mapping[str, str] = os.environ,
        switch: Callable[[bool], None] | None = None,
    ) -> None:
        self._take_request = take_request
        self._range = _steps(environment.get(STEPS, ""))
        self._on_finding = environment.get(ON_FINDING) == "1"
        self._switch = switch or _switch_profiler
        self._on = False

    def begin(self, step: int) -> None:
        """Begin a step; one that a finding asked for begins the range."""
        if self._on_finding and self._take_request():
            self._range = range(step, step + CAPTURED_STEPS)
            self._on_finding = False
        if step in self._range and not self._on:
            self._on = True
            self._switch(True)

    def end(self, step: int) -> None:
        """End a step."""
        # Ends with the last step of the range, not with the first one after it, which may never come.
        if self._on and step + 1 not in self._range:
            self.close()

    def close(self) -> None:
        """End the range, if it is open."""
        if self._on:
            self._on = False
            self._switch(False)


def _steps(text: str) -> range:
    if not text:
        return range(0)
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise InputError(f"{STEPS}={text!r} in the environment: wanted FIRST:LAST, e.g. 1000:1020, or no such variable")
    return range(int(first), int(last) + 1)


def _switch_profiler(on: bool) -> None:  # noqa: FBT001  the switch's two positions
    if not torch.cuda.is_available():
        return
    if on:
        torch.cuda.profiler.start()
    else:
        torch.cuda.profiler.stop()
