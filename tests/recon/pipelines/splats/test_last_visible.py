"""Record of when each Gaussian was last visible, across densification, restarts and checkpoints."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwatch.recon.pipelines.splats.last_visible import LastVisible

ALL = torch.arange(4)


def add_steps(last_visible, *steps, count=4, ids=ALL):
    for step in steps:
        last_visible.add(ids, count, step)
    return last_visible


def test_nothing_is_said_before_every_photo_was_drawn_whatever_the_order():
    last_visible = LastVisible(3)
    assert last_visible.invisible_share() is None
    assert add_steps(last_visible, *range(100, 104)).invisible_share() is None
    assert float(add_steps(last_visible, 104).invisible_share()) == 0


def test_another_number_of_gaussians_begins_anew():
    last_visible = add_steps(LastVisible(2), 0, 1, 2)
    assert last_visible.invisible_share() is not None
    add_steps(last_visible, 3, count=5)
    assert last_visible.invisible_share() is None
    add_steps(last_visible, 4, 5, count=5)
    assert float(last_visible.invisible_share()) == pytest.approx(0.2)


def test_rows_that_changed_places_begin_anew_when_said_so():
    last_visible = add_steps(LastVisible(1), 0)
    last_visible.restart()
    assert last_visible.invisible_share() is None
    assert float(add_steps(last_visible, 1, ids=ALL[:1]).invisible_share()) == 0.75


def test_a_checkpoint_goes_on_where_it_was():
    last_visible = add_steps(LastVisible(2), 5, 6)
    later = LastVisible(2)
    later.load_state_dict(last_visible.state_dict())
    for one in (last_visible, later):
        add_steps(one, 7, ids=ALL[:2])
    assert float(later.invisible_share()) == float(last_visible.invisible_share()) == 0


@settings(max_examples=30)
@given(photos=st.integers(1, 6), rounds=st.integers(2, 5), seed=st.integers(0, 99))
def test_a_gaussian_that_one_photo_shows_is_never_called_unseen(photos, rounds, seed):
    """For every order of the epochs, the window contains each photo at least once."""
    generator = torch.Generator().manual_seed(seed)
    last_visible = LastVisible(photos)
    step = 0
    for _ in range(rounds):
        for photo in torch.randperm(photos, generator=generator).tolist():
            last_visible.add(torch.tensor([photo]), photos + 1, step)
            step += 1
            share = last_visible.invisible_share()
            assert share is None or float(share) == pytest.approx(1 / (photos + 1))


def test_no_photos_are_refused():
    with pytest.raises(ValueError, match="photos, at least 1"):
        LastVisible(0)
