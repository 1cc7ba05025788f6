"""When each Gaussian was last visible: over growth, restarts and checkpoints."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwatch.recon.pipelines.splats.last_visible import LastSeen

ALL = torch.arange(4)


def shown(seen, *steps, count=4, ids=ALL):
    for step in steps:
        seen.add(ids, count, step)
    return seen


def test_nothing_is_said_before_every_photo_was_drawn_whatever_the_order():
    seen = LastSeen(3)
    assert seen.unseen_share() is None
    assert shown(seen, *range(100, 104)).unseen_share() is None
    assert float(shown(seen, 104).unseen_share()) == 0


def test_another_number_of_gaussians_begins_anew():
    seen = shown(LastSeen(2), 0, 1, 2)
    assert seen.unseen_share() is not None
    shown(seen, 3, count=5)
    assert seen.unseen_share() is None
    shown(seen, 4, 5, count=5)
    assert float(seen.unseen_share()) == pytest.approx(0.2)


def test_rows_that_changed_places_begin_anew_when_said_so():
    seen = shown(LastSeen(1), 0)
    seen.restart()
    assert seen.unseen_share() is None
    assert float(shown(seen, 1, ids=ALL[:1]).unseen_share()) == 0.75


def test_a_checkpoint_goes_on_where_it_was():
    seen = shown(LastSeen(2), 5, 6)
    later = LastSeen(2)
    later.load_state_dict(seen.state_dict())
    for one in (seen, later):
        shown(one, 7, ids=ALL[:2])
    assert float(later.unseen_share()) == float(seen.unseen_share()) == 0


@settings(max_examples=30)
@given(photos=st.integers(1, 6), rounds=st.integers(2, 5), seed=st.integers(0, 99))
def test_a_gaussian_that_one_photo_shows_is_never_called_unseen(photos, rounds, seed):
    """In every order of the rounds: the window holds each photo at least once."""
    generator, seen, step = torch.Generator().manual_seed(seed), LastSeen(photos), 0
    for _ in range(rounds):
        for photo in torch.randperm(photos, generator=generator).tolist():
            seen.add(torch.tensor([photo]), photos + 1, step)
            step += 1
            share = seen.unseen_share()
            assert share is None or float(share) == pytest.approx(1 / (photos + 1))


def test_no_photos_are_refused():
    with pytest.raises(ValueError, match="photos, at least 1"):
        LastSeen(0)
