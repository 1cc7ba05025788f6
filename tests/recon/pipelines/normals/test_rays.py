"""The rays of a step are split into micro-batches whose fractions sum to 1."""

import pytest
import torch

from fieldwatch import Terms
from fieldwatch.recon.pipelines.normals.batches import RaySource
from fieldwatch.recon.pipelines.normals.config import RayOptions
from fieldwatch.recon.pipelines.normals.rays import RaySplit


@pytest.fixture
def drawn(settings, scene_of):
    config = settings(rays=RayOptions(rays=48, views_per_graph=2))
    source = RaySource(scene_of(config).pixels, config.rays)
    return RaySplit(source), source.draw(48)


def test_every_batch_of_views_is_a_micro_batch_and_counts_alike(drawn):
    split, batches = drawn
    pieces = list(split(batches, 1))
    assert [rays.batch for rays, _ in pieces] == batches
    assert [share for _, share in pieces] == [1 / len(batches)] * len(batches)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_pieces_of_a_batch_count_by_their_rays(drawn, count):
    split, batches = drawn
    pieces = list(split(batches, count))
    assert len(pieces) >= count * len(batches)
    assert sum(share for _, share in pieces) == pytest.approx(1)
    of_one_ray = {round(share / len(rays.batch), 9) for rays, share in pieces}
    assert of_one_ray == {round(1 / 48, 9)}


@pytest.mark.parametrize("count", range(1, 33))
def test_a_share_has_the_gradient_of_a_division(count):
    """Training with several graphs per step is bit-identical for divided totals and for weighted sums."""
    divided, shared = (torch.full((3,), 0.7, requires_grad=True) for _ in range(2))
    (Terms(mask=(0.1, divided.sin().sum())).total / count).backward()
    (Terms(mask=(0.1, shared.sin().sum())).total * (1 / count)).backward()
    assert torch.equal(divided.grad, shared.grad)


def test_its_state_is_that_of_the_random_numbers(drawn):
    split, batches = drawn
    state = split.state_dict()
    (first, _), *_ = split(batches, 1)
    before = first.jitter(8)
    split.load_state_dict(state)
    assert torch.equal(first.jitter(8), before)
