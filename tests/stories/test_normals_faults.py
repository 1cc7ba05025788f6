"""NaN batches, an emptied grid, a lost surface, a failing validation, and two deaths: the run ends as its twin does."""

STEPS = 240


def test_a_run_that_everything_happens_to_ends_as_an_undisturbed_one_does(
    benchmark, tmp_path, start_python, monkeypatch
):
    nightly = benchmark("soak_normals")  # whose short form this is

    def start(folder, steps, *, disturbed):
        more = ["--disturbed"] if disturbed else []
        return start_python(nightly.__file__, "--steps", steps, "--worker", folder, *more)

    monkeypatch.setattr(nightly, "start", start)
    found = nightly.soak(STEPS, tmp_path)
    first, second = found["kills"]
    assert STEPS * nightly.KILLS[0] <= first < second < STEPS
    assert found["refusal"] == 2 * len(nightly.NAN)
    assert found["grid_rebuilt"] >= 1
    assert found["rolled_back"] == 1
    assert found["validation_failed"] == 1
    assert {"NonFinite", "GridRebuilt", "RolledBack", "ValidationFailed"} <= set(found["findings"])
    assert not {"GridRebuilt", "RolledBack", "ValidationFailed"} & set(found["findings_quiet"])
    assert found["ratio"] < 1.35  # 30,000 steps have time to make up for a rollback, and are held to 1.10
