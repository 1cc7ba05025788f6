"""A run in a notebook: its card, its line, and the view that follows it."""

import sys
import time
from types import SimpleNamespace

import pytest

from fieldwatch import InputError, Run
from fieldwatch.monitor.notebook import run_card, run_line
from fieldwatch.monitor.watch import Watcher
from fieldwatch.notebook import live


@pytest.fixture
def shown(monkeypatch):
    """A notebook's display that notes what it shows."""
    bundles = []

    def show(bundle, *, raw, display_id=None):
        assert raw
        bundles.append(bundle)
        return SimpleNamespace(update=show)

    notebook = SimpleNamespace(get_ipython=object, display=SimpleNamespace(display=show))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    return bundles


def train(folder, steps, value=1.0):
    with Run(folder) as run:
        for step in run.steps(steps):
            step.record({"Loss/total": value / (step.index + 1), "<b>": 1.0})
            yield run


def card_of(folder):
    with Watcher(folder) as watcher:
        view = watcher.refresh()
    return run_card(view), run_line(view)


def test_a_run_shows_state_progress_and_losses(tmp_path):
    list(train(tmp_path / "mine", 4))
    page, line = card_of(tmp_path / "mine")
    assert ">finished</span> 4 of 4 steps (100%)" in page
    assert "Loss/total: 0.25" in page
    assert "<b><" not in page
    assert line.startswith(f"{tmp_path / 'mine'}: finished, 4 of 4 steps")


def test_a_folder_without_a_run_has_a_card(tmp_path):
    page, line = card_of(tmp_path / "none")
    assert "not started" in page
    assert "not started" in line


def test_an_open_run_shows_itself(tmp_path):
    run = Run(tmp_path / "mine")
    assert repr(run).endswith("not entered>")
    with run:
        assert "running" in run._repr_html_()
        assert repr(run) == f"<Run {str(tmp_path / 'mine')!r}: step -1>"


def test_a_view_is_shown_at_once_and_follows_the_run_to_its_end(tmp_path, shown):
    with live(tmp_path / "mine", every=0.2) as view:
        assert "not started" in shown[0]["text/html"]
        for run in train(tmp_path / "mine", 3):
            run.flush()
            time.sleep(0.25)
    assert view._repr_html_() is None
    assert ">finished</span> 3 of 3 steps" in shown[-1]["text/html"]
    assert "finished" in shown[-1]["text/plain"]
    assert any("running" in each["text/html"] for each in shown[1:-1])
    assert not view._thread.is_alive()
    view.close()


def test_a_view_of_a_run_ends_with_it(tmp_path, shown):
    for run in train(tmp_path / "mine", 2):
        view = live(run, every=0.2) if run.step_index == 0 else view
    view._thread.join(10)
    assert not view._thread.is_alive()
    assert ">finished</span> 2 of 2" in shown[-1]["text/html"]


def test_without_a_notebook_lines_are_printed(tmp_path, capsys):
    list(train(tmp_path, 2))
    live(tmp_path).close()
    assert capsys.readouterr().out.startswith(f"{tmp_path}: finished, 2 of 2 steps")


def test_a_view_that_fails_says_so_and_the_training_goes_on(tmp_path, shown, capsys):
    with live(tmp_path / "mine", every=0.2) as view:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "run.json").write_text("[1, 2]")
        view._thread.join(10)
        (tmp_path / "mine" / "run.json").unlink()
    assert "NotARun" in capsys.readouterr().err


@pytest.mark.parametrize("every", [0.0, -1.0, float("nan")])
def test_a_time_that_is_too_short_is_refused(tmp_path, every):
    with pytest.raises(InputError, match="every="):
        live(tmp_path, every=every)
