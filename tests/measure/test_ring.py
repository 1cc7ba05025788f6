import math

import pytest
import torch

from fieldwatch.measure import DeviceRing, Heading
from fieldwatch.measure.ring import ROWS, HostRows

CPU = torch.device("cpu")


@pytest.fixture(params=[lambda: DeviceRing(CPU), HostRows], ids=["ring", "host"])
def ring(request):
    """Return each kind of buffer, empty."""
    return request.param()


def heading(step, **more):
    return Heading("step", step, step, float(step), **more)


def test_rows_come_back_as_written_with_nan_and_infinity(ring):
    for step, value in enumerate([1.5, math.nan, math.inf]):
        ring.write(heading(step), {"loss": torch.tensor(value)}, {"lr": 0.5})
    (block,) = ring.take().blocks()
    assert block.columns == ("loss", "lr")
    assert block.steps.tolist() == [0, 1, 2]
    assert block.values[0].tolist() == [1.5, 0.5]
    assert math.isnan(block.values[1, 0])
    assert block.values[2, 0] == math.inf


def test_a_metric_that_comes_and_goes_is_absent_not_zero(ring):
    ring.write(heading(0), {"loss": torch.tensor(1.0)}, {})
    ring.write(heading(1), {"loss": torch.tensor(2.0), "mask": torch.tensor(3.0)}, {})
    ring.write(heading(2), {"loss": torch.tensor(4.0)}, {})
    assert [block.columns for block in ring.take().blocks()] == [("loss",), ("loss", "mask"), ("loss",)]


def test_later_writes_do_not_change_rows_on_their_way(ring):
    ring.write(heading(0), {"loss": torch.tensor(1.0)}, {})
    transfer = ring.take()
    ring.write(heading(1), {"loss": torch.tensor(9.0)}, {})
    assert transfer.blocks()[0].values.tolist() == [[1.0]]


def test_it_grows_in_both_directions(ring):
    wide = {f"m{i}": torch.tensor(float(i)) for i in range(200)}
    for step in range(150):
        ring.write(heading(step), wide if step == 149 else {"loss": torch.tensor(float(step))}, {})
    first, last = ring.take().blocks()
    assert first.values[:, 0].tolist() == list(range(149))
    assert last.values[0].tolist() == list(range(200))


def test_rows_of_many_widths_in_turn(ring):
    widths = [1 + (7 * step) % 23 for step in range(100)]
    for part in range(2):
        for step, width in enumerate(widths):
            ring.write(heading(step), {f"m{i}": torch.tensor(float(100 * part + step + i)) for i in range(width)}, {})
        rows = [row for block in ring.take().blocks() for row in block.values.tolist()]
        assert rows == [[float(100 * part + step + i) for i in range(width)] for step, width in enumerate(widths)]


def test_other_dtypes_and_graphs_are_taken(ring):
    value = (torch.ones(3, requires_grad=True) * 2).sum()
    ring.write(
        heading(0),
        {"a": value, "b": torch.tensor(3, dtype=torch.int64), "c": torch.tensor(0.5, dtype=torch.bfloat16)},
        {},
    )
    assert ring.take().blocks()[0].values.tolist() == [[6.0, 3.0, 0.5]]


def test_samples_and_other_axes_travel_with_their_rows(ring):
    ring.write(heading(4, samples=("a", "b")), {"loss": torch.tensor(1.0)}, {})
    ring.write(Heading("epoch", 4, 1, 4.5), {"mean": torch.tensor(2.0)}, {})
    step, epoch = ring.take().blocks()
    assert step.samples == (("a", "b"),)
    assert (epoch.axis, epoch.steps.tolist(), epoch.positions.tolist()) == ("epoch", [4], [1])


def test_it_is_due_when_full_and_empty_afterwards(ring):
    for step in range(ROWS):
        assert not ring.due()
        ring.write(heading(step), {"loss": torch.tensor(1.0)}, {})
    assert ring.due()
    ring.take()
    assert ring.take() is None
