"""The result of a replay as a page: every panel has what the result has, and odd numbers do no harm."""

import copy
import json

import pytest

from fieldwatch.report.page import report_page
from fieldwatch.report.replay import conflicts_of, findings_of, replay_account, summary_of

EVIL = "</script><script>alert(1)</script>"
LINE = {"file": "/a/loop.py", "line": 7, "function": "forward", "text": EVIL}
TENSOR = {"shape": [2], "dtype": "float32", "nan": 0, "inf": 1, "least": -1.0, "largest": 2.0, "value": "inf"}
QUANTILES = {"0.0": -1.0, "0.5": 0.0, "1.0": 2.0}
SPREAD = {"entries": 3, "nan": 1, "inf": 0, "norm": "nan", "mean": 0.5, "quantiles": QUANTILES, "counts": [1, 1]}


def bad(**facts):
    return {"number": 3, "operation": "aten.log", "phase": "forward", "module": EVIL, "node": "", "stack": [LINE],
            "result": TENSOR, "inputs": [TENSOR, {"number": 0.0}], "on_purpose": False, "reached": ["total loss"],
            **facts}  # fmt: skip


@pytest.fixture
def result():
    losses = [{"step": 5, "loss": "nan"}, {"step": 6, "loss": 0.5}]
    one = {"name": "as trained", "kind": "plain", "losses": losses, "terms": {"fit": "nan"}, "gradient_norm": "nan",
           "gradient_norms": {"model": "nan"}, "update": {"model": 0.0}, "refused": True, "not_finite": ["model"],
           "error": None}  # fmt: skip
    pair = {"terms": ["fit", "small"], "cosine": -0.9}
    terms = [{"term": "fit", "norm": 1.0, "not_finite": 0, "cosine_to_total": 0.5}]
    row = {"file": "/a/loop.py", "line": 7, "function": "f", "phase": "backward", "bytes": 2048, "storages": 2,
           "at_peak": 1024, "kept": 0}  # fmt: skip
    return {
        "format": 1, "run": f"runs/{EVIL}", "start": 3, "from_checkpoint": True, "seconds": 1.5, "step": 5,
        "machine": {"threads": 1, "cpu": "AVX2", "device": "cpu"},
        "equality": {"equal": True, "steps": 3, "first": 3, "last": 5, "values": 30, "not_recorded": [], "ended": None,
                     "checkpoints": [{"step": 4, "values": 9, "unequal": [], "count": 0}], "differences": [],
                     "reasons": []},
        "repeats": {"values": 9, "differing": []},
        "trace": {"operations": 80, "first": bad(), "others": [bad(on_purpose=True, reached=[])], "others_in_all": 1,
                  "memory": {"peak": 1024, "allocated": 2048, "lines": [row], "lines_in_all": 1}, "error": None},
        "terms": {"terms": [{"term": "fit", "weight": 1.0, "value": 2.0, "weighted": 2.0}],
                  "groups": [{"group": "model", "norm": 1.0, "terms": terms, "pairs": [pair]}], "error": None},
        "samples": [{"sample": "a.png", "loss": 3.0, "share": 0.75}],
        "groups": [{"group": "model", "edges": [-1.0, 0.0, 2.0], "before": SPREAD, "after": SPREAD, "change": 0.1,
                    "gradient_edges": [0.0, 1.0, 2.0], "gradient": SPREAD}],
        "passes": [one, {**one, "name": "lr*=0.1", "kind": "variant"}],
    }  # fmt: skip


def kinds(account):
    return {panel["id"]: panel["kind"] for panel in account["panels"]}


def test_every_panel_is_there_and_the_page_is_whole(result):
    account = replay_account(result)
    assert set(kinds(account)) == {"not-finite", "passes", "terms", "samples", "groups", "memory", "equality"}
    assert set(kinds(account).values()) == {"group"}
    page = report_page(account)
    assert EVIL not in page
    named = {name for panel in account["panels"] for part in panel["parts"] for name in part.get("series", ())}
    assert named == set(account["series"])


def test_a_result_with_nothing_to_show_has_reasons_in_its_panels(result):
    nothing = {**result, "terms": None, "samples": [], "groups": [], "passes": []}
    nothing["trace"] = {"operations": 9, "first": None, "others": [], "others_in_all": 0, "error": None,
                        "memory": {"peak": 0, "allocated": 0, "lines": [], "lines_in_all": 0}}  # fmt: skip
    account = replay_account(nothing)
    empty = [panel for panel in account["panels"] if panel["kind"] == "empty"]
    assert len(empty) == 6
    assert all(panel["why"] for panel in empty)
    assert account["verdict"]["level"] == "healthy"
    assert findings_of(nothing) == []
    assert summary_of(nothing)


def test_the_verdict_and_the_findings_name_the_line(result):
    account = replay_account(result)
    assert account["verdict"]["level"] == "failed"
    assert "loop.py:7" in account["verdict"]["title"]
    rules = [finding["rule"] for finding in account["findings"]]
    assert rules == ["NotFinite", "TermsDisagree"]
    assert "/a/loop.py:7" in account["findings"][0]["message"]
    assert conflicts_of(result["terms"])[0]["cosine"] == -0.9


def test_a_replay_that_differs_says_since_when_and_why(result):
    ended = {"step": 4, "count": 1, "values": [{"metric": "Loss/total", "recorded": 1.0, "replayed": 2.0}]}
    differences = [{"what": "torch", "recorded": "2.9", "here": "2.13"}]
    result["equality"] |= {"equal": False, "ended": ended, "reasons": ["torch"], "differences": differences}
    account = replay_account(result)
    finding = next(finding for finding in account["findings"] if finding["rule"] == "NotEqual")
    assert finding["step"] == 4
    equality = next(panel for panel in account["panels"] if panel["id"] == "equality")
    assert len(equality["parts"]) == 4


def test_two_steps_are_compared(result):
    other = copy.deepcopy(result) | {"step": 9}
    other["terms"]["terms"][0]["weighted"] = 8.0
    account = replay_account(result | {"against": other})
    (panel,) = [panel for panel in account["panels"] if panel["id"] == "difference"]
    assert panel["parts"][0]["rows"] == [{"term": "fit", "one": 2.0, "other": 8.0, "ratio": 0.25}]


def test_the_summary_is_one_line_per_fact(result):
    lines = summary_of(result)
    assert {"equality", "not finite", "as trained", "lr*=0.1", "memory", "worst sample"} <= set(lines)
    assert all("\n" not in line for line in lines.values())
    json.dumps(lines)
