"""The table, the JSON and the page of a snapshot."""

import io
import re

import orjson
import pytest
from rich.console import Console

from fieldwatch.report.page import report_page
from fieldwatch.report.snapshot import read_snapshot, snapshot_account, snapshot_json, snapshot_table, view_data

MB = 1 << 20
HOSTILE = "</script><img src=x onerror=alert(1)>&\u2028"


def printed(snapshot, width=80, **options):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(snapshot_table(snapshot, **options))
    return console.file.getvalue()


def hostile_snapshot(make_allocator):
    memory = make_allocator()
    memory.phase = HOSTILE
    memory.allocate(3 * MB, [{"filename": f"/home/{HOSTILE}.py", "line": 3, "name": f"[bold]{HOSTILE}"}])
    value = memory.snapshot()
    value["segments"][0]["segment_type"] = HOSTILE
    value["allocator_settings"][HOSTILE] = HOSTILE
    return value


@pytest.fixture
def training(dump, make_training):
    return read_snapshot(dump(make_training()))


def test_the_table_fits_80_columns_and_names_the_numbers(training):
    text = printed(training)
    assert max(len(line) for line in text.splitlines()) <= 80
    for wanted in (
        "reserved",
        "220.0 MiB",
        "not returnable",
        "fragmentation",
        "Peak of requested bytes: 178.8 MiB",
        "in backward",
    ):
        assert wanted in text
    assert re.search(r"render\.py:54 blend +0 B +31\.3 MiB +219\.6 MiB +42", text)
    assert "Inconsistent" not in text


def test_the_table_says_how_many_sites_it_leaves_out(training):
    assert re.search(r"10 others +93\.0 MiB", printed(training, sites=1)) is None
    assert re.search(r"11 others +93\.0 MiB", printed(training, sites=1))


def test_the_table_reports_failures_and_contradictions(dump, mosaic):
    assert "262,144,000 B" in " ".join(printed(read_snapshot(mosaic)).split())
    failed = {"action": "oom", "size": 64 << 30, "device_free": 2 * MB, "stream": 0, "frames": []}
    text = printed(read_snapshot(dump({"segments": [], "device_traces": [[failed] * 7]})))
    assert "64.0 GiB" in text
    assert "2.0 MiB free" in text
    assert "event 0" in text
    assert "2 more" in text


def test_the_table_of_a_state_without_history_says_how_to_get_one(dump):
    segment = {"address": 0, "total_size": 512, "stream": 0, "segment_type": "small", "blocks": []}
    assert "_record_memory_history" in printed(read_snapshot(dump([segment])))
    assert "not used CUDA" in printed(read_snapshot(dump([])))


def test_names_with_markup_are_printed_as_they_are(dump, make_allocator):
    assert "[bold]" in printed(read_snapshot(dump(hostile_snapshot(make_allocator))), width=200)


def test_the_json_holds_the_numbers(training):
    found = orjson.loads(orjson.dumps(snapshot_json(training)))
    (device,) = found["devices"]
    state = training.devices[0]
    assert device["reserved"] == 220 * MB
    assert device["fragmentation"] == pytest.approx(state.totals.fragmentation)
    assert device["history"]["peak"]["requested"] == state.timeline.peak.requested
    assert device["sites"][0] == {
        "site": "render.py:54 blend",
        "filename": "/home/me/project/render.py",
        "now": 0,
        "at_peak": state.sites[0].at_peak,
        "churn": state.sites[0].churn,
        "count": 42,
        "stack": ["render.py:54 blend", "train.py:12 main"],
    }
    assert (device["sites_total"], len(snapshot_json(training, sites=2)["devices"][0]["sites"])) == (12, 2)
    assert [phase["name"] for phase in device["phases"]] == ["backward", "forward", "update", "setup"]
    assert device["inconsistencies"] == []


def test_the_json_of_any_snapshot_can_be_written(dump, mosaic):
    failed = {"action": "oom", "size": (1 << 64) - 1, "device_free": 5, "stream": 0, "frames": []}
    for path in (mosaic, dump([]), dump({"segments": [], "device_traces": [[failed]]}, "failed.pickle")):
        assert orjson.dumps(snapshot_json(read_snapshot(path)))


def test_the_page_shows_hostile_names_as_text_only(dump, make_allocator):
    snapshot = read_snapshot(dump(hostile_snapshot(make_allocator), "<b>&name.pickle"))
    page = report_page(snapshot_account(snapshot))
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "<b>" not in page
    assert "<title>Memory of &lt;b&gt;&amp;name.pickle" in page
    (device,) = view_data(snapshot)["devices"]
    assert "</script><img src=x onerror=alert(1)>&" in device["sites"][0]["name"]


def test_the_page_names_the_amounts_of_every_device(training):
    account = snapshot_account(training)
    assert [panel["id"] for panel in account["panels"]] == [
        f"cuda:0-{name}" for name in ("in-short", "allocations", "segments", "allocation-sites", "notes")
    ]
    values = {fact["name"]: fact["value"] for fact in account["panels"][0]["facts"]}
    assert values["reserved"].startswith("220.0 MiB")
    assert "in backward" in values["peak requested"]
    sites = account["panels"][3]
    assert sites["rows"][0]["site"] == {
        "text": training.devices[0].sites[0].site,
        "stack": list(training.devices[0].sites[0].stack),
    }
    assert [column["key"] for column in sites["columns"] if column["bytes"]] == ["now", "peak", "churn"]


def test_several_devices_have_their_panels(dump, make_training):
    value = make_training()
    value["device_traces"] *= 2
    account = snapshot_account(read_snapshot(dump(value)))
    titles = [panel["title"] for panel in account["panels"]]
    assert "cuda:0: Allocation sites" in titles
    assert "cuda:1: Allocation sites" in titles


def walked(device, layers):
    """The bytes of each layer after each event that the page knows, as the page adds them up."""
    history = device["timeline"]
    at = 0
    rows = []
    for slot, step in enumerate(history["at"]):
        at += step
        now = [0] * (layers + 1)
        for size, start, end, layer in zip(*(history[k] for k in ("size", "start", "end", "layer")), strict=True):
            now[layer] += size if start <= slot < end else 0
        rows.append((at, now))
    return rows


def test_the_page_adds_up_to_the_timeline(training, tmp_path):
    data = view_data(training)
    (device,) = data["devices"]
    requested = training.devices[0].timeline.requested
    rows = walked(device, data["layers"])
    assert [sum(now) for _, now in rows] == [int(requested[at]) for at, _ in rows]
    assert device["peak"]["bytes"] == max(sum(now) for _, now in rows)
    peak = next(now for at, now in rows if at == device["peak"]["event"])
    assert peak[:10] == [site["peak"] for site in device["sites"][:10]]


def test_a_long_history_is_drawn_from_its_largest_allocations_and_sums(training, tmp_path, monkeypatch):
    monkeypatch.setattr("fieldwatch.report.snapshot.page_data._ALLOCATIONS", 50)
    monkeypatch.setattr("fieldwatch.report.snapshot.page_data._BLOCKS", 9)
    monkeypatch.setattr("fieldwatch.report.snapshot.page_data._SEGMENTS", 8)
    data = view_data(training)
    (device,) = data["devices"]
    rest = device["timeline"]["rest"]
    assert len(device["timeline"]["size"]) == 50
    assert rest["count"] == len(training.devices[0].allocations) - 50
    events = device["timeline"]["events"]
    assert len(rest["rows"][0]) == events
    requested = training.devices[0].timeline.requested
    rows = walked(device, data["layers"])
    drawn = [sum(now) + sum(row[at] for row in rest["rows"]) for at, now in rows]
    assert drawn == [int(requested[at]) for at, _ in rows]
    assert device["segments_left"] == 3
    blocks = sum(len(segment["blocks"]) for segment in device["segments"])
    assert 0 < blocks <= 9
    assert blocks + sum(segment["hidden"] for segment in device["segments"]) > 9


def test_the_page_of_many_events_stays_small(dump, tmp_path, make_stack):
    stacks = [make_stack(f"function_{i}", i, f"module_{i % 40}.py") for i in range(3000)]
    events = []
    for i in range(10_000):
        size = 512 + 97 * (i % 7000)
        stack = stacks[i * 7 % 3000]
        time = {"stream": 0, "time_us": (1 << 50) + 13 * i}
        events.append({"action": "alloc", "addr": i % 400, "size": size, "frames": stack} | time)
        if i >= 399:
            size = 512 + 97 * ((i - 399) % 7000)
            events.append({"action": "free_completed", "addr": (i - 399) % 400, "size": size, "frames": stack} | time)
    snapshot = read_snapshot(dump({"segments": [], "device_traces": [events]}))
    assert len(snapshot.devices[0].trace) > 19_000
    # Grows no faster than the events: 100,000 stay below 5 MB.
    assert len(report_page(snapshot_account(snapshot))) < 900_000


def test_the_pages_of_odd_snapshots_are_written(dump, mosaic):
    segment = {"address": 0, "total_size": 512, "stream": 0, "segment_type": "small", "blocks": []}
    for path in (mosaic, dump([], "empty.pickle"), dump([segment], "state.pickle")):
        report_page(snapshot_account(read_snapshot(path)))
    assert snapshot_account(read_snapshot(dump([])))["verdict"]["level"] == "empty"
