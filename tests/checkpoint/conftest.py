"""Isolates Python's global random numbers for these tests."""

import random

import pytest


@pytest.fixture(autouse=True)
def own_python_random(monkeypatch):
    """Give each test its own generator state, because beartype draws from the global one to select what it checks."""
    own = random.Random(0)
    for name in ("random", "gauss", "uniform", "randrange", "seed", "getstate", "setstate", "getrandbits"):
        monkeypatch.setattr(random, name, getattr(own, name))
