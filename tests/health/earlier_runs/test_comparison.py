"""How far a run is behind an earlier one, and what differs between the two."""

import numpy as np
import pytest

from fieldwatch.health import Finding
from fieldwatch.health.earlier_runs import better_earlier_run
from fieldwatch.record import EventLog
from fieldwatch.record.source_code import SourceCode

LATER = {"started": "2026-01-02T04:00:00+00:00"}
RISING = [10, 18, 24, 27, 28, 28]


@pytest.mark.parametrize(
    ("metric", "there", "here", "gap"),
    [
        ("Eval__PSNR", RISING, [10, 18, 22, 25, 25, 25], (10**0.3, 3 / 18)),
        ("Eval__accuracy", [0.1, 0.7, 0.9, 0.9, 0.9, 0.9], [0.1, 0.5, 0.6, 0.7, 0.7, 0.7], (3.0, 0.25)),
        ("Eval__accuracy", [10, 70, 90, 90, 90, 90], [10, 50, 60, 70, 70, 70], (3.0, 0.25)),
        ("Eval__mse", [1, 0.5, 0.1, 0.1, 0.1, 0.1], [1, 0.6, 0.4, 0.4, 0.4, 0.4], (4.0, 1 / 3)),
        ("Eval__return", [0, 50, 100, 100, 100, 100], [0, 10, 20, 20, 20, 20], (1.0, 0.8)),
        # All that is left of an error is what differs from seed to seed.
        ("Eval__mse", [1, 0.01, 1e-6, 1e-6, 1e-6, 1e-6], [1, 0.01, 5e-6, 5e-6, 5e-6, 5e-6], None),
        ("Eval__accuracy", [0.1, 0.9, 0.999, 0.999, 0.999, 0.999], [0.1, 0.9, 0.95, 0.95, 0.95, 0.95], None),
        ("Eval__PSNR", RISING, RISING, None),
        ("Eval__PSNR", RISING, [10, 20, 28, 29, 30, 30], None),
    ],
)
def test_results_are_compared_by_what_they_are(recorded, metric, there, here, gap):
    recorded("a", **{metric: there})
    found = better_earlier_run(recorded("b", **LATER, **{metric: here}))
    if gap is None:
        assert found is None
        return
    assert (found["run"], found["metric"]) == ("a", metric.replace("__", "/"))
    assert (found["times"], found["share"]) == pytest.approx(gap, rel=0.02)
    assert (found["behind"], found["of"], found["last"]) == (1, 1, 399)


def test_of_several_results_most_have_to_be_worse(recorded):
    good = {"Eval__PSNR": RISING, "Eval__SSIM": [0.2, 0.5, 0.9, 0.9, 0.9, 0.9], "Eval__mae": [3, 2, 1, 1, 1, 1]}
    recorded("a", **good)
    one_worse = good | {"Eval__PSNR": [10, 14, 18, 20, 20, 20]}
    assert better_earlier_run(recorded("b", **LATER, **one_worse)) is None
    two_worse = one_worse | {"Eval__SSIM": [0.2, 0.3, 0.4, 0.4, 0.4, 0.4]}
    found = better_earlier_run(recorded("c", **LATER, **two_worse))
    assert (found["metric"], found["behind"], found["of"]) == ("Eval/PSNR", 2, 3)


@pytest.mark.parametrize(("severity", "is_compared"), [("note", True), ("warning", False), ("error", False)])
def test_a_run_with_findings_is_no_standard(recorded, severity, is_compared):
    good = recorded("a", Eval__PSNR=RISING)
    finding = Finding(rule="EvaluationOutput", step=399, severity=severity, message="m", remedy="r")
    with EventLog(good) as events:
        events.append(finding.as_event())
    found = better_earlier_run(recorded("b", **LATER, Eval__PSNR=[9] * 6))
    assert (found is not None) == is_compared


def test_the_last_of_few_evaluations_counts_and_the_median_of_many(recorded):
    recorded("a", Eval__PSNR=RISING)
    declined = [10, 18, 24, 26, 26, 20]
    assert better_earlier_run(recorded("b", **LATER, Eval__PSNR=declined))["here"] == 20
    recorded("c", command=("many.py",), Eval__PSNR=[*RISING, 28, 28, 28, 28])
    later = recorded("d", command=("many.py",), **LATER, Eval__PSNR=[*declined, 26, 26, 26, 20])
    assert better_earlier_run(later)["here"] == 26


def test_baselines_without_training_are_no_results(recorded):
    same = {"Baseline__Test__PSNR": [9.0] * 3, "Baseline__Test__SSIM": [0.1] * 3}
    recorded("a", Test__PSNR=RISING, **same)
    found = better_earlier_run(recorded("b", **LATER, Test__PSNR=[9] * 6, **same))
    assert (found["metric"], found["of"]) == ("Test/PSNR", 1)


def test_a_small_gain_has_no_parts(recorded):
    recorded("a", Eval__accuracy=[0.5, 0.5, 0.5, 0.52, 0.52, 0.52])
    assert better_earlier_run(recorded("b", **LATER, Eval__accuracy=[0.5, 0.5, 0.5, 0.5, 0.5, 0.5])) is None


def test_a_longer_run_is_compared_at_the_same_step(recorded):
    recorded("a", steps=1200, Eval__PSNR=[10, 21, 21, 26, 30, 34])
    # At step 400, the earlier run was at 21.
    assert better_earlier_run(recorded("b", steps=400, **LATER, Eval__PSNR=[12, 14, 18, 20, 20, 20.5])) is None
    found = better_earlier_run(recorded("c", steps=400, **LATER, Eval__PSNR=[9, 9, 10, 10, 10, 10]))
    assert found["there"] == 21


def test_without_results_the_fall_of_the_loss_is_compared_whatever_its_size(recorded):
    recorded("a", loss=np.geomspace(1, 0.01, 400))
    assert better_earlier_run(recorded("b", **LATER, loss=100 * np.geomspace(1, 0.01, 400))) is None
    found = better_earlier_run(recorded("c", **LATER, loss=0.5 * np.geomspace(1, 0.5, 400)))
    assert found["metric"] == "Loss/total"
    assert found["times"] > 10
    assert 0.4 < found["share"] < 0.6


@pytest.mark.parametrize("loss", [[1.0] * 20, -np.linspace(1, 2, 400), [0.0] * 400])
def test_losses_that_tell_nothing_are_not_compared(recorded, loss):
    recorded("a")
    assert better_earlier_run(recorded("b", steps=len(loss), **LATER, loss=loss)) is None


def test_of_several_earlier_runs_the_one_that_is_furthest_ahead_is_named(recorded):
    recorded("a", Eval__PSNR=[10, 18, 22, 24, 24, 24])
    recorded("b", Eval__PSNR=[10, 20, 28, 30, 30, 30])
    recorded("c", Eval__PSNR=[10, 18, 22, 26, 26, 26])
    assert better_earlier_run(recorded("d", **LATER, Eval__PSNR=[9, 10, 11, 12, 12, 12]))["run"] == "b"


def test_settings_code_and_versions_that_differ_are_listed(recorded):
    config = {"lr": 0.01, "model": {"width": 64}, "seed": 0}
    first = recorded("a", config=config, versions={"torch": "2.1", "platform": "x"}, Eval__PSNR=RISING)
    changed = {"lr": 0.1, "model": {"width": 8}, "seed": 1}
    second = recorded(
        "b", config=changed, versions={"torch": "2.2", "platform": "y"}, **LATER, Eval__PSNR=[9, 9, 9, 9, 9, 9]
    )
    SourceCode(main="train.py", files={"train.py": "rate = 1\nloss = f(x)\n"}).keep(first, 0)
    SourceCode(main="train.py", files={"train.py": "rate = 1\nloss = g(x)\n"}).keep(second, 0)
    found = better_earlier_run(second)
    assert found["settings"] == [["lr", 0.01, 0.1], ["model.width", 64, 8], ["seed", 0, 1]]
    assert found["code"] == [["train.py", 2, "loss = f(x)", "loss = g(x)"]]
    assert (found["changed_places"], found["further_settings"]) == (1, 0)
    assert found["versions"] == [["torch", "2.1", "2.2"]]
    assert found["command"].split()[:2] == ["fieldwatch", "compare"]


def test_the_settings_of_a_pipeline_are_its_flags(recorded):
    about = {"pipeline": "video", "frames": 32}
    recorded("a", about=about, config={"options": {"grid_cells": 8}}, Eval__PSNR=RISING)
    later = recorded(
        "b", about=about | {"frames": 16}, config={"options": {"grid_cells": 4}}, **LATER, Eval__PSNR=[9] * 6
    )
    assert better_earlier_run(later)["settings"] == [["--grid-cells", 8, 4], ["frames", 32, 16]]


def test_long_lists_are_cut_and_counted(recorded):
    first = recorded("a", config={f"s{i}": 0 for i in range(10)}, Eval__PSNR=RISING)
    second = recorded("b", config={f"s{i}": 1 for i in range(10)}, **LATER, Eval__PSNR=[9] * 6)
    SourceCode(main="t.py", files={"t.py": "".join(f"a{i} = 0\nkeep{i}\n" for i in range(50))}).keep(first, 0)
    SourceCode(main="t.py", files={"t.py": "".join(f"a{i} = 1\nkeep{i}\n" for i in range(50))}).keep(second, 0)
    found = better_earlier_run(second)
    assert (len(found["settings"]), found["further_settings"]) == (6, 4)
    assert (found["code"], found["changed_places"]) == ([], 50)


def test_without_code_it_is_not_known_whether_it_changed(recorded):
    recorded("a", Eval__PSNR=RISING)
    assert better_earlier_run(recorded("b", **LATER, Eval__PSNR=[9] * 6))["changed_places"] is None


def test_the_step_up_to_which_the_losses_are_equal(recorded):
    loss = np.linspace(1, 0.5, 400)
    recorded("a", loss=loss, Eval__PSNR=RISING)
    later = loss.copy()
    later[120:] += 1
    assert better_earlier_run(recorded("b", loss=later, **LATER, Eval__PSNR=[9] * 6))["same_until"] == 119
    assert better_earlier_run(recorded("c", loss=loss + 1, **LATER, Eval__PSNR=[9] * 6))["same_until"] == -1


def test_a_damaged_record_of_an_earlier_run_is_read_as_far_as_it_goes(recorded):
    first = recorded("a", Eval__PSNR=RISING)
    journal = (first / "journal.jsonl").read_bytes()
    (first / "journal.jsonl").write_bytes(journal[: len(journal) // 2] + b"\0garbage\n")
    better_earlier_run(recorded("b", **LATER, Eval__PSNR=[9] * 6))
    assert (first / "journal.jsonl").read_bytes().endswith(b"garbage\n")
