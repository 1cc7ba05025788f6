"""A trial of the GPU kernels of neural SDFs: they compile, and compute what torch's operations compute."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.render.encoding import HashEncoding, hash_encode_reference
from fieldwatch.recon.render.gpu import KernelFile, kernels_problem
from fieldwatch.recon.render.sdf_field_gpu import FIELD, gpu_distance

_TOLERANCE = 1e-3
_POINTS = 100
_SHARPNESS = 4.0


def gpu_kernels_problem() -> str | None:
    """Return why the GPU kernels of neural SDFs cannot be used on the current GPU; None if they can.

    The first call per process and GPU compiles the kernels and makes a trial.
    """
    return kernels_problem(FIELD, _field_trial)


def _field_trial() -> str | None:
    """Compare distances, gradients and the gradient of the table with those of torch's operations."""
    generator = torch.Generator().manual_seed(0)
    encoding = HashEncoding(levels=2, base_resolution=3, finest_resolution=9, table_bits=7, generator=generator)
    points = 2 * torch.rand(_POINTS, 3, generator=generator) - 1
    table = torch.randn(encoding.table.shape, generator=generator)
    network = [torch.randn(shape, generator=generator) for shape in ((16, 7), (16,), (1, 16), (1,))]
    with torch.no_grad():
        encoding.table.copy_(table)
    wanted = _computed(_with_torch, encoding, points, network)
    device = torch.device("cuda")
    found = _computed(_with_kernels, encoding.to(device), points.to(device), [part.to(device) for part in network])
    for name, one, other in zip(("distances", "gradients", "a gradient of the table"), wanted, found, strict=True):
        apart = float((one - other.cpu()).abs().max() / one.abs().max())
        if not apart <= _TOLERANCE:
            return f"the GPU kernels of neural SDFs compute {name} that differ by {apart:.1e} from torch's operations"
    return None


@torch.enable_grad()
def _computed(
    compute: Callable[..., tuple[Tensor, Tensor]], encoding: HashEncoding, points: Tensor, network: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    distance, gradient = compute(encoding, points, network)
    (by_table,) = torch.autograd.grad(distance.sum() + gradient.square().sum(), encoding.table)
    return distance.detach(), gradient.detach(), by_table


def _with_torch(encoding: HashEncoding, points: Tensor, network: list[Tensor]) -> tuple[Tensor, Tensor]:
    weight, bias, last, last_bias = network
    features, jacobian = hash_encode_reference(
        (points + 1) / 2, encoding.table, encoding.lattices, encoding.level_weights()
    )
    hidden = torch.cat([points, features], -1) @ weight.T + bias
    distance = (functional.softplus(hidden, beta=_SHARPNESS) @ last.T + last_bias)[:, 0]
    pulled = (last * torch.sigmoid(_SHARPNESS * hidden)) @ weight
    return distance, pulled[:, :3] + torch.einsum("nf,nfd->nd", pulled[:, 3:], jacobian) / 2


def _with_kernels(encoding: HashEncoding, points: Tensor, network: list[Tensor]) -> tuple[Tensor, Tensor]:
    weight, bias, last, last_bias = network
    distance, gradient, _ = gpu_distance(points, encoding, (weight, bias, last, last_bias), _SHARPNESS, sloped=True)
    return distance, cast("Tensor", gradient)
