"""The cost of saving per step, taken from the output of ``benchmarks/checkpoint_stall.py``."""

import os
import re
import subprocess
import sys
from pathlib import Path

from rows import Row, judged, not_run

BENCHMARK = Path(__file__).resolve().parents[1] / "checkpoint_stall.py"
SAVES = 10
WHAT = f"benchmarks/checkpoint_stall.py --saves {SAVES}: 0.1 and 1 M Gaussians with moments (0.07 and 0.7 GB)"
WANTED = "p99 stall <= 1/10 of torch.save's, all stalls <= 0.5 % of the run"
SAID = re.compile(r"stall / torch\.save's: ([\d.]+).*?share of the run: ([\d.]+)%", re.DOTALL)


def run_stall(folder: Path, *, quick: bool = False) -> list[Row]:
    """Return the rows of P5; ``quick`` uses a scene that is too small to judge the fraction of the run."""
    if not BENCHMARK.exists():
        return [not_run("P5", WHAT, WANTED, "the benchmark does not exist")]
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"TMPDIR": str(folder)}
    command = [sys.executable, str(BENCHMARK), *(["--quick"] if quick else ["--saves", str(SAVES)])]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    said = SAID.findall(done.stdout)
    if done.returncode or not said:
        return [not_run("P5", WHAT, WANTED, f"it exited with {done.returncode} and printed no figures")]
    found = "; ".join(f"{ratio} of torch.save's, {share} %" for ratio, share in said)
    good = all(float(ratio) <= (0.5 if quick else 0.1) and (quick or float(share) <= 0.5) for ratio, share in said)
    return [judged("P5", WHAT, WANTED, found, good=good)]
