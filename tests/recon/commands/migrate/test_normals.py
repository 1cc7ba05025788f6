"""Command line of ``fieldwatch train normals``: what is added to the flags that were given."""

import pytest

from fieldwatch.recon.commands.migrate.normals import SHORT, read


def test_a_short_run_is_evaluated_at_its_end_only():
    found = read(["--preset", "cpu", "--steps", "60"])
    assert found.arguments == ["--evaluate-at", "0", "--preset", "cpu", "--steps", "60"]
    assert "--evaluate-at" in found.notes[0]


@pytest.mark.parametrize(
    "words",
    [
        ["--steps", str(SHORT)],
        ["--preset", "cpu"],
        ["--steps", "60", "--evaluate-at", "15000"],
        ["--steps=60", "--evaluate-at=15000"],
        ["--steps", "many"],
    ],
)
def test_other_runs_keep_their_evaluations(words):
    found = read(words)
    assert list(found.arguments) == words
    assert found.notes == ()
