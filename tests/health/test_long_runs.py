"""Runs that are longer than the history's capacity: what the verdict needs of their start is still known."""

import numpy as np
import pytest

from fieldwatch.health.outcomes import loss_ends, loss_reduction, mean_until
from fieldwatch.health.rules.poor_results import ends_poorly, has_stalled
from fieldwatch.health.rules.rates import RateStartsLate
from fieldwatch.record import Block, History

STEPS = 20_000
FALLING = np.geomspace(2.0, 0.1, STEPS)
SETTLED = 0.1 + 1.9 * np.exp(-np.arange(STEPS) / 500)
FLAT = np.full(STEPS, 2.0)


def long_run(loss, rate=None):
    history = History()
    history.add_event({"kind": "plan", "step": 0, "steps": STEPS})
    columns = {"Loss/total": loss, "LearningRate/0": np.full(STEPS, 0.1) if rate is None else rate}
    values = np.stack(list(columns.values()), axis=1)
    for start in range(0, STEPS, 64):
        steps = np.arange(start, min(start + 64, STEPS))
        history.extend(
            Block(
                axis="step",
                columns=tuple(columns),
                steps=steps,
                seconds=steps * 0.01,
                positions=steps,
                values=values[steps],
            )
        )
    assert history["Loss/total"].steps[0] > 4096
    return history


@pytest.mark.parametrize(("loss", "fallen"), [(FALLING, 0.94), (SETTLED, 0.95), (FLAT, 0.0)])
def test_the_fall_of_the_loss_is_that_of_the_whole_run(loss, fallen):
    history = long_run(loss)
    assert loss_reduction(history) == pytest.approx(fallen, abs=0.01)
    assert loss_ends(history["Loss/total"])[0] == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(("loss", "poor"), [(FALLING, False), (SETTLED, False), (FLAT, True)])
def test_only_a_loss_that_never_fell_is_a_poor_result(loss, poor):
    history = long_run(loss)
    assert ends_poorly(history) == has_stalled(history) == poor


@pytest.mark.parametrize(
    ("rate", "late"),
    [
        (np.full(STEPS, 0.1), False),
        (0.05 * (1 + np.cos(np.linspace(0, np.pi, STEPS))), False),
        (np.minimum(np.arange(STEPS) / (0.9 * STEPS), 1) ** 16, True),
    ],
    ids=["constant", "cosine", "warm-up"],
)
def test_only_a_rate_that_was_low_late_in_the_run_starts_late(rate, late):
    assert bool(RateStartsLate()(long_run(FALLING, rate))) == late


def test_the_loss_at_any_evaluation_of_a_long_run_is_known():
    loss = long_run(FALLING)["Loss/total"]
    for step in (40, 500, 5_000, 12_000, 19_999):
        assert mean_until(loss, step, width=8) == pytest.approx(FALLING[step], rel=0.1), step
