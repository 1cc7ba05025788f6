"""Trainable Gaussians: initialization, adding and removing rows, and bit-exact restoration of a stored state."""

import copy
import math

import pytest
import torch

from fieldwatch import Run, Saving
from fieldwatch.measure.parameter_groups import ParameterGroups
from fieldwatch.recon.data import GaussianCloud, read_gaussian_ply, write_gaussian_ply
from fieldwatch.recon.pipelines.splats import Gaussians, NotFiniteError, Rates, Rows, make_optimizer
from fieldwatch.recon.pipelines.splats.gaussians import PARAMETERS
from fieldwatch.recon.pipelines.splats.spacing import point_spacing


def made(count=10, degree=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Gaussians.in_box(count, torch.zeros(3), torch.ones(3), degree=degree, generator=generator)


def stepped(gaussians, steps=3, **options):
    """Return an optimizer after some steps with a different gradient for every row."""
    optimizer = make_optimizer(gaussians, Rates(), 1.0, **options)
    for _ in range(steps):
        step(gaussians, optimizer)
    return optimizer


def step(gaussians, optimizer):
    optimizer.zero_grad()
    sum((parameter.sin() * torch.randn(parameter.shape)).sum() for parameter in gaussians.parameters()).backward()
    optimizer.step()


def nearest(points, neighbors):
    distances = (points[:, None].double() - points[None].double()).norm(dim=-1)
    return distances.sort(1).values[:, 1 : neighbors + 1]


@pytest.mark.parametrize("count", [2, 3, 4, 255, 256, 257, 1500])
def test_spacing_is_that_of_comparing_all_with_all(count):
    points = torch.randn(count, 3) * torch.tensor([0.2, 3.0, 1.0])
    points[0] = 50.0  # far from all others
    torch.testing.assert_close(point_spacing(points), nearest(points, 3).mean(1).float())
    torch.testing.assert_close(point_spacing(points, kind="least"), nearest(points, 3)[:, 0].float())


def test_points_in_one_place_have_a_size():
    assert (point_spacing(torch.zeros(700, 3)) == 1e-7).all()
    with pytest.raises(ValueError, match="1 points to 3 neighbors"):
        point_spacing(torch.zeros(1, 3))


def test_points_become_round_gaussians_of_their_colors():
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3]])
    colors = torch.tensor([[0, 51, 255]] * 4, dtype=torch.uint8)
    gaussians = Gaussians.from_points(points, colors, degree=2)
    torch.testing.assert_close(gaussians.scales[0], torch.full((3,), 2.0))
    torch.testing.assert_close(gaussians.opacities, torch.full((4,), 0.1))
    torch.testing.assert_close(0.5 + gaussians.constant * math.sqrt(1 / (4 * math.pi)), colors / 255)
    assert gaussians.rest.shape == (4, 8, 3)
    assert gaussians.unit_quaternions.tolist() == [[1, 0, 0, 0]] * 4
    least = Gaussians.from_points(points, colors, spacing="least")
    torch.testing.assert_close(least.scales[:, 0], torch.tensor([1.0, 1, 2, 3]))
    given = Gaussians.from_points(points[:1], colors[:1], spacing=torch.tensor([0.5]))
    torch.testing.assert_close(given.scales, torch.full((1, 3), 0.5))


def test_bad_starts_are_refused():
    with pytest.raises(NotFiniteError, match=r"points of Gaussian 1 is not finite .*1 of 2 rows"):
        Gaussians.from_points(torch.tensor([[0.0, 0, 0], [0, math.nan, 0]]), torch.zeros(2, 3))
    with pytest.raises(NotFiniteError, match="constant of Gaussian 0 is not finite"):
        Gaussians.from_points(torch.rand(2, 3), torch.full((2, 3), math.inf))
    with pytest.raises(ValueError, match=r"initial opacity .* got 1\.0"):
        Gaussians.from_points(torch.rand(2, 3), torch.rand(2, 3), opacity=1.0)
    with pytest.raises(ValueError, match="means 0, log_scales 0"):
        Gaussians(made().rows(torch.zeros(0, dtype=torch.int64)))
    with pytest.raises(ValueError, match="means 10, log_scales 3"):
        Gaussians(Rows(made().means, *made(3).rows()[1:]))
    with pytest.raises(ValueError, match=r"low < high.*in a box"):
        Gaussians.in_box(5, torch.zeros(3), torch.tensor([1.0, 0.0, 1.0]))


def test_a_cloud_comes_back_as_it_went():
    cloud = made(degree=3).to_cloud()
    again = Gaussians.from_cloud(cloud).to_cloud()
    assert all(torch.equal(getattr(cloud, name), getattr(again, name)) for name in PARAMETERS)


def test_a_file_holds_them_bit_by_bit(tmp_path):
    gaussians = made(degree=3)
    write_gaussian_ply(tmp_path / "cloud.ply", gaussians.to_cloud())
    again = Gaussians.from_cloud(read_gaussian_ply(tmp_path / "cloud.ply"))
    assert all(torch.equal(a, b) for a, b in zip(gaussians.parameters(), again.parameters(), strict=True))


def test_a_smoothed_cloud_is_fused():
    plain = made().to_cloud()
    cloud = GaussianCloud(**{name: getattr(plain, name) for name in PARAMETERS}, filter_3d=torch.full((10,), 0.3))
    gaussians = Gaussians.from_cloud(cloud)
    torch.testing.assert_close(gaussians.scales, (plain.log_scales.exp().square() + 0.09).sqrt())


def test_degrees_warm_up():
    gaussians = made(degree=2)
    assert [gaussians.degree_at(step) for step in (0, 999, 1000, 2000, 9000)] == [0, 0, 1, 2, 2]
    assert gaussians.degree_at(0, every=0) == 2


def test_the_rate_of_the_means_falls_evenly_in_its_logarithm():
    rates = Rates()
    at = {7000: 5.46e-5, 9000: 4.02e-5, 15_000: 1.6e-5, 30_000: 1.6e-6, 99_000: 1.6e-6}
    for number, rate in at.items():
        assert rates.means_at(number, 2.0) == pytest.approx(2 * rate, rel=2e-3)
    gaussians = made(degree=0)
    optimizer = make_optimizer(gaussians, rates, 3.0)
    assert [group["name"] for group in optimizer.param_groups] == list(PARAMETERS[:-1])  # degree 0 has no rest
    assert rates.apply(optimizer, 15_000, 3.0) == optimizer.param_groups[0]["lr"] == pytest.approx(4.8e-5)
    assert optimizer.param_groups[3]["lr"] == 5e-2
    with pytest.raises(ValueError, match=r"Rates\.rest .* got 0\.0"):
        Rates(rest=0.0)


@pytest.mark.parametrize("visible_only", [True, False])
def test_moments_follow_their_gaussian(visible_only):
    gaussians = made()
    optimizer = stepped(gaussians, visible_only=visible_only)
    for parameter in gaussians.parameters():  # a different number per row
        numbers = torch.arange(10.0).view(-1, *[1] * (parameter.dim() - 1)).expand_as(parameter)
        optimizer.state[parameter]["exp_avg"] = numbers + 0.25
        optimizer.state[parameter]["exp_avg_sq"] = numbers + 0.5
    before = gaussians.rows(torch.arange(10))
    kept = torch.tensor([7, 0, 3])
    twins = torch.tensor([2, 2])
    gaussians.rearrange(kept, gaussians.rows(twins))
    assert len(gaussians) == 5
    for name, old in before._asdict().items():
        parameter = gaussians.get_parameter(name)
        assert torch.equal(parameter, old[[7, 0, 3, 2, 2]])
        state = optimizer.state[parameter]
        flat = {
            key: state[key].flatten(1)[:, 0] if state[key].dim() > 1 else state[key] for key in state if key != "step"
        }
        assert flat["exp_avg"].tolist() == [7.25, 0.25, 3.25, 0, 0]
        assert flat["exp_avg_sq"].tolist() == [7.5, 0.5, 3.5, 0, 0]
        assert state["exp_avg"].shape == parameter.shape
        assert state["step"] == 3
    assert len(optimizer.state) == 6  # no state of the old parameters remains
    step(gaussians, optimizer)


def test_rows_that_were_visible_before_are_forgotten():
    gaussians = made()
    optimizer = stepped(gaussians)
    optimizer.visible = torch.tensor([9])
    gaussians.rearrange(torch.arange(4))
    assert optimizer.visible is None


def test_a_graph_of_before_does_not_disturb():
    """Torch keeps a leaf's shape as long as a graph that uses it is alive."""
    gaussians = made()
    loss = gaussians.scales.sum()
    loss.backward()
    gaussians.rearrange(torch.arange(4))
    gaussians.scales.sum().backward()
    assert gaussians.log_scales.grad.shape == (4, 3)
    assert loss.grad_fn is not None


def test_what_watches_sees_replaced_parameters():
    gaussians = made(degree=0)
    watched = ParameterGroups()
    watched.add(**gaussians.groups())
    gaussians.rearrange(torch.arange(4))
    assert watched.names() == PARAMETERS[:-1]
    assert watched.read("means")[0] is gaussians.means
    assert watched.nbytes() == 4 * 4 * (3 + 3 + 4 + 1 + 3)


def test_nothing_left_is_refused_and_changes_nothing():
    gaussians = made()
    with pytest.raises(ValueError, match="all 10 Gaussians"):
        gaussians.rearrange(torch.zeros(0, dtype=torch.int64))
    assert len(gaussians) == 10


@pytest.mark.parametrize("order", [("gaussians", "optimizer"), ("optimizer", "gaussians")])
@pytest.mark.parametrize("count", [4, 10, 25])
def test_a_state_restores_any_count_bit_by_bit(order, count):
    source = made(count, seed=1)
    items = {"gaussians": source, "optimizer": stepped(source)}
    states = {name: copy.deepcopy(item.state_dict()) for name, item in items.items()}
    target = made(10)
    others = {"gaussians": target, "optimizer": stepped(target, steps=1)}
    for name in order:
        others[name].load_state_dict(states[name])
    for gaussians, optimizer in ((source, items["optimizer"]), (target, others["optimizer"])):
        torch.manual_seed(5)
        step(gaussians, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))


def test_a_run_resumes_with_another_count(tmp_path):
    def train(folder, stop):
        torch.manual_seed(3)
        gaussians = made()
        optimizer = make_optimizer(gaussians, Rates(), 1.0)
        with Run(folder, saving=Saving(every=2)) as run:
            run.track(gaussians=gaussians, optimizer=optimizer, groups=gaussians.groups())
            run.resume()
            for at in run.steps(stop):
                step(gaussians, optimizer)
                if at.index == 1:
                    gaussians.rearrange(torch.arange(8), gaussians.rows(torch.tensor([1, 1, 5, 6, 7])))
        return gaussians

    whole = train(tmp_path / "whole", 6)
    train(tmp_path / "halves", 4)
    resumed = train(tmp_path / "halves", 6)
    assert len(resumed) == 13
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_a_damaged_state_is_refused():
    gaussians = made()
    state = made(4).state_dict()
    with pytest.raises(ValueError, match="stored Gaussians have 3 means, 4 log_scales"):
        gaussians.load_state_dict(state | {"means": torch.zeros(3, 3)})
    with pytest.raises(ValueError, match=r"rest .* shape \(8, 3\).*\(3, 3\)"):
        gaussians.load_state_dict(made(4, degree=2).state_dict())
    with pytest.raises(ValueError, match="Gaussians have nothing"):
        gaussians.load_state_dict({"weights": torch.zeros(3)})
    with pytest.raises(ValueError, match="stored Gaussians have 4 means, expected"):
        gaussians.load_state_dict({"means": state["means"]})
    assert len(gaussians) == 10


def test_a_copy_restores_by_itself():
    gaussians = made()
    other = copy.deepcopy(gaussians)
    other.load_state_dict(made(4, seed=2).state_dict())
    assert (len(gaussians), len(other)) == (10, 4)
