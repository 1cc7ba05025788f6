"""A run folder from elsewhere: its tags, rules, events and config reach no terminal as commands."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fieldwatch.record import Block, EventLog, Journal, Manifest, new_segment

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
TAG = f"Loss/{ESCAPE}[link=https://evil.example]tag[/link][/x]"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folders = []
    for name in (f"first{ESCAPE}", "second"):
        run = tmp_path_factory.mktemp("runs") / name
        run.mkdir()
        about = {"pipeline": ESCAPE, "device": ESCAPE}
        Manifest(config={ESCAPE: ESCAPE}, segments=(new_segment(0),), about=about, state="finished").write(run)
        with Journal(run) as journal, EventLog(run) as events:
            steps = np.arange(400)
            columns = ("Loss/total", TAG, "Memory/allocated_MB")
            values = np.stack([1 / (1 + steps), np.where(steps == 7, np.nan, 1.0), 100.0 + steps], 1)
            journal.append(
                Block(axis="step", columns=columns, steps=steps, seconds=steps * 1.0, positions=steps, values=values)
            )
            for kind in ("finding", "phase", "growth", "note", ESCAPE):
                events.append(
                    {
                        "kind": kind, "step": 5, "rule": ESCAPE, "message": ESCAPE, "remedy": ESCAPE, "name": ESCAPE,
                        "subject": ESCAPE, "severity": "error", "before": 10, "after": 20,
                    }
                )  # fmt: skip
        (run / "crash" / f"2026{ESCAPE}").mkdir(parents=True)
        (run / "crash" / f"2026{ESCAPE}" / "crash.json").write_text('{"cause": "a\\u001b[2Jb", "error": "\\u001b]0;x"}')
        folders.append(run)
    return folders


def commands(first, second, out):
    yield "health", first
    yield "health", first, "--json"
    yield "compare", first, second
    yield "compare", first, second, "--json"
    yield "export", first, "--to", "csv", "--out", out
    yield "memory", first
    yield "growth", first, "--all"
    yield "watch", first, "--once"
    yield "report", first, "-o", out / "report.html"
    yield "resume", first
    yield "eval", first
    yield "health", first / f"missing{ESCAPE}"


def test_no_command_sends_what_a_terminal_would_obey(hostile, tmp_path):
    line = "import sys, json; from fieldwatch.cli import main\n"
    line += "for number, words in enumerate(json.load(open(sys.argv[1]))):\n"
    line += "    try:\n        code = main(words)\n    except SystemExit as end:\n        code = end.code\n"
    line += "    print('ended', number, code, flush=True)\n    assert code in (0, 1, 2, 3), (words, code)"
    asked = [[str(word) for word in words] for words in commands(*hostile, tmp_path / "out")]
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    done = subprocess.run(
        [sys.executable, "-c", line, str(tmp_path / "asked.json")],
        capture_output=True,
        check=False,
        timeout=120,
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said[-3000:]
    assert said.count("ended") == len(asked)
    assert "Traceback" not in said, said[-3000:]
    for number, part in enumerate(said.split("ended")):
        found = {char for char in ("\x1b", "\x07", "\x9b", "\u202e") if char in part}
        assert not found, (asked[min(number, len(asked) - 1)], found)
    assert "\\x1b" in said
