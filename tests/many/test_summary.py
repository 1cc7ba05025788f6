"""The comparison of scenes as page, table and JSON; untrusted text is escaped in all of them."""

import csv
import io
import json
from html.parser import HTMLParser

from fieldwatch.many import scenes_page, write_summary
from fieldwatch.many.summary import summary_table

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


class Tags(HTMLParser):
    """Counts tags, and checks that every opened tag is closed."""

    def __init__(self):
        super().__init__()
        self.seen, self.open, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(page):
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


def test_the_page_is_whole_and_no_text_in_it_becomes_a_tag():
    tags = read(scenes_page([one(), one(scene="b", state="refused", tries=[], metrics={}, curve=[], steps=None)]))
    names = [tag for tag, _ in tags.seen]
    assert "script" not in names
    assert tags.text.count("alert('x')") == 14  # shown as text in every place where it occurs
    links = [attrs["href"] for tag, attrs in tags.seen if tag == "a"]
    assert all(not link.startswith(("http", "//", "javascript:")) for link in links)
    assert [attrs for tag, attrs in tags.seen if tag in ("img", "link", "iframe")] == []
    assert "2 h" in tags.text


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
    assert read(places["report"].read_text()).text.count("killed by SIGKILL") == 1


def test_a_damaged_record_is_told_and_harms_no_other(drive, scene, tmp_path):
    driver = drive(scene("ran"), scene("torn"))
    journal = tmp_path / "out" / "torn" / "journal.jsonl"
    journal.write_text("nonsense\n" + journal.read_text())
    places = write_summary(tmp_path / "out", driver.statuses, {"video": ("Loss/",)}, 0)
    ran, torn = json.loads(places["summary"].read_text())["scenes"]
    assert ran["damage"] == ""
    assert "line 1" in torn["damage"]
