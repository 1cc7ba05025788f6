"""Three thousand steps after growth has ended, the memory is what it was."""

import json
import time

import psutil
import pytest

from fieldwatch.record import read_events, read_history
from fieldwatch.record.memory import read_memory_log

SCHEDULE = "--schedule-scale 1 --growth-from 20 --growth-until 120 --growth-every 20 --surface-from 200 --prune-at 250"
"""Every growth doubles them: 80 Gaussians become 4,600, of which one float each, kept at every step, is 55 MB."""
STEPS = 3900
GROWN = 300
SETTLED = 600
"""Growth and the prune are over at 250, the evaluation at 300; at 600 every instrument has looked."""


NUMBER = 64
"""Bytes that the record may hold per recorded number: value, step, position, and the spare room of growing arrays."""
PLAIN_HEAP = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""One heap that gives back what is freed, so that resident memory is what is held and not what is kept for later."""


def resident(process, journal):
    """How many steps are written and how many bytes the process has, again and again until it ends."""
    own = psutil.Process(process.pid)
    written = read = 0
    while process.poll() is None:
        if journal.exists():
            with journal.open("rb") as lines:
                lines.seek(read)
                fresh = lines.read()
            written, read = written + fresh.count(b"\n"), read + len(fresh)
        yield written, own.memory_info().rss
        time.sleep(0.1)


@pytest.mark.timeout(900)  # half a minute on a fast machine, with a heap that gives everything back at once
def test_three_thousand_steps_after_growth_hold_no_more_memory(photos, tmp_path, start_anew, small, monkeypatch):
    folder = tmp_path / "run"
    for name, value in PLAIN_HEAP.items():
        monkeypatch.setenv(name, value)
    words = f"{SCHEDULE} --coarse-iterations {STEPS} --test-iterations {GROWN} --checkpoint-interval 0".split()
    process = start_anew(
        *("train", "splats", "--data", photos, "--longer-side", 16, "--out", folder, "--json"),
        *(*small, *words, "--profile-tensors", 50),
    )
    seen = list(resident(process, folder / "journal.jsonl"))
    _, errors = process.communicate()
    assert process.returncode in (0, 1), errors  # so small a scene may earn findings

    grown = [event["step"] for event in read_events(folder) if event["kind"] in ("growth", "prune")]
    assert len(grown) > 3
    assert max(grown) < GROWN
    later = [account for account in read_memory_log(folder) if account["step"] >= GROWN]
    assert later[-1]["step"] - later[0]["step"] >= 3000
    owners = {json.dumps(account["owners"], sort_keys=True) for account in later}
    assert len(owners) == 1  # of every owner, not a byte more or less

    early = [size for written, size in seen if SETTLED <= written < SETTLED + 300]
    late = [size for written, size in seen if STEPS - 300 <= written < STEPS]
    assert min(len(early), len(late)) > 3
    # What a look holds for a moment is not growth. The record keeps each number with its place, for the rules.
    record = read_history(folder)
    numbers = sum(int((record[name].steps >= SETTLED).sum()) for name in record.names())
    assert min(late) - min(early) < NUMBER * numbers
