"""Findings of a run that rolled back and skipped updates."""

import numpy as np

from fieldwatch.health import GENERAL, Examiner
from fieldwatch.health.rules.finite import RefusedUpdates
from fieldwatch.health.rules.incidents import RolledBack

EVENT = {"kind": "rolled_back", "step": 79, "from": 96, "to": 80, "skipped": [83, 94], "cause": "the loss was high"}


def flat(value, count=200):
    return np.full(count, float(value))


def test_it_says_from_where_to_where_and_what_is_skipped(make):
    history = make({"Loss/total": flat(1)}, events=[EVENT, {**EVENT, "skipped": []}])
    first, second = RolledBack()(history)
    assert "from 96 steps" in first.message
    assert "state after 80" in first.message
    assert "steps 83 to 94" in first.message
    assert "no update" in second.message


def test_every_run_is_watched_for_it(make):
    history = make({"Loss/total": flat(1)}, events=[EVENT])
    assert "RolledBack" in {finding.rule for finding in Examiner(GENERAL).examine(history)}


def test_skipped_updates_are_no_refusals(make):
    refused = flat(0)
    refused[83:95] = 1
    assert RefusedUpdates()(make({"Guard/refused": refused}))
    skipped = np.where(refused > 0, 1.0, 0.0)
    assert RefusedUpdates()(make({"Guard/refused": refused, "Guard/skipped": skipped})) == ()
