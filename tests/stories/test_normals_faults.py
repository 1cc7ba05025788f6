"""NaN batches, an emptied grid, a lost surface, a failing validation, and two deaths: the run ends as its twin does."""

import importlib.util
import sys
from pathlib import Path

import pytest

STEPS = 240
PLACE = Path(__file__).resolve().parents[2] / "benchmarks" / "soak_normals.py"


@pytest.fixture
def benchmark():
    """The nightly soak, whose short form this is."""
    spec = importlib.util.spec_from_file_location("soak_normals", PLACE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_a_run_that_everything_happens_to_ends_as_an_undisturbed_one_does(benchmark, tmp_path):
    found = benchmark.soak(STEPS, tmp_path)
    first, second = found["kills"]
    assert STEPS * benchmark.KILLS[0] <= first < second < STEPS
    assert found["refusal"] == 2 * len(benchmark.NAN)
    assert found["grid_rebuilt"] >= 1
    assert found["rolled_back"] == 1
    assert found["validation_failed"] == 1
    assert {"NonFinite", "GridRebuilt", "RolledBack", "ValidationFailed"} <= set(found["findings"])
    assert not {"GridRebuilt", "RolledBack", "ValidationFailed"} & set(found["findings_quiet"])
    assert found["ratio"] < 1.35  # 30,000 steps have time to make up for a rollback, and are held to 1.10
