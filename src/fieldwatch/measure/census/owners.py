"""Asks every owner what it holds at this moment, so that replaced parameters and fresh gradients are seen at once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch.measure.census.find_tensors import find_tensors
from fieldwatch.measure.census.ledger import ClaimLedger
from fieldwatch.measure.parameter_groups import OTHER, Owner, ParameterGroups

STALE = "stale"
"""The component of what an optimizer still keeps for parameters that nobody uses any more."""


class _NamedTensor(NamedTuple):
    """Where a parameter stands: its group and its name inside the group."""

    component: str
    name: str
    parameter: Tensor


def note_owners(ledger: ClaimLedger, watched: ParameterGroups, optimizers: Sequence[Optimizer]) -> None:
    """Claim parameters, then gradients, optimizer state and buffers, in this order."""
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
    """Every parameter, by its id, and every buffer, each with its place."""
    parameters: dict[int, _NamedTensor] = {}
    buffers: list[_NamedTensor] = []
    for component, owner in watched.owners().items():
        for name, tensor, is_parameter in _tensors_of(owner):
            if is_parameter:
                parameters.setdefault(id(tensor), _NamedTensor(component, name, tensor))
            else:
                buffers.append(_NamedTensor(component, name, tensor))
    for optimizer in optimizers:
        for name, tensor in _stepped(optimizer):
            parameters.setdefault(id(tensor), _NamedTensor(OTHER, name, tensor))
    return parameters, buffers


def _tensors_of(owner: Owner) -> Iterable[tuple[str, Tensor, bool]]:
    """Name, tensor, and whether it is a parameter, for all that a watched object holds itself."""
    if isinstance(owner, nn.Module):
        return _tensors_of_module(owner)
    items = owner.items() if isinstance(owner, Mapping) else enumerate(owner)
    return [(str(key), value, value.requires_grad or isinstance(value, nn.Parameter)) for key, value in items]


def _tensors_of_module(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Parameters, trained or not; buffers; and tensors that are kept as plain attributes (caches)."""
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
        # Tensors set as plain attributes are in neither dict: caches and lookup tables.
        for name, value in attributes.items():
            if isinstance(value, Tensor):
                yield prefix + name, value, False


def _stepped(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The parameters an optimizer steps, by the names its groups carry (as in 3DGS) or by number."""
    for number, group in enumerate(optimizer.param_groups):
        label = str(group.get("name", number))
        # ``param_names`` is set where an optimizer was given named parameters (torch 2.6 and later).
        names: Sequence[str] = group.get("param_names", ())
        for i, parameter in enumerate(group["params"]):
            yield names[i] if i < len(names) else f"{label}.{i}", parameter


def _gradient(parameter: Tensor) -> Tensor | None:
    """The gradient, without torch's warning about those that have none."""
    # Reading ``.grad`` of other tensors makes torch warn.
    return parameter.grad if parameter.is_leaf or parameter.retains_grad else None


def _note_state(ledger: ClaimLedger, optimizer: Optimizer, parameters: Mapping[int, _NamedTensor]) -> None:
    states = cast("Mapping[Any, Mapping[str, Any]]", optimizer.state)
    for key, state in states.items():
        if not isinstance(key, Tensor):  # a few optimizers keep state of their own
            _note_values(ledger, {str(key): state}, OTHER, "")
            continue
        known = parameters.get(id(key))
        if known is not None:
            _note_values(ledger, state, known.component, known.name)
            continue
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
            for path, found in find_tensors(value):  # pyright: ignore[reportUnknownArgumentType]  of anything
                if isinstance(found, Tensor):
                    ledger.note(found, "optimizer", component, f"{full}.{path}")
