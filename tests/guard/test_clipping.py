import pytest
import torch
from torch import nn

from fieldwatch.guard import clip_gradients
from fieldwatch.measure import ParameterGroups, gradient_norms


def watched_pair():
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    a.grad, b.grad = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 12.0])
    watched = ParameterGroups()
    watched.add(a=[a], b=[b])
    return a, b, gradient_norms(watched)


def clip(limit, norms):
    clip_gradients(limit, norms.by_group(), norms.groups, norms.total)


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


def test_invalid_limits_are_refused():
    _, _, norms = watched_pair()
    with pytest.raises(ValueError, match=r"clip names group 'pose'.*are \['a', 'b'\]"):
        clip({"pose": 1.0}, norms)
    with pytest.raises(ValueError, match=r"clip limit.*got 0"):
        clip(0.0, norms)
