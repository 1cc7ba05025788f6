"""Adds to the page of rules how often each of them was right in the benchmark (benchmarks/verdicts.py --write)."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STORED = Path(__file__).resolve().parent.parent / "benchmarks" / "verdicts.json"
COLUMNS = {
    "planted faults": "plants",
    "told": "told",
    "cause named first": "cause_first",
    "repaired by the remedy": "repaired",
    "healthy runs": "healthy",
    "false alarms": "false_alarms",
}


def stored_scores() -> dict[str, dict[str, Any]]:
    """Return the stored scores by set; empty if the benchmark was never stored."""
    return json.loads(STORED.read_text()) if STORED.is_file() else {}


def with_scores(page: str, scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page of rules with a table of the sets before its first section, and a line at each rule.

    Args:
        page: page with a heading of level 2 per section and one of level 3 per rule.
        scores: per set its commit, its seed, its totals and the scores of its rules; the page is unchanged without any.
    """
    if not scores:
        return page
    head, *sections = re.split(r"(?m)^(?=## )", page)
    rules = [_with_lines(section, scores) for section in sections]
    return "".join([head, _table(scores), *rules])


def rule_line(rule: str, scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the benchmark says of a rule."""
    found = [one["rules"][rule] for one in scores.values() if rule in one["rules"]]
    if not found:
        return "*Benchmark:* not in the benchmark."
    named = sum(one["cause_first"] for one in found)
    alarms = sum(one["false_alarms"] for one in found)
    healthy = sum(one["totals"]["healthy"] for one in scores.values())
    faults = "1 planted fault" if named == 1 else f"{named} planted faults"
    false = "1 false alarm" if alarms == 1 else f"{alarms} false alarms"
    return f"*Benchmark:* named the cause of {faults}; {false} in {healthy} healthy runs."


def _with_lines(section: str, scores: Mapping[str, Mapping[str, Any]]) -> str:
    head, *rules = re.split(r"(?m)^(?=### )", section)
    lines = [f"{rule.rstrip()}\n\n{rule_line(rule.split()[1], scores)}\n\n" for rule in rules]
    return "".join([head, *lines])


def _table(scores: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        "## How often the rules are right",
        "",
        "`benchmarks/verdicts.py` trains runs with one planted fault each, and healthy runs, and judges what",
        "`fieldwatch health` says of them. Each set below was written by an author who did not know the rules, and",
        "judged those of the named commit, before they were tuned on it. Since then, the rules have been tuned on",
        "sets c to l, and on five more (a, b, s, t and u), whose figures of today say less than these of first sight.",
        "Sets c to j plant the faults that their authors thought of; sets k and l those that people meet most often.",
        "`fieldwatch health` tells more of them if an earlier, sound run of the same loop lies beside the run:",
        "[decision 0079](decisions/0079-earlier-runs.md).",
        "",
        f"| set | {' | '.join(COLUMNS)} | commit | seed |",
        f"|---|{'---:|' * len(COLUMNS)}---|---:|",
    ]
    for name, one in scores.items():
        figures = [str(one["totals"][key]) for key in COLUMNS.values()]
        rows.append(f"| {name} | {' | '.join(figures)} | {one['commit']} | {one['seed']} |")
    return "\n".join([*rows, "", ""])
