"""The comparison of scenes as page, table and JSON; untrusted text is escaped in all of them."""

import csv
import io
import json
import re

from fieldwatch.many import scenes_account, write_summary
from fieldwatch.many.summary import summary_table
from fieldwatch.report.page import report_page

EVIL = "<script>alert('x')</script>\"&"
FINDING = {"severity": "warning", "rule": EVIL, "subject": EVIL, "step": 3, "message": EVIL, "remedy": EVIL}


def one(**other):
    tries = [{"number": n, "state": s, "cause": c, "first": f, "reached": 9, "seconds": 3600.0} for n, s, c, f in TRIES]
    return {
        "scene": "a", "pipeline": "video", "state": "healthy", "finished_earlier": False, "command": EVIL,
        "run": f"/runs/{EVIL}", "console": "c", "tries": tries, "resumed_from": [4], "wall_seconds": 7200.0,
        "training_seconds": 1.0, "steps": 9, "total_steps": 10, "metrics": {"Eval/psnr": 21.5, EVIL: "nan"},
        "findings": [FINDING], "damage": EVIL, "curve": [(0.0, 1.0), (9.0, 0.5)],
    } | other  # fmt: skip


TRIES = [(1, "crashed", f"killed by {EVIL}", 0), (2, "healthy", "", 4)]


def embedded(page):
    (text,) = re.findall(r'<script type="application/json" id="account">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def panel_of(account, identity):
    (panel,) = [panel for panel in account["panels"] if panel["id"] == identity]
    return panel


def links_in(value):
    """Yield the links anywhere in an account."""
    if isinstance(value, dict):
        if "href" in value:
            yield value["href"]
        for inner in value.values():
            yield from links_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from links_in(inner)


def test_the_page_lists_every_scene_with_its_state_attempts_and_findings():
    account = scenes_account([one(), one(scene="b", state="refused", tries=[], metrics={}, curve=[], steps=None)])
    assert account["verdict"]["title"] == "1 healthy, 1 refused"
    assert account["verdict"]["level"] == "failed"
    rows = panel_of(account, "overview")["rows"]
    assert [(row["state"], row["attempts"], row["time"]) for row in rows] == [
        ("healthy", 2, "2 h"),
        ("refused", 0, "2 h"),
    ]
    assert [row["loss"] for row in rows] == [0.5, None]
    assert account["series"]["a: total loss"]["y"] == [1.0, 0.5]
    assert [finding["rule"] for finding in account["findings"]] == [f"a: {EVIL}", f"b: {EVIL}"]
    attempts = panel_of(account, "scene-a")["parts"][1]
    assert [(row["cause"], row["first"]) for row in attempts["rows"]] == [(f"killed by {EVIL}", 0), ("", 4)]
    assert panel_of(account, "quality-video")["rows"][1] == {"metric": "Eval/psnr", "scene-0": 21.5}


def test_links_lead_to_the_page_itself_or_to_files_beside_it():
    account = scenes_account([one(), one(scene="//evil.example"), one(scene="javascript:alert(1)")])
    links = list(links_in(account))
    assert len(links) == 9
    assert not [link for link in links if re.match(r"[a-z][a-z0-9+.-]*:|[\\/]", link)]


def test_no_text_of_a_scene_becomes_a_tag():
    page = report_page(scenes_account([one()]))
    assert page.count("<script") == 2
    assert EVIL not in page
    assert embedded(page)["panels"]


def test_the_table_has_every_metric_once_and_no_formula():
    text = summary_table([one(), one(scene="b", metrics={"Test/psnr": 3.0}, state="=1+1")])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["Eval/psnr"] for row in rows] == ["21.5", ""]
    assert [row["Test/psnr"] for row in rows] == ["", "3.0"]
    assert rows[1]["state"] == "'=1+1"
    assert rows[0]["resumed_from"] == "4"
    assert rows[0]["causes"] == f"killed by {EVIL}"


def test_the_files_tell_of_a_run_and_of_one_that_never_was(drive, scene, tmp_path):
    driver = drive(scene("ran", crash_at=2, steps=4), scene("bad", end=2))
    places = write_summary(tmp_path / "out", driver.statuses, {"video": ("Loss/",)}, driver.exit_code())
    stored = json.loads(places["summary"].read_text())
    assert stored["exit_code"] == 3
    ran, bad = stored["scenes"]
    assert (ran["state"], ran["steps"], ran["total_steps"], ran["resumed_from"]) == ("healthy", 4, 4, [3])
    assert ran["metrics"] == {"Loss/total": 0.25}
    assert [one["cause"] for one in ran["tries"]] == ["killed by SIGKILL", ""]
    assert (bad["state"], bad["steps"], bad["metrics"]) == ("refused", None, {})
    assert "no photos there" in bad["tries"][0]["cause"]
    attempts = panel_of(embedded(places["report"].read_text()), "scene-ran")["parts"][1]["rows"]
    assert [row["cause"] for row in attempts] == ["killed by SIGKILL", ""]


def test_a_damaged_record_is_told_and_harms_no_other(drive, scene, tmp_path):
    driver = drive(scene("ran"), scene("torn"))
    journal = tmp_path / "out" / "torn" / "journal.jsonl"
    journal.write_text("nonsense\n" + journal.read_text())
    places = write_summary(tmp_path / "out", driver.statuses, {"video": ("Loss/",)}, 0)
    ran, torn = json.loads(places["summary"].read_text())["scenes"]
    assert ran["damage"] == ""
    assert "line 1" in torn["damage"]
