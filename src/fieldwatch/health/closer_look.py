"""The command that looks at a step of a run again."""

import os
import shlex
from pathlib import Path

from fieldwatch.record import NotARun, holds_run, read_manifest


def replay_command(folder: Path, step: int) -> str:
    """Return the command that replays a step of a run; empty if the folder holds none.

    For a run of a user-written loop, the command names the script as ``run.json`` does.

    Args:
        folder: run folder.
        step: 0-based index of the step.
    """
    if not holds_run(folder):
        return ""
    run = shlex.quote(os.fsencode(folder.absolute()).decode(errors="replace"))
    script, words = _script_of(folder)
    rest = f" -- {words}" if words else ""
    return f"fieldwatch replay {script}{run} --step {step}{rest}"


def _script_of(folder: Path) -> tuple[str, str]:
    """Return the script that trained the run, with a space, and its arguments; empty for a run of a pipeline."""
    try:
        manifest = read_manifest(folder) if holds_run(folder) else None
    # Damaged, and no checkpoint has a copy.
    except NotARun:
        manifest = None
    if manifest is None or "pipeline" in manifest.about or not manifest.segments:
        return "", ""
    command = [str(word) for word in manifest.segments[-1].get("command", ())]
    if not command or not command[0].endswith(".py"):
        return "SCRIPT.py ", ""
    return f"{shlex.quote(command[0])} ", shlex.join(command[1:])
