"""Capture range of Nsight Systems, for the steps or the finding selected by `fieldwatch nsys train`."""

import os
from collections.abc import Callable, Mapping

import torch

from fieldwatch.base import InputError
from fieldwatch.monitor.nsight import ON_FINDING, STEPS

CAPTURED_STEPS = 20
"""Number of steps that are captured after a finding."""


class NsightCapture:
    """Capture range of an external profiler, delimited by ``cudaProfilerStart`` and ``cudaProfilerStop``.

    Args:
        take_request: function that returns whether a rule has reported a warning or error since the last call.
        environment: environment variables, in which `fieldwatch nsys train` stores the selection.
        switch: function that starts (True) or stops (False) the capture.

    Attributes:
        enabled: whether steps or a finding were selected.

    Raises:
        ValueError: the steps in the environment are not a valid range.
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
        self.enabled = bool(self._range) or self._on_finding

    def begin(self, step: int) -> None:
        """Begin a step; start the capture if the step or a finding requests it."""
        if self._on_finding and self._take_request():
            self._range = range(step, step + CAPTURED_STEPS)
            # Capture once per run, since reports are large and captured steps slow.
            self._on_finding = False
        if step in self._range and not self._on:
            self._on = True
            self._switch(True)

    def end(self, step: int) -> None:
        """End a step; stop the capture after the last step of the range."""
        # Stop at the end of the last step, not at the start of the next one, which may never come.
        if self._on and step + 1 not in self._range:
            self.close()

    def close(self) -> None:
        """Stop the capture if it is running."""
        if self._on:
            self._on = False
            self._switch(False)


def _steps(text: str) -> range:
    if not text:
        return range(0)
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise InputError(f"environment variable {STEPS}: expected FIRST:LAST, e.g. 1000:1020, got {text!r}")
    return range(int(first), int(last) + 1)


def _switch_profiler(on: bool) -> None:  # noqa: FBT001  the switch's two positions
    if not torch.cuda.is_available():
        return
    if on:
        torch.cuda.profiler.start()
    else:
        torch.cuda.profiler.stop()
