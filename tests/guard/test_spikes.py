import math
from itertools import pairwise

import numpy as np
import pytest

from fieldwatch.guard import Rollback, Spikes
from fieldwatch.record import Block

OPTIONS = Rollback(patience=8)


def block(losses, first=0, *, columns=None, samples=()):
    """Return rows with one term of weight 1, gradient norm 1, and further columns."""
    count = len(losses)
    values = {
        "Loss/component_fit": np.asarray(losses, np.float64),
        "Loss/weight_fit": np.ones(count),
        "Gradients/total_norm": np.ones(count),
        "Guard/refused": np.zeros(count),
    }
    values |= {name: np.broadcast_to(np.asarray(value, np.float64), count) for name, value in (columns or {}).items()}
    steps = np.arange(first, first + count)
    return Block(
        axis="step",
        columns=tuple(values),
        steps=steps,
        seconds=steps * 0.1,
        positions=steps,
        values=np.stack(list(values.values()), axis=1),
        samples=tuple((f"view {step}",) for step in steps) if samples else (),
    )


def calm(count):
    return 1 + 0.1 * np.sin(np.arange(count))


def seen(*blocks, options=OPTIONS):
    spikes = Spikes(options)
    for one in blocks:
        spikes(one)
    return spikes


def test_a_sustained_high_loss_diverges_at_its_first_high_step():
    losses = np.concatenate((calm(100), np.full(20, 50.0)))
    divergence = seen(block(losses, samples=True)).divergence
    assert (divergence.first, divergence.last, divergence.noticed_at) == (100, 107, 107)
    assert "above 10 times" in divergence.cause
    assert "sample view 100" in divergence.cause


def test_a_spike_that_recovers_is_no_divergence():
    losses = calm(300)
    losses[100:107] = losses[150:157] = 50.0
    spikes = seen(block(losses))
    assert spikes.divergence is None
    assert not spikes.ongoing


def test_a_state_with_a_high_loss_should_not_be_saved():
    assert seen(block(np.append(calm(100), 50.0))).ongoing


@pytest.mark.parametrize("cuts", [(), (100,), (1, 50, 99, 103, 105), tuple(range(1, 120))])
def test_the_result_does_not_depend_on_the_blocks(cuts):
    losses = np.concatenate((calm(100), np.full(20, 50.0)))
    bounds = [0, *cuts, len(losses)]
    blocks = [block(losses[a:b], a) for a, b in pairwise(bounds)]
    assert seen(*blocks).divergence == seen(block(losses)).divergence


@pytest.mark.parametrize("at", [0, 40, 101, 104])
def test_a_resumed_detector_has_the_same_result(at):
    losses = np.concatenate((calm(100), np.full(20, 50.0)))
    spikes = Spikes(OPTIONS, seen(block(losses[:at])).state())
    spikes(block(losses[at:], at))
    assert spikes.divergence == seen(block(losses)).divergence


@pytest.mark.parametrize("name", ["Guard/refused", "Guard/skipped"])
def test_refused_and_skipped_steps_neither_extend_nor_end_a_streak(name):
    losses = np.concatenate((calm(100), np.full(40, 50.0)))
    odd = (np.arange(140) >= 100) & (np.arange(140) % 2 == 1)
    divergence = seen(block(losses, columns={name: odd})).divergence
    assert (divergence.first, divergence.noticed_at) == (100, 114)


def test_non_finite_values_do_not_enter_the_baseline():
    losses = calm(200)
    losses[::2] = math.nan
    spikes = seen(block(losses))
    assert spikes.divergence is None
    assert np.isfinite(spikes.state()["windows"]["Loss/component_fit"]).all()


def test_a_rising_weight_and_a_new_term_are_no_divergence():
    weights = np.where(np.arange(200) < 100, 1.0, 100.0)
    new = np.where(np.arange(100) < 50, 500.0, 400.0)
    late = block(calm(100), 200, columns={"Loss/component_new": new, "Loss/weight_new": 1.0})
    assert seen(block(calm(200), columns={"Loss/weight_fit": weights}), late).divergence is None


@pytest.mark.parametrize("kind", ["reset", "prune", "phase"])
def test_the_baseline_is_relearned_after_a_deliberate_change(kind):
    spikes = Spikes(OPTIONS)
    if kind == "phase":
        spikes.event({"kind": "phase", "step": 100, "name": "fine"})
    spikes(block(calm(100)))
    if kind != "phase":
        spikes.event({"kind": kind, "step": 99})
    spikes(block(50 * calm(100), 100))
    assert spikes.divergence is None
    spikes(block(5000 * calm(100), 200))
    assert spikes.divergence.first == 200


def test_a_loss_near_zero_may_jump_by_large_factors(monkeypatch):
    """The noise is taken into account, not only the median."""
    losses = 1e-6 * np.exp(np.random.default_rng(0).standard_normal(2000))
    options = Rollback(factor=2.0, patience=3)
    assert seen(block(losses), options=options).divergence is None
    monkeypatch.setattr("fieldwatch.guard.spikes.NOISE_DEVIATIONS", 0.0)
    assert seen(block(losses), options=options).divergence is not None


def test_a_gradient_surge_diverges_at_once_and_includes_its_high_losses():
    norms = np.ones(120)
    losses = calm(120)
    norms[104] = 1e9
    losses[102:105] = 50.0
    divergence = seen(block(losses, columns={"Gradients/total_norm": norms})).divergence
    assert (divergence.first, divergence.last, divergence.noticed_at) == (102, 104, 104)
    assert "1e+09 times" in divergence.cause
    assert "at step 104" in divergence.cause


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("Parameters/head_mean", "the parameters of group 'head'"),
        ("Guard/moments", "the optimizers' moments were"),
        ("Guard/moments_head", "the optimizers' moments of group 'head'"),
        ("Guard/buffers", "the buffers"),
    ],
)
def test_state_that_becomes_non_finite_diverges_without_a_suspected_batch(name, prefix):
    values = np.where(np.arange(50) < 30, 1.0, math.inf)
    divergence = seen(block(calm(50), columns={name: values})).divergence
    assert (divergence.first, divergence.last, divergence.noticed_at) == (29, 28, 30)
    assert divergence.cause.startswith(prefix)


def test_state_that_was_never_finite_is_no_divergence():
    assert seen(block(calm(50), columns={"Guard/buffers": math.inf})).divergence is None


def test_the_skipped_range_grows_with_each_rollback():
    options = Rollback(margin=2)
    assert options.skipped((60, 69), 0) == (58, 71)
    assert options.skipped((60, 79), 1) == (50, 89)
    assert options.skipped((1, 1), 0) == (0, 3)
    assert options.skipped((29, 28), 0) == (29, 28)
