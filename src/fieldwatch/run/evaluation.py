"""Evaluation while a run trains: it can neither disturb the training nor end it."""

import re
import traceback
from collections.abc import Iterator, Sequence
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
"""Folder, in the run folder, of the tracebacks of failed evaluations."""


class EvaluationBlock:
    """A ``with`` block that leaves training as it was, and whose failure training survives.

    :meth:`Run.evaluation` makes it.

    Args:
        name: for the event and the finding.
        tracked: whose modules and gradients are restored.
        record: where a failure is recorded.
        log: the current step.
        failures: the errors that training survives; out of memory always is one.
        undo: what else is restored, besides the tracked modules' modes and buffers.

    Attributes:
        failed: whether the block ended with one of these errors.
    """

    def __init__(  # noqa: PLR0913  what is evaluated, where a failure goes, and what it may be
        self,
        name: str,
        tracked: TrackedObjects,
        record: RunRecord,
        log: RunLog,
        *,
        failures: tuple[type[Exception], ...],
        undo: Sequence[Stateful],
    ) -> None:
        self._name = name
        self._tracked = tracked
        self._record = record
        self._log = log
        self._failures = failures
        self._undo = undo
        self.failed = False

    def __enter__(self) -> Self:
        """Copy what the block may change, put the gradients away, and switch autograd off."""
        self._before = StateBackup(RandomState(), self._undo, self._tracked.modules(), self._tracked.parameters())
        self._no_grad = torch.no_grad()
        self._no_grad.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        """Restore everything; record an error that training survives, and suppress it."""
        self._no_grad.__exit__(kind, error, at)
        # The traceback is formatted before its frames, and with them their memory, are let go.
        text = None if error is None or not self._is_survived(error) else _text_of(error)
        self._before.restore()
        if error is None or text is None:
            return False
        self.failed = True
        # Their local variables hold the tensors of the evaluation; the caller may keep the error.
        _clear_frames(error)
        release_memory()
        self._report(*text)
        return True

    def _is_survived(self, error: BaseException) -> bool:
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
        except OSError as error:  # a full disk is no reason to end here
            file = f"{file}, which could not be written: {error}"
        self._log.event("validation_failed", what=self._name, reason=reason, file=file, done=done)


def _text_of(error: BaseException) -> tuple[str, str]:
    """Return an error in one line, and its whole traceback."""
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))


def _clear_frames(error: BaseException) -> None:
    """Drop the local variables of the frames of an error and its causes; frames that still run are left alone."""
    for link in _chain(error):
        traceback.clear_frames(link.__traceback__)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    visited: set[int] = set()
    pending = [error]
    while pending:
        link = pending.pop()
        if link is not None and id(link) not in visited:
            visited.add(id(link))
            pending += [link.__cause__, link.__context__]
            yield link
