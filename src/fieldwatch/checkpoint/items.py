"""What a run keeps: taken as trees of values, put back in place."""

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
    """Anything that hands out its state and takes it back: modules, optimizers, schedulers, samplers, scalers."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the whole state as a tree of tensors and plain values."""
        ...

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take a state that ``state_dict`` returned."""
        ...


Item = Stateful | Mapping[str, Any] | Tensor


def gather(items: Mapping[str, Item]) -> dict[str, Any]:
    """Take the state of every item.

    Raises:
        CheckpointError: an item is none of the three kinds, or a mapping holds something else than tensors.
    """
    return {name: _state(item, f"items[{name!r}]") for name, item in items.items()}


def put_back(items: Mapping[str, Item], trees: Mapping[str, Any]) -> None:
    """Copy stored state into the items: tensors in place, everything else by ``load_state_dict``.

    Names, and the keys, shapes and dtypes of plain tensors, are checked before any item is touched. What an item is
    given lies on the device of what it replaces, see :func:`~fieldwatch.checkpoint.devices.placed`; the state of an
    optimizer is fitted to the settings of the run's, see :func:`~fieldwatch.checkpoint.optimizers.fitted`.

    Raises:
        CheckpointError: names, keys, shapes or dtypes differ; or an item refuses its state.
    """
    _check_names(items, trees)
    found = [leaf for name, item in items.items() for leaf in _leaves(item, trees[name], f"items[{name!r}]")]
    with torch.no_grad():
        for item, stored, _ in found:
            if not isinstance(item, Stateful):
                item.copy_(stored)
    # Objects after plain tensors: an optimizer may look at parameters that were just copied.
    for item, stored, path in found:
        if isinstance(item, Stateful):
            _load(item, stored, path)
    for item, _, path in found:
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
        f"{path} is a {type(item).__qualname__}, expected {expected}: only these can be put back in place"
    )


def _check_names(items: Mapping[str, Item], trees: Mapping[str, Any]) -> None:
    missing = sorted(items.keys() - trees.keys())
    unexpected = sorted(trees.keys() - items.keys())
    if missing or unexpected:
        differing = f"it lacks {missing or 'none'} and has {unexpected or 'none'} beyond them"
        advice = "keep the same names as the run that wrote it, or take single items from read()"
        raise StoredStateError(f"the checkpoint's items differ from the run's: {differing}; {advice}")


def _leaves(item: Any, stored: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield every tensor and every object with a state, with what is stored of it and its path."""
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
        raise StoredStateError(f"{path} is a tensor, the checkpoint has a {type(stored).__qualname__} there")
    if target.shape != stored.shape:
        shapes = f"{tuple(target.shape)} in the run and {tuple(stored.shape)} in the checkpoint"
        raise StoredStateError(f"{path} has shape {shapes}: build it with the stored shape before restoring")
    if target.dtype != stored.dtype:
        raise StoredStateError(
            f"{path} is {target.dtype} in the run and {stored.dtype} in the checkpoint: make them the same"
        )


def _load(item: Stateful, tree: Any, path: str) -> None:
    state = fitted(item, tree, path) if isinstance(item, Optimizer) else tree
    try:
        item.load_state_dict(placed(state, item))
    except Exception as error:  # code of strangers: the object's own load_state_dict may raise anything
        name = f"{path} ({type(item).__qualname__})"
        # If shapes or names differ the stored state does not fit; otherwise the object's own code failed.
        if found := "; ".join(_differences(item, tree, path)):
            raise StoredStateError(f"{name} does not take its stored state: {found}") from error
        raise CheckpointError(
            f"{name} does not take its stored state: its load_state_dict raised {type(error).__name__}: {error}"
        ) from error


def stored_item(items: Mapping[str, Any], name: str) -> Any:
    """Return what a checkpoint's items hold under a name.

    Raises:
        StoredStateError: they hold nothing of that name; the message lists what they hold.
    """
    if name not in items:
        raise StoredStateError(f"the checkpoint holds no {name!r}, only {', '.join(sorted(items)) or 'nothing'}")
    return items[name]


def load_item(item: Stateful, items: Mapping[str, Any], name: str) -> None:
    """Load what a checkpoint's items hold under a name into an object.

    Raises:
        StoredStateError: there is no such part, or its names or shapes are not the object's.
        CheckpointError: the object's load_state_dict raised something else.
    """
    _load(item, stored_item(items, name), name)


def _differences(item: Stateful, tree: Any, path: str) -> Iterator[str]:
    """Name what differs between an object's state and a stored one: tensors' shapes, and a module's names."""
    current = item.state_dict()
    yield from _shape_differences(current, tree, path)
    if isinstance(item, nn.Module) and isinstance(tree, Mapping):
        names = set(cast("Mapping[str, object]", tree))
        if missing := sorted(set(current) - names):
            yield f"the checkpoint lacks {', '.join(missing)}"
        if unexpected := sorted(names - set(current)):
            yield f"the checkpoint has {', '.join(unexpected)}, and the run has not"


def _shape_differences(current: Any, stored: Any, path: str) -> Iterator[str]:
    """Name every tensor whose shape differs."""
    if isinstance(current, Tensor) and isinstance(stored, Tensor) and current.shape != stored.shape:
        yield f"{path} has shape {tuple(current.shape)} in the run and {tuple(stored.shape)} in the checkpoint"
    if isinstance(current, Mapping) and isinstance(stored, Mapping):
        theirs = cast("Mapping[object, object]", stored)
        for key, value in cast("Mapping[object, object]", current).items():
            yield from _shape_differences(value, theirs.get(key), f"{path}[{key!r}]")
