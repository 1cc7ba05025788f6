"""What the benchmark says of each rule, as stored in benchmarks/verdicts.json for docs/generate.py."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .judging import Ran, Told

ROOT = Path(__file__).resolve().parent.parent.parent
STORED = ROOT / "benchmarks" / "verdicts.json"


def rule_scores(plants: Sequence[tuple[Ran, Told]], healthy: Sequence[Ran]) -> dict[str, dict[str, int]]:
    """Return for each rule that said anything above a note how often it was right and wrong.

    Args:
        plants: runs with a planted fault, and how their verdicts are judged.
        healthy: healthy runs.

    Returns:
        Per rule: ``cause_first``, the faults of which its finding was the first one and named the cause; ``told``, the
        faults with a finding of it; ``false_alarms``, the healthy runs with a finding of it.
    """
    scores: dict[str, dict[str, int]] = {}

    def count(rule: str, key: str) -> None:
        scores.setdefault(rule, {"cause_first": 0, "told": 0, "false_alarms": 0})[key] += 1

    for ran, told in plants:
        if told.cause == 1:
            count(str(ran.serious[0]["rule"]), "cause_first")
        for rule in {str(finding["rule"]) for finding in ran.serious}:
            count(rule, "told")
    for ran in healthy:
        for rule in {str(finding["rule"]) for finding in ran.serious}:
            count(rule, "false_alarms")
    return {rule: scores[rule] for rule in sorted(scores)}


def store(scores: Mapping[str, Mapping[str, Any]], seed: int) -> None:
    """Write the scores of sets, with the commit and the seed; those of other sets stay.

    Args:
        scores: per set its ``totals`` and ``rules``.
        seed: seed of the runs.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    kept = json.loads(STORED.read_text()) if STORED.is_file() else {}
    for name, found in scores.items():
        kept[name] = {"commit": commit, "seed": seed, **found}
    STORED.write_text(json.dumps({name: kept[name] for name in sorted(kept)}, indent=1) + "\n")
