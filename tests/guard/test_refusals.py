import math

from fieldwatch.guard import Refusals
from fieldwatch.record import Block, Row


def row(step, *, refused, pixel=1.0, clip=1.0, decoder=1.0, losses=(1.0, 1.0)):
    values = {
        "Loss/component_pixel": pixel,
        "Loss/component_clip": clip,
        "Gradients/decoder_norm": decoder,
        "Gradients/total_norm": math.nan if refused else 1.0,
        "Sample/0/loss": losses[0],
        "Sample/1/loss": losses[1],
        "Guard/refused": float(refused),
    }
    return Block.of(Row(step=step, seconds=0.0, values=values, samples=("frame 3", "frame 9")))


def test_the_culprit_is_named_by_term_group_and_sample():
    events = []
    refusals = Refusals(3, events.append)
    refusals(row(7, refused=True, clip=math.nan, decoder=math.inf, losses=(1.0, math.nan)))
    (event,) = events
    assert (event["step"], event["terms"], event["groups"], event["samples"]) == (7, ["clip"], ["decoder"], ["frame 9"])


def test_all_samples_are_named_without_a_loss_per_sample():
    events = []
    Refusals(3, events.append)(row(7, refused=True, decoder=math.nan))
    assert events[0]["samples"] == ["frame 3", "frame 9"]


def test_only_an_unbroken_streak_is_divergence():
    refusals = Refusals(3, lambda _: None)
    for step, bad in enumerate([1, 1, 0, 1, 1]):
        refusals(row(step, refused=bool(bad)))
    assert refusals.diverged is None
    refusals(row(5, refused=True, clip=math.nan))
    assert (refusals.diverged.first, refusals.diverged.length) == (3, 3)
    assert "term clip" in refusals.diverged.culprit
    assert refusals.count == 5


def test_healthy_rows_and_rows_without_an_update_are_not_reported():
    events = []
    refusals = Refusals(1, events.append)
    refusals(row(0, refused=False))
    refusals(Block.of(Row(step=1, seconds=0.0, values={"Loss/total": math.nan})))
    assert events == []
