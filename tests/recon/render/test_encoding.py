"""Hash encoding: closed forms of the lattice, and native kernels that are the plain composition in double precision."""

import itertools

import pytest
import torch

from fieldwatch.recon.render import HashEncoding, HashLevel, hash_encode_reference, native_available

PRIMES = (1, 2654435761, 805459861)
SETTINGS = {
    "one dense level": {"levels": 1, "base_resolution": 5, "finest_resolution": 5, "table_bits": 10},
    "dense and hashed": {"levels": 6, "base_resolution": 4, "finest_resolution": 200, "table_bits": 9},
    "four features": {"levels": 3, "base_resolution": 3, "finest_resolution": 40, "features_per_level": 4},
    "all hashed": {"levels": 16, "base_resolution": 16, "finest_resolution": 2048, "table_bits": 8},
}
COUNTS = [1, 7, 8, 127, 128, 129, 300]


@pytest.fixture(autouse=True)
def kernels():
    there, reason = native_available()
    if not there:
        pytest.skip(reason)


def made(active=None, **settings):
    """An encoding whose table has numbers near 1, so that errors are not hidden by its small start."""
    encoding = HashEncoding(**({"table_bits": 12} | settings), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        encoding.table.normal_(generator=torch.Generator().manual_seed(2))
    if active is not None:
        encoding.activate(active)
    return encoding


def scattered(count, seed=0):
    return torch.rand(count, 3, generator=torch.Generator().manual_seed(seed))


def lattice_with(encoding, function):
    """Set a single dense level's rows to a function of the places of its corners."""
    side = encoding.lattices[0].resolution + 1
    place = torch.linspace(0, 1, side)
    z, y, x = torch.meshgrid(place, place, place, indexing="ij")
    with torch.no_grad():
        encoding.table.copy_(torch.stack(function(x.flatten(), y.flatten(), z.flatten()), dim=-1))
    return encoding


def given(encoding, count, seed=5):
    """Gradients by features and Jacobian, random."""
    chance = torch.Generator().manual_seed(seed)
    by_features = torch.randn(count, encoding.features, generator=chance)
    return by_features, torch.randn(count, encoding.features, 3, generator=chance)


def outcome(encoding, points, gradients, *, dtype=torch.float32):
    """Features, Jacobian, and gradients by table and points; those of `gradients` that are None do not flow."""
    points = points.detach().to(dtype, copy=True).requires_grad_()
    table = encoding.table.detach().to(dtype).requires_grad_()
    if dtype == torch.float32:
        encoding.zero_grad()
        parts = encoding.with_jacobian(points)
        table = encoding.table
    else:
        parts = hash_encode_reference(points, table, encoding.lattices, encoding.level_weights().to(dtype))
    pairs = [
        (part, gradient.to(dtype)) for part, gradient in zip(parts, gradients, strict=True) if gradient is not None
    ]
    torch.autograd.backward(*zip(*pairs, strict=True))
    return [*(part.detach() for part in parts), table.grad, points.grad]


def assert_same(ours, wanted):
    for found, right in zip(ours, wanted, strict=True):
        assert found.dtype == torch.float32
        assert right.any()
        assert (found - right).abs().max() <= 1e-5 * right.abs().max()


def test_resolutions_grow_geometrically_to_the_finest():
    lattices = HashEncoding(levels=16, base_resolution=16, finest_resolution=512).lattices
    assert [level.resolution for level in lattices[:6]] == [16, 20, 25, 32, 40, 50]
    assert lattices[-1].resolution == 512
    assert [HashEncoding(levels=8).lattices[k].resolution for k in (0, 1, 7)] == [16, 32, 2048]


def test_levels_have_a_row_per_corner_where_they_fit():
    encoding = HashEncoding(levels=3, base_resolution=16, finest_resolution=64, table_bits=14, features_per_level=4)
    first, second, third = encoding.lattices
    assert first == HashLevel(resolution=16, start=0, rows=17**3)
    assert second == HashLevel(resolution=32, start=17**3, rows=1 << 14)
    assert third == HashLevel(resolution=64, start=17**3 + (1 << 14), rows=1 << 14)
    assert [level.hashed for level in encoding.lattices] == [False, True, True]
    assert encoding.table.shape == (17**3 + (2 << 14), 4)
    assert encoding.features == 12


def test_the_table_starts_small_and_uniform_and_repeats():
    first, again = (HashEncoding(generator=torch.Generator().manual_seed(4)).table for _ in range(2))
    assert torch.equal(first, again)
    assert first.abs().max() <= 1e-4
    assert first.std().item() == pytest.approx(1e-4 / 3**0.5, rel=1e-2)


@pytest.mark.parametrize("corner", [(0, 0, 0), (3, 7, 1), (10, 10, 10), (10, 0, 9)])
@pytest.mark.parametrize("bits", [11, 6])
def test_at_a_corner_the_features_are_its_row(corner, bits):
    encoding = made(levels=1, base_resolution=10, finest_resolution=10, table_bits=bits)
    x, y, z = corner
    hashed = 0
    for place, prime in zip(corner, PRIMES, strict=True):
        hashed ^= place * prime % 2**32
    row = hashed % 2**bits if bits == 6 else x + 11 * (y + 11 * z)
    found = encoding(torch.tensor([corner]) / 10.0)
    assert torch.allclose(found[0], encoding.table[row], atol=2e-6)


def test_products_of_coordinates_are_reproduced_with_all_derivatives():
    shape = {"levels": 1, "base_resolution": 8, "finest_resolution": 8}
    encoding = lattice_with(HashEncoding(**shape, table_bits=10), lambda x, y, z: (2 + x * y, x * y * z - 3 * z))
    points = scattered(50).requires_grad_()
    x, y, z = points.detach().unbind(-1)
    features, jacobian = encoding.with_jacobian(points)
    assert torch.allclose(features, torch.stack([2 + x * y, x * y * z - 3 * z], dim=-1), atol=1e-5)
    slopes = [torch.stack([y, x, 0 * x], dim=-1), torch.stack([y * z, x * z, x * y - 3], dim=-1)]
    assert torch.allclose(jacobian, torch.stack(slopes, dim=1), atol=1e-5)
    (jacobian[:, 1, 0] + 2 * jacobian[:, 1, 1] + 4 * jacobian[:, 1, 2]).sum().backward()
    assert torch.allclose(points.grad, torch.stack([2 * z + 4 * y, z + 4 * x, y + 2 * x], dim=-1), atol=1e-4)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("count", COUNTS)
def test_native_is_the_composition_in_double_precision(name, count):
    encoding = made(active=0.6 * SETTINGS[name]["levels"], **SETTINGS[name])
    points = scattered(count)
    gradients = given(encoding, count)
    assert_same(outcome(encoding, points, gradients), outcome(encoding, points, gradients, dtype=torch.float64))


@pytest.mark.parametrize("missing", [0, 1])
def test_native_takes_the_gradient_of_one_part_alone(missing):
    encoding = made(**SETTINGS["dense and hashed"])
    points = scattered(200)
    gradients = list(given(encoding, 200))
    gradients[missing] = None
    ours = outcome(encoding, points, gradients)
    assert_same(ours, outcome(encoding, points, gradients, dtype=torch.float64))
    gradients[missing] = torch.zeros_like(given(encoding, 200)[missing])
    assert_same(ours, outcome(encoding, points, gradients, dtype=torch.float64))


def test_forward_alone_gives_the_same_features_and_gradients():
    encoding = made(**SETTINGS["dense and hashed"])
    points = scattered(200).requires_grad_()
    by_features, _ = given(encoding, 200)
    found = encoding(points)
    found.backward(by_features)
    wanted = outcome(made(**SETTINGS["dense and hashed"]), points, (by_features, None))
    assert torch.equal(found, wanted[0])
    assert torch.equal(encoding.table.grad, wanted[2])
    assert torch.equal(points.grad, wanted[3])


@pytest.mark.parametrize("resolution", [7, 100, 2047])
def test_beside_the_faces_of_cells_a_point_is_in_the_right_cell(resolution):
    encoding = made(levels=1, base_resolution=resolution, finest_resolution=resolution, table_bits=14)
    on = torch.arange(0, resolution + 1, max(resolution // 50, 1)).double().div(resolution).float()
    beside = torch.cat([on, on.nextafter(torch.tensor(2.0)), on.nextafter(torch.tensor(-1.0))]).clamp(0, 1)
    points = torch.stack([beside, beside.roll(1), beside.flip(0)], dim=-1)
    gradients = given(encoding, len(points))
    assert_same(outcome(encoding, points, gradients), outcome(encoding, points, gradients, dtype=torch.float64))


def test_normals_of_a_network_are_trained_without_double_backward():
    encoding = made(**SETTINGS["dense and hashed"])
    points = scattered(150)
    chance = torch.Generator().manual_seed(3)
    hidden = torch.randn(16, encoding.features + 3, generator=chance) / 4
    out = torch.randn(16, generator=chance)

    def sdf(at, features):
        width = hidden.to(at.dtype)
        return torch.nn.functional.softplus(torch.cat([at, features], dim=-1) @ width.T, beta=10) @ out.to(at.dtype)

    def eikonal(normals):
        return (normals.norm(dim=-1) - 1).square().mean()

    leaf = points.clone().requires_grad_()
    features, jacobian = encoding.with_jacobian(leaf)
    at = leaf.clone()
    by_point, by_features = torch.autograd.grad(sdf(at, features).sum(), (at, features), create_graph=True)
    normals = by_point + torch.einsum("nf,nfd->nd", by_features, jacobian)
    eikonal(normals).backward()

    exact = points.double().requires_grad_()
    table = encoding.table.detach().double().requires_grad_()
    weights = encoding.level_weights().double()
    value = sdf(exact, hash_encode_reference(exact, table, encoding.lattices, weights)[0])
    (truth,) = torch.autograd.grad(value.sum(), exact, create_graph=True)
    eikonal(truth).backward()
    assert (normals - truth).abs().max() <= 1e-5 * truth.abs().max()
    for found, right in ((encoding.table.grad, table.grad), (leaf.grad, exact.grad)):
        assert (found - right).abs().max() <= 1e-5 * right.abs().max()


def test_the_reference_jacobian_is_the_derivative_of_its_features():
    encoding = made(active=3.3, **SETTINGS["dense and hashed"])
    points = scattered(6).double().requires_grad_()
    how = (encoding.table.detach().double(), encoding.lattices, encoding.level_weights().double())
    features, jacobian = hash_encode_reference(points, *how)
    for k in range(encoding.features):
        (slope,) = torch.autograd.grad(features[:, k].sum(), points, retain_graph=True)
        assert torch.allclose(jacobian[:, k], slope, atol=1e-10)


def test_gradients_of_the_reference_are_those_of_finite_differences():
    encoding = made(levels=2, base_resolution=1, finest_resolution=3, table_bits=3)
    points = torch.tensor([[0.4, 0.1, 0.8], [0.55, 0.9, 0.2]], dtype=torch.float64, requires_grad=True)
    table = encoding.table.detach().double().requires_grad_()
    weights = encoding.level_weights().double()

    def parts(at, rows):
        return hash_encode_reference(at, rows, encoding.lattices, weights)

    assert torch.autograd.gradcheck(parts, (points, table))
    assert torch.autograd.gradgradcheck(parts, (points, table), fast_mode=True)


def test_native_derivatives_are_those_of_finite_differences():
    encoding = made(levels=3, base_resolution=2, finest_resolution=8, table_bits=12)
    cells = torch.randint(0, 8, (40, 3), generator=torch.Generator().manual_seed(6))
    # stays inside a cell of all three lattices
    points = (cells + 0.3 + 0.4 * scattered(40)) / 8
    step = 0.02
    _, jacobian = encoding.with_jacobian(points)
    by_jacobian = given(encoding, 40)[1]
    points.requires_grad_()
    (encoding.with_jacobian(points)[1] * by_jacobian).sum().backward()
    for axis, side in enumerate(torch.eye(3) * step):
        at = points.detach()
        low, steep_low = encoding.with_jacobian(at - side)
        high, steep_high = encoding.with_jacobian(at + side)
        assert torch.allclose((high - low) / (2 * step), jacobian[..., axis], atol=1e-3)
        curve = ((steep_high - steep_low) / (2 * step) * by_jacobian).sum(dim=(1, 2))
        assert torch.allclose(curve, points.grad[:, axis], rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize(
    ("active", "weights"),
    [(0, [0, 0, 0]), (1, [1, 0, 0]), (1.5, [1, 0.5, 0]), (2.25, [1, 1, 0.1464466]), (3, [1, 1, 1])],
)
def test_levels_fade_in_one_after_the_other(active, weights):
    settings = {"levels": 3, "base_resolution": 4, "finest_resolution": 64}
    encoding = made(active=active, **settings)
    points = scattered(60)
    weights = torch.tensor(weights, dtype=torch.float32)
    assert torch.allclose(encoding.level_weights(), weights, atol=1e-6)
    (features, jacobian), (all_features, all_jacobian) = (e.with_jacobian(points) for e in (encoding, made(**settings)))
    factor = weights.repeat_interleave(2)
    assert torch.allclose(features, all_features * factor, atol=1e-5)
    assert torch.allclose(jacobian, all_jacobian * factor[:, None], atol=1e-3)
    torch.autograd.backward((features, jacobian), given(encoding, 60))
    for level, weight in zip(encoding.lattices, weights, strict=True):
        assert bool(encoding.table.grad[level.start : level.start + level.rows].any()) == (weight > 0)


def test_the_state_holds_table_and_bandwidth():
    encoding = made(active=2.5, levels=4)
    other = HashEncoding(levels=4, table_bits=12)
    assert sorted(encoding.state_dict()) == ["active_levels", "table"]
    assert other.active_levels == 4
    other.load_state_dict(encoding.state_dict())
    assert other.active_levels == 2.5
    points = scattered(30)
    assert torch.equal(encoding(points), other(points))
    assert "active_levels=2.5" in repr(other)


@pytest.mark.parametrize("active", [-0.1, 4.1, torch.nan])
def test_more_levels_than_there_are_cannot_be_active(active):
    with pytest.raises(ValueError, match="between 0 and 4"):
        HashEncoding(levels=4, table_bits=8).activate(active)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beyond", [-1e-3, 1.5, torch.inf, -torch.inf])
def test_points_outside_the_unit_cube_are_refused(dtype, beyond):
    encoding = made(levels=2).to(dtype)
    points = scattered(200).to(dtype)
    points[150, 1] = beyond
    for encode in (encoding, encoding.with_jacobian):
        with pytest.raises(ValueError, match=r"1 of 200 points are outside \[0, 1\].*map the box"):
            encode(points)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_point_that_is_nan_gives_nan_to_itself_and_to_the_table(dtype):
    encoding = made(levels=2).to(dtype)
    points = scattered(20).to(dtype)
    points[4, 1] = torch.nan
    features, jacobian = encoding.with_jacobian(points)
    assert features[4].isnan().all()
    assert jacobian[4, :, [0, 2]].isnan().all()
    assert features[:4].isfinite().all()
    assert features[5:].isfinite().all()
    features.sum().backward()
    assert encoding.table.grad.isnan().any()


def test_the_faces_of_the_unit_cube_belong_to_it():
    encoding = made(**SETTINGS["dense and hashed"])
    points = torch.tensor(list(itertools.product([0.0, 0.5, 1.0], repeat=3)))
    gradients = given(encoding, len(points))
    assert_same(outcome(encoding, points, gradients), outcome(encoding, points, gradients, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_points_give_no_features(dtype):
    encoding = made(levels=2).to(dtype)
    points = torch.zeros(0, 3, dtype=dtype, requires_grad=True)
    features, jacobian = encoding.with_jacobian(points)
    assert features.shape == encoding(points).shape == (0, 4)
    assert jacobian.shape == (0, 4, 3)
    (features.sum() + jacobian.sum()).backward()
    assert not encoding.table.grad.any()
    assert points.grad.shape == (0, 3)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads_gives_the_same_bits(threads):
    encoding = made(**SETTINGS["all hashed"])
    points = scattered(3000)
    results = []
    for count in (1, threads):
        torch.set_num_threads(count)
        results.append([part.clone() for part in outcome(encoding, points, given(encoding, 3000))])
    torch.set_num_threads(1)
    assert all(torch.equal(one, more) for one, more in zip(*results, strict=True))


def test_tensors_with_gaps_in_memory_are_read_right():
    encoding = made(levels=3)
    points = scattered(90)
    gapped = points.T.contiguous().T
    assert not gapped.is_contiguous()
    gradients = given(encoding, 90)
    wanted = [part.clone() for part in outcome(encoding, points, gradients)]
    turned = [part.transpose(0, 1).contiguous().transpose(0, 1) for part in gradients]
    assert all(torch.equal(a, b) for a, b in zip(outcome(encoding, gapped, turned), wanted, strict=True))


def test_without_gradients_the_values_are_the_same():
    encoding = made(levels=3)
    points = scattered(90)
    with torch.no_grad():
        quiet = encoding.with_jacobian(points)
    assert all(torch.equal(a, b) for a, b in zip(quiet, encoding.with_jacobian(points), strict=True))


def test_a_frozen_table_still_passes_gradients_to_the_points():
    encoding = made(levels=3)
    points = scattered(90)
    gradients = given(encoding, 90)
    wanted = outcome(encoding, points, gradients)[3].clone()
    encoding.zero_grad()
    encoding.table.requires_grad_(requires_grad=False)
    again = points.clone().requires_grad_()
    torch.autograd.backward(encoding.with_jacobian(again), gradients)
    assert torch.equal(again.grad, wanted)
    assert encoding.table.grad is None


def test_a_second_derivative_through_the_kernels_is_refused():
    encoding = made(levels=2)
    points = scattered(5).requires_grad_()
    with pytest.raises(RuntimeError, match=r"twice.*with_jacobian"):
        torch.autograd.grad(encoding(points).sum(), points, create_graph=True)


def test_double_precision_takes_the_composition():
    encoding = made(levels=3)
    points = scattered(40)
    single = encoding.with_jacobian(points)
    double = encoding.double().with_jacobian(points.double())
    assert all(part.dtype == torch.float64 for part in double)
    assert torch.allclose(double[0].float(), single[0], atol=1e-4)
    assert torch.equal(double[0], encoding(points.double()))


def test_points_of_another_precision_are_refused():
    with pytest.raises(ValueError, match=r"points are torch.float64.*torch.float32 on cpu"):
        made(levels=2)(scattered(5).double())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"levels": 0}, "levels of a hash encoding must be between 1 and 32, got 0"),
        ({"base_resolution": 0}, "base_resolution of a hash encoding must be between 1 "),
        (
            {"base_resolution": 64, "finest_resolution": 32},
            "finest_resolution of a hash encoding must be between 64 and 1048576, got 32",
        ),
        ({"table_bits": 25}, "table_bits of a hash encoding must be between 1 and 24, got 25"),
        ({"features_per_level": 10}, "features_per_level of a hash encoding must be between 2 and 8, got 10"),
        ({"features_per_level": 3}, "features_per_level of a hash encoding must be even, got 3"),
    ],
)
def test_settings_out_of_range_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        HashEncoding(**settings)
