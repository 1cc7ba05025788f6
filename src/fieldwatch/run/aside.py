"""What is looked at while a run trains: it can neither disturb the training nor end it."""

import re
import traceback
from collections.abc import Iterator, Sequence
from copy import deepcopy
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

import torch
from torch import Tensor, nn

from fieldwatch.checkpoint import RandomState, Stateful, whole_file
from fieldwatch.guard import Diverged
from fieldwatch.record import WriterFailed
from fieldwatch.run.attempts import release_memory, shortage_of

if TYPE_CHECKING:
    from fieldwatch.run.run import Run

FAILURES: tuple[type[Exception], ...] = (OSError, ValueError, ArithmeticError, MemoryError, torch.OutOfMemoryError)
"""What an aside may fail with and training still goes on: files, values, numbers, memory. Anything else is a bug."""
FOLDER = "validation_failures"
"""Where the traceback of a failure is written, in the run folder."""


@final
class Asides:
    """Gives out blocks that can neither disturb nor end the training. Every run has one, as `run.aside`.

    Args:
        run: the run.
    """

    def __init__(self, run: "Run") -> None:
        self._run = run

    def __call__(
        self, what: str, *, failures: tuple[type[Exception], ...] = FAILURES, undo: Sequence[Stateful] = ()
    ) -> "Aside":
        """Look at what is trained, for one ``with`` statement, and leave the training as it was, bit for bit.

        Inside of the block there is no autograd. After it, all global random states, the modes (train, eval) and
        buffers of every module that ``run.keep`` was given, and all gradients are what they were. Where the block
        fails, its traceback is written to ``validation_failures/``, the event ``validation_failed`` is recorded (which
        the rule ``ValidationFailed`` turns into a warning), and the training goes on; ``failed`` then says so.

        Parameters are not copied, that would take the model's memory again: a look that writes to them (one that swaps
        in averaged weights) names them in ``undo``.

        Args:
            what: its name, for the event and the finding.
            failures: the errors after which training goes on; out of memory always is one. A signal, a record that
                cannot be written and everything that is not named here is not held back.
            undo: what else is put back afterwards: own generators, modules that are written to.
        """
        return Aside(self._run, what, failures=failures, undo=undo)


class Aside:
    """A block that may fail, and leaves training as it was. :class:`Asides` makes it.

    Args:
        run: the run.
        what: its name, for the event and the finding.
        failures: the errors after which training goes on; out of memory always is one.
        undo: what else is to be as it was before, besides the modules that the run keeps.

    Attributes:
        failed: whether the block ended with one of these errors.
    """

    def __init__(
        self, run: "Run", what: str, *, failures: tuple[type[Exception], ...], undo: Sequence[Stateful]
    ) -> None:
        self._run, self._what, self._failures, self._undo = run, what, failures, undo
        self.failed = False

    def __enter__(self) -> Self:
        """Take down what is to be as it was, put the gradients away, and switch autograd off."""
        modules = [item for item in self._run.kept.values() if isinstance(item, nn.Module)]
        parameters = [one for name in self._run.watched.names() for one in self._run.watched.read(name)]
        self._before = _Untouched(modules, parameters, self._undo)
        self._no_grad = torch.no_grad()
        self._no_grad.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        """Put everything back; write down an error that training does not end for, and let go of it."""
        self._no_grad.__exit__(kind, error, at)
        told = None if error is None or not self._harmless(error) else _told(error)
        self._before.put_back()
        if error is None or told is None:
            return False
        self.failed = True
        _let_go(error)
        release_memory()
        self._report(*told)
        return True

    def _harmless(self, error: BaseException) -> bool:
        if isinstance(error, WriterFailed | Diverged):
            return False
        return isinstance(error, self._failures) or shortage_of(error) is not None

    def _report(self, reason: str, text: str) -> None:
        run, done = self._run, self._run.step_index + 1
        path = run.folder / FOLDER / f"step_{done:08d}_{re.sub(r'[^0-9A-Za-z]+', '-', self._what)}.txt"
        file = str(path.relative_to(run.folder))
        try:
            with whole_file(path) as draft:
                draft.write_text(f"{self._what} after {done} steps\n\n{text}", encoding="utf-8")
        except OSError as error:  # a full disk is no reason to end here
            file = f"{file}, which could not be written: {error}"
        run.event("validation_failed", what=self._what, reason=reason, file=file, done=done)


class _Untouched:
    """What a look at a model must leave as it was: random states, modes, buffers, gradients, and what is named.

    Gradients are put away, not copied: a look that goes backward has some of its own, which are dropped.
    """

    def __init__(self, modules: Sequence[nn.Module], parameters: Sequence[Tensor], undo: Sequence[Stateful]) -> None:
        self._random = RandomState()
        self._state = self._random.state_dict()
        self._items = [(item, deepcopy(item.state_dict())) for item in undo]
        self._modes = [(part, part.training) for module in modules for part in module.modules()]
        self._buffers = [(buffer, _copied(buffer)) for module in modules for buffer in module.buffers()]
        own = [one for module in modules for one in module.parameters()]
        self._gradients = {id(one): (one, one.grad) for one in (*own, *parameters) if one.is_leaf}
        for parameter, _ in self._gradients.values():
            parameter.grad = None

    @torch.no_grad()
    def put_back(self) -> None:
        """Make it so again."""
        self._random.load_state_dict(self._state)
        for item, state in self._items:
            item.load_state_dict(state)
        for part, training in self._modes:
            part.training = training
        for buffer, copy in self._buffers:
            buffer.copy_(copy)
        for parameter, gradient in self._gradients.values():
            parameter.grad = gradient


def _copied(buffer: Tensor) -> Tensor:
    """A copy beside the buffer, or in the host's memory where there is no room for it."""
    try:
        return buffer.detach().clone()
    except torch.OutOfMemoryError:
        room = torch.empty(buffer.shape, dtype=buffer.dtype)
    return room.copy_(buffer.detach())


def _told(error: BaseException) -> tuple[str, str]:
    """An error in one line, and its whole traceback, as texts."""
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))


def _let_go(error: BaseException) -> None:
    """Empty the frames that an error and its causes hold; those that still run are left alone."""
    for one in _chain(error):
        traceback.clear_frames(one.__traceback__)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            waiting += [one.__cause__, one.__context__]
            yield one
