"""Detection of a loss that jumps, as opposed to one that is noisy, newly weighted or refused."""

import math

import pytest
import torch

from fieldwatch.recon.pipelines.normals.loss_monitor import SETTLED, LossMonitor


def shown(steps, *, look_every=5, restored=()):
    """Return a monitor that observed steps with these terms, and the number of high steps at each `judge`."""
    watch = LossMonitor(10.0)
    highs = []
    for index, terms in enumerate(steps):
        weights, values = ({name: pair[i] for name, pair in terms.items()} for i in (0, 1))
        refused = torch.tensor(float(not all(map(math.isfinite, values.values()))))
        watch.observe(weights, {name: torch.tensor(value) for name, value in values.items()}, refused)
        if index in restored:
            state, watch = watch.state_dict(), LossMonitor(10.0)
            watch.load_state_dict(state)
        if (index + 1) % look_every == 0:
            watch.judge()
            highs.append(watch.high)
    return watch, highs


def mask(*values, weight=1.0):
    return [{"mask": (weight, value)} for value in values]


NOISY = [0.1 * (1 + 0.5 * math.sin(7.0 * i)) for i in range(60)]


def test_a_loss_far_above_its_median_counts_from_its_first_step_and_does_not_raise_the_median():
    watch, highs = shown(mask(*NOISY, *[1.7] * 20))
    assert highs == [0] * 12 + [5, 10, 15, 20]
    assert watch.worst == pytest.approx(17, rel=0.3)
    assert shown(mask(*NOISY, *[0.6] * 20))[1] == [0] * 16


def test_one_low_step_ends_the_count():
    assert shown(mask(*NOISY, *[5.0] * 9, 0.1))[0].high == 0


def test_a_weight_that_rises_a_hundredfold_is_no_jump():
    steps = mask(*NOISY) + [{"mask": (1.0 + 5.0 * i, 0.1)} for i in range(20)]
    assert shown(steps)[1] == [0] * 16


def test_a_term_that_has_just_begun_is_not_judged_and_one_that_has_settled_is():
    new = [{"mask": (1.0, 0.1), "normal": (1.0, 50.0)}] * 20
    assert shown(mask(*NOISY) + new)[1] == [0] * 16
    settled = [{"mask": (1.0, 0.1), "normal": (1.0, 50.0)}] * SETTLED
    after = [{"mask": (1.0, 0.1), "normal": (1.0, 5000.0)}] * 8
    assert shown(settled + after)[0].high == 8


def test_refused_updates_are_counted_in_a_row_and_enter_nothing():
    watch, _ = shown(mask(*NOISY, 0.1, *[math.nan] * 4))
    assert (watch.refused, watch.high) == (4, 0)
    assert shown(mask(*NOISY, *[math.nan] * 4, 0.1))[0].refused == 0


def test_what_was_not_looked_at_goes_through_a_checkpoint():
    steps = mask(*NOISY, *[1.7] * 20)
    through = shown(steps, restored=(3, 61, 62))
    never = shown(steps)
    assert through[1] == never[1]
    assert through[0].state_dict() == never[0].state_dict()


def test_settling_forgets_the_count_and_keeps_the_medians():
    watch, _ = shown(mask(*NOISY, *[1.7] * 20))
    usual = watch.state_dict()["usual"]
    watch.reset()
    assert (watch.high, watch.refused, watch.worst) == (0, 0, 0.0)
    assert watch.state_dict()["usual"] == usual
