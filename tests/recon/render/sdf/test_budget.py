"""The number of rays that keeps the number of samples of a step."""

import pytest

from fieldwatch.recon.render import SampleBudget


@pytest.mark.parametrize("needed", [3.0, 30.0, 120.0])
def test_it_converges_to_the_target(needed):
    budget = SampleBudget(16_384)
    for _ in range(5):
        budget.observe(budget.rays, int(budget.rays * needed))
    assert budget.rays * needed == pytest.approx(16_384, rel=0.02)


def test_it_follows_a_grid_that_empties():
    budget = SampleBudget(16_384)
    samples = []
    for step in range(200):
        needed = 4 + 196 * 0.95**step
        samples.append(budget.rays * needed)
        budget.observe(budget.rays, round(samples[-1]))
    assert max(samples) < 16_384 * 1.02
    assert samples[-1] == pytest.approx(16_384, rel=0.02)


def test_noise_from_step_to_step_is_smoothed():
    budget = SampleBudget(10_000, momentum=0.9)
    for step in range(100):
        budget.observe(100, 100 * (20 if step % 2 else 40))
    assert budget.rays == pytest.approx(10_000 / 30, rel=0.05)


def test_rays_stay_in_their_bounds():
    budget = SampleBudget(1000, lowest=50, highest=400)
    assert budget.rays == 50
    budget.observe(50, 0)
    assert budget.rays == 400
    for _ in range(100):
        budget.observe(50, 50_000)
    assert budget.rays == 50


def test_rays_come_in_whole_groups():
    budget = SampleBudget(1000, lowest=50, highest=400, multiple=9)
    counts = {budget.rays}
    for needed in (0, 3, 7, 11, 500):
        budget.observe(10, 10 * needed)
        counts.add(budget.rays)
    assert {count % 9 for count in counts} == {0}
    assert min(counts) >= 50
    assert max(counts) <= 400


def test_a_checkpoint_keeps_the_mean():
    first, second, third = (SampleBudget(1000) for _ in range(3))
    first.observe(10, 77)
    second.load_state_dict(first.state_dict())
    assert (second.per_ray, second.rays) == (7.7, first.rays)
    second.load_state_dict(third.state_dict())
    assert second.per_ray is None


@pytest.mark.parametrize(
    "wrong", [{"target": 0}, {"lowest": 0}, {"lowest": 9, "highest": 8}, {"momentum": 1.0}, {"multiple": 0}]
)
def test_a_budget_that_cannot_be_met_is_refused(wrong):
    with pytest.raises(ValueError, match="needs target > 0"):
        SampleBudget(**{"target": 100, **wrong})


@pytest.mark.parametrize("wrong", [(0, 5), (5, -1)])
def test_a_step_without_rays_is_refused(wrong):
    with pytest.raises(ValueError, match="at least 1 ray"):
        SampleBudget(100).observe(*wrong)
