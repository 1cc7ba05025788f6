"""Collect the current tensors of every owner, so that replaced parameters and new gradients are always included."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch.measure.census.find_tensors import find_tensors
from fieldwatch.measure.census.ledger import ClaimLedger
from fieldwatch.measure.parameter_groups import OTHER, Owner, ParameterGroups

STALE = "stale"
"""Component of optimizer state that belongs to parameters no longer in use."""


class _NamedTensor(NamedTuple):
    """A tensor with its group and its name within the group."""

    component: str
    name: str
    parameter: Tensor


def note_owners(ledger: ClaimLedger, watched: ParameterGroups, optimizers: Sequence[Optimizer]) -> None:
    """Claim parameters, then gradients, optimizer state and buffers, in this order."""
    # The order of the loops below is the order of precedence of the claims.
    parameters, buffers = _find_tensors(watched, optimizers)
    for component, name, parameter in parameters.values():
        ledger.note(parameter, "parameters", component, name)
    for component, name, parameter in parameters.values():
        gradient = _gradient(parameter)
        if gradient is not None:
            ledger.note(gradient, "gradients", component, name)
    for optimizer in optimizers:
        _note_state(ledger, optimizer, parameters)
    for component, name, tensor in buffers:
        ledger.note(tensor, "buffers", component, name)


def _find_tensors(
    watched: ParameterGroups, optimizers: Sequence[Optimizer]
) -> tuple[dict[int, _NamedTensor], list[_NamedTensor]]:
    """Return all parameters by id, and all buffers."""
    parameters: dict[int, _NamedTensor] = {}
    buffers: list[_NamedTensor] = []
    for component, owner in watched.owners().items():
        for name, tensor, is_parameter in _tensors_of(owner):
            if is_parameter:
                parameters.setdefault(id(tensor), _NamedTensor(component, name, tensor))
            else:
                buffers.append(_NamedTensor(component, name, tensor))
    # Watched groups come first, so that `setdefault` keeps their names for parameters that an optimizer also holds.
    for optimizer in optimizers:
        for name, tensor in _stepped(optimizer):
            parameters.setdefault(id(tensor), _NamedTensor(OTHER, name, tensor))
    return parameters, buffers


def _tensors_of(owner: Owner) -> Iterable[tuple[str, Tensor, bool]]:
    """Yield name, tensor and whether it is a parameter for all tensors of a watched object."""
    if isinstance(owner, nn.Module):
        return _tensors_of_module(owner)
    items = owner.items() if isinstance(owner, Mapping) else enumerate(owner)
    return [(str(key), value, value.requires_grad or isinstance(value, nn.Parameter)) for key, value in items]


def _tensors_of_module(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield parameters (trained or frozen), buffers, and tensors that are plain attributes (caches)."""
    named: Any = module.named_modules
    submodules: Iterator[tuple[str, nn.Module]] = named()
    for path, part in submodules:
        prefix = f"{path}." if path else ""
        attributes = vars(part)
        for name, tensor in attributes["_parameters"].items():
            if tensor is not None:
                yield prefix + name, tensor, True
        for name, tensor in attributes["_buffers"].items():
            if tensor is not None:
                yield prefix + name, tensor, False
        # Tensors that are plain attributes, such as caches and lookup tables, are in neither dict.
        for name, value in attributes.items():
            if isinstance(value, Tensor):
                yield prefix + name, value, False


def _stepped(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of an optimizer with their names, derived from group names (as in 3DGS) or numbers."""
    for number, group in enumerate(optimizer.param_groups):
        label = str(group.get("name", number))
        # ``param_names`` exists if the optimizer was created with named parameters (torch 2.6 and later).
        names: Sequence[str] = group.get("param_names", ())
        for i, parameter in enumerate(group["params"]):
            yield names[i] if i < len(names) else f"{label}.{i}", parameter


def _gradient(parameter: Tensor) -> Tensor | None:
    """Return the gradient of a tensor, or None."""
    # torch warns when ``.grad`` of any other tensor is read.
    return parameter.grad if parameter.is_leaf or parameter.retains_grad else None


def _note_state(ledger: ClaimLedger, optimizer: Optimizer, parameters: Mapping[int, _NamedTensor]) -> None:
    states = cast("Mapping[Any, Mapping[str, Any]]", optimizer.state)
    for key, state in states.items():
        if not isinstance(key, Tensor):  # some optimizers keep global state under other keys
            _note_values(ledger, {str(key): state}, OTHER, "")
            continue
        known = parameters.get(id(key))
        if known is not None:
            _note_values(ledger, state, known.component, known.name)
            continue
        # State under a tensor that no group contains belongs to a replaced parameter and is kept needlessly.
        part = f"replaced parameter {tuple(key.shape)}"
        ledger.note(key, "optimizer", STALE, part)
        gradient = _gradient(key)
        if gradient is not None:
            ledger.note(gradient, "optimizer", STALE, f"{part}.grad")
        _note_values(ledger, state, STALE, part)
    for number, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if isinstance(value, Tensor):  # a learning rate kept on the device
                ledger.note(value, "optimizer", OTHER, f"{number}.{name}")


def _note_values(ledger: ClaimLedger, state: Mapping[str, Any], component: str, part: str) -> None:
    for name, value in state.items():
        full = f"{part}.{name}" if part else name
        if isinstance(value, Tensor):
            ledger.note(value, "optimizer", component, full)
        elif isinstance(value, (list, tuple, dict)):  # L-BFGS keeps a history
            for path, tensor in find_tensors(value):  # pyright: ignore[reportUnknownArgumentType]  of anything
                if isinstance(tensor, Tensor):
                    ledger.note(tensor, "optimizer", component, f"{full}.{path}")
