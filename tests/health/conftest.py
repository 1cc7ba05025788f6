"""Shared fixtures of the health tests."""

import numpy as np
import pytest


@pytest.fixture
def rng():
    return np.random.default_rng(20_240_611)


@pytest.fixture(scope="session")
def simulator(benchmark):
    """The simulated runs of benchmarks/forecast.py."""
    return benchmark("forecast")
