"""Small GPU kernels, each in place of several of torch's operations: the same values, in any order of threads."""

import math

import pytest
import torch

from fake_cuda.emulator import FORWARD, REVERSE, SHUFFLED
from fieldwatch.recon.losses import flatness_error
from fieldwatch.recon.render import (
    Cells,
    Deviation,
    HashEncoding,
    HashSdf,
    OccupancyConfig,
    OccupancyGrid,
)
from fieldwatch.recon.render.sdf_gpu import (
    FILLED,
    KEPT_RAYS,
    MASKED,
    SECTIONS,
    STARVED,
    OneLaunchAdam,
    sharpness_on_device,
    step_numbers,
)
from fieldwatch.recon.render.splats import activated, flatness
from fieldwatch.recon.render.splats.small_kernels import add_statistics

pytestmark = pytest.mark.pretended
ORDERS = (FORWARD, REVERSE, SHUFFLED)


def in_every_order(fake_cuda, compute):
    """Return what a function computes in the first order, after a check that it computes the same in the others."""
    several = []
    for order in ORDERS:
        fake_cuda.emulator.order = order
        several.append([part.detach().cpu() for part in compute()])
    for other in several[1:]:
        assert all(torch.equal(a, b) for a, b in zip(several[0], other, strict=True))
    return several[0]


@pytest.mark.parametrize("count", [0, 1, 33, 200])
def test_scales_and_opacities_are_those_of_torch(fake_cuda, count):
    chance = torch.Generator().manual_seed(count)
    log_scales = 3 * torch.randn(count, 3, generator=chance)
    logits = 20 * torch.randn(count, generator=chance)
    weights = (torch.randn(count, 3, generator=chance), torch.randn(count, generator=chance))

    def compute(device, shapes):
        leaves = [part.to(device).requires_grad_() for part in (log_scales, logits)]
        found = shapes(*leaves)
        sums = [(part * weight.to(device)).sum() for part, weight in zip(found, weights, strict=True)]
        return [*found, *torch.autograd.grad(sums, leaves)]

    wanted = compute("cpu", lambda a, b: (a.exp(), b.sigmoid()))
    found = in_every_order(fake_cuda, lambda: compute("cuda", activated))
    for ours, torchs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, torchs.detach(), rtol=1e-5, atol=1e-7)


def test_only_one_of_both_may_have_a_gradient(fake_cuda):
    log_scales = torch.randn(5, 3, device="cuda", requires_grad=True)
    logits = torch.randn(5, device="cuda", requires_grad=True)
    scales, _ = activated(log_scales, logits)
    scales.sum().backward()
    assert torch.equal(log_scales.grad.cpu(), scales.detach().cpu())
    assert not logits.grad.cpu().any()


@pytest.mark.parametrize("count", [1, 33, 200])
def test_statistics_are_those_of_torch(fake_cuda, count):
    chance = torch.Generator().manual_seed(count)
    gradient = torch.randn(count, 2, generator=chance)
    gradient[0, 1] = torch.nan
    gradient[-1, 0] = torch.inf
    visible = torch.rand(count, generator=chance) < 0.6
    visible[0] = True
    radii = torch.rand(count, generator=chance)
    before = [torch.rand(count, generator=chance) for _ in range(3)]
    lengths = (gradient * torch.tensor([9.0, 4.0])).norm(dim=1)
    counted = visible & lengths.isfinite()
    wanted = [before[0] + torch.where(counted, lengths, 0.0), before[1] + counted, torch.maximum(before[2], radii)]

    def compute():
        sums = [part.to("cuda") for part in before]
        add_statistics(gradient.to("cuda"), (9.0, 4.0), visible.to("cuda"), radii.to("cuda"), sums=tuple(sums))
        return sums

    for ours, torchs in zip(in_every_order(fake_cuda, compute), wanted, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("count", [1, 33, 300])
@pytest.mark.parametrize("shown", [0.6, 0.0])
def test_flatness_and_its_gradient_are_those_of_torch(fake_cuda, count, shown):
    chance = torch.Generator().manual_seed(count)
    scales = torch.rand(count, 3, generator=chance)
    scales[0, 2] = scales[0].min()
    visible = torch.rand(count, generator=chance) < shown
    visible[0] = shown > 0

    def compute(device, measure):
        leaf = scales.clone().to(device).requires_grad_()
        found = measure(leaf, visible.to(device))
        return [found, *torch.autograd.grad(3 * found, leaf)]

    wanted = compute("cpu", lambda leaf, mask: flatness_error(leaf, mask) / 4)
    found = in_every_order(fake_cuda, lambda: compute("cuda", lambda leaf, mask: flatness(leaf, mask, 0.25)))
    for ours, torchs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, torchs.detach(), rtol=1e-5, atol=1e-8)


def test_a_scale_that_is_not_a_number_shows_in_flatness(fake_cuda):
    for column in range(3):
        scales = torch.ones(4, 3)
        scales[2, column] = torch.nan
        assert flatness(scales.to("cuda"), torch.ones(4, dtype=torch.bool, device="cuda"), 1.0).cpu().isnan()


@pytest.mark.parametrize("stored", [0.25, -1.0, 0.0, 0.5, 2.0])
@pytest.mark.parametrize("by", [1.0, -1.0])
def test_sharpness_and_its_gradient_are_those_of_torch(fake_cuda, stored, by):
    def compute(device):
        deviation = Deviation(initial=math.exp(2.0), lowest=1.0, highest=math.exp(5.0)).to(device)
        with torch.no_grad():
            deviation.parameter.fill_(stored)
        on_gpu = device == "cuda"
        sharpness = sharpness_on_device(deviation.parameter, *deviation.bounds()) if on_gpu else deviation()
        (by * sharpness).backward()
        return [sharpness, deviation.parameter.grad]

    wanted = compute("cpu")
    for ours, torchs in zip(in_every_order(fake_cuda, lambda: compute("cuda")), wanted, strict=True):
        torch.testing.assert_close(ours, torchs.detach(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("hidden", [8, 65])
def test_normalized_weights_and_their_gradients_are_those_of_torch(fake_cuda, hidden):
    def compute(device):
        chance = torch.Generator().manual_seed(2)
        encoding = HashEncoding(levels=2, base_resolution=3, finest_resolution=9, table_bits=7, generator=chance)
        field = HashSdf(encoding=encoding, hidden=hidden, generator=chance)
        with torch.no_grad():
            for parameter in (*field.hidden.parameters(), *field.last.parameters()):
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=chance))
        network = field.to(device).network()
        weights = [torch.randn(part.shape, generator=chance).to(device) for part in network]
        sum((part * weight).sum() for part, weight in zip(network, weights, strict=True)).backward()
        return [*network, *(parameter.grad for parameter in (*field.hidden.parameters(), *field.last.parameters()))]

    wanted = compute("cpu")
    for ours, torchs in zip(in_every_order(fake_cuda, lambda: compute("cuda")), wanted, strict=True):
        torch.testing.assert_close(ours, torchs.detach(), rtol=1e-5, atol=1e-6)


def test_numbers_of_a_step_are_those_of_its_counts(fake_cuda):
    counts = torch.zeros(2, 7, dtype=torch.int32)
    for batch, numbers in enumerate([(10, 35, 2, 4, 3), (6, 5, 1, 0, 0)]):
        for place, number in zip((KEPT_RAYS, SECTIONS, FILLED, MASKED, STARVED), numbers, strict=True):
            counts[batch, place] = number
    found = in_every_order(fake_cuda, lambda: step_numbers(counts.to("cuda")))
    assert [float(number) for number in found] == [2.5, 16.0, 3.0, 0.75]
    empty = step_numbers(torch.zeros(1, 7, dtype=torch.int32, device="cuda"))
    assert [float(number.cpu()) for number in empty] == [0.0] * 4


def test_adam_of_all_groups_is_torchs_in_one_launch(fake_cuda):
    def trained(device, make):
        chance = torch.Generator().manual_seed(0)
        leaves = [torch.randn(shape, generator=chance).to(device).requires_grad_() for shape in ((40, 3), (7,), ())]
        groups = [{"params": leaves[:1], "betas": (0.9, 0.99), "eps": 1e-15}, {"params": leaves[1:], "lr": 0.3}]
        optimizer = make(groups)
        for step in range(4):
            for leaf in leaves:
                leaf.grad = torch.randn(leaf.shape, generator=chance).to(device)
            if device == "cuda":
                optimizer.found_inf = torch.tensor(float(step == 2)).to(device)
            if device == "cuda" or step != 2:
                optimizer.step()
        return leaves, optimizer

    wanted, _ = trained("cpu", lambda groups: torch.optim.Adam(groups, lr=0.1))
    found, optimizer = trained("cuda", lambda groups: OneLaunchAdam(groups, 0.1))
    for ours, torchs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.detach().cpu(), torchs.detach(), rtol=1e-5, atol=1e-6)
    before = fake_cuda.ledger.copy()
    optimizer.step()
    assert fake_cuda.ledger.since(before).launches == {"adam_visible": 1}
    # Its state is torch's, and torch's Adam goes on with it.
    other = torch.optim.Adam([{"params": group["params"]} for group in optimizer.param_groups], lr=0.1, fused=True)
    other.load_state_dict(optimizer.state_dict())
    assert {float(state["step"].cpu()) for state in other.state.values()} == {4.0}


def test_adam_with_weight_decay_is_left_to_torch(fake_cuda):
    leaf = torch.ones(3, device="cuda", requires_grad=True)
    leaf.grad = torch.ones_like(leaf)
    optimizer = OneLaunchAdam([{"params": [leaf], "weight_decay": 0.1}], 0.1)
    optimizer.step()
    assert fake_cuda.ledger.launches["adam_visible"] == 0
    assert fake_cuda.ledger.launches["_fused_adam_"] == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_share_of_occupied_cells_follows_every_change(fake_cuda, device):
    grid = OccupancyGrid(OccupancyConfig(cells=Cells(resolution=8), every=1)).to(device)
    assert float(grid.occupied_fraction) == 1.0
    encoding = HashEncoding(levels=1, base_resolution=3, finest_resolution=3, table_bits=5)
    grid.update(0, HashSdf(encoding=encoding, hidden=64, radius=0.3).to(device))
    smaller = float(grid.occupied_fraction)
    assert smaller == float(grid.occupied.float().mean()) < 1.0
    with torch.no_grad():
        grid.occupied.fill_(True)
    assert float(grid.occupied_fraction) == 1.0
    state = {name: part.clone() for name, part in grid.state_dict().items()}
    state["occupied"][:] = False
    grid.load_state_dict(state)
    assert float(grid.occupied_fraction) == 0.0
