"""A run on a small disk that another process keeps full to the last byte for some seconds, and then gives back."""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
TORTURE = ROOT / "benchmarks" / "torture"
TRIALS = """
import json, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import disk, last_byte, torch
from fieldwatch.record.disk import reserve
torch.set_num_threads(1)
folder = Path(sys.argv[2])
last_byte.BEFORE, last_byte.AFTER = 128, 64
for_rows, reserve.ROWS_BYTES = reserve.ROWS_BYTES, 0  # in 5 s the rows would fit into the reserve
found = {}
with disk.small_disk(folder / "one", "24m") as why:
    found["why"] = why
    if not why:
        found["goes_on"] = last_byte.goes_on(folder / "one", folder / "beside", 5.0)  # longer than a block of rows
reserve.ROWS_BYTES = for_rows
if not why:
    with disk.small_disk(folder / "two", "24m"):
        found["killed"] = last_byte.ends(folder / "two", folder / "beside_killed", signal.SIGKILL, 1.5)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory, forks):
    """What came of the trials; one process, since it forks and must not have threads."""
    words = ["-c", TRIALS, TORTURE, tmp_path_factory.mktemp("disks")]
    done = forks.run(words, os.environ | {"PYTHONPATH": str(SOURCE)})
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    if answers["why"]:
        pytest.skip(answers["why"])  # tests/run/test_full_disk.py injects the same errors without a mount
    return answers | {"stderr": done.stderr}


def test_the_run_goes_on_and_ends_with_the_weights_and_the_rows_of_its_twin(found):
    one = found["goes_on"]
    assert one["same"]
    assert one["whole"]
    assert one["rows"] > 0
    assert one["writes"] > 0
    assert one["lost"] == 0
    assert one["full"] >= 1.5
    assert f"{one['rows']} rows waited, 0 lost" in found["stderr"]


def test_a_run_that_was_killed_on_the_full_disk_goes_on_from_its_checkpoint(found):
    one = found["killed"]
    assert one["code"] == -9
    assert one["same"]
    assert one["whole"]
    assert one["kept"]
