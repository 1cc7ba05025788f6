"""Two scenes on Ray, one killed: it goes on from its checkpoint, and both end in the bits of undisturbed runs.

`python benchmarks/many_scenes.py` does the same to four scenes, and kills a Ray worker and the driver besides.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_killed_scene_goes_on_and_the_other_never_notices():
    pytest.importorskip("ray", reason="needs the extra ray: pip install 'fieldwatch[ray]'")
    line = [sys.executable, str(ROOT / "benchmarks" / "many_scenes.py"), "--quick", "--json"]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    victim, spared = json.loads(ran.stdout)["scenes"]
    assert victim["causes"] == ["killed by SIGKILL"]
    assert victim["resumed_from"][0] > 0
    assert (spared["tries"], spared["same_bits"], spared["same_losses"]) == (1, True, True)
    assert (victim["tries"], victim["same_bits"], victim["same_losses"]) == (2, True, True)
