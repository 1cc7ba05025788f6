"""Three thousand steps after growth has ended, the memory is what it was."""

import json

import numpy as np

from fieldwatch.record import read_events, read_memory_log

SCHEDULE = "--schedule-scale 1 --growth-from 20 --growth-until 200 --growth-every 20 --surface-from 200 --prune-at 250"
STEPS, SETTLED = 3300, 300
"""Growth and the prune are over at 250; photos are all decoded, buffers of the record are full at 300."""


def test_three_thousand_steps_after_growth_hold_no_more_memory(photos, tmp_path, finish, small):
    folder = tmp_path / "run"
    words = f"{SCHEDULE} --coarse-iterations {STEPS} --test-iterations 300 --checkpoint-interval 0".split()
    code, _, errors = finish(
        *("train", "splats", "--data", photos, "--longer-side", 16, "--out", folder),
        *(*small, *words, "--profile-tensors", 50),
    )
    assert code in (0, 1), errors  # so small a scene may earn findings
    grown = [event["step"] for event in read_events(folder) if event["kind"] in ("growth", "prune")]
    assert len(grown) > 3
    assert max(grown) < SETTLED
    later = [account for account in read_memory_log(folder) if account["step"] >= SETTLED]
    assert later[-1]["step"] - later[0]["step"] >= 2900

    owned = [json.dumps(account["owners"], sort_keys=True) for account in later]
    assert len(set(owned)) == 1  # of every owner, not a byte more or less
    resident = np.array([account["resident"] for account in later], float)
    assert np.ptp(resident) < 0.01 * resident[0]
