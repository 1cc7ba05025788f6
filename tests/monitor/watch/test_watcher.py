"""The watcher's view of a run: state, progress and new records."""

import json
import os
import re
import subprocess
import sys

import orjson
import pytest

from fieldwatch.monitor.watch import Watcher, newest_run
from fieldwatch.monitor.watch.choosing import qualities_among
from fieldwatch.record import Journal, NotARun


def look(recorded, **options):
    with Watcher(recorded.folder) as watcher:
        return watcher.refresh(**options)


def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_living_process_runs(recorded):
    recorded.begin().rows(0, 100)
    recorded.beats(104)
    view = look(recorded)
    assert view.state.word == "running"
    assert view.state.pid == os.getpid()
    assert view.progress.done == 104
    assert view.progress.now == pytest.approx(50)
    assert view.progress.eta == pytest.approx((1000 - 104) / 50)
    assert view.process.resident > 1


def test_a_process_that_is_gone_was_killed(recorded, monkeypatch):
    recorded.begin().rows(0, 100)
    monkeypatch.setattr("fieldwatch.monitor.black_box.os.getpid", ended_process)
    recorded.beats(101)
    state = look(recorded).state
    assert state.word == "killed"
    assert "SIGKILL" in state.detail
    assert "in step 101 (backward)" in state.detail
    assert state.remedy == f"fieldwatch resume {recorded.folder}"
    assert state.broken


def test_a_process_that_gives_no_sign_for_longer_than_its_watchdog_allows_hangs(recorded):
    recorded.begin().rows(0, 100)
    recorded.beats(101, timeout=30.0, ago=125.0)
    state = look(recorded).state
    assert state.word == "hung"
    assert "for 2 min," in state.detail
    assert "backward of step 101;" in state.detail
    assert "allows 30 s" in state.detail
    assert "kill -USR2" in state.remedy
    assert not state.ended


def test_no_row_for_long_is_told(recorded):
    recorded.begin().rows(0, 100).old(300)
    recorded.beats(99)
    state = look(recorded).state
    assert state.word == "running"
    assert re.fullmatch(r"no row .* 5 min, .*backward.* 99", state.detail)


def test_slow_steps_may_take_their_time(recorded):
    recorded.begin().rows(0, 100, seconds_each=10.0).old(100)
    recorded.beats(99)
    assert look(recorded).state.word == "running"


@pytest.mark.parametrize(
    ("ending", "word"),
    [("finished", "finished"), ("failed", "failed"), ("diverged", "diverged"), ("interrupted", "interrupted")],
)
def test_an_end_in_order_is_told_in_the_runs_own_words(recorded, ending, word):
    recorded.begin(state=ending).rows(0, 100)
    recorded.beats(99).close(ending, "exception: ValueError: no such view")
    view = look(recorded)
    assert view.state.word == word
    assert view.state.ended
    assert view.progress.eta is None
    assert ("no such view" in view.state.detail) == (ending != "finished")


def test_another_machines_run_is_not_judged_by_our_processes(recorded, monkeypatch):
    pid = ended_process()
    monkeypatch.setattr("fieldwatch.monitor.black_box.os.getpid", lambda: pid)
    recorded.begin().rows(0, 100)
    recorded.beats(101)
    monkeypatch.setattr("fieldwatch.monitor.run_state.platform.node", lambda: "laptop")
    view = look(recorded)
    assert view.state.word == "running"
    assert view.process is None


def test_it_goes_on_where_it_left_off(recorded):
    recorded.begin().rows(0, 100)
    with Watcher(recorded.folder) as watcher:
        assert watcher.refresh().total.step == 99
        recorded.rows(100, 300).finding(step=250)
        view = watcher.refresh()
        assert (view.total.step, view.rows, len(view.findings)) == (299, 300, 1)
        with Journal(recorded.folder) as journal:
            journal.segment(200)
        assert watcher.refresh().total.step == 199
        recorded.rows(200, 210, **{"Loss/total": 7.0})
        view = watcher.refresh()
        assert (view.total.step, view.total.last) == (209, 7.0)


def test_a_torn_last_line_is_waited_for_and_a_bad_one_is_told(recorded):
    recorded.begin().rows(0, 100)
    path = recorded.folder / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b"[0,100,2.0")
    assert (look(recorded).total.step, look(recorded).trouble) == (99, "")
    path.write_bytes(whole + b"nonsense\n" + whole.splitlines()[-1] + b"\n")
    assert f"line {whole.count(10) + 1} " in look(recorded).trouble


def test_shares_are_of_the_last_steps_together(recorded):
    recorded.begin().rows(0, 600)
    view = look(recorded)
    assert [term.curve.label for term in view.terms] == ["color", "flatness"]
    assert sum(term.share for term in view.terms) == pytest.approx(1)
    assert view.terms[1].share == pytest.approx(0.01 / (0.01 + 0.1), rel=0.02)


def test_a_term_that_is_switched_off_is_not_part_of_the_loss(recorded):
    recorded.begin().rows(0, 500).event(kind="phase", step=500, name="fine")
    recorded.rows(500, 520, **{"Loss/component_flatness": None, "Loss/weight_flatness": None})
    told = [(term.curve.label, term.active, term.share) for term in look(recorded).terms]
    assert told == [("color", True, 1.0), ("flatness", False, None)]


def test_refusals_are_counted_over_the_whole_run(recorded):
    recorded.begin().rows(0, 300, **{"Guard/refused": 1.0}).rows(300, 3000)
    assert look(recorded).refused == 300


def test_a_first_look_may_be_left_off(recorded):
    recorded.begin().rows(0, 100)
    view = look(recorded, budget=0.0)
    assert view.reading
    assert not view.rows


def test_the_last_checkpoint_and_its_age(recorded):
    recorded.begin().rows(0, 100)
    place = recorded.folder / "checkpoints" / "step_0000000050"
    place.mkdir(parents=True)
    (place / "manifest.sha256").touch()
    recorded.event(kind="checkpoint", step=49, path="checkpoints/step_0000000050", metrics={"psnr": 31.5})
    saved = look(recorded).saved
    assert (saved.step, saved.count, saved.metrics) == (50, 1, {"psnr": 31.5})
    assert 0 <= saved.ago < 100


def test_as_json_has_everything_and_is_json(recorded):
    recorded.begin().rows(0, 100, **{"Gradients/total_norm": float("nan")}).finding()
    answer = json.loads(orjson.dumps(look(recorded).as_json()))
    assert answer["gradient"]["last"] == "nan"
    assert answer["progress"]["share"] == 0.1
    assert answer["memory"]["share"] == 0.75
    assert answer["findings"][0]["rule"] == "LossSpike"
    assert "trend" not in answer["total"]


def test_a_folder_of_something_else_is_refused(recorded):
    recorded.folder.mkdir(parents=True)
    (recorded.folder / "run.json").write_text("[]")
    with pytest.raises(NotARun, match=r"run\.json"):
        look(recorded)


def test_the_newest_run_is_the_one_written_last(recorded, tmp_path):
    recorded.begin().rows(0, 1).old(-60)
    other = type(recorded)(tmp_path / "runs" / "splats" / "later").begin()
    assert newest_run(tmp_path / "runs") == recorded.folder
    recorded.old(3600)
    os.utime(recorded.folder / "run.json", (0, 0))
    assert newest_run(tmp_path / "runs") == other.folder
    assert newest_run(tmp_path / "none") is None


def test_what_says_how_good_it_is_comes_first_whatever_the_loop():
    names = [
        "Loss/total", "Eval/Info/num_val_frames", "Stats/points_mean", "Population/giant", "Train/PSNR", "Model/size",
        "Eval/Frame/train_psnr", "Test/psnr", "Forward/model_input_mark",
        "Statistics/samples_per_ray", "My/own", "Machine/CPU/process_MB",
    ]  # fmt: skip
    assert qualities_among(names) == [
        "Test/psnr", "Train/PSNR", "Statistics/samples_per_ray", "Model/size", "Eval/Frame/train_psnr",
        "Population/giant", "My/own", "Eval/Info/num_val_frames",
    ]  # fmt: skip
