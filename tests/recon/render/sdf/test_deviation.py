"""The sharpness of a surface: exp(10 v), inside its bounds, free to come back from them."""

import math

import pytest
import torch

from fieldwatch.recon.render import Deviation


def test_it_is_the_exponential_of_ten_v():
    deviation = Deviation(math.exp(5.0))
    assert deviation.value.item() == pytest.approx(0.5)
    assert deviation().item() == pytest.approx(math.exp(5.0), rel=1e-5)
    assert [name for name, _ in deviation.named_parameters()] == ["parameter"]


def test_the_gradient_inside_is_that_of_the_exponential():
    deviation = Deviation(20.0)
    deviation().backward()
    assert deviation.parameter.grad.item() == pytest.approx(200.0, rel=1e-5)


@pytest.mark.parametrize("wanted", ["sharper", "softer"])
def test_it_stays_in_its_bounds_and_comes_back(wanted):
    deviation = Deviation(20.0, lowest=10.0, highest=40.0)
    optimizer = torch.optim.Adam(deviation.parameters(), lr=0.01)
    sign = -1.0 if wanted == "sharper" else 1.0
    bound = 40.0 if wanted == "sharper" else 10.0

    def descend(sign, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            (sign * deviation()).backward()
            optimizer.step()
            assert 10.0 * (1 - 1e-6) <= deviation().item() <= 40.0 * (1 + 1e-6)

    descend(sign, 100)
    assert deviation().item() == pytest.approx(bound, rel=1e-5)
    descend(-sign, 100)
    assert deviation().item() == pytest.approx(400.0 / bound, rel=1e-5)


@pytest.mark.parametrize("numbers", [(20.0, 0.0, 40.0), (5.0, 10.0, 40.0), (50.0, 10.0, 40.0), (1.0, 1.0, math.inf)])
def test_bounds_that_do_not_fit_are_refused(numbers):
    with pytest.raises(ValueError, match="0 < lowest <= initial <= highest"):
        Deviation(*numbers)


def test_a_checkpoint_brings_it_back():
    first = Deviation(33.0)
    second = Deviation(20.0)
    second.load_state_dict(first.state_dict())
    assert second().item() == first().item()
