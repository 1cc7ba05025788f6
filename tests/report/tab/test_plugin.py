"""Routes of the plugin, through werkzeug's test client; in the last tests within the application of TensorBoard."""

import os
import re
import sys
import warnings
from types import SimpleNamespace

import pytest
from werkzeug.test import Client

from fieldwatch.report.tab import TabLoader, account_cache
from fieldwatch.report.tab import plugin as module
from fieldwatch.report.tab.plugin import TabPlugin

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of what TensorBoard brings with it
    from tensorboard import default
    from tensorboard.backend import application


class Browser:
    def __init__(self, tab):
        self.apps = tab.get_plugin_apps()

    def get(self, route, **fields):
        return Client(self.apps[route]).get(route, query_string=fields)

    def json(self, route, **fields):
        answer = self.get(route, **fields)
        assert answer.mimetype == "application/json"
        return answer.get_json()


@pytest.fixture
def open_tab(context, monkeypatch):
    monkeypatch.setattr(module, "REQUEST_TIMEOUT", 30.0)
    monkeypatch.setattr(account_cache, "PAUSE_FACTOR", 0.0)
    return lambda logdir="", spec="": Browser(TabPlugin(context(logdir, spec)))


def test_the_runs_and_the_account_of_one(tmp_path, write_run, open_tab):
    folder = write_run(tmp_path / "bear")
    browser = open_tab(tmp_path)
    told = browser.json("/runs")
    assert (told["searching"], told["note"]) == (False, "")
    (run,) = told["runs"]
    assert (run["name"], run["events"], run["folder"]) == ("bear", "bear/tensorboard", str(folder))
    answer = browser.json("/account", run=run["id"])
    assert answer["error"] == ""
    assert answer["account"]["run"]["last_step"] == 19
    assert browser.json("/account", run="bear")["version"] == answer["version"]


def test_what_has_not_changed_is_not_sent_again(tmp_path, write_run, add_rows, open_tab):
    folder = write_run(tmp_path / "run")
    browser = open_tab(folder)
    version = browser.json("/account", run="run")["version"]
    (told,) = browser.json("/runs", run="x")["runs"]
    assert "version" not in told
    (told,) = browser.json("/runs", run=told["id"])["runs"]
    assert told["version"] == version
    assert browser.json("/account", run="run", since=version) == {"unchanged": True, "version": version}
    add_rows(folder, 20)
    (told,) = browser.json("/runs", run=told["id"])["runs"]
    assert told["version"] != version
    assert browser.json("/account", run="run", since=version)["account"]["run"]["last_step"] == 24


def test_an_account_in_brief_has_verdict_and_findings_and_no_curves(tmp_path, write_run, open_tab):
    write_run(tmp_path / "run")
    told = open_tab(tmp_path).json("/account", run="run", brief="1")["account"]
    assert sorted(told) == ["findings", "phases", "run", "verdict"]
    assert [finding["rule"] for finding in told["findings"]] == ["Planted"]


@pytest.mark.parametrize(
    "asked",
    ["", "none", "..", "../run", "/etc/passwd", "run/../run", "%2e%2e", "run\x00", "<b>", "\ud800x", "x" * 5000],
)
def test_a_run_that_is_not_there_is_refused(tmp_path, write_run, open_tab, asked):
    write_run(tmp_path / "run")
    browser = open_tab(tmp_path)
    asked = asked.encode("utf-8", "surrogatepass")
    answer = browser.get("/account", run=asked)
    assert answer.status_code == 404
    assert "no such run" in answer.get_json()["error"]
    assert browser.get("/comparison", run=[b"run", asked]).status_code == 404


def test_the_folder_of_a_run_is_no_name_for_it(tmp_path, write_run, open_tab):
    folder = write_run(tmp_path / "run")
    assert open_tab(tmp_path).get("/account", run=str(folder)).status_code == 404


def test_names_of_every_kind_are_sent_as_text(tmp_path, write_run, open_tab):
    hostile = ["</script><script>alert(1)", 'a"b', "line\nbreak", "\x1b[31mred", os.fsdecode(b"no\xfftext")]
    for name in hostile:
        write_run(tmp_path / name.replace("/", "_"))
    browser = open_tab(tmp_path)
    told = browser.json("/runs")["runs"]
    assert len(told) == len(hostile)
    assert "line\nbreak" in [run["name"] for run in told]
    for run in told:
        answer = browser.json("/account", run=run["id"])
        assert answer["error"] == ""
        assert answer["account"]["run"]["rows"] == 20


def test_a_damaged_record_is_a_finding_and_the_rest_is_shown(tmp_path, write_run, open_tab):
    damaged = write_run(tmp_path / "damaged")
    with (damaged / "journal.jsonl").open("ab") as file:
        file.write(b"not json\n")
    answer = open_tab(tmp_path).json("/account", run="damaged")
    assert answer["error"] == ""
    assert answer["account"]["run"]["rows"] == 20
    (finding,) = [one for one in answer["account"]["findings"] if one["rule"] == "DamagedRecord"]
    assert "journal.jsonl: 1 line skipped" in finding["message"]


def test_a_broken_run_says_why_and_the_others_are_shown(tmp_path, write_run, open_tab):
    broken = write_run(tmp_path / "broken")
    write_run(tmp_path / "whole")
    (broken / "run.json").write_text("not json")
    browser = open_tab(tmp_path)
    answer = browser.json("/account", run="broken")
    assert answer["account"] is None
    assert "run.json" in answer["error"]
    assert browser.json("/account", run="whole")["error"] == ""
    both = browser.json("/comparison", run=["broken", "whole"])
    assert both["account"] is None
    assert list(both["errors"]) == ["broken"]


def test_several_runs_side_by_side(tmp_path, write_run, open_tab):
    for name in ("a", "b"):
        write_run(tmp_path / name)
    browser = open_tab(tmp_path)
    answer = browser.json("/comparison", run=["a", "b"])
    assert answer["account"]["run"]["name"] == "a / b"
    since = browser.json("/comparison", run=["a", "b"], since=answer["version"])
    assert since == {"unchanged": True, "version": answer["version"]}
    parts = [browser.json("/account", run=name)["version"] for name in ("a", "b")]
    assert answer["version"] == "+".join(parts)
    assert browser.get("/comparison", run=["a"]).status_code == 404
    assert browser.get("/comparison", run=["a"] * 13).status_code == 404


def test_only_listed_files_are_served_and_all_that_scripts_import(open_tab):
    browser = open_tab()
    scripts = [route for route in browser.apps if route.endswith((".js", ".css"))]
    assert not any("*" in route for route in browser.apps)
    for route in scripts:
        answer = browser.get(route)
        assert answer.status_code == 200
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.mimetype == ("text/css" if route.endswith("css") else "text/javascript")
        assert {f"/{name}" for name in re.findall(r'from "\./(.*?)"', answer.text)} <= set(scripts)
    assert b"render" in browser.get("/index.js").data


def test_nothing_but_reading_is_answered(open_tab):
    app = open_tab().apps["/runs"]
    answers = [Client(app).post("/runs"), Client(app).put("/runs"), Client(app).delete("/runs")]
    assert [answer.status_code for answer in answers] == [405, 405, 405]
    assert Client(app).head("/runs").status_code == 200


def test_the_tab_is_active_where_there_are_runs(tmp_path, write_run, context):
    def active(*where):
        tab = TabPlugin(context(*where))
        tab.cache.search_result(30.0)
        return tab.is_active()

    assert not active(tmp_path)
    assert not active()
    write_run(tmp_path / "run")
    assert active(tmp_path)


@pytest.fixture
def board(context):
    """Make the application of TensorBoard with its core plugin and the installed tab."""

    def make(logdir):
        flags = context(logdir).flags
        flags.path_prefix = ""
        flags.samples_per_plugin = {}
        flags.window_title = ""
        points = default._iter_entry_points("tensorboard_plugins")
        loaders = [default._PLUGINS[0], *(point.load() for point in points if point.name == "fieldwatch")]
        return Client(application.TensorBoardWSGIApp(flags, loaders, data_provider=Provider()))

    return make


class Provider(SimpleNamespace):
    def list_plugins(self, *_, **__):
        return []


def test_tensorboard_finds_the_tab_by_its_entry_point(tmp_path, write_run, board):
    """Fails if fieldwatch was installed before it had the tab: run `make env`."""
    write_run(tmp_path / "run")
    client = board(tmp_path)
    listed = client.get("/data/plugins_listing").get_json()["fieldwatch"]
    assert listed["enabled"]
    assert listed["tab_name"] == "fieldwatch"
    assert listed["loading_mechanism"] == {"type": "IFRAME", "module_path": "/data/plugin/fieldwatch/index.js"}
    assert client.get("/data/plugin/fieldwatch/runs").get_json()["searching"] in (True, False)
    page = client.get("/data/plugin_entry.html?name=fieldwatch")
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]


@pytest.mark.parametrize("route", ["../../../etc/passwd", "..%2f..%2fpyproject.toml", "static/../index.js", "tab.py"])
def test_tensorboard_serves_no_other_file_of_ours(tmp_path, board, route):
    assert board(tmp_path).get(f"/data/plugin/fieldwatch/{route}").status_code == 404


def test_tensorboard_starts_without_the_tab_where_it_cannot_be_loaded(tmp_path, board, context, monkeypatch):
    monkeypatch.setitem(sys.modules, "fieldwatch.report.tab.plugin", None)
    with pytest.raises(ImportError):
        TabLoader().load(context(tmp_path))
    listed = board(tmp_path).get("/data/plugins_listing")
    assert listed.status_code == 200
    assert "fieldwatch" not in listed.get_json()


def test_tensorboard_starts_where_the_tab_fails_while_it_is_made(tmp_path, board, monkeypatch):
    def fail(*_):
        raise RuntimeError("planted")

    monkeypatch.setattr(module, "assets", fail)
    answer = board(tmp_path).get("/data/plugin/fieldwatch/runs")
    assert answer.status_code == 404
    assert board(tmp_path).get("/data/plugins_listing").status_code == 200
