"""Weights with which a neural SDF starts as a sphere."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn import functional

from fieldwatch import InputError

# hidden units
_FEWEST = 8
_MOST = 1024
_PROBES = 4096  # points on the sphere that the last layer is calibrated on


def sphere_weights(
    hidden: int, layers: int, radius: float, sharpness: float, generator: torch.Generator | None
) -> list[tuple[Float64[Tensor, "out in"], Float64[Tensor, "out"]]]:
    """Weights and biases, layer by layer, of f(x) near |x| - radius; the first layer's are those of the point alone.

    Args:
        hidden: units per layer.
        layers: hidden layers.
        radius: of the sphere.
        sharpness: beta of Softplus.
        generator: draws the rotation of the directions.

    Raises:
        InputError: a setting is out of its range.
    """
    if not _FEWEST <= hidden <= _MOST:
        raise InputError(f"a neural SDF needs hidden between {_FEWEST} and {_MOST}, got {hidden}")
    if not 0 < radius <= 1:
        raise InputError(f"a neural SDF starts as a sphere in the box [-1, 1]: give a radius up to 1, got {radius}")
    if not 0 < sharpness < math.inf:
        raise InputError(f"a neural SDF needs a sharpness of Softplus above 0, got {sharpness}")
    turn = _rotation(generator)
    even = _spread(hidden)
    first = math.sqrt(6 / hidden) * (even - even.mean(dim=0)) @ turn.T  # the length of 3 draws of N(0, 2 / hidden)
    zero = torch.zeros(hidden, dtype=torch.float64)
    made = [(first, zero)] + [(torch.eye(hidden, dtype=torch.float64), zero) for _ in range(layers - 1)]
    probes = _spread(_PROBES)
    inner = radius * probes
    outer = probes
    for weight, _ in made:
        raw = inner @ weight.T
        inner = functional.softplus(raw, sharpness)
        outer = (outer @ weight.T) * torch.sigmoid(sharpness * raw)
    scale = 1 / outer.sum(dim=1).mean()
    last = scale.expand(1, hidden)
    return [*made, (last, -(inner @ last.T).mean(dim=0))]


def _spread(count: int) -> Float64[Tensor, "n 3"]:
    """Points spread evenly on the unit sphere: a Fibonacci lattice."""
    order = torch.arange(count, dtype=torch.float64)
    z = 1 - (2 * order + 1) / count
    angle = order * math.pi * (3 - math.sqrt(5))
    around = torch.sqrt(1 - z * z)
    return torch.stack([around * torch.cos(angle), around * torch.sin(angle), z], dim=-1)


def _rotation(generator: torch.Generator | None) -> Float64[Tensor, "3 3"]:
    """A random rotation or reflection, even over all."""
    drawn = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    whole, upper = torch.linalg.qr(drawn)
    return whole * torch.sign(torch.diagonal(upper))
