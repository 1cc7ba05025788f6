"""Shared fixtures of the health tests."""

import numpy as np
import pytest

from fieldwatch.record import History


@pytest.fixture
def rng():
    return np.random.default_rng(20_240_611)


@pytest.fixture(scope="session")
def simulator(benchmark):
    """The simulated runs of benchmarks/forecast.py."""
    return benchmark("forecast")


class PlantedCases:
    """What holds for the planted fault and the healthy counterpart of every rule."""

    def __init__(self, make):
        self._make = make

    def assert_fault_is_named(self, case):
        found = case.rule(case.fault(self._make))
        assert len(found) == 1, found
        finding = found[0]
        assert finding.rule == case.rule.name
        assert (finding.step, finding.severity, finding.subject) == case.at, finding
        *says, advises = case.words
        assert [words for words in says if words not in finding.message] == [], finding.message
        assert advises in finding.remedy

    def assert_healthy_run_is_silent(self, case):
        assert case.rule(case.healthy(self._make)) == ()
        assert case.rule(History()) == ()

    def assert_step_is_the_earliest(self, case, *, needed=1):
        """The finding is the same with ``needed`` recordings from its step on; without them there is no finding."""
        history = case.fault(self._make)
        history.discard(case.at[0] + needed)
        assert [finding.step for finding in case.rule(history)] == [case.at[0]]
        history.discard(case.at[0])
        assert case.rule(history) == ()


@pytest.fixture
def planted(make):
    """Checks of a rule with a planted fault."""
    return PlantedCases(make)
