import contextlib
import resource

import numpy as np
import pytest

from fieldwatch.record import Block


@pytest.fixture
def make_block():
    """Return a block of rows ``first`` to ``last`` (exclusive) with value = step + 0.25 * column."""

    def make(first, last, columns=("Loss/total", "Loss/component_pixel"), *, axis="step", positions=None):
        steps = np.arange(first, last)
        return Block(
            axis=axis,
            columns=tuple(columns),
            steps=steps,
            seconds=steps * 0.5,
            positions=steps if positions is None else np.asarray(positions),
            values=np.add.outer(steps * 1.0, 0.25 * np.arange(len(columns))),
        )

    return make


@pytest.fixture
def full_disk():
    """Limit the file size within a context: writes succeed up to the limit, then fail."""

    @contextlib.contextmanager
    def limited(size):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited
