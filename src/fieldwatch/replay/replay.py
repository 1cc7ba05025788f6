"""`Replay`: makes one step of a run again, several times, and looks at it."""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch.base import InputError
from fieldwatch.measure import Terms, changed_weights, listening_to_totals
from fieldwatch.record import tags
from fieldwatch.replay.allocations import storage_key
from fieldwatch.replay.equality import COMPARED, Equality
from fieldwatch.replay.groups import GroupValues, plain_groups
from fieldwatch.replay.module_paths import ModulePaths
from fieldwatch.replay.operation import tensors_in
from fieldwatch.replay.precision import Precision
from fieldwatch.replay.step_pass import StepPass, plain_error
from fieldwatch.replay.term_comparison import TermComparison
from fieldwatch.replay.trace import OperationTrace
from fieldwatch.replay.variants import Variant, settings_of
from fieldwatch.run import (
    ObservedStep,
    Observer,
    ReplayEnded,
    TrackedObjects,
    device_name,
    machine_facts,
    observing,
)


class Replay(Observer):
    """Observer that trains a copy of a run up to a step, and then makes that step again and again.

    First every operation is looked at, then the step is made as it was trained, then the gradients of the terms are
    compared, and then come the interventions. In between, the copy goes back to its checkpoint of the step. If a pass
    ends with an exception, the loop is started again for the next one.

    Args:
        run: run folder, as the loop names it.
        scratch: copy of the run.
        step: step to look at.
        variants: interventions.
        ahead: number of steps to train after the step.
        equality: comparison with the record of the run.
    """

    active = True

    def __init__(  # noqa: PLR0913  the run and its copy, the step, and what to do with it
        self,
        run: Path,
        scratch: Path,
        step: int,
        *,
        variants: Sequence[Variant],
        ahead: int,
        equality: Equality,
    ) -> None:
        self._run = run
        self._scratch = scratch
        self._step = step
        self._ahead = ahead
        self._equality = equality
        self._passes = [StepPass(kind="trace"), StepPass(kind="plain"), StepPass(kind="terms")]
        self._passes += [StepPass(kind="variant", variant=variant) for variant in variants]
        # Index of the pass in progress; -1 on the way to the step.
        self._at = -1
        self._index = -1
        self._finished = False
        self._contexts = ExitStack()
        self._precision: Precision | None = None
        self._tracked = TrackedObjects()
        self._save: Callable[[], None] = lambda: None
        self._terms: set[str] = set()
        self._compared: list[Terms] = []
        self._settings: set[str] = set()
        self.device = "cpu"

    def train(self, loop: Callable[[], Any]) -> None:
        """Run the loop until all passes are done.

        Args:
            loop: function that trains in the run folder, or in its copy.

        Raises:
            InputError: the loop does not reach the step, or an intervention names what the step does not have.
            Exception: whatever the loop raises before it reaches the step.
        """
        while not self._finished:
            before = self._at
            try:
                with observing(self):
                    loop()
            except ReplayEnded:
                pass
            except InputError:
                raise
            except Exception as error:  # user code: an exception of the step is a result of the replay
                if self._at == before:
                    raise
                # A message that names the folder means the run: the copy is deleted at the end.
                message = str(error).replace(str(self._scratch), str(self._run))
                self._passes[self._at].error = plain_error(error, self._index, message)
            if self._at == before:
                raise InputError(
                    f"--step {self._step}: the loop ended after step {self._index} without this step: expected a loop "
                    f"that opens {self._run} and trains at least {self._step + 1} steps"
                )
            self._finished = self._finished or self._at + 1 == len(self._passes)

    # Hooks, in the order in which they are called

    def folder_of(self, folder: Path) -> Path:
        """Return the copy for the run folder.

        Raises:
            InputError: the loop opens another folder.
        """
        if folder.resolve() in (self._run.resolve(), self._scratch.resolve()):
            return self._scratch
        raise InputError(
            f"the loop opens the run folder {folder}, expected {self._run}: give the script the arguments with which "
            "it trained this run, after --"
        )

    def opened(self, tracked: TrackedObjects, save: Callable[[], None]) -> None:
        """Remember the objects of the run."""
        self._tracked = tracked
        self._save = save

    def begin_step(self, index: int) -> None:
        """Begin a pass if this is the step; enter what belongs to it."""
        self._index = index
        if index == self._step:
            self._at += 1
            self._begin_pass(self._passes[self._at])
        if self._at >= 0:
            self._enter(self._passes[self._at])

    def at_terms(self, terms: Terms, fraction: float) -> None:
        """Look at the terms, and at their gradients in the pass for them."""
        current = self._current()
        if current is None:
            return
        self._terms |= set(terms)
        if current.trace is not None:
            for name, (_, value) in terms.items():
                current.trace.reached(f"loss term {name}", value)
            current.trace.reached("total loss", terms.total)
        self._compare(terms, fraction, current)

    def clip(self, clip: Any) -> Any:
        """Look at the complete gradients; an intervention may change the limit."""
        current = self._current()
        if current is None:
            return clip
        self._look_at_gradients(current)
        return current.variant.clip(clip)

    def updating(self, optimizers: Sequence[Optimizer]) -> AbstractContextManager[None]:
        """Change the settings of the optimizers for an intervention; copy the parameters afterwards."""
        current = self._current() if self._at >= 0 else None
        if current is None:
            return self._changing(optimizers) if self._at >= 0 else nullcontext()
        return self._updating(optimizers, current)

    def evaluating(self) -> AbstractContextManager[None]:
        """Look away during an evaluation."""
        current = self._current()
        return nullcontext() if current is None or current.trace is None else current.trace.paused()

    def end_step(self, step: ObservedStep) -> None:
        """Collect what the step has recorded."""
        self._contexts.close()
        values = {name: float(value) for name, value in step.values.items() if tags.kind(name) in COMPARED}
        if self._at < 0:
            self._equality.add_step(step.index, values)
            return
        current = self._passes[self._at]
        current.values[step.index] = values
        if current.kind == "plain":
            self._equality.add_step(step.index, values)
        if step.index != self._step:
            return
        current.samples = step.samples
        current.sample_loss = [] if step.sample_loss is None else step.sample_loss.double().tolist()
        # A loop that steps its optimizers itself.
        if not step.updated:
            self._look_at_gradients(current)
        if current.before is not None and current.after is None:
            current.after = GroupValues.of_parameters(self._tracked.watched)

    def next_step(self, done: int, *, ended: bool) -> int | None:
        """Go on to the step, then through all passes."""
        if self._at < 0:
            self._equality.add_state(done, self._tracked.items)
            if done == self._step:
                self._save()  # to come back to
            return None if ended else done
        current = self._passes[self._at]
        if current.kind == "plain":
            self._equality.add_state(done, self._tracked.items)
        more = self._ahead if current.kind in ("plain", "variant") else 0
        if done <= self._step + more and not ended:
            return done
        current.complete = True
        self._finished = self._at + 1 == len(self._passes)
        return None if self._finished else self._step

    def closed(self, error: BaseException | None) -> None:  # noqa: ARG002  `train` sees it
        """Leave what belongs to the pass."""
        self._contexts.close()

    # The result

    def plain(self) -> dict[str, Any]:
        """Return everything that was seen as plain values."""
        trace, plain, terms = self._passes[:3]
        seen = trace.trace.plain() | {"error": trace.error} if trace.trace is not None else None
        return {
            "step": self._step,
            "machine": machine_facts(self.device),
            "equality": self._equality.plain(self._step, self.device),
            "repeats": self._repeats(trace, plain),
            "trace": seen,
            "terms": None if terms.terms is None else terms.terms.plain() | {"error": terms.error},
            "samples": plain.plain_samples(),
            "groups": []
            if plain.before is None or plain.after is None
            else plain_groups(plain.before, plain.gradients, plain.after),
            "passes": [each.plain(self._step) for each in self._passes if each.kind in ("plain", "variant")],
        }

    def _repeats(self, one: StepPass, other: StepPass) -> dict[str, Any]:
        """Return whether two passes over the same step gave the same numbers."""
        first = one.values.get(self._step, {})
        second = other.values.get(self._step, {})
        names = sorted(first.keys() & second.keys())
        differing = [
            n for n in names if first[n] != second[n] and not (first[n] != first[n] and second[n] != second[n])
        ]
        return {"values": len(names), "differing": differing[:20]}

    def _current(self) -> StepPass | None:
        """Return the pass in progress if this is the step itself."""
        return self._passes[self._at] if self._at >= 0 and self._index == self._step else None

    def _begin_pass(self, current: StepPass) -> None:
        tracked = self._tracked
        self.device = device_name(tracked.parameters())
        if current.kind == "variant" and self._passes[1].complete:
            current.variant.check(self._terms, self._settings)
        if current.kind == "trace":
            current.trace = OperationTrace(ModulePaths(tracked.items), _names_of(tracked))
        elif current.kind == "terms":
            current.terms = TermComparison()
        if current.kind in ("plain", "variant"):
            current.before = GroupValues.of_parameters(tracked.watched)

    def _enter(self, current: StepPass) -> None:
        """Enter what belongs to a pass, until the end of the step."""
        enter = self._contexts.enter_context
        dtype = current.variant.torch_dtype
        self._precision = None
        # A compiled module would be recompiled under a dispatch mode; the check saves an import of seconds.
        if (current.trace is not None or dtype is not None) and "torch._dynamo" in sys.modules:
            enter(torch.compiler.set_stance("force_eager"))
        if current.trace is not None:
            enter(current.trace.paths)
            enter(current.trace)
        enter(changed_weights(current.variant.weights()))
        if current.terms is not None and self._index == self._step:
            self._compared.clear()
            enter(listening_to_totals(partial(self._compare, fraction=1.0, current=current)))
        if dtype is not None:
            self._precision = enter(Precision(dtype))

    @contextmanager
    def _updating(self, optimizers: Sequence[Optimizer], current: StepPass) -> Generator[None]:
        self._settings |= settings_of(optimizers)
        if current.trace is not None:
            current.trace.phase = "optimizer"
        with self._changing(optimizers):
            yield
        if current.trace is not None:
            current.trace.phase = "forward"
        if current.before is not None:
            with self._unconverted():
                current.after = GroupValues.of_parameters(self._tracked.watched)

    @contextmanager
    def _changing(self, optimizers: Sequence[Optimizer]) -> Generator[None]:
        with self._unconverted(), self._passes[self._at].variant.settings(optimizers):
            yield

    @contextmanager
    def _unconverted(self) -> Generator[None]:
        """Keep the types of parameters and gradients as they are inside this context."""
        if self._precision is None:
            yield
            return
        self._precision.paused = True
        try:
            yield
        finally:
            self._precision.paused = False

    def _compare(self, terms: Terms, fraction: float, current: StepPass) -> None:
        """Compare the gradients of terms, once: in the plain form of a loop, they are observed after their backward."""
        known = any(terms is other for other in self._compared)
        if current.terms is None or known or not any(value.requires_grad for _, (_, value) in terms.items()):
            return
        self._compared.append(terms)
        current.terms.add(terms, fraction, self._tracked.watched)

    def _look_at_gradients(self, current: StepPass) -> None:
        tracked = self._tracked
        if current.trace is not None:
            with current.trace.paused():
                for name, parameter in _parameters_of(tracked).items():
                    if parameter.grad is not None:
                        current.trace.reached(f"gradient of {name}", parameter.grad)
        if current.before is not None:
            with self._unconverted():
                current.gradients = GroupValues.of_gradients(tracked.watched)


def _parameters_of(tracked: TrackedObjects) -> Mapping[str, Tensor]:
    """Return the watched parameters by name: the path in their module, or the name of their group and their number."""
    names: dict[int, str] = {}
    for item, module in tracked.items.items():
        if isinstance(module, nn.Module):
            names |= {id(parameter): f"{item}.{path}" for path, parameter in module.named_parameters()}
    found: dict[str, Tensor] = {}
    for group in tracked.watched.names():
        for number, parameter in enumerate(tracked.watched.read(group)):
            found[names.get(id(parameter), f"{group}[{number}]")] = parameter
    return found


def _names_of(tracked: TrackedObjects) -> dict[int, str]:
    """Return names of the tensors that exist before the step, by the identity of their storage."""
    names: dict[int, str] = {}
    for name, item in (*tracked.data.items(), *tracked.items.items()):
        if isinstance(item, Optimizer):
            for state in item.state.values():
                names |= {
                    storage_key(value): f"a state of {name} ({key})"
                    for key, value in state.items()
                    if isinstance(value, Tensor)
                }
        elif isinstance(item, nn.Module):
            tensors = {**dict(item.named_buffers()), **dict(item.named_parameters())}
            names |= {storage_key(tensor): f"{name}.{path}" for path, tensor in tensors.items()}
        else:
            names |= {storage_key(tensor): name for tensor in tensors_in(item) if tensor.layout is torch.strided}
    return names | {storage_key(parameter): name for name, parameter in _parameters_of(tracked).items()}
