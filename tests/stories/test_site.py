"""The site of docs/: it builds without a warning, fetches nothing, and every link in it leads somewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class Page(HTMLParser):
    """What a page links to and fetches, and the places in it."""

    def __init__(self, file):
        super().__init__()
        self.links = []
        self.fetched = []
        self.places = set()
        self.feed(file.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.places |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in FETCHED and values.get(FETCHED[tag]) and values.get("rel") != "canonical":
            self.fetched.append(values[FETCHED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="mkdocs-material is not installed: it comes with the extra dev")
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    found = {str(file.relative_to(site)): Page(file) for file in site.rglob("*.html")}
    del found["404.html"]  # its links are absolute: it stands for any address
    assert len(found) > 60
    return found


def test_nothing_is_fetched_from_elsewhere(pages):
    assert {name: far for name, page in pages.items() if (far := [f for f in page.fetched if "//" in f])} == {}


def test_styles_fetch_nothing_either(site):
    text = "".join(file.read_text() for file in site.rglob("*.css"))
    assert len(text) > 10_000
    assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*\)|@import", text) == []


def test_every_link_leads_somewhere(site, pages):
    lost = []
    for name, page in pages.items():
        for link in [*page.links, *page.fetched]:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = os.path.normpath(Path(name).parent / unquote(parts.path) if parts.path else name)
            inside = pages[target].places if target in pages else set()
            if not (site / target).is_file() or (parts.fragment and unquote(parts.fragment) not in inside):
                lost.append((name, link))
    assert lost == []


def test_readme_is_home_and_files_of_the_repository_are_pages(pages):
    home = set(pages["index.html"].links)
    assert {"tour.html", "seeing.html", "troubleshooting.html", "decisions/index.html", "changelog.html"} <= home
    assert "pictures/mesh.png" in pages["index.html"].fetched
    assert "files/examples/adopt_torch/before.py.html" in pages["adopt.html"].links
    assert "0001-explicit-loop-and-run.html" in pages["decisions/index.html"].links


def test_the_search_knows_every_page(site):
    index = (site / "search" / "search_index.js").read_text()
    assert all(f'"{page}' in index for page in ("rules.html#memoryleak", "tour.html", "metrics.html", "scale.html"))


def test_every_page_of_docs_has_a_place_in_the_navigation():
    named = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {file.name for file in (ROOT / "docs").glob("*.md")} <= named
