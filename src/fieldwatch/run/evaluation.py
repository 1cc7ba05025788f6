"""`EvaluationBlock`: an evaluation during training that can neither disturb nor end it."""

import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

import torch

from fieldwatch.base import output_path, whole_file
from fieldwatch.checkpoint import RandomState, Stateful
from fieldwatch.guard import Diverged
from fieldwatch.record import WriterFailed
from fieldwatch.run.log import RunLog
from fieldwatch.run.retry import release_memory, shortage_of
from fieldwatch.run.run_record import RunRecord
from fieldwatch.run.state_backup import StateBackup
from fieldwatch.run.tracked_objects import TrackedObjects

FOLDER = "validation_failures"
"""Subfolder of the run folder for the tracebacks of failed evaluations."""


class EvaluationBlock:
    """Context manager that restores the training state afterwards, and suppresses failures that training survives.

    Created by :meth:`Run.evaluation`.

    Args:
        name: name of the evaluation in the event and the finding.
        tracked: tracked objects, whose modules and gradients are restored.
        record: record of the run.
        log: event log, which knows the current step.
        failures: exceptions that training survives, in addition to out-of-memory errors.
        undo: further state to restore, besides the modes and buffers of the tracked modules.
        around: further context managers around the block.

    Attributes:
        failed: whether the block ended with a suppressed exception.
    """

    def __init__(  # noqa: PLR0913  created only by Run.evaluation
        self,
        name: str,
        tracked: TrackedObjects,
        record: RunRecord,
        log: RunLog,
        *,
        failures: tuple[type[Exception], ...],
        undo: Sequence[Stateful],
        around: Sequence[AbstractContextManager[None]] = (),
    ) -> None:
        self._name = name
        self._tracked = tracked
        self._record = record
        self._log = log
        self._failures = failures
        self._undo = undo
        self._around = around
        self.failed = False

    def __enter__(self) -> Self:
        """Back up the state that the block may change, move the gradients away, and disable autograd."""
        self._before = StateBackup(RandomState(), self._undo, self._tracked.modules(), self._tracked.parameters())
        # Entered explicitly, since the contexts span two methods.
        self._contexts = ExitStack()
        for context in self._around:
            self._contexts.enter_context(context)
        self._contexts.enter_context(torch.no_grad())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        """Restore the state; record and suppress an exception that training survives."""
        self._contexts.close()
        # Format the traceback before its frames are cleared.
        text = None if error is None or not self._is_survived(error) else _text_of(error)
        self._before.restore()
        if error is None or text is None:
            return False
        self.failed = True
        # Local variables of the frames hold the tensors of the evaluation, and the caller may keep the exception.
        _clear_frames(error)
        release_memory()
        self._report(*text)
        return True

    def _is_survived(self, error: BaseException) -> bool:
        # These concern the run itself, and must propagate even if `failures` contains a base class of them.
        if isinstance(error, WriterFailed | Diverged):
            return False
        return isinstance(error, self._failures) or shortage_of(error) is not None

    def _report(self, reason: str, text: str) -> None:
        folder = self._record.folder
        done = self._log.step_index + 1
        path = output_path(folder, FOLDER, f"step_{done:08d}_{re.sub(r'[^0-9A-Za-z]+', '-', self._name)}.txt")
        file = str(path.relative_to(folder))
        try:
            with whole_file(path) as draft:
                draft.write_text(f"{self._name} after {done} steps\n\n{text}", encoding="utf-8")
        # A full disk must not end the training: the event still has the reason.
        except OSError as error:
            file = f"{file} (could not be written: {error})"
        self._log.event("validation_failed", what=self._name, reason=reason, file=file, done=done)


def _text_of(error: BaseException) -> tuple[str, str]:
    """Return an error in one line, and its full traceback."""
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))


def _clear_frames(error: BaseException) -> None:
    """Clear the local variables in the frames of an error and its causes, except for frames that still run."""
    for link in _chain(error):
        traceback.clear_frames(link.__traceback__)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its causes and contexts, each once."""
    # Causes and contexts can form cycles.
    visited: set[int] = set()
    pending = [error]
    while pending:
        link = pending.pop()
        if link is not None and id(link) not in visited:
            visited.add(id(link))
            pending += [link.__cause__, link.__context__]
            yield link
