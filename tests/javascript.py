"""Runs a script of the pages outside of a browser."""

import shutil
import subprocess

import pytest


def printed_by_node(script, *, given="", timezone="UTC"):
    """What a script writes to standard output; the test is skipped without Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    done = subprocess.run(
        [node, "-e", script], input=given, env={"TZ": timezone}, capture_output=True, text=True, check=True
    )
    return done.stdout
