"""Positional encoding of coordinates: the `pe_<base>_<levels>` code of NeRV."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class PositionalEncoding(nn.Module):
    """[sin(pi base^k v) for all k, cos(pi base^k v) for all k] per coordinate, coordinates one after the other.

    (NeRV, Chen et al. 2021, eq. 1.) Phases are float64: at the default 1.25^79 a float32 phase is wrong by up to 22
    rad. The top levels still alias between neighboring frames, so the encoding does not interpolate.
    """

    def __init__(self, base: float, levels: int) -> None:
        super().__init__()
        self.base = base
        self.levels = levels

    @classmethod
    def parse(cls, embed: str) -> "PositionalEncoding":
        """Create an encoding from the notation "pe_<base>_<levels>"."""
        _, base, levels = embed.split("_")
        return cls(float(base), int(levels))

    def channels(self, axes: int) -> int:
        """Return the length of the code of ``axes`` coordinates."""
        return 2 * self.levels * axes

    def forward(self, coordinates: Float[Tensor, "units axes"]) -> Float[Tensor, "units channels"]:
        """Encode each row in float64; channels = 2 * levels * axes."""
        powers = torch.arange(self.levels, dtype=torch.float64, device=coordinates.device)
        # Cast to the network's type only after sine and cosine.
        phases = coordinates.double()[..., None] * (math.pi * self.base**powers)
        return torch.cat([phases.sin(), phases.cos()], dim=-1).flatten(1)
