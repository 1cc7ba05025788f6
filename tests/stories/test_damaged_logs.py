"""A few of the torture's trials with damaged files that a resume reads besides checkpoints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TORTURE = Path(__file__).parents[2] / "benchmarks" / "torture"
EACH = 8
FEW = """
import json, sys
from dataclasses import asdict
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import logs, torch
torch.set_num_threads(1)
folder = Path(sys.argv[2])
print(json.dumps([asdict(one) for one in logs.damage_logs(folder, int(sys.argv[3]))]))
print(json.dumps(logs.never_from_zero(folder)))
"""


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """What came of a few trials, in one process of its own."""
    command = [sys.executable, "-c", FEW, str(TORTURE), str(tmp_path_factory.mktemp("logs")), str(EACH)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_resume_goes_on_from_the_newest_whole_checkpoint_or_refuses(few):
    trials = few[0]
    assert len({one["file"] for one in trials}) == 6
    assert {one["outcome"] for one in trials} <= {"went on", "refused"}
    assert sum(one["outcome"] == "went on" for one in trials) > len(trials) / 2


def test_every_reader_shows_the_rest_and_nothing_else(few):
    assert [(one["file"], one["mutation"], one["problems"]) for one in few[0] if one["problems"]] == []


def test_damage_of_the_journal_and_of_run_json_is_a_finding(few):
    trials = [one for one in few[0] if one["file"] in ("journal.jsonl", "run.json")]
    assert [one["mutation"] for one in trials if not one["told"]] == []


def test_a_run_that_lost_its_checkpoints_is_never_begun_at_step_0(few):
    assert few[1] == []
