"""Parameter statistics and relative update sizes, computed every N steps."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.measure.norms import norm
from fieldwatch.measure.parameter_groups import ParameterGroups
from fieldwatch.record import tags


def parameter_statistics(watched: ParameterGroups, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Compute mean and sample standard deviation (n - 1 in the denominator) over all entries of each watched group.

    Args:
        watched: parameter groups.
        names: names of the groups to measure; None for all.

    Returns:
        ``Parameters/<group>_mean`` and ``Parameters/<group>_std``, as device scalars.
    """
    statistics: dict[str, Tensor] = {}
    with torch.no_grad():
        for name in watched.names() if names is None else names:
            # Two passes over the data (mean first) avoid the cancellation of E[x^2] - E[x]^2.
            entries = _joined(watched.read(name)).float()
            mean = entries.mean()
            std = norm(entries - mean) / math.sqrt(max(entries.numel() - 1, 1))  # on a CPU 30 times as fast as std_mean
            statistics[tags.PARAMETER_MEAN.tag(name)] = mean
            statistics[tags.PARAMETER_STD.tag(name)] = std
    return statistics


class UpdateSizes:
    """Relative size of one update per parameter group: ``|after - before| / |before|``.

    Create it before the update, since it copies the parameters, and call :meth:`ratios` after the update.

    Args:
        watched: parameter groups.
        names: names of the groups to measure; None for all.
    """

    def __init__(self, watched: ParameterGroups, names: Sequence[str] | None = None) -> None:
        self._watched = watched
        self._before: dict[str, tuple[list[torch.Size], Tensor]] = {}
        with torch.no_grad():
            for name in watched.names() if names is None else names:
                parameters = watched.read(name)
                self._before[name] = [p.shape for p in parameters], _flat(parameters)

    def ratios(self) -> dict[str, Tensor]:
        """Return ``Gradients/update_ratio_<group>`` as device scalars; groups whose shapes have changed are absent.

        Call it only once: it overwrites the copy of the parameters.
        """
        ratios: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, (shapes, before) in self._before.items():
                parameters = self._watched.read(name)
                # Densification changes the number of rows: then no entry-wise difference exists.
                if [p.shape for p in parameters] == shapes:
                    # The floor keeps the ratio finite for a group of zeros.
                    size = norm(before).clamp_min(1e-12)
                    change = norm(torch.sub(_joined(parameters), before, out=before))  # reuse the copy's memory
                    ratios[tags.UPDATE_RATIO.tag(name)] = change / size
            self._before.clear()
        return ratios


def _joined(tensors: list[Tensor]) -> Float[Tensor, "entries"]:
    """Concatenate the entries of all tensors; a single tensor is not copied."""
    return tensors[0].reshape(-1) if len(tensors) == 1 else _flat(tensors)


def _flat(tensors: list[Tensor]) -> Float[Tensor, "entries"]:
    """Copy the entries of all tensors into one tensor."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
