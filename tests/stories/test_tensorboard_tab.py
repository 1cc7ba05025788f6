"""The tab "fieldwatch" in a real TensorBoard, seen by a real browser: all panels, live, two runs side by side."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
import torch

from fieldwatch import Run, Saving, Terms
from fieldwatch.record import Block, Journal
from ports import free_port

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PANELS = (
    "losses gradients conflicts memory timing quality distributions growth checkpoints events config environment"
).split()
PATIENCE = 60_000
"""Milliseconds: a machine that does many things at once is slow, not broken."""
COLORS = """canvas => {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(pixels.data.buffer)).size;
}"""
"""How many colors a canvas shows."""


def train(folder, steps, rate):
    """A loop of one's own, with two loss terms of which one sets in later, and checkpoints."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    with Run(folder, config={"rate": rate, "steps": steps}, saving=Saving(every=20)) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(steps):
            batch = torch.randn(8, 4)
            terms = Terms(fit=(1.0, (model(batch) - batch[:, :2]).square().mean()))
            if step.index >= steps // 2:
                terms |= Terms(size=(0.1, model.weight.square().mean()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer, clip=1.0)
            if step.every(20):
                step.histogram("Weights/layer", model.weight)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs, one that is damaged, and one with a name that would be a script if it were not shown as text."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "fast", 60, 0.1)
    train(folder / "slow", 40, 0.01)
    shutil.copytree(folder / "slow", folder / "<img src=x onerror=alert(1)>")
    shutil.copytree(folder / "slow", folder / "damaged")
    (folder / "damaged" / "journal.jsonl").write_text("no record\n<b>at all</b>\n")
    return folder


@pytest.fixture(scope="module")
def board(runs):
    """The address of a TensorBoard that looks at them."""
    port = free_port()
    line = [sys.executable, "-m", "fieldwatch", "tensorboard", str(runs), "--port", str(port)]
    # A group of its own: the command is ended together with the TensorBoard that it has started.
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    address = f"http://localhost:{port}"
    try:
        ends = time.monotonic() + PATIENCE / 1000
        while "fieldwatch" not in (ask(address, "plugins_listing") or {}):
            assert process.poll() is None
            assert time.monotonic() < ends
            time.sleep(0.1)
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def ask(address, route):
    try:
        with urlopen(f"{address}/data/{route}", timeout=PATIENCE / 1000) as answer:  # noqa: S310  our own TensorBoard
            return json.load(answer)
    except ConnectionRefusedError:
        return None
    except OSError as error:
        if isinstance(getattr(error, "reason", None), ConnectionRefusedError):
            return None
        raise


def test_the_tab_is_listed_and_its_routes_answer(board):
    assert ask(board, "plugins_listing")["fieldwatch"]["enabled"]
    told = ask(board, "plugin/fieldwatch/runs")["runs"]
    assert [run["name"] for run in told] == ["<img src=x onerror=alert(1)>", "damaged", "fast", "slow"]
    names = set(ask(board, "runs"))
    answer = ask(board, "plugin/fieldwatch/account?run=fast")
    assert [panel["id"] for panel in answer["account"]["panels"]][: len(PANELS)] == PANELS
    (bars, *_) = answer["account"]["panels"][PANELS.index("distributions")]["parts"]
    assert (bars["kind"], bars["title"], sum(bars["counts"])) == ("histogram", "Weights/layer", 8)
    assert names <= {run["events"] for run in told}


@pytest.fixture(scope="module")
def chromium():
    """A headless browser; skips where there is none."""
    if BROWSER is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="no playwright here: make env")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium, board, runs):
    """The tab, and what went wrong on its page; screenshots lie beside the runs."""
    wrong = []
    page = chromium.new_page(viewport={"width": 1300, "height": 900})
    page.set_default_timeout(PATIENCE)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda asked: None if is_ours(asked.url, board) else wrong.append(asked.url))

    def show(*names):
        chosen = ",".join(re.sub(r"[^a-z]", lambda one: f"%{ord(one[0]):02X}", name) for name in names)
        page.goto(f"{board}/#fieldwatch&p.fieldwatch.run={chosen}")
        frame = page.frame_locator("iframe")
        frame.locator("body[data-drawn]:not([data-drawn=''])").wait_for()
        return frame

    yield page, show
    pictures = Path(os.environ.get("FIELDWATCH_PICTURES", runs.parent))
    page.screenshot(path=pictures / f"tab_{len(list(pictures.glob('tab_*.png')))}.png")
    page.close()
    assert wrong == []


def is_ours(url, board):
    return url.startswith((f"{board}/", "data:", "blob:"))


def test_every_panel_is_drawn_and_none_is_empty(tab):
    _, show = tab
    frame = show("fast")
    for name in PANELS:
        panel = frame.locator(f"#panel-{name}")
        panel.scroll_into_view_if_needed()
        panel.locator("canvas, td, dd, pre, img, .why").first.wait_for()
    for name in ("losses", "gradients", "memory", "timing", "distributions"):
        assert frame.locator(f"#panel-{name} canvas").count() > 0
    assert frame.locator("#panel-losses canvas").first.evaluate(COLORS) > 8
    assert "healthy" in frame.locator(".fwt-timeline").inner_text()
    assert "Healthy" in frame.locator("#verdict").inner_text()
    assert frame.locator(".fwt-list input:checked").count() == 1


def test_new_rows_appear_by_themselves(tab, runs):
    page, show = tab
    frame = show("slow")
    assert "40 of 40 steps" in frame.locator("header .said").inner_text()
    frame.locator("#panel-config .fold").click()
    with Journal(runs / "slow") as journal:
        steps = np.arange(40, 140)
        values = np.full((100, 1), 0.25)
        loss = {"axis": "step", "columns": ("Loss/total",), "values": values}
        journal.append(Block(steps=steps, seconds=steps * 0.1, positions=steps, **loss))
    frame.locator("header .said", has_text="140 of 40 steps").wait_for()
    assert frame.locator("#panel-config.closed").count() == 1
    assert page.url.startswith("http://localhost")


def test_two_runs_stand_side_by_side(tab):
    _, show = tab
    frame = show("fast", "slow")
    frame.locator("[role=tab][aria-selected=true]", has_text="Comparison").wait_for()
    rows = frame.locator("#panel-verdicts tbody tr")
    assert [row.split("\t")[0] for row in rows.all_inner_texts()] == ["fast", "slow"]
    chart = frame.locator("#panel-compare-Loss-group .part", has_text="Loss/total").first
    chart.scroll_into_view_if_needed()
    chart.locator("canvas").wait_for()
    assert [name.strip() for name in chart.locator(".legend .name").all_inner_texts()] == ["fast", "slow"]
    assert "rate" in frame.locator("#panel-config-differences").inner_text()
    assert frame.locator(".fwt-row").count() == 2
    frame.locator("[role=tab]", has_text="slow").click()
    frame.locator("h1", has_text="slow").wait_for()


def test_damage_and_hostile_names_are_text(tab):
    _, show = tab
    frame = show("damaged", "<img src=x onerror=alert(1)>")
    frame.get_by_text("journal.jsonl: 2 lines skipped").first.wait_for()
    assert frame.locator(".fwt-list label", has_text="<img src=x onerror=alert(1)>").count() == 1
    assert frame.locator("img[src=x]").count() == 0
