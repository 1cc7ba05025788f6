import pytest
import torch
from torch import nn

from fieldwatch.measure import ParameterGroups, Terms, UpdateSizes, attribute_terms, parameter_statistics


def watched_pair():
    a = nn.Parameter(torch.tensor([1.0, 0.0]))
    b = nn.Parameter(torch.tensor([2.0]))
    watched = ParameterGroups()
    watched.add(a=[a], b=[b])
    return a, b, watched


def test_shares_and_cosines_are_those_of_the_separate_gradients():
    a, b, watched = watched_pair()
    terms = Terms(left=(3.0, a[0]), right=(1.0, -a[0]), side=(1.0, a[1] + b[0]))
    found = attribute_terms(terms, watched)
    assert float(found["Gradients/cosine_a_left_right"]) == -1.0
    assert float(found["Gradients/cosine_a_left_side"]) == 0.0
    assert float(found["Gradients/share_a_left"]) == 0.6000000238418579
    assert "Gradients/share_b_left" not in found
    assert float(found["Gradients/share_b_side"]) == 1.0


def test_attribution_changes_neither_gradients_nor_graph():
    a, b, watched = watched_pair()
    terms = Terms(x=(2.0, (a * a).sum()), y=(1.0, (b * b).sum()))
    attribute_terms(terms, watched)
    assert a.grad is None
    terms.total.backward()
    assert torch.equal(a.grad, torch.tensor([4.0, 0.0]))


def test_a_constant_term_is_left_out():
    a, _, watched = watched_pair()
    found = attribute_terms(Terms(x=(1.0, a.sum()), constant=(1.0, torch.tensor(3.0))), watched)
    assert not any("constant" in name for name in found)


def test_parameter_statistics_use_the_sample_standard_deviation():
    weights = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    watched = ParameterGroups()
    watched.add(head=[weights])
    found = parameter_statistics(watched)
    assert float(found["Parameters/head_mean"]) == 3.0
    torch.testing.assert_close(found["Parameters/head_std"], weights.detach().std())


def test_the_deviation_far_from_zero_keeps_its_digits_and_one_entry_has_none():
    generator = torch.Generator().manual_seed(0)
    far = 1000 + torch.randn(40, 50, generator=generator)
    single = torch.tensor(2.5)
    watched = ParameterGroups()
    watched.add(far=[nn.Parameter(far[:10]), nn.Parameter(far[10:])], single=[nn.Parameter(single)])
    found = parameter_statistics(watched)
    torch.testing.assert_close(found["Parameters/far_std"], far.double().std().float(), rtol=1e-5, atol=0)
    assert (float(found["Parameters/single_mean"]), float(found["Parameters/single_std"])) == (2.5, 0.0)


def test_update_ratio_of_a_group_of_several_and_of_one_that_changed_shape():
    group = [nn.Parameter(torch.tensor([3.0])), nn.Parameter(torch.tensor([[0.0, 4.0]]))]
    grown = {"means": nn.Parameter(torch.ones(2))}
    watched = ParameterGroups()
    watched.add(group=group, grown=grown)
    sizes = UpdateSizes(watched)
    with torch.no_grad():
        group[0] += 0.3
        group[1] += torch.tensor([[0.4, 0.0]])
    grown["means"] = nn.Parameter(torch.ones(3))
    found = sizes.ratios()
    assert list(found) == ["Gradients/update_ratio_group"]
    torch.testing.assert_close(found["Gradients/update_ratio_group"], torch.tensor(0.1))
    assert [parameter.tolist() for parameter in group] == [[pytest.approx(3.3)], [[pytest.approx(0.4), 4.0]]]


def test_update_ratio_is_the_move_over_the_size():
    weights = nn.Parameter(torch.tensor([3.0, 4.0]))
    watched = ParameterGroups()
    watched.add(head=[weights])
    sizes = UpdateSizes(watched)
    with torch.no_grad():
        weights += torch.tensor([0.3, 0.4])
    torch.testing.assert_close(sizes.ratios()["Gradients/update_ratio_head"], torch.tensor(0.1))
