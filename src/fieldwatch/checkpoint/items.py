"""What a run keeps: taken as trees of values, put back in place."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.checkpoint.incident import CheckpointError


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

_LOAD_ERRORS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError)
_ELEMENTWISE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "exp_inf")


def gather(items: Mapping[str, Item]) -> dict[str, Any]:
    """Take the state of every item.

    Raises:
        CheckpointError: an item is none of the three kinds, or a mapping holds something else than tensors.
    """
    return {name: _state(item, f"items[{name!r}]") for name, item in items.items()}


def put_back(items: Mapping[str, Item], trees: Mapping[str, Any]) -> None:
    """Copy stored state into the items: tensors in place, everything else by ``load_state_dict``.

    Names, and the keys, shapes and dtypes of plain tensors, are checked before any item is touched.

    Raises:
        CheckpointError: names, keys, shapes or dtypes differ; or an item refuses its state.
    """
    _check_names(items, trees)
    plain = {name: item for name, item in items.items() if not isinstance(item, Stateful)}
    pairs = [pair for name, item in plain.items() for pair in _matched(item, trees[name], f"items[{name!r}]")]
    with torch.no_grad():
        for target, stored in pairs:
            target.copy_(stored)
    stateful = {name: item for name, item in items.items() if isinstance(item, Stateful)}
    for name, item in stateful.items():
        _load(item, trees[name], f"items[{name!r}]")
    for name, item in stateful.items():
        if isinstance(item, Optimizer):
            _check_moments(item, f"items[{name!r}]")


def _state(item: object, path: str) -> Any:
    if isinstance(item, Stateful):
        return item.state_dict()
    if isinstance(item, Mapping):
        return {key: _state(value, f"{path}[{key!r}]") for key, value in cast("Mapping[str, object]", item).items()}
    if isinstance(item, Tensor):
        return item
    wanted = "an object with state_dict() and load_state_dict(), a mapping of tensors, or a tensor"
    raise CheckpointError(
        f"{path} is a {type(item).__qualname__}, wanted is {wanted}: only these can be put back in place"
    )


def _check_names(items: Mapping[str, Item], trees: Mapping[str, Any]) -> None:
    missing, unexpected = sorted(items.keys() - trees.keys()), sorted(trees.keys() - items.keys())
    if missing or unexpected:
        differing = f"it lacks {missing or 'none'} and has {unexpected or 'none'} beyond them"
        advice = "keep the same names as the run that wrote it, or take single items from read()"
        raise CheckpointError(f"the checkpoint's items differ from the run's: {differing}; {advice}")


def _matched(item: Any, stored: Any, path: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (target, stored) for every tensor of a plain item."""
    if isinstance(item, Tensor):
        _check_tensor(item, stored, path)
        yield item, stored
        return
    if not isinstance(stored, dict) or stored.keys() != item.keys():
        keys = sorted(cast("dict[str, Any]", stored)) if isinstance(stored, dict) else type(stored).__qualname__
        raise CheckpointError(f"{path} has the keys {sorted(item)}, the checkpoint has {keys}: they must be the same")
    for key, value in item.items():
        yield from _matched(value, stored[key], f"{path}[{key!r}]")


def _check_tensor(target: Tensor, stored: Any, path: str) -> None:
    if not isinstance(stored, Tensor):
        raise CheckpointError(f"{path} is a tensor, the checkpoint has a {type(stored).__qualname__} there")
    if target.shape != stored.shape:
        shapes = f"{tuple(target.shape)} in the run and {tuple(stored.shape)} in the checkpoint"
        raise CheckpointError(f"{path} has shape {shapes}: build it with the stored shape before restoring")
    if target.dtype != stored.dtype:
        raise CheckpointError(
            f"{path} is {target.dtype} in the run and {stored.dtype} in the checkpoint: make them the same"
        )


def _load(item: Stateful, tree: Any, path: str) -> None:
    try:
        item.load_state_dict(tree)
    except _LOAD_ERRORS as error:
        found = "; ".join(_shape_differences(item.state_dict(), tree, path)) or f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path} ({type(item).__qualname__}) does not take its stored state: {found}") from error


def _shape_differences(own: Any, stored: Any, path: str) -> Iterator[str]:
    """Name every tensor whose shape differs."""
    if isinstance(own, Tensor) and isinstance(stored, Tensor) and own.shape != stored.shape:
        yield f"{path} has shape {tuple(own.shape)} in the run and {tuple(stored.shape)} in the checkpoint"
    if isinstance(own, Mapping) and isinstance(stored, Mapping):
        theirs = cast("Mapping[object, object]", stored)
        for key, value in cast("Mapping[object, object]", own).items():
            yield from _shape_differences(value, theirs.get(key), f"{path}[{key!r}]")


def _check_moments(optimizer: Optimizer, path: str) -> None:
    """Compare the moments' shapes with the parameters', which torch itself does not."""
    for g, group in enumerate(optimizer.param_groups):
        for p, parameter in enumerate(group["params"]):
            state = optimizer.state.get(parameter, {})
            for key in _ELEMENTWISE:
                moment = state.get(key)
                if isinstance(moment, Tensor) and moment.shape != parameter.shape:
                    shapes = (
                        f"{tuple(moment.shape)} in the checkpoint, its parameter {tuple(parameter.shape)} in the run"
                    )
                    where = f"{path} {key!r} of group {g}, parameter {p}"
                    raise CheckpointError(f"{where} has shape {shapes}: restore the parameters' count first")
