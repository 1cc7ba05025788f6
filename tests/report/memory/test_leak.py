import numpy as np
import pytest

from fieldwatch.report.memory import analyze, read_trace
from fieldwatch.report.memory.leak import judge_leak


@pytest.mark.parametrize("grows", [True, False])
def test_a_planted_leak_is_named_with_its_rate(run_folder, grows):
    leak = judge_leak(read_trace(run_folder(leak=0.02, grows=grows)), 0)
    assert leak.suspected
    assert leak.growth.low < 20 < leak.growth.high
    assert leak.growth.per_1000 == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize("grows", [True, False])
def test_densification_and_evaluation_are_no_leak(run_folder, grows):
    leak = judge_leak(read_trace(run_folder(grows=grows)), 0)
    assert leak.verdict == "none"
    assert leak.explained is None or leak.explained == pytest.approx(4, abs=0.1)


def test_a_leak_beside_a_model_that_grows_evenly_is_what_nobody_owns(trace_of):
    parameters = 1000 + np.arange(200.0)
    leaked = 0.5 * np.arange(200.0)

    def judged(other):
        allocated = 4 * parameters + other
        return judge_leak(
            trace_of(allocated, categories={"optimizer": parameters, "parameters": parameters, "other": other}), 0
        )

    assert judged(leaked).suspected
    assert judged(np.full(200, 50.0)).verdict == "not known"


@pytest.mark.parametrize("until", [20, 100, 150])
def test_growth_that_stops_is_no_leak(trace_of, until):
    noise = np.random.default_rng(0).normal(0, 3, 200)
    filling = 8000 + 1000 * np.minimum(1, np.arange(200) / until) + noise
    leak = judge_leak(trace_of(filling, categories={"parameters": np.full(200, 5.0)}), 0)
    assert leak.verdict == "none"
    assert until < 150 or "and stopped" in leak.why


def test_two_points_are_no_leak(trace_of):
    assert judge_leak(trace_of([8000, 9000]), 0).verdict == "not known"
    assert judge_leak(trace_of(np.linspace(8000, 9000, 11)), 0).verdict == "not known"


def test_the_original_profiler_is_judged_by_the_number_of_tensors(log_file):
    growing = 8000 + 5 * np.arange(100.0)
    assert judge_leak(read_trace(log_file(growing)), 0).verdict == "none"
    more = judge_leak(read_trace(log_file(growing, tensors=1267 + np.arange(100))), 0)
    assert more.suspected
    assert "tensors grow together" in more.why


def test_growth_without_a_recorded_model_is_not_judged(trace_of):
    growing = trace_of(8000 + 5 * np.arange(100.0), kind="journal")
    assert judge_leak(growing, 0).verdict == "not known"


def test_the_original_s_false_alarms_are_gone(log_file):
    rng = np.random.default_rng(0)
    noisy = 8000 + rng.normal(0, 60, 100)
    # first against last: +250 MB
    noisy[0] = 7900
    noisy[-1] = 8150
    assert analyze(read_trace(log_file(noisy))).findings == ()
