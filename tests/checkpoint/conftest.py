"""Python's random numbers for these tests alone."""

import random

import pytest


@pytest.fixture(autouse=True)
def own_python_random(monkeypatch):
    """Give the tests a generator of their own: beartype draws from the global one to choose what it checks."""
    own = random.Random(0)
    for name in ("random", "gauss", "uniform", "randrange", "seed", "getstate", "setstate", "getrandbits"):
        monkeypatch.setattr(random, name, getattr(own, name))
