"""Bounds of settings: the error names flag, value and bounds of the first invalid setting."""

from dataclasses import dataclass

import pytest

from fieldwatch.record.config import refuse_out_of_bounds


@dataclass(frozen=True, kw_only=True)
class Options:
    keep_last: int = 1
    dssim: float = 0.2
    cap: int | None = None


COUNTS = ("at least 1", lambda value: value >= 1, ("keep_last", "cap"))
SHARES = ("a fraction from 0 to 1", lambda value: 0 <= value <= 1, ("dssim",))


@pytest.mark.parametrize("options", [Options(), Options(cap=3), Options(dssim=0.0)])
def test_what_is_in_bounds_passes_and_none_always_is(options):
    refuse_out_of_bounds(options, COUNTS, SHARES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(keep_last=0, dssim=2.0), "--keep-last must be at least 1, got 0"),
        (Options(cap=-1), "--cap must be at least 1, got -1"),
        (Options(dssim=float("nan")), "--dssim must be a fraction from 0 to 1, got nan"),
    ],
)
def test_the_first_setting_out_of_its_bounds_is_named(options, message):
    with pytest.raises(ValueError, match="must be") as refused:
        refuse_out_of_bounds(options, COUNTS, SHARES)
    assert str(refused.value) == message
