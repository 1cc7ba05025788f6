import tracemalloc

import numpy as np
import pytest

from fieldwatch.record import Block, History, Row


def rows(history, *steps, **values):
    for step in steps:
        history.extend(Block.of(Row(step=step, seconds=step / 2, values=values or {"a": float(step)})))


def test_series_of_one_metric_over_changing_columns():
    history = History()
    for step in range(6):
        values = {"Loss/total": float(step)} | ({"Loss/component_mask": 10.0 * step} if step % 2 else {})
        history.extend(Block.of(Row(step=step, seconds=step / 2, values=values)))
    total = history["Loss/total"]
    mask = history["Loss/component_mask"]
    assert total.steps.tolist() == total.values.tolist() == [0, 1, 2, 3, 4, 5]
    assert total.seconds.tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    assert mask.values.tolist() == [10, 30, 50]
    assert mask.last(2).values.tolist() == [30, 50]
    assert len(mask.last(9)) == 3
    assert history.names() == ("Loss/total", "Loss/component_mask")
    assert "Loss/total" in history
    assert "nothing" not in history
    assert history.step == 5
    with pytest.raises(KeyError, match="'x'; recorded: Loss/component_mask, Loss/total"):
        history["x"]


def test_later_row_of_a_step_wins_within_and_across_columns():
    history = History()
    rows(history, 1, 2, 3, a=1.0)
    rows(history, 2, a=2.0, b=0.0)
    rows(history, 1, a=3.0)
    assert history["a"].steps.tolist() == [1, 2, 3]
    assert history["a"].values.tolist() == [3, 2, 1]
    assert history.rows("a") == 5
    assert history.rows("b") == 1
    assert history.rows("c") == 0


def test_epoch_rows_stand_on_their_position():
    history = History()
    for epoch in (1, 2, 3):
        history.extend(
            Block.of(
                Row(step=epoch * 100 - 1, seconds=0, values={"Eval/psnr": 30.0 + epoch}, axis="epoch", position=epoch)
            )
        )
    assert history["Eval/psnr"].positions.tolist() == [1, 2, 3]
    assert history["Eval/psnr"].steps.tolist() == [99, 199, 299]


def test_capacity_is_per_metric_so_a_sparse_one_keeps_its_past():
    history = History(capacity=50)
    for step in range(1000):
        rows(history, step, a=float(step))
        if step % 100 == 0:
            rows(history, step, psnr=float(step))
    assert history["a"].steps.tolist() == list(range(950, 1000))
    assert history["psnr"].steps.tolist() == list(range(0, 1000, 100))


def test_the_first_recordings_of_a_long_run_are_known():
    history = History(capacity=50)
    for step in range(40):
        rows(history, step, a=float(step))
    assert history["a"].beginning is None
    assert history["a"].start.values.tolist() == list(range(40))
    for step in range(40, 1000):
        rows(history, step, a=float(step))
        if step % 100 == 0:
            rows(history, step, a=float(step), psnr=1.0)
    assert history["a"].steps[0] == 950
    assert history["a"].start.steps.tolist() == history["a"].start.values.tolist() == list(range(64))
    assert history["a"].last(3).beginning is None
    # All of a rare metric is kept.
    assert history["psnr"].beginning is None


@pytest.mark.parametrize(("back_to", "count"), [(500, 64), (30, 30), (0, 0)])
def test_after_going_back_the_beginning_is_that_of_the_rows_that_are_left(back_to, count):
    history = History(capacity=50)
    for step in range(1000):
        rows(history, step, a=float(step))
    history.discard(back_to)
    for step in range(back_to, 1500):
        rows(history, step, a=-float(step))
    first = history["a"].start
    assert first.steps[:count].tolist() == list(range(count))
    assert first.values[:count].tolist() == list(range(count))
    # From step 0 on, all values are those of the second time.
    assert count or first.values.tolist() == [-step for step in range(64)]


def test_block_larger_than_the_capacity():
    history = History(capacity=10)
    steps = np.arange(5000)
    history.extend(
        Block(
            axis="step", columns=("a",), steps=steps, seconds=steps / 1.0, positions=steps, values=steps[:, None] * 1.0
        )
    )
    assert history["a"].values.tolist() == list(range(4990, 5000))
    assert history["a"].start.values.tolist() == list(range(64))


def test_handed_out_series_never_changes_and_is_read_only():
    history = History(capacity=100)
    rows(history, *range(100))
    before = history["a"]
    copy = before.values.copy()
    rows(history, *range(100, 1000))
    history.discard(10)
    assert (before.values == copy).all()
    with pytest.raises(ValueError, match="read-only"):
        before.values[0] = 1


@pytest.mark.usefixtures("unchecked")
def test_memory_is_flat_over_a_hundred_thousand_rows():
    history = History(capacity=256)
    steps = np.arange(500)
    names = tuple(f"m{i}" for i in range(8))

    def feed(first):
        at = steps + first
        samples = tuple((f"view{i % 30}",) for i in range(500))
        values = np.ones((500, 9))
        history.extend(
            Block(
                axis="step",
                columns=("Loss/total", *names),
                steps=at,
                seconds=at / 1.0,
                positions=at,
                values=values,
                samples=samples,
            )
        )
        history.add_event({"kind": "note", "step": int(first)})

    feed(0)
    tracemalloc.start()
    base = tracemalloc.get_traced_memory()[0]
    for first in range(500, 100_000, 500):
        feed(first)
    grown = tracemalloc.get_traced_memory()[0] - base
    tracemalloc.stop()
    assert len(history["m7"]) == 256
    assert grown < 700_000


def test_discard_forgets_rows_events_and_samples():
    history = History()
    for step in range(10):
        history.extend(
            Block.of(
                Row(
                    step=step,
                    seconds=0,
                    values={"Loss/total": 1.0 * step},
                    samples=("even" if step % 2 == 0 else "odd",),
                )
            )
        )
        history.add_event({"kind": "note", "step": step})
    history.discard(4)
    assert history.step == 3
    assert history["Loss/total"].steps.tolist() == [0, 1, 2, 3]
    assert [event["step"] for event in history.events("note")] == [0, 1, 2, 3]
    assert history.sample_losses()["even"].steps.tolist() == [0, 2]
    history.discard(0)
    assert history.step == -1
    assert "Loss/total" not in history
    assert dict(history.sample_losses()) == {}


def test_sample_losses_from_places_in_the_batch_or_from_a_lone_sample():
    history = History()
    for step, samples in enumerate([("a", "b"), ("b", "c"), ("c",)]):
        values = {"Loss/total": 9.0, "Sample/0/loss": 1.0 + step, "Sample/1/loss": 10.0 + step}
        history.extend(Block.of(Row(step=step, seconds=0, values=values, samples=samples)))
    history.extend(Block.of(Row(step=3, seconds=0, values={"Loss/total": 5.0}, samples=("a",))))
    history.extend(Block.of(Row(step=4, seconds=0, values={"Loss/total": 6.0}, samples=("a", "b"))))
    history.extend(Block.of(Row(step=5, seconds=0, values={"Loss/total": 7.0})))
    losses = history.sample_losses()
    assert {name: (one.steps.tolist(), one.values.tolist()) for name, one in losses.items()} == {
        "a": ([0, 3], [1, 5]),
        "b": ([0, 1], [10, 2]),
        "c": ([1, 2], [11, 3]),
    }
    assert len(losses) == 3
    assert history.sample_losses() is losses


def test_sample_losses_are_in_order_and_the_later_of_a_step_wins_however_they_came():
    history = History()
    for step, loss in [(4, 1.0), (2, 2.0), (3, 3.0), (2, 4.0), (4, 5.0)]:
        sample = "odd" if step % 2 else "even"
        history.extend(Block.of(Row(step=step, seconds=0, values={"Loss/total": loss}, samples=(sample,))))
    losses = history.sample_losses()
    assert losses["even"].steps.tolist() == [2, 4]
    assert losses["even"].values.tolist() == [4, 5]
    assert [losses.names[owner] for owner in losses.owners] == ["even", "even", "odd"]
    assert losses.visits.values.tolist() == [4, 5, 3]


def test_phases_are_bounded_by_windows_and_phase_events():
    history = History()
    assert history.phase_start(100) == 0
    history.add_event({"kind": "windows", "step": 0, "windows": {"normal": [0, 499], "mask": [200, 299]}})
    history.add_event({"kind": "phase", "step": 350, "name": "fine"})
    assert history.windows == {"normal": (0, 499), "mask": (200, 299)}
    assert [history.phase_start(step) for step in (0, 199, 200, 299, 300, 349, 350, 499, 500, 9999)] == [
        0, 0, 200, 200, 300, 300, 350, 350, 500, 500,
    ]  # fmt: skip


def test_events_of_a_kind_are_bounded_too():
    history = History(capacity=3)
    for step in range(20):
        history.add_event({"kind": "note", "step": step})
    assert [event["step"] for event in history.events("note")] == [17, 18, 19]
    assert history.events("other") == ()
    with pytest.raises(ValueError, match="non-empty string"):
        history.add_event({"step": 0})


@pytest.mark.parametrize("capacity", [0, -5])
def test_capacity_must_be_positive(capacity):
    with pytest.raises(ValueError, match=f"capacity={capacity}.*expected at least 1"):
        History(capacity)


def test_the_first_step_is_known_after_its_row_was_forgotten_and_gone_when_all_rows_are():
    history = History(capacity=4)
    assert history.first == -1
    for step in range(7000, 7020):
        history.extend(Block.of(Row(step=step, seconds=0.0, values={"Loss/total": 1.0})))
    assert history["Loss/total"].steps[0] > 7000
    assert history.first == 7000
    history.discard(7010)
    assert history.first == 7000
    history.discard(0)
    assert history.first == -1


def test_a_history_shows_itself_in_a_notebook():
    history = History()
    assert repr(history) == "<History: no steps, 0 metrics>"
    assert "no steps" in history._repr_html_()
    for step, loss in enumerate((3.0, 2.0, 0.5)):
        rows(history, step, **{"Eval/<b>": np.nan, "Loss/total": loss})
    assert repr(history) == "<History: steps 0 to 2, 2 metrics, Loss/total 0.5>"
    page = history._repr_html_()
    assert page.index("Loss/total</td>") < page.index("Eval/&lt;b&gt;</td>")
