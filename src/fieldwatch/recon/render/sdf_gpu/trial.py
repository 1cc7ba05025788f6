"""A trial of the GPU kernels of neural SDFs: they compile, and compute what torch's operations compute."""

import math
from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.geometry import exponential, rigid
from fieldwatch.recon.render.encoding import HashEncoding, hash_encode_reference
from fieldwatch.recon.render.gpu import kernels_problem
from fieldwatch.recon.render.sdf.alpha import section_alpha_reference
from fieldwatch.recon.render.sdf.cells import Cells
from fieldwatch.recon.render.sdf.samples import BoundedRays
from fieldwatch.recon.render.sdf_gpu.compositing import opacities, sharpness_on_device
from fieldwatch.recon.render.sdf_gpu.field import FIELD, gpu_distance, normalized_weights
from fieldwatch.recon.render.sdf_gpu.losses import ObservedRays, ray_terms
from fieldwatch.recon.render.sdf_gpu.marching import SECTIONS, StrideSearch, find_samples
from fieldwatch.recon.render.sdf_gpu.occupancy import evaluate_on_device
from fieldwatch.recon.render.sdf_gpu.rays import moved_poses, placed_rays

_TOLERANCE = 1e-3
_POINTS = 100
_SHARPNESS = 4.0

_Comparison = tuple[str, Tensor, Tensor]


def sdf_kernels_problem() -> str | None:
    """Return why the GPU kernels of neural SDFs cannot be used on the current GPU; None if they can.

    The first call per process and GPU compiles the kernels and makes a trial of each file.
    """
    return kernels_problem(FIELD, _trial)


def _trial() -> str | None:
    generator = torch.Generator().manual_seed(0)
    for trial in (_field, _weights, _rays, _opacities, _sharpness, _march, _grid, _losses):
        for name, wanted, found in trial(generator):
            apart = float((wanted - found.cpu()).abs().max() / wanted.abs().max())
            if not apart <= _TOLERANCE:
                return f"the GPU kernels compute {name} that differ by {apart:.1e} from torch's operations"
    return None


def _field(generator: torch.Generator) -> Iterator[_Comparison]:
    encoding = HashEncoding(levels=2, base_resolution=3, finest_resolution=9, table_bits=7, generator=generator)
    points = 2 * torch.rand(_POINTS, 3, generator=generator) - 1
    network = [torch.randn(shape, generator=generator) for shape in ((16, 7), (16,), (1, 16), (1,))]
    with torch.no_grad():
        encoding.table.normal_(generator=generator)
    wanted = _computed(_with_torch, encoding, points, network)
    on_gpu = [part.cuda() for part in network]
    found = _computed(_with_kernels, encoding.cuda(), points.cuda(), on_gpu)
    yield from zip(("distances", "gradients", "gradients of the table"), wanted, found, strict=True)


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


@torch.enable_grad()
def _weights(generator: torch.Generator) -> Iterator[_Comparison]:
    parts = [torch.randn(shape, generator=generator) for shape in ((16, 1), (16, 7), (1, 1), (1, 16))]
    results: list[list[Tensor]] = []
    for device in ("cpu", "cuda"):
        leaves = [part.to(device).requires_grad_() for part in parts]
        if device == "cuda":
            weights = normalized_weights((leaves[0], leaves[1]), (leaves[2], leaves[3]))
        else:
            weights = tuple(g * v / v.norm(dim=1, keepdim=True) for g, v in (leaves[:2], leaves[2:]))
        gradients = torch.autograd.grad([weight.square().sum() + weight.sum() for weight in weights], leaves)
        results.append([*(weight.detach() for weight in weights), *gradients])
    for wanted, found in zip(*results, strict=True):
        yield "normalized weights", wanted, found


@torch.enable_grad()
def _sharpness(_: torch.Generator) -> Iterator[_Comparison]:
    stored = torch.tensor(0.3, device="cuda", requires_grad=True)
    found = sharpness_on_device(stored, 0.0, 0.5)
    (by_stored,) = torch.autograd.grad(found, stored)
    wanted = torch.tensor([math.exp(3.0), 10 * math.exp(3.0)])
    yield "sharpness", wanted, torch.stack([found.detach(), by_stored])


@torch.no_grad()
def _rays(generator: torch.Generator) -> Iterator[_Comparison]:
    rotations, translations, directions = torch.randn(3, 2, 3, generator=generator)
    start = torch.eye(4).expand(2, 4, 4).contiguous()
    poses = rigid(exponential(rotations), translations)
    found = moved_poses(rotations.cuda(), translations.cuda(), start.cuda())
    yield "poses", poses, found
    directions = functional.normalize(directions, dim=-1)
    turned = torch.einsum("nij,nj->ni", poses[:, :3, :3], directions)
    wanted = BoundedRays.in_sphere(poses[:, :3, 3], turned, 5.0)
    along = directions.cuda()
    placed, _ = placed_rays(torch.arange(2, device="cuda"), along, along, poses.cuda(), 5.0)
    yield "bounds of rays", wanted.far, placed.far


@torch.no_grad()
def _opacities(generator: torch.Generator) -> Iterator[_Comparison]:
    values = torch.randn(_POINTS, generator=generator)
    first = torch.arange(_POINTS - 1, dtype=torch.int32, device="cuda")
    count = torch.full((1,), _POINTS - 1, dtype=torch.int32, device="cuda")
    sharpness = torch.full((), _SHARPNESS)
    alpha, _ = opacities(values.cuda(), first, count, sharpness.cuda())
    yield "opacities", section_alpha_reference(values[:-1], values[1:], sharpness), alpha.float()


@torch.no_grad()
def _march(_: torch.Generator) -> Iterator[_Comparison]:
    search = StrideSearch(
        cells=Cells(resolution=4),
        step=0.25,
        parts=1,
        most=100,
        radius=1.0,
        slack=0.0,
        visible_range=1.0,
        empty_samples=0,
    )
    origins = torch.tensor([[-3.0, 0.1, 0.1]])
    rays = BoundedRays.in_sphere(origins.cuda(), torch.tensor([[1.0, 0.0, 0.0]]).cuda())
    occupied = torch.zeros(4, 4, 4, dtype=torch.bool)
    occupied[1:3] = True
    sharpness = torch.ones((), device="cuda")
    mask = torch.ones(1, dtype=torch.bool, device="cuda")
    found = find_samples(search, occupied.cuda(), None, sharpness, rays, mask, jitter=None, noise=None)
    # One unit of occupied cells in steps of a quarter.
    yield "numbers of samples", torch.tensor([4.0]), found[1][SECTIONS : SECTIONS + 1].float()


@torch.no_grad()
def _grid(_: torch.Generator) -> Iterator[_Comparison]:
    cells = Cells(resolution=3)
    values = torch.zeros(3, 3, 3, device="cuda")
    occupied = torch.zeros(3, 3, 3, dtype=torch.bool, device="cuda")
    evaluate_on_device(
        cells,
        lambda points, *_: points.norm(dim=-1),
        values,
        occupied,
        every_cell=True,
        period=1,
        turn=0,
        sharpness=_SHARPNESS,
        inverse_deviation=None,
        lipschitz=1.0,
        decay=0.0,
        threshold=0.1,
        faults=torch.zeros(1, dtype=torch.int32, device="cuda"),
    )
    distances = cells.centers(torch.arange(cells.count)).norm(dim=-1)
    yield "occupancies", torch.sigmoid(-_SHARPNESS * (distances - cells.reach)), values.view(-1)


@torch.no_grad()
def _losses(generator: torch.Generator) -> Iterator[_Comparison]:
    opacity = torch.rand(_POINTS, generator=generator)
    gradients = torch.randn(_POINTS, 3, generator=generator)
    counts = torch.full((1,), _POINTS, dtype=torch.int32, device="cuda")
    every = torch.ones(_POINTS, dtype=torch.bool, device="cuda")
    observed = ObservedRays(
        kept=counts,
        normals=torch.zeros(_POINTS, 3, device="cuda"),
        mask=every,
        known=every,
        weights=None,
        least_opacity=None,
    )
    on_gpu = gradients.cuda()
    found = ray_terms(opacity.cuda(), on_gpu, on_gpu, counts, observed)
    lengths = gradients.norm(dim=-1)
    wanted = torch.stack(
        [lengths.square().mean(), -(1e-5 + (1 - 2e-5) * opacity).log().mean(), (lengths - 1).square().mean()]
    )
    yield "losses", wanted, torch.stack(list(found))
