import json
import re

import numpy as np
import pytest

from fieldwatch.report.memory import LargestTensor, analyze, memory_account, read_trace
from fieldwatch.report.memory.thinning import thinned
from fieldwatch.report.page import report_page, write_page

EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\x00\x1b[31m'


def embedded(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="account">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def panel_of(account: dict, identity: str) -> dict:
    (panel,) = [panel for panel in account["panels"] if panel["id"] == identity]
    return panel


def test_the_page_shows_memory_by_owner_and_the_findings(run_folder, tmp_path):
    path = tmp_path / "new" / "page.html"
    write_page(memory_account([analyze(read_trace(run_folder(leak=0.02)))]), path)
    assert list(path.parent.iterdir()) == [path]
    account = embedded(path.read_text())
    assert [finding["rule"] for finding in account["findings"]] == ["memory leak suspected"]
    chart = panel_of(account, "memory-by-owner")
    assert (chart["kind"], chart["amounts"]) == ("stack", True)
    parts = [account["series"][name] for name in chart["series"]]
    allocated = account["series"]["0:allocated"]
    assert (allocated["x"][0], allocated["x"][-1]) == (49, 9999)
    assert allocated["y"][0] == pytest.approx(sum(part["y"][0] for part in parts), abs=0.05)
    assert chart["lines"] == ["0:allocated", "0:reserved"]
    assert sum(mark["kind"] == "growth" for mark in account["marks"]) == 25
    assert len(path.read_text()) < 400_000


def test_several_runs_are_compared_and_each_has_its_panel(trace_of):
    traces = [trace_of(np.full(40, 8000.0 + place), label=f"run {place}") for place in range(2)]
    account = memory_account([analyze(trace) for trace in traces])
    side_by_side, *runs = account["panels"]
    assert [column["title"] for column in side_by_side["columns"]] == ["", "run 0", "run 1"]
    assert [(panel["id"], panel["title"]) for panel in runs] == [("run-0", "run 0"), ("run-1", "run 1")]
    assert account["series"].keys() >= {"0:allocated", "1:allocated"}


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
    page = report_page(memory_account([analyze(trace), analyze(trace)]))
    assert page.count("<script") == 2
    assert "<img" not in page
    assert not {"\x00", "\x1b"} & set(page)


def test_a_long_log_is_thinned_and_keeps_its_extremes(trace_of):
    values = 8000 + np.random.default_rng(0).normal(0, 1, 200_000)
    values[123_456] = 9500
    values[77_777] = 7000
    rows = thinned(values, np.array([5], np.intp))
    assert {0, 5, 77_777, 123_456, 199_999} <= set(rows.tolist())
    assert len(rows) < 700
    assert (np.diff(rows) > 0).all()
    assert len(report_page(memory_account([analyze(trace_of(values))]))) < 1_000_000


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_snapshots_make_a_page_too(trace_of, count):
    unknown = np.full(count, np.nan)
    trace = trace_of(np.full(count, 8000.0), reserved=unknown, fragmentation=unknown, tensors=unknown)
    account = memory_account([analyze(trace)])
    assert account["series"]["0:allocated"]["rows"] == count
    report_page(account)  # raises if the account holds NaN


def test_a_log_of_zeros_makes_a_page(trace_of):
    report_page(memory_account([analyze(trace_of(np.zeros(20), reserved=np.zeros(20)))]))


def test_categories_have_the_same_color_in_every_chart(trace_of):
    sizes = {"optimizer": np.full(30, 5.0), "own": np.full(30, 9.0), "parameters": np.full(30, 1.0)}
    account = memory_account([analyze(trace_of(np.full(30, 15.0), account=sizes))])
    colors = panel_of(account, "memory-by-owner")["colors"]
    assert colors["0:part parameters"] == 0
    assert colors["0:part optimizer"] == 2
    assert colors["0:part own"] not in (0, 2)
