import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from fieldwatch.report.memory import LargestTensor, analyse, read_trace, write_page
from fieldwatch.report.memory.page import page
from fieldwatch.report.memory.thinning import thinned

EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\x00\x1b[31m'
VOID = {"meta", "br", "img", "link"}


class Tags(HTMLParser):
    """Collects tags and attributes, and fails where tags do not close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    return tags


def embedded(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" class="data">(.*?)</script>', text, re.DOTALL)[1])


def test_the_page_is_whole_and_needs_nothing_else(run_folder, tmp_path):
    path = tmp_path / "new" / "page.html"
    write_page([analyse(read_trace(run_folder(leak=0.02)))], path)
    text = path.read_text()
    tags = parsed(text)
    assert not [tag for tag, attributes in tags.seen if {"src", "href"} & attributes.keys()]
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert "prefers-color-scheme:dark" in text
    assert "memory leak suspected" in text
    assert len(text) < 400_000
    assert list(path.parent.iterdir()) == [path]
    data = embedded(text)
    assert (data["steps"][0], data["steps"][-1], len(data["events"]["growth"])) == (49, 9999, 25)
    assert data["totals"]["allocated"][0] == pytest.approx(
        sum(values[0] for values in data["parts"].values()), abs=0.05
    )


def test_hostile_names_stay_text(trace_of):
    values = np.full(100, 8000.0)
    values[50:] += 2000
    evil = {EVIL: values}
    trace = trace_of(
        values,
        label=EVIL,
        categories=evil,
        components=evil,
        dtypes=evil,
        account=evil,
        notes=(EVIL,),
        largest=(LargestTensor(size=1, shape=EVIL, dtype=EVIL, owner=EVIL),),
        events={EVIL: np.array([2490])},
    )
    text = page([analyse(trace), analyse(trace)])
    tags = parsed(text)
    assert sum(tag == "script" for tag, _ in tags.seen) == 3  # two with data, ours
    assert not [tag for tag, _ in tags.seen if tag == "img"]
    assert not [1 for _, attributes in tags.seen if any(name.startswith("on") for name in attributes)]
    assert not {"\x00", "\x1b"} & set(text)


def test_a_long_log_is_thinned_and_keeps_its_extremes(trace_of):
    values = 8000 + np.random.default_rng(0).normal(0, 1, 200_000)
    values[123_456], values[77_777] = 9500, 7000
    rows = thinned(values, np.array([5], np.intp))
    assert {0, 5, 77_777, 123_456, 199_999} <= set(rows.tolist())
    assert len(rows) < 700
    assert (np.diff(rows) > 0).all()
    assert len(page([analyse(trace_of(values))])) < 1_000_000


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_snapshots_make_a_page_too(trace_of, count):
    unknown = np.full(count, np.nan)
    trace = trace_of(np.full(count, 8000.0), reserved=unknown, fragmentation=unknown, tensors=unknown)
    parsed(page([analyse(trace)]))


def test_a_log_of_zeros_makes_a_page(trace_of):
    parsed(page([analyse(trace_of(np.zeros(20), reserved=np.zeros(20)))]))
