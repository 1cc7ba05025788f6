"""What the page draws with: the vendored library as it was fetched, one global name, every rule below one class."""

import hashlib
import re
from importlib.resources import files
from pathlib import Path

from fieldwatch.report.page import panels_script, panels_style

ASSETS = files("fieldwatch.report.page") / "assets"
VENDOR = ASSETS / "vendor"


def test_what_is_vendored_is_what_was_fetched():
    recorded = dict(reversed(line.split()) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    assert sorted(recorded) == ["LICENSE", "uPlot.iife.min.js", "uPlot.min.css"]
    found = {name: hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() for name in recorded}
    assert found == recorded


def test_the_version_is_the_one_that_the_script_fetches():
    version = re.search(
        r"^version=(\S+)$", (Path(__file__).parents[3] / "scripts" / "vendor_uplot.sh").read_text(), re.MULTILINE
    )
    assert f"(v{version[1]})" in (VENDOR / "uPlot.iife.min.js").read_text()[:100]


def test_the_script_holds_every_file_of_ours_once():
    script = panels_script()
    ours = [path for path in ASSETS.iterdir() if path.name.endswith(".js") and path.name != "page.js"]
    assert len(ours) > 5
    assert [path.name for path in ours if script.count(path.read_text()) != 1] == []


def test_strings_reach_the_page_as_text_only():
    ours = "".join(path.read_text() for path in ASSETS.iterdir() if path.name.endswith(".js"))
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|DOMParser", ours) == []
    assert re.findall(r"\bfetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon", ours) == []


def test_every_rule_of_ours_is_below_one_class():
    own = (ASSETS / "panels.css").read_text()
    assert own in panels_style()
    plain = re.sub(r"/\*.*?\*/", "", own, flags=re.DOTALL)
    selectors = [one.strip() for group in re.findall(r"([^{}]+)\{", plain) for one in group.split(",")]
    outside = {one for one in selectors if one and not one.startswith((".fieldwatch", "@")) and "#report" not in one}
    assert outside == set()
