import pytest
import torch
from torch import nn

from fieldwatch.guard import clip_gradients
from fieldwatch.measure import ParameterGroups, gradient_norms


def watched_pair():
    a = nn.Parameter(torch.zeros(2))
    b = nn.Parameter(torch.zeros(2))
    a.grad = torch.tensor([3.0, 4.0])
    b.grad = torch.tensor([0.0, 12.0])
    watched = ParameterGroups()
    watched.add(a=[a], b=[b])
    return a, b, gradient_norms(watched)


def clip(limit, norms):
    scales = clip_gradients(limit, norms.by_group(), norms.groups, norms.total)
    return {tag: float(scale) for tag, scale in scales.items()}


def test_total_clipping_scales_all_alike():
    a, b, norms = watched_pair()
    clip(6.5, norms)
    torch.testing.assert_close(a.grad, torch.tensor([1.5, 2.0]))
    torch.testing.assert_close(b.grad, torch.tensor([0.0, 6.0]))


def test_group_clipping_does_not_change_other_groups():
    a, b, norms = watched_pair()
    clip({"b": 1.0}, norms)
    assert torch.equal(a.grad, torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(b.grad, torch.tensor([0.0, 1.0]))


def test_gradients_below_the_limit_are_unchanged():
    a, _, norms = watched_pair()
    clip(100.0, norms)
    assert torch.equal(a.grad, torch.tensor([3.0, 4.0]))


def test_the_factors_are_the_shares_that_remain_of_the_gradients():
    a, b, norms = watched_pair()
    before = {"a": a.grad.clone(), "b": b.grad.clone()}
    assert clip({"a": 10.0, "b": 3.0}, norms) == {"Gradients/a_clip_scale": 1.0, "Gradients/b_clip_scale": 0.25}
    assert torch.equal(a.grad, before["a"])
    torch.testing.assert_close(b.grad, 0.25 * before["b"])


def test_one_limit_for_all_has_one_factor():
    assert clip(6.5, watched_pair()[-1]) == {"Gradients/clip_scale": 0.5}
    assert clip(13.0, watched_pair()[-1]) == {"Gradients/clip_scale": 1.0}


def test_a_group_without_gradients_has_no_factor():
    a, b, _ = watched_pair()
    watched = ParameterGroups()
    watched.add(a=[a], b=[b])
    a.grad = None
    norms = gradient_norms(watched)
    assert clip({"b": 3.0}, norms) == {"Gradients/b_clip_scale": 0.25}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_factor_of_a_norm_that_is_not_finite_is_none_of_a_clipped_step(value):
    a, b, _ = watched_pair()
    a.grad[0] = value
    watched = ParameterGroups()
    watched.add(a=[a], b=[b])
    (scale,) = clip(1.0, gradient_norms(watched)).values()
    assert not scale > 0


def test_invalid_limits_are_refused():
    _, _, norms = watched_pair()
    with pytest.raises(ValueError, match=r"clip names group 'pose'.*are \['a', 'b'\]"):
        clip({"pose": 1.0}, norms)
    with pytest.raises(ValueError, match=r"clip limit.*got 0"):
        clip(0.0, norms)
