"""Uses the accidents that the tests provoke (``tests/checkpoint/provoked.py``) in the torture, too."""

import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = Path(__file__).resolve().parents[2] / "tests" / "checkpoint"


@cache
def tests_module(name: str) -> ModuleType:
    """Import a module of the checkpoint tests by its path."""
    spec = importlib.util.spec_from_file_location(f"torture_{name}", TESTS / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(
            f"{TESTS / name}.py is missing: the torture needs the repository, not the package alone"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def provoke(folder: Path, *names: str) -> dict[str, Any]:
    """Run some accidents in their own process and return the result of each.

    Raises:
        RuntimeError: the process failed; the message ends with its stderr.
    """
    command = [sys.executable, str(TESTS / "provoked.py"), str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"provoked.py {' '.join(names)} failed with {done.returncode}: {done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])
