"""Killed without warning while Gaussians grow, and again while neighbors are compared: the very same Gaussians."""

import signal
import time

import pytest
import torch

from fieldwatch import Checkpoints
from fieldwatch.record import read_events

SCHEDULE = (
    "-r dn_consistency --coarse-iterations 12000 --schedule-scale 0.02 --growth-pull 1e-5 --growth-cap 300"
    " --keep-last 30"
).split()
"""240 steps: growth at 20, 40 ... 140, entropy from 140, prune and density terms from 180; checkpoints every 20."""
GROWN = range(40, 140)
LOOKS_AT_NEIGHBORS = range(200, 240)
TOTAL = 240


def saved(folder):
    """Step of the newest checkpoint, without looking into files that are being written."""
    numbers = (path.name.split("_")[-1].split(".")[0] for path in (folder / "checkpoints").glob("*"))
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def kill_at(process, folder, steps):
    """Kill the process as soon as a checkpoint says it has come to these steps; return where that was."""
    deadline = time.monotonic() + 120
    while saved(folder) < steps.start and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors
    return saved(folder)


def gaussians(folder):
    return Checkpoints(folder / "checkpoints").read("last")["gaussians"]


def changes(folder):
    facts = [event for event in read_events(folder) if event["kind"] in ("growth", "prune", "reset")]
    return {
        (event["kind"], event["step"]): {key: value for key, value in event.items() if key != "seconds"}
        for event in facts
    }


@pytest.fixture
def twice_killed(photos, tmp_path, start, finish, small):
    """A run without interruption, one that was killed twice, and at which steps."""
    command = ["train", "splats", "--data", photos, *small, *SCHEDULE]
    code, _, errors = finish(*command, "--out", tmp_path / "whole")
    assert code in (0, 1), errors  # so small a scene may earn findings
    folder = tmp_path / "killed"
    places = [kill_at(start(*command, "--out", folder), folder, GROWN)]
    places.append(kill_at(start("resume", folder), folder, LOOKS_AT_NEIGHBORS))
    code, _, errors = finish("resume", folder)
    assert code in (0, 1), errors
    return tmp_path / "whole", folder, places


def test_the_gaussians_and_the_journal_of_a_killed_run_are_those_of_an_uninterrupted_one(
    twice_killed, repeatable_metrics
):
    whole, killed, places = twice_killed
    assert places[0] in GROWN
    assert places[1] in LOOKS_AT_NEIGHBORS

    one = gaussians(whole)
    other = gaussians(killed)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)

    grown = [step for kind, step in changes(whole) if kind == "growth"]
    assert len(grown) > 3
    assert changes(killed) == changes(whole)

    expected = repeatable_metrics(whole)
    found = repeatable_metrics(killed)
    assert expected["Loss/total"][0] == list(range(TOTAL))
    assert expected["Loss/component_sdf_density"][0] == list(range(180, TOTAL))
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
