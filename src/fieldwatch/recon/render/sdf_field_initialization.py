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
    rotation = _rotation(generator)
    directions = _spread(hidden)
    first = (
        math.sqrt(6 / hidden) * (directions - directions.mean(dim=0)) @ rotation.T
    )  # the length of 3 draws of N(0, 2 / hidden)
    zero = torch.zeros(hidden, dtype=torch.float64)
    hidden_layers = [(first, zero)] + [(torch.eye(hidden, dtype=torch.float64), zero) for _ in range(layers - 1)]
    # Values and outward slopes on the sphere, layer by layer: for the outward slope the input is the direction itself.
    probes = _spread(_PROBES)
    values = radius * probes
    slopes = probes
    for weight, _ in hidden_layers:
        preactivations = values @ weight.T
        values = functional.softplus(preactivations, sharpness)
        slopes = (slopes @ weight.T) * torch.sigmoid(sharpness * preactivations)
    # Calibrates the last layer: mean slope 1, and below mean value 0 on the sphere.
    scale = 1 / slopes.sum(dim=1).mean()
    last = scale.expand(1, hidden)
    return [*hidden_layers, (last, -(values @ last.T).mean(dim=0))]


def _spread(count: int) -> Float64[Tensor, "n 3"]:
    """Points spread evenly on the unit sphere: a Fibonacci lattice."""
    order = torch.arange(count, dtype=torch.float64)
    z = 1 - (2 * order + 1) / count
    angle = order * math.pi * (3 - math.sqrt(5))
    radius = torch.sqrt(1 - z * z)
    return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle), z], dim=-1)


def _rotation(generator: torch.Generator | None) -> Float64[Tensor, "3 3"]:
    """A random rotation or reflection, even over all."""
    normal = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    orthogonal, upper = torch.linalg.qr(normal)
    # QR fixes the signs of its factors; undoing that makes the distribution uniform (Haar).
    return orthogonal * torch.sign(torch.diagonal(upper))
