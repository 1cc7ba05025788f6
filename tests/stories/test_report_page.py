"""Somebody opens the report of a run in a browser: every panel is there, nothing is loaded, names are text."""

import re
import shutil
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from fieldwatch import Run, Saving, Terms
from fieldwatch.cli import main
from fieldwatch.recon.data import synthetic_normal_maps, write_normal_maps
from fieldwatch.report.account import account_of
from fieldwatch.report.page import write_page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium"),
    pytest.mark.timeout(300),
]
EVIL = '<img src=x onerror="document.title=1"></script><script>document.title=2</script>\x1b[31m\u202etxt'
ALWAYS = (  # in this order
    "losses gradients conflicts memory timing quality distributions growth checkpoints events config environment"
).split()
VIDEO = "--epochs 2 --eval-freq 2 --checkpoint-epochs 1 --pixel-loss-warmup-epochs 1 --attribute-every 5".split()
SPLATS = (
    "--schedule-scale 1 --growth-from 4 --growth-until 12 --growth-every 4 --surface-from 14 --prune-at 18 "
    "--coarse-iterations 24 --test-iterations 24 --checkpoint-interval 12"
).split()
NORMALS = (
    "--steps 8 --threads 1 --device cpu --levels 3 --first-levels 1 --base-resolution 4 --finest-resolution 12 "
    "--table-bits 10 --hidden 16 --grid-resolution 16 --rays 60 --mesh-resolution 12 --mesh-at 0 --evaluate-at 0 "
    "--poses-at 0 --turntable 0"
).split()
FULL = {"losses", "gradients", "memory", "timing", "quality", "checkpoints", "events", "config", "environment"}
HAS = {
    "video": FULL | {"conflicts", "distributions"},
    "splats": FULL | {"distributions", "growth"},
    "normals": FULL,
    "crashed": FULL - {"checkpoints", "quality"},
    "one_row": FULL - {"quality"},
}
"""Which panels of a run hold something; the others say why they do not."""


def plain_loop(folder, steps, *, bad_from=None):
    """A loop of one's own; its config and the names of its samples would do harm if they were not shown as text."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with Run(folder, config={"note": EVIL, "steps": steps}, saving=Saving(every=100)) as run:
        run.track(groups={"layer": [weight]})
        if bad_from is None:
            run.track(optimizer=optimizer)
            run.resume()
        for step in run.steps(steps):
            error = weight.square().sum()
            if bad_from is not None and step.index >= bad_from:
                error = error * float("nan")
            if bad_from is not None and step.index == bad_from + 4:
                raise RuntimeError(EVIL)
            terms = Terms(error=(1.0, error))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms, sample=EVIL)
            step.update(optimizer)


@pytest.fixture(scope="module")
def runs(frames, photos, tiny_words, tmp_path_factory):
    """A run of every pipeline, one that crashed, and one of one row."""
    made = tmp_path_factory.mktemp("runs")
    folders = {name: made / name for name in HAS}
    maps = write_normal_maps(synthetic_normal_maps(views=3, size=24), made / "maps")
    small = ["--device", "cpu", "--threads", "1", "--turntable", "0", "--held-out", "4"]
    commands = {
        "video": ["--data", str(frames), *tiny_words, *VIDEO],
        "splats": ["--data", str(photos), *small, *SPLATS],
        "normals": ["--data", str(maps), *NORMALS],
    }
    for name, words in commands.items():
        assert main(["train", name, "--out", str(folders[name]), *words]) in (0, 1)
    plain_loop(folders["one_row"], 1)
    with pytest.raises(RuntimeError):
        plain_loop(folders["crashed"], 30, bad_from=20)
    return folders


@pytest.fixture(scope="module")
def tiny_words():
    """Options that make a video training of a second."""
    return (
        "--rows 2 --columns 2 --data-split 7_7_8 --teacher descriptor --batch 4 --between-weight 0 --lr 0.005 "
        "--grid-cells 4 2 --grid-widths 8 8 --grid-channels 4 2 --grid-periods 1 2 --grid-static 4 0 "
        "--grid-blocks 1 1 --grid-kernel 3"
    ).split()


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here: pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


def until(page, expression):
    """Wait for an expression; the page's policy forbids playwright's own way, which evaluates text in the page."""
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    pytest.fail(f"still not so after ten seconds: {expression}")


@dataclass
class Seen:
    """A page that is open, what it asked of the network, and what it complained of."""

    page: object
    requests: list = field(default_factory=list)
    complaints: list = field(default_factory=list)

    def all_of_it(self):
        """Scroll through the page, so that every chart comes into sight."""
        self.page.evaluate(
            """async () => {
                for (let y = 0; y < document.documentElement.scrollHeight; y += innerHeight / 2) {
                    scrollTo(0, y);
                    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
                }
                scrollTo(0, 0);
            }"""
        )

    def panels(self):
        """What each panel shows: charts that are drawn, and charts at all, rows, pictures, facts, reasons, text."""
        return self.page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll("section.panel")].map((one) => [
                one.id.slice(6), {
                    charts: one.querySelectorAll(".box").length, drawn: one.querySelectorAll(".box canvas").length,
                    rows: one.querySelectorAll("tbody tr").length, facts: one.querySelectorAll("dd").length,
                    pictures: [...one.querySelectorAll("img")].filter((img) => img.complete && img.naturalWidth).length,
                    why: one.classList.contains("is-empty") ? one.querySelector(".why").textContent : "",
                }]))"""
        )


@pytest.fixture
def browse(chromium, tmp_path):
    """Open a page; afterwards nothing was loaded but itself, and nothing went wrong in it."""
    opened = []

    def browse(path, width=1280, height=900, **settings):
        context = chromium.new_context(viewport={"width": width, "height": height}, **settings)
        seen = Seen(context.new_page())
        opened.append((seen, context, path))
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.on("console", lambda message: seen.complaints.append(message.text))
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        seen.page.goto(path.as_uri())
        seen.page.wait_for_selector("body[data-state=drawn]")
        return seen

    yield browse
    for seen, context, path in opened:
        assert seen.complaints == []
        assert [url for url in seen.requests if not url.startswith("data:")] == [path.as_uri()]
        context.close()


@pytest.fixture
def report(runs, tmp_path):
    def report(name):
        assert main(["report", str(runs[name]), "-o", str(tmp_path / f"{name}.html")]) == 0
        return tmp_path / f"{name}.html"

    return report


@pytest.mark.parametrize("name", HAS)
def test_every_panel_is_there_and_holds_something_or_says_why_not(name, report, browse, tmp_path):
    seen = browse(report(name))
    seen.all_of_it()
    panels = seen.panels()
    assert [panel for panel in panels if panel in ALWAYS] == ALWAYS
    assert {panel for panel in ALWAYS if not panels[panel]["why"]} == HAS[name]
    for panel, shown in panels.items():
        assert shown["drawn"] == shown["charts"], panel
        held = shown["drawn"] + shown["rows"] + shown["pictures"] + shown["facts"]
        assert held or len(shown["why"]) > 20, panel
    seen.page.screenshot(path=tmp_path / f"{name}.png")
    assert (tmp_path / f"{name}.png").stat().st_size > 20_000


def test_hostile_names_are_text(report, browse):
    seen = browse(report("crashed"))
    shown = seen.page.locator("#panel-config").inner_text()
    assert '<img src=x onerror="document.title=1"></script><script>document.title=2</script>' in shown
    assert "\u241b[31m\\u202etxt" in shown
    assert not set("\x1b\u202e") & set(seen.page.locator("body").inner_text())
    assert seen.page.title().startswith("crashed: ")
    assert seen.page.locator("script").count() == 2
    assert seen.page.locator("img:not(.picture img)").count() == 0


def test_a_crash_says_what_went_wrong_and_leads_to_its_step(report, browse):
    seen = browse(report("crashed"))
    verdict = seen.page.locator("#verdict")
    assert verdict.locator(".level").inner_text() == "Failed"
    seen.page.locator(".crash summary").click()
    assert "Traceback" in seen.page.locator(".crash pre").inner_text()
    verdict.locator("button.step").first.click()
    assert seen.page.locator(".marks .chosen").inner_text() == "step 24 is marked: clear"
    until(seen.page, "document.querySelector('.box').getBoundingClientRect().top < innerHeight")
    seen.page.locator(".marks .chosen").click()
    assert not seen.page.locator(".marks .chosen").is_visible()


def spiky_account(rows):
    """An account of two falling losses, the first with a spike of one step."""
    steps = list(range(rows))
    series = {}
    for place, name in enumerate(("Loss/component_a", "Loss/component_b")):
        y = [1 / (1 + step + place) for step in steps]
        y[rows // 2] = 50.0 if place == 0 else y[rows // 2]
        series[name] = {
            "unit": "", "meaning": EVIL, "better": "lower", "axis": "step", "rows": rows, "x": steps, "y": y,
            "bad": [], "thinned": False, "last": y[-1], "min": [min(y), 1], "max": [max(y), y.index(max(y))],
        }  # fmt: skip
    parts = [
        {
            "id": f"part-{kind}",
            "title": f"{kind} {EVIL}",
            "kind": kind,
            "series": list(series),
            "labels": {},
            "log": log,
        }
        for kind, log in (("lines", False), ("stack", False), ("lines", True))
    ]
    parts[2]["id"] = "part-log"
    table = {
        "id": "table", "title": "Table", "kind": "table", "about": "",
        "columns": [{"key": "name", "title": "name", "number": False}, {"key": "n", "title": "n", "number": True}],
        "rows": [{"name": f"row {i}", "n": (7 * i) % 40} for i in range(40)],
    }  # fmt: skip
    return {
        "format": 1,
        "run": {"name": EVIL, "folder": "", "pipeline": None, "state": "finished", "first_step": 0, "rows": rows,
                "last_step": rows - 1, "steps_planned": rows, "seconds": 1.0, "started": "", "updated": "",
                "segments": [], "resume": ""},
        "verdict": {"level": "healthy", "title": EVIL, "detail": ""}, "findings": [], "crash": None,
        "phases": [{"name": EVIL, "first": 0, "last": None}],
        "marks": [{"kind": EVIL, "step": 5, "text": EVIL}, {"kind": "toString", "step": 6, "text": ""}],
        "series": series,
        "panels": [{"id": "losses", "title": "Losses", "about": "", "kind": "group", "parts": parts}, table],
        "json_of": "",
    }  # fmt: skip


@pytest.fixture
def spiky(tmp_path):
    write_page(spiky_account(2001), tmp_path / "spiky.html")
    return tmp_path / "spiky.html"


PLOTTED = """(place) => {
    const canvas = document.querySelectorAll(".box canvas")[place];
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const found = [];
    for (let i = 0; i < pixels.length; i += 4)
        if (pixels[i] < 40 && pixels[i + 1] > 90 && pixels[i + 1] < 140 && pixels[i + 2] > 150)
            found.push([(i / 4) % canvas.width, Math.floor(i / 4 / canvas.width)]);
    return found;
}"""
"""Where the first color of all is, in pixels of a chart."""


def test_a_spike_of_one_step_is_drawn_at_its_step(spiky, browse):
    seen = browse(spiky)
    left, top = np.array(seen.page.evaluate(PLOTTED, 0)).T
    high = left[top < np.quantile(top, 0.5) - 40]
    assert high.size > 0
    box = seen.page.locator(".box .u-over").first.bounding_box()
    whole = seen.page.locator(".box").first.bounding_box()
    assert high.mean() == pytest.approx(box["x"] - whole["x"] + box["width"] / 2, abs=2)


@pytest.fixture
def barred(tmp_path):
    """A page with a histogram of four bins, of which the second is empty."""
    account = spiky_account(20)
    bars = {"id": "bars", "title": EVIL, "kind": "histogram", "about": EVIL, "unit": EVIL, "edges": [0, 1, 2, 3, 4],
            "counts": [10, 0, 5, 5]}  # fmt: skip
    account["panels"] = [
        {"id": "distributions", "title": "Distributions", "about": "", "kind": "group", "parts": [bars]},
        {**bars, "id": "alone"},
    ]
    write_page(account, tmp_path / "barred.html")
    return tmp_path / "barred.html"


@pytest.mark.parametrize("place", [0, 1])
def test_a_histogram_has_a_bar_per_bin_as_high_as_its_count(barred, browse, place):
    seen = browse(barred)
    seen.all_of_it()
    left, top = np.array(seen.page.evaluate(PLOTTED, place)).T
    area = seen.page.locator(".box .u-over").nth(place).bounding_box()
    whole = seen.page.locator(".box").nth(place).bounding_box()
    bins = ((left - (area["x"] - whole["x"])) / area["width"] * 4).astype(int)
    heights = [int(np.ptp(top[bins == bin_])) if (bins == bin_).any() else 0 for bin_ in range(4)]
    assert heights[1] == 0
    assert heights[0] == pytest.approx(2 * heights[2], abs=3)
    assert heights[2] == pytest.approx(heights[3], abs=1)


def test_the_bin_at_the_cursor_is_told_and_a_histogram_is_drawn_again(barred, browse):
    page = browse(barred).page
    page.locator(".box").first.scroll_into_view_if_needed()
    until(page, "document.querySelector('.box canvas') !== null")
    area = page.locator(".box .u-over").first.bounding_box()
    page.mouse.move(area["x"] + 0.6 * area["width"], area["y"] + 50)
    until(page, "document.querySelector('.readout').textContent !== 'newest'")
    assert page.locator(".readout").first.inner_text().startswith("2 to 3 ")
    assert page.locator(".readout").first.inner_text().endswith("5 (25.0%)")
    page.evaluate(
        "fieldwatch.draw(document.getElementById('report'), JSON.parse(document.getElementById('account').textContent))"
    )
    until(page, "document.querySelectorAll('.box canvas').length === 2")


def test_a_range_is_chosen_by_dragging_and_all_charts_follow(spiky, browse):
    page = browse(spiky).page
    whole = page.get_by_role("button", name="whole range")
    assert whole.count() == 0
    box = page.locator(".box .u-over").first
    box.scroll_into_view_if_needed()
    place = box.bounding_box()
    page.mouse.move(place["x"] + 100, place["y"] + 60)
    page.mouse.down()
    page.mouse.move(place["x"] + 300, place["y"] + 60, steps=4)
    page.mouse.up()
    until(page, "document.querySelectorAll('.tools button:not([hidden])').length >= 7")
    assert whole.count() == 3
    box.dblclick()
    page.wait_for_timeout(50)
    assert whole.count() == 0


def test_the_legend_shows_values_at_the_cursor_and_hides_series(spiky, browse):
    page = browse(spiky).page
    chart = page.locator(".has-chart").first
    value = chart.locator(".entry .value").first
    assert value.inner_text() == "0.0004998"
    place = chart.locator(".u-over").bounding_box()
    page.mouse.move(place["x"] + place["width"] / 2, place["y"] + 100)
    until(page, "document.querySelector('.readout').textContent.startsWith('step')")
    step = int(re.sub(r"\D", "", chart.locator(".readout").inner_text()))
    assert abs(step - 1000) <= 4
    entry = chart.locator(".entry").first
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert page.evaluate(PLOTTED, 0) == []


def test_the_keyboard_moves_zooms_and_sorts(spiky, browse):
    page = browse(spiky).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    box = page.locator(".box").first
    box.focus()
    page.keyboard.press("ArrowLeft")
    until(page, "document.querySelector('.readout').textContent === 'step 1,999'")
    page.keyboard.press("+")
    assert page.get_by_role("button", name="whole range").count() == 3
    page.keyboard.press("0")
    assert page.get_by_role("button", name="whole range").count() == 0
    sort = page.locator("#panel-table th button").nth(1)
    sort.focus()
    page.keyboard.press("Enter")
    assert page.locator("#panel-table th").nth(1).get_attribute("aria-sort") == "descending"
    assert page.locator("#panel-table tbody tr").first.locator("td").nth(1).inner_text() == "39"
    assert page.locator("#panel-table tbody tr:visible").count() == 15


def test_drawing_again_keeps_what_the_reader_chose(spiky, browse):
    page = browse(spiky).page
    page.locator("#panel-table .fold").click()
    page.locator(".has-chart .entry").first.click()
    before = page.evaluate("scrollTo(0, 300), scrollY")
    page.evaluate(
        "fieldwatch.draw(document.getElementById('report'), JSON.parse(document.getElementById('account').textContent))"
    )
    assert page.evaluate("scrollY") == before
    assert page.locator("#panel-table").get_attribute("class") == "panel is-table closed"
    assert page.locator(".has-chart .entry").first.get_attribute("aria-pressed") == "false"


def test_nothing_moves_while_it_is_drawn_and_nothing_is_wider_than_a_phone(report, browse, tmp_path):
    seen = browse(report("splats"), width=360, height=740)
    height = seen.page.evaluate("document.documentElement.scrollHeight")
    seen.all_of_it()
    assert seen.page.evaluate("document.documentElement.scrollHeight") == height
    assert seen.page.evaluate("document.documentElement.scrollWidth") == 360
    assert not seen.page.locator("nav .side").is_visible()
    seen.page.locator("nav summary").click()
    seen.page.locator("nav .menu a", has_text="Growth").click()
    until(seen.page, "document.querySelector('#panel-growth').getBoundingClientRect().top < 200")
    seen.page.screenshot(path=tmp_path / "phone.png")


def test_dark_is_dark_and_the_button_overrules_the_system(spiky, browse, tmp_path):
    page = browse(spiky, color_scheme="dark").page
    ground = "getComputedStyle(document.getElementById('report')).backgroundColor"
    assert page.evaluate(ground) == "rgb(21, 23, 26)"
    page.screenshot(path=tmp_path / "dark.png")
    page.locator("button.theme").click()
    assert page.evaluate(ground) == "rgb(255, 255, 255)"


def test_on_paper_everything_is_open_light_and_drawn(report, browse, tmp_path):
    seen = browse(report("video"), color_scheme="dark")
    seen.page.locator("#panel-config .fold").click()
    seen.page.emulate_media(media="print")
    pdf = seen.page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    assert pdf.count(b"/Type /Page\n") > 3
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    panels = seen.panels()
    assert all(shown["drawn"] == shown["charts"] for shown in panels.values())
    assert seen.page.locator("#panel-config tbody tr:not(:visible)").count() == 0
    assert seen.page.locator("button.tool:visible").count() == 0
    assert seen.page.evaluate("document.getElementById('report').dataset.theme") == "light"
    seen.page.screenshot(path=tmp_path / "paper.png", full_page=True)


def test_the_account_in_the_page_is_the_account(runs, report, browse):
    seen = browse(report("one_row"))
    held = seen.page.evaluate("JSON.parse(document.getElementById('account').textContent)")
    assert held["series"] == account_of(runs["one_row"])["series"]
