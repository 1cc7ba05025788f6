import math

import numpy as np
import pytest

from fieldwatch.record import Block, History, Row, derive_block
from fieldwatch.record.derive import trend


def block(**values):
    return Block.of(Row(step=0, seconds=0, values={name.replace("__", "/"): value for name, value in values.items()}))


def values_of(one):
    return dict(zip(one.columns, one.values[0].tolist(), strict=True))


def test_weighted_and_share_are_added_behind_what_was_there():
    made = derive_block(
        block(
            Loss__total=4.0,
            Loss__component_pixel=3.0,
            Loss__weight_pixel=1.0,
            Loss__component_eikonal=10.0,
            Loss__weight_eikonal=0.1,
            Loss__component_unweighted=7.0,
        )
    )
    assert values_of(made) == {
        "Loss/total": 4.0,
        "Loss/component_pixel": 3.0,
        "Loss/weight_pixel": 1.0,
        "Loss/component_eikonal": 10.0,
        "Loss/weight_eikonal": 0.1,
        "Loss/component_unweighted": 7.0,
        "Loss/weighted_pixel": 3.0,
        "Loss/weighted_eikonal": 1.0,
        "Loss/share_pixel": 0.75,
        "Loss/share_eikonal": 0.25,
    }


def test_nothing_to_derive_is_the_block_itself():
    one = block(Loss__total=1.0, Time__step=3.0)
    assert derive_block(one) is one


def test_deriving_twice_adds_nothing():
    once = derive_block(block(Loss__total=1.0, Loss__component_a=1.0, Loss__weight_a=1.0))
    assert derive_block(once) is once


def test_without_a_total_there_is_no_share():
    made = derive_block(block(Loss__component_a=2.0, Loss__weight_a=3.0))
    assert made.columns == ("Loss/component_a", "Loss/weight_a", "Loss/weighted_a")
    assert made.values[0, 2] == 6.0


@pytest.mark.parametrize("total", [0.0, math.nan, math.inf, -math.inf])
def test_share_of_an_unusable_total_is_nan_in_that_row_only(total):
    one = Block(
        axis="step",
        columns=("Loss/total", "Loss/component_a", "Loss/weight_a"),
        steps=np.arange(2),
        seconds=np.zeros(2),
        positions=np.arange(2),
        values=np.array([[total, 1.0, 1.0], [2.0, 1.0, 1.0]]),
    )
    share = derive_block(one).values[:, -1]
    assert math.isnan(share[0])
    assert share[1] == 0.5


def test_non_finite_term_stays_visible():
    made = values_of(derive_block(block(Loss__total=2.0, Loss__component_a=math.inf, Loss__weight_a=0.5)))
    assert made["Loss/weighted_a"] == made["Loss/share_a"] == math.inf


def series(*values):
    history = History()
    for step, value in enumerate(values):
        history.extend(Block.of(Row(step=step, seconds=0, values={"a": value})))
    return history["a"]


def test_trend_compares_the_medians_of_two_windows():
    assert trend(series(9, 10, 11, 1000, 4, 5, 6, 5), 4) == pytest.approx((5 - 10.5) / 10.5)
    assert trend(series(-2, -2, -1, -1), 2) == pytest.approx(0.5)
    assert trend(series(10, math.nan, 11, math.inf), 2) == pytest.approx(0.1)


def test_trend_that_cannot_be_known_is_nan():
    assert math.isnan(trend(series(1, 2, 3), 2))
    assert math.isnan(trend(series(0, 0, 1, 1), 2))
    assert math.isnan(trend(series(1, 1, math.nan, math.nan), 2))
    assert math.isnan(trend(series(math.nan, math.nan, 1, 1), 2))
    with pytest.raises(ValueError, match=r"window .* 1, got 0"):
        trend(series(1.0), 0)
