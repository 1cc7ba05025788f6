"""What a run uses and no checkpoint will hold: said before the first step where it can be seen, else in that step."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any, Protocol, cast, runtime_checkable

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from fieldwatch.checkpoint import ResumableLoader, Shuffled, Stateful, take_used_orders
from fieldwatch.measure import ParameterGroups
from fieldwatch.run.held import Held, stores_more

_NOTHING = (
    "nothing is kept: no checkpoint will be written, and whatever ends this process loses the whole run. "
    "Call run.track(model=model, optimizer=optimizer) before the loop."
)
_PLAIN_LOADER = (
    "torch's DataLoader has no position that a checkpoint could hold: a resumed run begins at its first batch, in "
    "another order, with other random numbers. Use fieldwatch.ResumableLoader with the same data set, and track it."
)
_FROM_THE_START = "{kind} has no position that a checkpoint could hold: a resumed run begins at its first batch again."
_GENERATOR = (
    "batches come from {kind}, and nothing that is kept remembers a place in the data: a resumed run begins at its "
    "first batch again. Draw from a fieldwatch.Shuffled or ResumableLoader, and track that."
)
_AHEAD = (
    "a batch was drawn before the first step was asked for: each checkpoint counts one batch that was not trained on, "
    "and a resume leaves it out. Put the steps first: for step, batch in zip(run.steps(n), run.batches(loader))."
)


@runtime_checkable
class Source(Protocol):
    """A wrapped source of batches that counts what it gave out."""

    given: int


class Forgotten:
    """Compares by identity what a run is shown with what it keeps; each thing is told once.

    Args:
        watched: the parameter groups of the run, and who owns them.
        tell: says that a subject is not kept, and why that matters.
    """

    def __init__(self, watched: ParameterGroups, tell: Callable[[str, str], None]) -> None:
        self._watched = watched
        self._tell = tell
        self._items: Mapping[str, Any] | None = None
        self._sources: list[tuple[Any, Source]] = []
        self._began = False
        self._told: set[str] = set()
        self._known: dict[int, Optimizer] = {}

    def keeps(self, items: Mapping[str, Any] | None) -> None:
        """Take note of what ``run.track`` was given."""
        self._items = items

    def draws(self, batches: Any, source: Source) -> None:
        """Take note of what ``run.batches`` was given, and of the wrapper that counts."""
        if not self._began:
            self._sources.append((batches, source))
        elif self._items is not None:
            self._judge_source(Held(self._items), batches)

    def begin(self) -> None:
        """Judge all that is known before the first step."""
        self._began = True
        take_used_orders()  # those of other trainings, and of what lies before this one
        if self._items is None:
            self._say("nothing", _NOTHING)
            return
        held = Held(self._items)
        self._judge_watched(held)
        for batches, source in self._sources:
            self._judge_source(held, batches)
            if source.given and held.object(batches):
                self._say(f"position of {_kind(batches)}", _AHEAD)
        for owner in (*self._items.values(), *self._watched.owners().values()):
            if isinstance(owner, nn.Module):
                self._judge_attributes(held, owner)

    def stepped(self, optimizers: Sequence[Optimizer]) -> None:
        """Judge optimizers that have just stepped, and in the first step the orders that were drawn from.

        Optimizers that were judged before cost nothing.
        """
        new = [one for one in optimizers if id(one) not in self._known]
        if self._items is None or not new:
            return
        held = Held(self._items)
        if not self._known and not held.orders:  # a kept order may be followed by one that reads ahead of it
            for order in take_used_orders():
                self._judge(held, order, _kind(order))
        for optimizer in new:
            self._known[id(optimizer)] = optimizer
            self._judge_optimizer(held, optimizer)

    def _judge_watched(self, held: Held) -> None:
        for name in self._watched.owners():
            parameters = self._watched.read(name)
            missing = sum(not held.tensor(parameter) for parameter in parameters)
            if missing:
                what = f"{missing} of the {len(parameters)} parameters of the watched group {name!r} are not kept"
                self._say(name, f"{what}: a resumed run goes on with other weights.")

    def _judge_optimizer(self, held: Held, optimizer: Optimizer) -> None:
        kind = _kind(optimizer)
        if not held.object(optimizer):
            what = f"the optimizer {kind} steps and is not kept"
            self._say(kind, f"{what}: a resumed run goes on without its moments, as from its first step.")
        if not held.schedules(optimizer) and _followed(optimizer):
            what = f"a scheduler sets the learning rates of {kind} and is not kept"
            self._say("LRScheduler", f"{what}: in a resumed run the schedule begins anew.")
        watched = {id(one) for name in self._watched.owners() for one in self._watched.read(name)}
        stepped = [one for group in optimizer.param_groups for one in group["params"] if id(one) not in watched]
        missing = sum(not held.tensor(one) for one in stepped)
        if missing:
            what = f"{missing} parameters that {kind} steps are not kept"
            self._say(f"parameters of {kind}", f"{what}: a resumed run goes on with other weights.")

    def _judge_source(self, held: Held, batches: Any) -> None:
        kind = _kind(batches)
        if held.object(batches) or (isinstance(batches, DataLoader) and _repeats(held, cast("Any", batches))):
            return
        if isinstance(batches, Stateful):
            self._say(kind, f"batches come from a {kind} that is not kept: a resumed run begins at its start again.")
        elif isinstance(batches, DataLoader) or type(batches).__module__.startswith("torch.utils.data"):
            self._say("DataLoader", _PLAIN_LOADER)
        elif isinstance(batches, Iterator):
            if not held.has_own:
                self._say(kind, _GENERATOR.format(kind=f"a {kind}"))
        elif isinstance(batches, Sized) and len(batches) > 1:
            self._say(kind, _FROM_THE_START.format(kind=f"a {kind}"))

    def _judge_attributes(self, held: Held, owner: nn.Module) -> None:
        """Judge what a module has beside parameters, buffers and modules: torch does not store it."""
        for part in owner.modules():
            if not stores_more(part):
                for name, thing in vars(part).items():
                    if isinstance(thing, Optimizer | GradScaler | Shuffled | ResumableLoader):
                        self._judge(held, thing, name)

    def _judge(self, held: Held, thing: Any, name: str) -> None:
        if held.object(thing) or (isinstance(thing, GradScaler) and not thing.is_enabled()):
            return
        kind = _kind(thing)
        what = name if name == kind else f"{name} ({kind})"
        self._say(name, f"{what} is used and not kept: in a resumed run it begins anew.")

    def _say(self, subject: str, reason: str) -> None:
        if subject not in self._told:
            self._told.add(subject)
            self._tell(subject, reason)


def _repeats(held: Held, loader: Any) -> bool:
    """Whether a loader without workers draws from a kept sampler, and makes its iterators without the training's draws.

    With workers the sampler is ahead of the training, and what they draw at random depends on when they run.
    """
    samplers = (loader.sampler, loader.batch_sampler)
    return loader.num_workers == 0 and loader.generator is not None and any(map(held.object, samplers))


def _followed(optimizer: Optimizer) -> bool:
    """Whether a scheduler sets the rates of an optimizer: torch marks its step for most, and for none is it told."""
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        return True
    for holder in gc.get_referrers(optimizer):  # tens of milliseconds, once per optimizer
        if isinstance(holder, LRScheduler):
            return True
        attributes = cast("dict[Any, Any]", holder if isinstance(holder, dict) else {})
        if attributes.get("optimizer") is optimizer and "last_epoch" in attributes:
            return True
    return False


def _kind(thing: object) -> str:
    return type(thing).__qualname__
