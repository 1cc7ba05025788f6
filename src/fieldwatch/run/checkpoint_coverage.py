"""Warnings about training state that no checkpoint contains, before or during the first step."""

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
from fieldwatch.run.checkpoint_contents import CheckpointContents, stores_more

_NOTHING = (
    "nothing is tracked, so no checkpoint will be written, and the whole run is lost if this process ends early. "
    "Call run.track(model=model, optimizer=optimizer) before the loop."
)
_PLAIN_LOADER = (
    "torch's DataLoader has no position that a checkpoint could store: a resumed run starts at its first batch, in a "
    "different order, with different random numbers. Use fieldwatch.ResumableLoader with the same data, and track it."
)
_FROM_THE_START = "{kind} has no position that a checkpoint could store: a resumed run starts at its first batch again."
_GENERATOR = (
    "batches come from {kind}, and no tracked object stores a position in the data: a resumed run starts at its first "
    "batch again. Draw from a fieldwatch.Shuffled or ResumableLoader, and track it."
)
_AHEAD = (
    "a batch was drawn before the first step began: each checkpoint counts one batch that was not trained on, and a "
    "resumed run skips it. Put the steps first: for step, batch in zip(run.steps(n), run.batches(loader))."
)


@runtime_checkable
class CountingSource(Protocol):
    """A wrapped source of batches that counts the items it has yielded."""

    yielded: int


class CheckpointCoverage:
    """Compares the objects that a run uses with the content of its checkpoints, and warns once about each missing one.

    Args:
        watched: parameter groups of the run, and their owners.
        warn: function that is called with the name of a missing object, and a message.
    """

    def __init__(self, watched: ParameterGroups, warn: Callable[[str, str], None]) -> None:
        self._watched = watched
        self._warn = warn
        self._items: Mapping[str, Any] | None = None
        self._sources: list[tuple[Any, CountingSource]] = []
        self._began = False
        self._warned: set[str] = set()
        # Keeps the optimizers alive, so that no other object gets the id of one that was checked.
        self._checked: dict[int, Optimizer] = {}
        self._latest: Sequence[Optimizer] = ()
        self._checked_scalers: dict[int, GradScaler] = {}

    def set_items(self, items: Mapping[str, Any] | None) -> None:
        """Set the items passed to ``run.track``; None if there are none."""
        self._items = items

    def add_source(self, batches: Any, source: CountingSource) -> None:
        """Add a source passed to ``run.batches``, and its counting wrapper."""
        if not self._began:
            self._sources.append((batches, source))
        elif self._items is not None:
            self._check_source(CheckpointContents(self._items), batches)

    def check_at_start(self) -> None:
        """Check everything that is known before the first step."""
        self._began = True
        # Discard the orders that were used by other trainings in this process, or before this one.
        take_used_orders()
        if self._items is None:
            self._warn_once("nothing", _NOTHING)
            return
        contents = CheckpointContents(self._items)
        self._check_watched(contents)
        for batches, source in self._sources:
            self._check_source(contents, batches)
            if source.yielded and contents.has_object(batches):
                self._warn_once(f"position of {_type_name(batches)}", _AHEAD)
        for owner in (*self._items.values(), *self._watched.owners().values()):
            if isinstance(owner, nn.Module):
                self._check_attributes(contents, owner)

    def check_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Check optimizers that have just stepped, and at the first step the data orders that were used.

        Each optimizer is checked only once.
        """
        if optimizers == self._latest or self._items is None:
            return
        self._latest = tuple(optimizers)
        new = [optimizer for optimizer in optimizers if id(optimizer) not in self._checked]
        if not new:
            return
        contents = CheckpointContents(self._items)
        # A tracked order may feed another one that reads ahead of it, so warn only if none is tracked.
        if not self._checked and not contents.orders:
            for order in take_used_orders():
                self._check(contents, order, _type_name(order))
        for optimizer in new:
            self._checked[id(optimizer)] = optimizer
            self._check_optimizer(contents, optimizer)

    def check_scaler(self, scaler: GradScaler) -> None:
        """Check the scaler of an update; it is checked only once."""
        if self._items is not None and id(scaler) not in self._checked_scalers:
            self._checked_scalers[id(scaler)] = scaler
            self._check(CheckpointContents(self._items), scaler, _type_name(scaler))

    def _check_watched(self, contents: CheckpointContents) -> None:
        for name in self._watched.owners():
            parameters = self._watched.read(name)
            missing = sum(not contents.has_tensor(parameter) for parameter in parameters)
            if missing:
                what = f"{missing} of the {len(parameters)} parameters of the watched group {name!r} are not tracked"
                self._warn_once(name, f"{what}: a resumed run continues with different weights.")

    def _check_optimizer(self, contents: CheckpointContents, optimizer: Optimizer) -> None:
        kind = _type_name(optimizer)
        if not contents.has_object(optimizer):
            what = f"the optimizer {kind} is used but not tracked"
            self._warn_once(kind, f"{what}: a resumed run continues without its moments, as if from its first step.")
        if not contents.has_scheduler_of(optimizer) and _has_scheduler(optimizer):
            what = f"a scheduler sets the learning rates of {kind}, but is not tracked"
            self._warn_once("LRScheduler", f"{what}: in a resumed run the schedule starts again.")
        watched = {id(parameter) for name in self._watched.owners() for parameter in self._watched.read(name)}
        unwatched = (p for group in optimizer.param_groups for p in group["params"] if id(p) not in watched)
        # Watched parameters were checked before the first step.
        missing = sum(not contents.has_tensor(parameter) for parameter in unwatched)
        if missing:
            what = f"{missing} parameters that {kind} updates are not tracked"
            self._warn_once(f"parameters of {kind}", f"{what}: a resumed run continues with different weights.")

    def _check_source(self, contents: CheckpointContents, batches: Any) -> None:
        kind = _type_name(batches)
        if contents.has_object(batches):
            return
        if isinstance(batches, DataLoader) and _is_repeatable(contents, cast("Any", batches)):
            return
        if isinstance(batches, Stateful):
            reason = f"batches come from a {kind} that is not tracked: a resumed run starts at its beginning again."
            self._warn_once(kind, reason)
        elif isinstance(batches, DataLoader) or type(batches).__module__.startswith("torch.utils.data"):
            self._warn_once("DataLoader", _PLAIN_LOADER)
        # A generator may draw from anything, so warn only if no tracked object could store its position.
        elif isinstance(batches, Iterator):
            if not contents.has_custom_state:
                self._warn_once(kind, _GENERATOR.format(kind=f"a {kind}"))
        # A source with a single item yields the same data at every step, so it needs no position.
        elif isinstance(batches, Sized) and len(batches) > 1:
            self._warn_once(kind, _FROM_THE_START.format(kind=f"a {kind}"))

    def _check_attributes(self, contents: CheckpointContents, owner: nn.Module) -> None:
        """Check the other attributes of a module than parameters, buffers and modules, which torch does not store."""
        for part in owner.modules():
            # A module with a custom state may store these attributes in it.
            if not stores_more(part):
                for name, item in vars(part).items():
                    if isinstance(item, Optimizer | GradScaler | Shuffled | ResumableLoader):
                        self._check(contents, item, name)

    def _check(self, contents: CheckpointContents, item: Any, name: str) -> None:
        if contents.has_object(item) or (isinstance(item, GradScaler) and not item.is_enabled()):
            return
        kind = _type_name(item)
        what = name if name == kind else f"{name} ({kind})"
        self._warn_once(name, f"{what} is used but not tracked: in a resumed run it starts again.")

    def _warn_once(self, subject: str, reason: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            self._warn(subject, reason)


def _is_repeatable(contents: CheckpointContents, loader: Any) -> bool:
    """Return whether a resumed loader yields the same batches.

    It must have no workers, a tracked sampler, and a generator, so that creating its iterators does not advance the
    global random state. With workers the sampler runs ahead of the training, and their random draws depend on timing.
    """
    samplers = (loader.sampler, loader.batch_sampler)
    return loader.num_workers == 0 and loader.generator is not None and any(map(contents.has_object, samplers))


def _has_scheduler(optimizer: Optimizer) -> bool:
    """Return whether a scheduler sets the learning rates of an optimizer.

    Most schedulers mark the optimizer's ``step``; any other is found among the referrers of the optimizer.
    """
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        return True
    # This takes tens of milliseconds, but only once per optimizer.
    for holder in gc.get_referrers(optimizer):
        if isinstance(holder, LRScheduler):
            return True
        attributes = cast("dict[Any, Any]", holder if isinstance(holder, dict) else {})
        if attributes.get("optimizer") is optimizer and "last_epoch" in attributes:
            return True
    return False


def _type_name(item: object) -> str:
    return type(item).__qualname__
