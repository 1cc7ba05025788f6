"""An account of every kind of panel, small, with a name that would do harm if it were not shown as text."""

import pytest

EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\x1b[31m\u202etxt"


@pytest.fixture
def evil():
    return EVIL


@pytest.fixture
def account():
    steps = list(range(0, 100, 10))
    falling = {"unit": "", "meaning": "sum", "better": "lower", "axis": "step", "rows": 10, "x": steps, "bad": [],
               "y": [1 / (1 + step) for step in steps], "thinned": False, "last": 0.011, "min": [0.011, 90],
               "max": [1.0, 0]}  # fmt: skip
    return {
        "format": 1,
        "run": {"name": EVIL, "folder": "runs/x", "pipeline": None, "state": "finished", "first_step": 0,
                "last_step": 90, "steps_planned": 100, "rows": 10, "seconds": 1.5, "segments": [], "resume": "",
                "started": "2026-01-01T00:00:00+00:00", "updated": "2026-01-01T00:00:01+00:00"},
        "verdict": {"level": "healthy", "title": f"Healthy {EVIL}", "detail": ""},
        "findings": [], "crash": None, "phases": [], "marks": [], "series": {"Loss/total": falling},
        "panels": [
            {"id": "losses", "title": "Losses", "about": "", "kind": "lines", "log": True, "labels": {},
             "series": ["Loss/total"]},
            {"id": "growth", "title": "Growth", "about": "", "kind": "empty", "why": "nothing grew"},
        ],
        "json_of": "fieldwatch",
    }  # fmt: skip
