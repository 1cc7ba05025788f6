"""Initial weights of a neural SDF that make it a sphere."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn import functional

from fieldwatch import InputError
from fieldwatch.recon.geometry import spread_directions

# Range of the number of hidden units.
_FEWEST = 8
_MOST = 1024
_PROBES = 4096  # points on the sphere for the calibration of the last layer


def sphere_weights(
    hidden: int, layers: int, radius: float, sharpness: float, generator: torch.Generator | None
) -> list[tuple[Float64[Tensor, "out in"], Float64[Tensor, "out"]]]:
    """Return weights and biases, layer by layer, of f(x) close to |x| - radius; the first layer takes the point alone.

    Args:
        hidden: units per layer.
        layers: number of hidden layers.
        radius: radius of the sphere.
        sharpness: beta of Softplus.
        generator: random generator of the rotation of the directions.

    Raises:
        InputError: a setting is out of range.
    """
    if not _FEWEST <= hidden <= _MOST:
        raise InputError(f"hidden of a neural SDF must be between {_FEWEST} and {_MOST} units, got {hidden}")
    if not 0 < radius <= 1:
        raise InputError(f"the radius of the initial sphere must be greater than 0 and at most 1, got {radius}")
    if not 0 < sharpness < math.inf:
        raise InputError(f"the sharpness of Softplus must be greater than 0, got {sharpness}")
    rotation = _rotation(generator)
    directions = spread_directions(hidden)
    # The factor is the expected length of three samples of N(0, 2 / hidden).
    first = math.sqrt(6 / hidden) * (directions - directions.mean(dim=0)) @ rotation.T
    zero = torch.zeros(hidden, dtype=torch.float64)
    hidden_layers = [(first, zero)] + [(torch.eye(hidden, dtype=torch.float64), zero) for _ in range(layers - 1)]
    # Propagate values and outward slopes on the sphere; the slope of the input is the direction itself.
    probes = spread_directions(_PROBES)
    values = radius * probes
    slopes = probes
    for weight, _ in hidden_layers:
        preactivations = values @ weight.T
        values = functional.softplus(preactivations, sharpness)
        slopes = (slopes @ weight.T) * torch.sigmoid(sharpness * preactivations)
    # Calibrate the last layer on the sphere: mean slope 1, and by the bias below mean value 0.
    scale = 1 / slopes.sum(dim=1).mean()
    last = scale.expand(1, hidden)
    return [*hidden_layers, (last, -(values @ last.T).mean(dim=0))]


def _rotation(generator: torch.Generator | None) -> Float64[Tensor, "3 3"]:
    """Return a random orthogonal matrix (rotation or reflection), uniformly distributed."""
    normal = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    orthogonal, upper = torch.linalg.qr(normal)
    # The sign convention of QR biases the factor; undoing it makes the distribution uniform (Haar measure).
    return orthogonal * torch.sign(torch.diagonal(upper))
