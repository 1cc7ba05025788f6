"""Parameter statistics and update sizes, on a cadence."""

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.measure.watched import Watched


def parameter_statistics(watched: Watched) -> dict[str, Tensor]:
    """Mean and sample standard deviation (ddof 1) over all entries of each watched group.

    Returns:
        ``Parameters/<group>_mean`` and ``Parameters/<group>_std`` as device scalars.
    """
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for name in watched.names():
            entries = torch.cat([parameter.reshape(-1).float() for parameter in watched.read(name)])
            std, mean = torch.std_mean(entries) if entries.numel() > 1 else (torch.zeros_like(entries[0]), entries[0])
            found[f"Parameters/{name}_mean"], found[f"Parameters/{name}_std"] = mean, std
    return found


class UpdateSizes:
    """How far one update moves each group, relative to its size: ``|after - before| / |before|``.

    Made before the update (it keeps a copy of the parameters), read after it.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._before = {name: [p.detach().clone() for p in watched.read(name)] for name in watched.names()}

    def ratios(self) -> dict[str, Tensor]:
        """``Gradients/update_ratio_<group>`` as device scalars; groups that changed shape meanwhile are absent."""
        found: dict[str, Tensor] = {}
        for name, before in self._before.items():
            after = [p.detach() for p in self._watched.read(name)]
            if [p.shape for p in after] == [p.shape for p in before]:
                moved = [new - old for new, old in zip(after, before, strict=True)]
                found[f"Gradients/update_ratio_{name}"] = _norm(moved) / _norm(before).clamp_min(1e-12)
        return found


def _norm(tensors: list[Tensor]) -> Float[Tensor, ""]:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))  # noqa: SLF001
