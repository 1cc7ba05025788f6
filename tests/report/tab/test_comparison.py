import json

import pytest

from fieldwatch.report.tab import comparison
from fieldwatch.report.tab.comparison import side_by_side_account
from fieldwatch.report.tab.reading import AccountReader


@pytest.fixture
def accounts(tmp_path, write_run):
    made = {"a": (30, 1.0, {"lr": 0.1, "seed": 1}), "b": (20, 0.5, {"lr": 0.2, "seed": 1})}
    folders = {name: write_run(tmp_path / name, n, scale=scale, config=c) for name, (n, scale, c) in made.items()}
    return {name: AccountReader(folder).read()[0] for name, folder in folders.items()}


def panel(account, name):
    return next(one for one in account["panels"] if one["id"] == name)


def charts(account):
    return [part for one in account["panels"] if one["kind"] == "group" for part in one["parts"]]


def test_every_shared_metric_is_one_chart_with_a_line_per_run(accounts):
    account = side_by_side_account(accounts)
    drawn = {chart["title"]: chart for chart in charts(account)}
    assert {"Loss/total", "Memory/allocated_MB"} <= drawn.keys()
    assert list(drawn["Loss/total"]["labels"].values()) == ["a", "b"]
    for name, key in zip(accounts, drawn["Loss/total"]["series"], strict=True):
        assert account["series"][key] == accounts[name]["series"]["Loss/total"]
    json.dumps(account, allow_nan=False)


def test_verdicts_stand_side_by_side(accounts):
    rows = panel(side_by_side_account(accounts), "verdicts")["rows"]
    assert [(row["run"], row["step"], row["findings"]) for row in rows] == [("a", 29, 1), ("b", 19, 1)]
    assert rows[0]["worst"] == "Planted at step 7: a planted <b>finding</b>"


def test_the_best_newest_value_is_named_where_it_is_known_what_is_better(accounts):
    rows = {row["metric"]: row for row in panel(side_by_side_account(accounts), "values")["rows"]}
    assert rows["Loss/total"]["best"] == "b"
    assert rows["Loss/total"]["run 1"] == accounts["b"]["series"]["Loss/total"]["last"]
    assert rows["Loss/share_color"]["best"] == ""


def test_the_config_shows_only_what_differs(accounts):
    rows = panel(side_by_side_account(accounts), "config-differences")["rows"]
    assert rows == [{"key": "lr", "run 0": "0.1", "run 1": "0.2"}]
    same = {"a": accounts["a"], "b": accounts["a"]}
    assert "same config" in panel(side_by_side_account(same), "config-differences")["why"]


def test_a_run_without_a_metric_keeps_its_place_and_color(accounts):
    accounts["c"] = {**accounts["a"], "series": {}}
    account = side_by_side_account(accounts)
    chart = next(chart for chart in charts(account) if chart["title"] == "Loss/total")
    assert list(chart["labels"].values()) == ["a", "b", "c"]
    assert account["series"][chart["series"][2]]["x"] == []


def test_runs_that_share_nothing_are_compared_all_the_same(accounts):
    account = side_by_side_account({"a": accounts["a"], "none": {**accounts["b"], "series": {}}})
    assert "no metric" in panel(account, "values")["why"]
    assert charts(account) == []
    assert len(panel(account, "verdicts")["rows"]) == 2


def test_a_great_many_metrics_are_listed_and_the_first_of_them_drawn(accounts, monkeypatch):
    monkeypatch.setattr(comparison, "MOST_CHARTS", 2)
    account = side_by_side_account(accounts)
    assert len(charts(account)) == 2
    assert len(panel(account, "values")["rows"]) > 2
    assert "first 2" in panel(account, "values")["about"]


def test_the_worst_verdict_is_the_verdict(accounts):
    def level(*levels):
        told = {
            str(i): {**accounts["a"], "verdict": {**accounts["a"]["verdict"], "level": one}}
            for i, one in enumerate(levels)
        }
        return side_by_side_account(told)["verdict"]

    assert level("healthy", "failed", "notes")["level"] == "failed"
    assert level("healthy", "running")["detail"] == "running: 1."
    assert level("healthy", "healthy")["detail"].endswith(": 0, 1.")
