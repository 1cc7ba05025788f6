"""Items of a checkpoint: their state is collected as trees of values and restored in place."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch.checkpoint.devices import placed
from fieldwatch.checkpoint.incident import CheckpointError, StoredStateError
from fieldwatch.checkpoint.optimizers import check_moments, fitted


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be saved and restored: modules, optimizers, schedulers, samplers, scalers."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the complete state as a tree of tensors and plain values."""
        ...

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Restore a state that ``state_dict`` returned."""
        ...


Item = Stateful | Mapping[str, Any] | Tensor


def gather(items: Mapping[str, Item]) -> dict[str, Any]:
    """Return the state of every item.

    Raises:
        CheckpointError: if an item, or a member of a mapping, is of an unsupported type.
    """
    return {name: _state(item, f"items[{name!r}]") for name, item in items.items()}


def put_back(items: Mapping[str, Item], trees: Mapping[str, Any]) -> None:
    """Restore stored state into the items: tensors in place, everything else with ``load_state_dict``.

    Names, and the keys, shapes and dtypes of plain tensors, are checked before any item is changed. Tensors are moved
    to the device of the ones they replace, see :func:`~fieldwatch.checkpoint.devices.placed`. The state of an optimizer
    is adapted to the settings of the run's optimizer, see :func:`~fieldwatch.checkpoint.optimizers.fitted`.

    Raises:
        CheckpointError: if names, keys, shapes or dtypes differ, or an item refuses its state.
    """
    _check_names(items, trees)
    leaves = [leaf for name, item in items.items() for leaf in _leaves(item, trees[name], f"items[{name!r}]")]
    # Parameters that require gradients cannot be changed in place otherwise.
    with torch.no_grad():
        for item, stored, _ in leaves:
            if not isinstance(item, Stateful):
                item.copy_(stored)
    # Objects come after plain tensors, because an optimizer may read parameters that were just copied.
    for item, stored, path in leaves:
        if isinstance(item, Stateful):
            _load(item, stored, path)
    for item, _, path in leaves:
        if isinstance(item, Optimizer):
            check_moments(item, path)


def _state(item: object, path: str) -> Any:
    if isinstance(item, Stateful):
        return item.state_dict()
    if isinstance(item, Mapping):
        return {key: _state(value, f"{path}[{key!r}]") for key, value in cast("Mapping[str, object]", item).items()}
    if isinstance(item, Tensor):
        return item
    raise _unsupported_item(item, path)


def _unsupported_item(item: object, path: str) -> CheckpointError:
    expected = "an object with state_dict() and load_state_dict(), a mapping of such objects or tensors, or a tensor"
    return CheckpointError(
        f"{path} is a {type(item).__qualname__}, expected {expected}: only these can be restored in place"
    )


def _check_names(items: Mapping[str, Item], trees: Mapping[str, Any]) -> None:
    missing = sorted(items.keys() - trees.keys())
    unexpected = sorted(trees.keys() - items.keys())
    if missing or unexpected:
        differing = f"it lacks {missing or 'none'} and has {unexpected or 'none'} in addition"
        advice = "use the same names as the run that wrote it, or load single items with read()"
        raise StoredStateError(f"the checkpoint's items differ from the run's: {differing}; {advice}")


def _leaves(item: Any, stored: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield every tensor and every stateful object, with its stored state and its path."""
    if isinstance(item, Stateful):
        yield item, stored, path
    elif isinstance(item, Tensor):
        _check_tensor(item, stored, path)
        yield item, stored, path
    elif not isinstance(item, Mapping):
        raise _unsupported_item(item, path)
    elif not isinstance(stored, dict) or stored.keys() != item.keys():
        keys = sorted(cast("dict[str, Any]", stored)) if isinstance(stored, dict) else type(stored).__qualname__
        current = list(cast("Mapping[Any, Any]", item))
        raise StoredStateError(
            f"{path} has the keys {sorted(current)}, the checkpoint has {keys}: they must be the same"
        )
    else:
        for key, value in cast("Mapping[Any, Any]", item).items():
            yield from _leaves(value, stored[key], f"{path}[{key!r}]")


def _check_tensor(target: Tensor, stored: Any, path: str) -> None:
    if not isinstance(stored, Tensor):
        raise StoredStateError(f"{path} is a tensor in the run and a {type(stored).__qualname__} in the checkpoint")
    if target.shape != stored.shape:
        shapes = f"{tuple(target.shape)} in the run and {tuple(stored.shape)} in the checkpoint"
        raise StoredStateError(f"{path} has shape {shapes}: create it with the stored shape before restoring")
    if target.dtype != stored.dtype:
        raise StoredStateError(
            f"{path} is {target.dtype} in the run and {stored.dtype} in the checkpoint: the dtypes must be the same"
        )


def _load(item: Stateful, tree: Any, path: str) -> None:
    # Before the try block: its errors already say what differs.
    state = fitted(item, tree, path) if isinstance(item, Optimizer) else tree
    try:
        item.load_state_dict(placed(state, item))
    except Exception as error:  # user code: an object's load_state_dict may raise anything
        name = f"{path} ({type(item).__qualname__})"
        # If shapes or names differ, the stored state does not fit; otherwise the object's code failed.
        if differences := "; ".join(_differences(item, tree, path)):
            raise StoredStateError(f"{name} cannot load its stored state: {differences}") from error
        raise CheckpointError(
            f"{name} cannot load its stored state: its load_state_dict raised {type(error).__name__}: {error}"
        ) from error


def stored_item(items: Mapping[str, Any], name: str) -> Any:
    """Return the stored item with a name.

    Raises:
        StoredStateError: if there is no such item; the message lists the available ones.
    """
    if name not in items:
        raise StoredStateError(f"the checkpoint has no {name!r}, only {', '.join(sorted(items)) or 'nothing'}")
    return items[name]


def load_item(item: Stateful, items: Mapping[str, Any], name: str) -> None:
    """Load the stored item with a name into an object.

    Raises:
        StoredStateError: if there is no such item, or its names or shapes differ from the object's.
        CheckpointError: if the object's load_state_dict raised another error.
    """
    _load(item, stored_item(items, name), name)


def _differences(item: Stateful, tree: Any, path: str) -> Iterator[str]:
    """Describe the differences between an object's state and a stored one: tensor shapes and names of a module."""
    current = item.state_dict()
    yield from _shape_differences(current, tree, path)
    if isinstance(item, nn.Module) and isinstance(tree, Mapping):
        names = set(cast("Mapping[str, object]", tree))
        if missing := sorted(set(current) - names):
            yield f"the checkpoint lacks {', '.join(missing)}"
        if unexpected := sorted(names - set(current)):
            yield f"the checkpoint has {', '.join(unexpected)}, but the run does not"


def _shape_differences(current: Any, stored: Any, path: str) -> Iterator[str]:
    """Describe every tensor whose shape differs."""
    if isinstance(current, Tensor) and isinstance(stored, Tensor) and current.shape != stored.shape:
        yield f"{path} has shape {tuple(current.shape)} in the run and {tuple(stored.shape)} in the checkpoint"
    if isinstance(current, Mapping) and isinstance(stored, Mapping):
        theirs = cast("Mapping[object, object]", stored)
        for key, value in cast("Mapping[object, object]", current).items():
            yield from _shape_differences(value, theirs.get(key), f"{path}[{key!r}]")
