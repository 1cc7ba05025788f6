"""Parameter statistics and update sizes, on a cadence."""

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.measure.norms import norm
from fieldwatch.measure.watched import Watched


def parameter_statistics(watched: Watched) -> dict[str, Tensor]:
    """Mean and sample standard deviation (ddof 1) over all entries of each watched group.

    Returns:
        ``Parameters/<group>_mean`` and ``Parameters/<group>_std`` as device scalars.
    """
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for name in watched.names():
            entries = _flat(watched.read(name)).float()
            std, mean = torch.std_mean(entries) if entries.numel() > 1 else (torch.zeros_like(entries[0]), entries[0])
            found[f"Parameters/{name}_mean"], found[f"Parameters/{name}_std"] = mean, std
    return found


class UpdateSizes:
    """How far one update moves each group, relative to its size: ``|after - before| / |before|``.

    Made before the update (it keeps a copy of the parameters), read after it.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._before: dict[str, tuple[list[torch.Size], Tensor]] = {}
        with torch.no_grad():
            for name in watched.names():
                parameters = watched.read(name)
                self._before[name] = [p.shape for p in parameters], _flat(parameters)

    def ratios(self) -> dict[str, Tensor]:
        """``Gradients/update_ratio_<group>`` as device scalars; groups that changed shape meanwhile are absent."""
        found: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, (shapes, before) in self._before.items():
                parameters = self._watched.read(name)
                if [p.shape for p in parameters] == shapes:
                    moved = norm(_flat(parameters).sub_(before))  # no copy more than needed
                    found[f"Gradients/update_ratio_{name}"] = moved / norm(before).clamp_min(1e-12)
        return found


def _flat(tensors: list[Tensor]) -> Float[Tensor, "entries"]:
    """Copy all entries of some tensors, one after the other."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
