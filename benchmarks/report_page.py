"""The report of a run of a million rows: duration of the command, size of the page, and time to open it in a browser.

python benchmarks/report_page.py            1,000,000 rows of 24 metrics, and 30,000 rows
python benchmarks/report_page.py --quick    a tenth of both

Both runs have a spike at one step. The benchmark checks that the data of the page has it at that step. With Chromium
and playwright, it also checks that the page draws it there and requests nothing, and measures how long it takes to
open.
"""

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fieldwatch.record import Block, Journal, Manifest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TERMS = ("color", "depth", "normal", "smooth")
METRICS = (
    "Loss/total",
    *(f"Loss/{kind}_{term}" for kind in ("component", "weighted", "share") for term in TERMS),
    *("Gradients/total_norm", "Gradients/field_norm", "Gradients/poses_norm"),
    *("Time/step", "Time/data", "Time/backward"),
    *("Memory/allocated_MB", "Memory/peak_MB", "Train/PSNR", "LearningRate/field", "LearningRate/poses"),
)
BLOCK = 8192
SPIKE = 1000.0
HIGH = """() => {
    const canvas = document.querySelector("#panel-losses .box canvas");
    const over = document.querySelector("#panel-losses .box .u-over");
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const places = [];
    for (let y = over.offsetTop; y < over.offsetTop + over.offsetHeight / 2; y += 1)
        for (let x = over.offsetLeft; x < over.offsetLeft + over.offsetWidth; x += 1) {
            const i = 4 * (y * canvas.width + x);
            if (pixels[i] < 60 && pixels[i + 1] > 80 && pixels[i + 1] < 150 && pixels[i + 2] > 140)
                places.push((x - over.offsetLeft) / over.offsetWidth);
        }
    return places;
}"""
"""Positions, from 0 to 1, at which the upper half of the first chart has the color of its line."""


def write_run(folder: Path, rows: int) -> int:
    """Write a run with this many rows; return the step of its spike."""
    rng = np.random.default_rng(0)
    spike = rows * 2 // 3 + 1
    Manifest(config={"lr": 1e-3, "steps": rows}, state="finished").write(folder)
    with Journal(folder) as journal:
        for first in range(0, rows, BLOCK):
            steps = np.arange(first, min(first + BLOCK, rows))
            values = np.abs(rng.normal(1.0, 0.1, (len(steps), len(METRICS)))) * np.exp(-3 * steps / rows)[:, None]
            values[steps == spike, 0] = SPIKE
            block = Block(axis="step", columns=METRICS, steps=steps, seconds=steps / 50, positions=steps, values=values)
            journal.append(block)
    return spike


def make_page(folder: Path) -> tuple[float, Path]:
    """Run `fieldwatch report` in a separate process; return the seconds and the page."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "fieldwatch", "report", str(folder)], check=True, capture_output=True)
    return time.perf_counter() - began, folder / "report.html"


def holds_spike(page: Path, spike: int) -> bool:
    """Return whether the data of the page has the spike at its step."""
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="account">(.*?)</script>', text, re.DOTALL)
    series = json.loads(found[1])["series"]["Loss/total"] if found else {"x": [], "y": []}
    return dict(zip(series["x"], series["y"], strict=True)).get(spike) == SPIKE


def open_page(page: Path, share: float) -> tuple[float, bool, int] | None:
    """Open the page; return the seconds until it is drawn, whether the spike is at its place, and the requests."""
    if BROWSER is None:
        return None
    with contextlib.suppress(ImportError):
        from playwright.sync_api import sync_playwright  # noqa: PLC0415  optional, only for the browser

        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
            view = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
            asked: list[str] = []
            view.on("request", lambda request: asked.append(request.url))
            view.goto(page.as_uri())
            view.wait_for_selector("body[data-state=drawn]")
            milliseconds = view.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
            view.locator("#panel-losses .box").first.scroll_into_view_if_needed()
            view.wait_for_selector("#panel-losses .box canvas")
            view.wait_for_timeout(300)
            places = view.evaluate(HIGH)
            browser.close()
        seen = bool(places) and min(abs(place - share) for place in places) < 0.004
        return milliseconds / 1000, seen, len([url for url in asked if not url.startswith("data:")]) - 1
    return None


def measure(rows: int) -> str:
    """Make and open the page of one run; return a row of the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        spike = write_run(folder, rows)
        seconds, page = make_page(folder)
        held = holds_spike(page, spike)
        opened = open_page(page, spike / (rows - 1))
        size = page.stat().st_size / 2**20
    browser = "no browser here | - | -" if opened is None else f"{opened[0]:.2f} s | {yes(opened[1])} | {opened[2]}"
    return f"| {rows:,} | {seconds:.1f} s | {size:.2f} MiB | {yes(held)} | {browser} |"


def yes(fact: bool) -> str:  # noqa: FBT001  the only argument
    """Return yes or no."""
    return "yes" if fact else "NO"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    part = 10 if parser.parse_args().quick else 1
    print("| rows | `fieldwatch report` | page | spike in the data | opened in | spike drawn at its step | requests |")
    print("|---|---|---|---|---|---|---|")
    for rows in (30_000 // part, 1_000_000 // part):
        print(measure(rows), flush=True)


if __name__ == "__main__":
    main()
