"""Somebody asks which of several runs is better, and why: ours, those of others, and both beside each other."""

import json
import shutil

import numpy as np
import pytest
import torch
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from fieldwatch import Run, Terms
from fieldwatch.cli import main
from fieldwatch.record import Block, Journal, Manifest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "<img src=x onerror=alert(1)>\x1b[31m\u202e"
STEPS = 40


def train(folder):
    """Fit a line to noise; the same again is the same to the bit."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with Run(folder, config={"seed": 0, "rate": 0.1}) as run:
        run.track(groups={"layer": [weight]})
        for step in run.steps(STEPS):
            terms = Terms(error=(1.0, (weight - 1 - 0.1 * torch.rand(4, generator=generator)).square().sum()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)


def write(folder, *, seed=0, rate=0.1, steps=STEPS, bad_from=STEPS, state="finished"):
    """Write a run's folder as a training leaves it, without the training."""
    folder.mkdir(parents=True)
    Manifest(config={"seed": seed, "rate": rate, "note": EVIL}, state=state).write(folder)
    at = np.arange(steps)
    losses = np.exp(-rate * at) + 0.01 * np.random.default_rng(seed).random(steps)
    losses[bad_from:] = np.nan
    values = np.stack((losses, losses / 2, np.full(steps, 5.0)), axis=1)
    columns = ("Loss/total", "Eval/mae", "Time/step")
    journal = Journal(folder)
    journal.append(Block(axis="step", columns=columns, steps=at, seconds=at / 10, positions=at, values=values))
    journal.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made = tmp_path_factory.mktemp("runs")
    for seed in range(4):
        write(made / "slow" / f"seed{seed}", seed=seed, rate=0.01)
        write(made / "fast" / f"seed{seed}", seed=seed, rate=0.1)
    write(made / EVIL, seed=9, rate=0.02)
    write(made / "bad", bad_from=30, state="diverged")
    write(made / "one_row", steps=1)
    train(made / "one")
    train(made / "again")
    return made


@pytest.fixture
def ask(capsys):
    """Ask for a comparison as JSON."""

    def call(*words):
        capsys.readouterr()
        assert main(["compare", *map(str, words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def tell(capsys, monkeypatch):
    """Ask for a comparison in a terminal of 80 columns."""

    def call(*words):
        monkeypatch.setenv("COLUMNS", "80")
        capsys.readouterr()
        assert main(["compare", *map(str, words)]) == 0
        return capsys.readouterr().out

    return call


def test_two_of_ours_in_the_terminal_with_a_page(runs, finish, tmp_path):
    page = tmp_path / "out" / "compare.html"
    code, out, err = finish("compare", runs / "slow" / "seed0", runs / "fast" / "seed0", "-o", page)
    assert (code, err) == (0, "")
    assert "fast/seed0 is best: Eval/mae" in out
    assert "differ in rate." in out
    assert "no statement" in out
    assert "at step 1 in" in " ".join(out.split())
    assert str(page) in out
    assert page.stat().st_size < 1_000_000


def test_the_same_training_twice_is_equal_to_the_bit(runs, ask):
    found = ask(runs / "one", runs / "again")
    assert found["verdict"]["title"].startswith("The 2 runs are bitwise equal")
    (pair,) = found["first_difference"]
    assert pair["identical"]
    assert pair["equal_rows"] == STEPS
    assert "Time/step" in pair["left_out"]
    assert found["config"] == {}


def test_seeds_of_two_experiments_tell_chance_from_choice(runs, ask):
    found = ask(runs / "slow", runs / "fast", "--metric", "Eval/mae", "Loss/total")
    assert [len(group["runs"]) for group in found["groups"]] == [4, 4]
    by_metric = {test["metric"]: test for test in found["significance"]}
    assert by_metric["Eval/mae"]["p"] == pytest.approx(2 / 70)
    assert by_metric["Eval/mae"]["statement"].startswith("fast/seed0 and 3 more is better")
    assert list(found["config"]) == ["rate", "seed"]


def test_a_run_is_equal_to_its_own_tensorboard_folder(runs, ask):
    found = ask(runs / "again", runs / "again" / "tensorboard")
    (pair,) = found["first_difference"]
    assert pair["identical"]
    assert pair["as_float32"]
    assert pair["equal_rows"] == STEPS
    assert [run["kind"] for run in found["runs"]] == ["fieldwatch", "tensorboard"]


def test_runs_that_did_not_come_far_are_compared_as_they_are(runs, ask):
    found = ask(runs / "fast" / "seed0", runs / "one_row", runs / "bad")
    assert found["verdict"]["best"] == "seed0"
    assert [(run["rows"], run["state"]) for run in found["runs"]] == [
        (40, "finished"),
        (1, "finished"),
        (40, "diverged"),
    ]
    total = next(metric for metric in found["metrics"] if metric["name"] == "Loss/total")
    assert total["runs"]["bad"]["final"] is None
    assert total["runs"]["bad"]["bad"] == 10


def test_two_real_folders_of_others(real_data, ask):
    folder = real_data / "tfevents" / "tensorboard-reducer"
    found = ask(folder / "duplicate_steps" / "run_1", folder / "lax" / "run_2", "--metric", "*foo")
    first, second = found["runs"]
    assert [note.startswith("20 values at 10 steps") for note in first["notes"]] == [True]
    assert (first["rows"], second["rows"]) == (200, 120)
    assert found["shared"] == []
    assert found["not_in_all"]["lax/bar_3"] == ["run_2"]
    trained = ask(real_data / "tfevents" / "wandb", real_data / "tfevents" / "empty")
    assert [run["rows"] for run in trained["runs"]] == [17, 0]
    again = ask(folder / "strict", "--repeats")
    assert [len(group["runs"]) for group in again["groups"]] == [3]


def test_ours_beside_the_logs_of_others(runs, ask, tmp_path):
    writer = EventFileWriter(str(tmp_path / "theirs"))
    for step in range(STEPS):
        values = [{"tag": "Loss/total", "simple_value": 2.0 - step / 100}, {"tag": f"loss/{EVIL}", "simple_value": 1.0}]
        writer.add_event(event_pb2.Event(step=step, wall_time=1e9 + step, summary=summary_pb2.Summary(value=values)))
    writer.close()
    found = ask(runs / "again", tmp_path / "theirs")
    assert found["shared"] == ["Loss/total"]
    assert found["verdict"]["best"] == "again"
    assert found["not_in_all"][f"loss/{EVIL}"] == ["theirs"]


def test_nothing_hostile_reaches_the_terminal(runs, tell):
    out = tell(runs / EVIL, runs / "again")
    assert "\x1b[31m" not in out
    assert "\u202e" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{runs}/again", "expected two or more runs to compare, got 1"),
        ("{runs}/again {runs}/nowhere", "there is no"),
        ("{runs}/again {empty}", "contain neither a fieldwatch run"),
        ("{runs}/again {runs}/slow/seed0 --metric Los", "no run has a metric 'Los'"),
        ("{runs}/again {runs}/slow/seed0 -o {runs}/again", "must be an HTML file"),
        ("{runs}/again {runs}/slow/seed0 -o {other}", "not a page of fieldwatch"),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_written(runs, capsys, tmp_path, words, message):
    other = tmp_path / "mine.html"
    empty = tmp_path / "empty"
    empty.mkdir()
    other.write_text("my own page")
    assert main(["compare", *words.format(runs=runs, other=other, empty=empty).split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert other.read_text() == "my own page"


def test_twenty_runs_fit_a_terminal(runs, tell):
    out = tell(*(runs / "fast" / f"seed{i % 4}" for i in range(20)))
    assert "seed3 (5)" in out
    tables = [line for line in out.splitlines() if line[:1] in tuple("\u2502\u2503")]
    assert len(tables) > 45
    assert max(map(len, tables)) <= 80


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here: pip install playwright")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


def test_the_page_is_drawn_offline_with_every_panel_and_names_as_text(runs, browser, tmp_path):
    path = tmp_path / "compare.html"
    folders = [runs / EVIL, runs / "slow", runs / "bad", runs / "one_row"]
    assert main(["compare", *map(str, folders), "-o", str(path)]) == 0
    page = browser.new_page(viewport={"width": 390, "height": 800})
    trouble = []
    asked = []
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: trouble.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-state=drawn]")
    assert (trouble, asked) == ([], [path.as_uri()])
    assert page.locator(".verdict .level").inner_text().lower() == "comparison"
    panels = page.locator("section.panel")
    names = [panels.nth(i).get_attribute("id").removeprefix("panel-") for i in range(panels.count())]
    assert names == "runs metrics curves time pace aligned difference chance config code environment not-shared".split()
    assert all(panels.nth(i).inner_text().strip().count("\n") for i in range(len(names)))
    assert page.locator("#panel-curves .box").count() >= 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("img").count() == 0
    assert "<img src=x" in page.locator("h1").inner_text()
    page.close()
