"""Neighbors in the coarse stage: the table changes at fixed steps, regardless of checkpoints in between."""

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.geometry import nearest_neighbors
from fieldwatch.recon.pipelines.splats.neighborhood import USED_AFTER, Neighborhood

OLD = torch.rand(200, 3, generator=torch.Generator().manual_seed(1))
NEW = torch.rand(200, 3, generator=torch.Generator().manual_seed(2))


def expected(points: Float[Tensor, "n 3"]) -> Tensor:
    return nearest_neighbors(points, 8).indices


def test_the_first_table_is_there_when_it_is_asked_for() -> None:
    assert torch.equal(Neighborhood(8).at(0, OLD), expected(OLD))


def test_a_new_table_is_used_from_a_fixed_step_on() -> None:
    neighborhood = Neighborhood(8)
    neighborhood.at(0, OLD)
    neighborhood.start_search(10, NEW)

    assert torch.equal(neighborhood.at(10 + USED_AFTER - 1, NEW), expected(OLD))
    assert torch.equal(neighborhood.at(10 + USED_AFTER, NEW), expected(NEW))


def test_the_search_is_of_the_places_as_they_were() -> None:
    neighborhood = Neighborhood(8)
    moving = NEW.clone()
    neighborhood.at(0, OLD)
    neighborhood.start_search(10, moving)
    moving.zero_()

    assert torch.equal(neighborhood.at(10 + USED_AFTER, OLD), expected(NEW))


def test_another_number_of_gaussians_is_searched_at_once() -> None:
    neighborhood = Neighborhood(8)
    neighborhood.at(0, OLD)

    assert torch.equal(neighborhood.at(1, OLD[:150]), expected(OLD[:150]))


def test_a_checkpoint_holds_the_table_and_the_search_under_way() -> None:
    neighborhood = Neighborhood(8)
    neighborhood.at(0, OLD)
    neighborhood.start_search(10, NEW)
    stored = neighborhood.state_dict()

    resumed = Neighborhood(8)
    resumed.load_state_dict(stored)

    for step in (11, 10 + USED_AFTER, 40):
        assert torch.equal(resumed.at(step, OLD), neighborhood.at(step, OLD))


def test_a_checkpoint_from_before_the_first_search_is_empty() -> None:
    resumed = Neighborhood(8)
    resumed.at(0, OLD)
    resumed.load_state_dict(Neighborhood(8).state_dict())

    assert torch.equal(resumed.at(5, NEW), expected(NEW))


def test_clearing_drops_table_and_search() -> None:
    neighborhood = Neighborhood(8)
    neighborhood.at(0, OLD)
    neighborhood.start_search(1, OLD)
    neighborhood.clear()

    assert not neighborhood.tables
    assert torch.equal(neighborhood.at(30, NEW), expected(NEW))
