"""Runs in memory, without folders, to compare."""

from pathlib import Path

import numpy as np
import pytest

from fieldwatch.record import Series
from fieldwatch.report.compare import Side


def series(values, steps=None, pace=0.5):
    values = np.asarray(values, np.float64)
    steps = np.arange(len(values), dtype=np.float64) if steps is None else np.asarray(steps, np.float64)
    return Series(steps=steps, seconds=steps * pace, positions=steps.copy(), values=values)


@pytest.fixture
def line():
    return series


@pytest.fixture
def side():
    """Make a fieldwatch run from series or values by name of the metric."""

    def make(name, metrics, **known):
        held = {key: value if isinstance(value, Series) else series(value) for key, value in metrics.items()}
        return Side(**{"name": name, "folder": Path(name), "kind": "fieldwatch", "series": held, "config": {}} | known)

    return make
