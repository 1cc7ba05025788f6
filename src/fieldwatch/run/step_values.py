"""Recorded values, sorted by where they are."""

from collections.abc import Mapping

from torch import Tensor


def sort_by_device(
    values: Mapping[str, float | Tensor], device_values: dict[str, Tensor], host_values: dict[str, float]
) -> None:
    """Add detached tensors to ``device_values`` and numbers to ``host_values``.

    Raises:
        ValueError: a tensor is not a scalar.
    """
    for name, value in values.items():
        if not isinstance(value, Tensor):
            host_values[name] = value
        elif value.ndim:
            raise ValueError(f"metric {name!r} must be a scalar, got shape {tuple(value.shape)}: reduce it first")
        else:  # checking requires_grad is ten times as fast as detach()
            device_values[name] = value.detach() if value.requires_grad else value
