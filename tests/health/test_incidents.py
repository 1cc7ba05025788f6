"""Incidents that a run survives become findings and affect its exit code."""

import numpy as np
import pytest

from fieldwatch.health import GENERAL, Examiner, exit_code
from fieldwatch.health.rules.incidents import RolledBack, ValidationFailed
from fieldwatch.health.rules.losses import LossJump
from fieldwatch.health.rules.terms import DeclaredButZero

EVENTS = {
    "rolled_back": {"cause": "the grid holds no surface", "from": 300, "to": 250, "rate_factor": 0.5},
    "validation_failed": {"what": "mesh", "reason": "MeshError: no surface", "file": "validation_failures/a.txt"},
}


def flat(value, count=1000):
    return np.full(count, float(value))


@pytest.mark.parametrize(
    ("rule", "kind", "words"),
    [
        (
            RolledBack(),
            "rolled_back",
            ("holds no surface", "from 300 steps", "after 250", "0.5 times those of the schedule"),
        ),
        (ValidationFailed(), "validation_failed", ("MeshError: no surface", "validation_failures/a.txt")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_incident_is_a_warning_each_time(make, rule, kind, words):
    events = [{"kind": kind, "step": step, **EVENTS[kind]} for step in (299, 399)]
    history = make({"Loss/total": flat(1, 500)}, events=events)
    found = rule(history)
    assert [(one.step, one.severity) for one in found] == [(299, "warning"), (399, "warning")]
    assert [word for word in words if word not in found[0].message] == []
    assert exit_code(found) == 1
    assert rule(make({"Loss/total": flat(1, 500)})) == ()
    live = Examiner(GENERAL).examine(history)
    assert {one.rule for one in live if one.severity != "note"} >= {rule.name}


def test_a_term_that_stays_zero_and_a_loss_beyond_its_limit_are_seen(make):
    """A normal loss of 0 after its declared start, and a loss above 100."""
    windows = {"mask": (0, 3999), "normal": (2500, 3999)}
    zero = make(
        {"Loss/component_mask": flat(0.1, 4000)},
        ({"Loss/component_normal": flat(0, 1500)}, {"first": 2500}),
        windows=windows,
    )
    assert [(one.subject, one.step) for one in DeclaredButZero()(zero)] == [("normal", 2699)]
    jump = np.where(np.arange(1000) < 500, 1.0, 150.0)
    (found,) = LossJump()(make({"Loss/total": jump}))
    assert found.severity == "error"
