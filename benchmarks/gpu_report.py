"""Try everything that runs on a GPU: tests, a training of each kind, benchmarks; in one file to send.

    make test-gpu                                            # or:
    python benchmarks/gpu_report.py --out gpu-report.json
    python benchmarks/gpu_report.py --out gpu-report.json --only doctor,tests

The file has the versions, the card, and of every part the command, its exit code, its time and the end of its output. A
part that fails does not stop the others; then the exit code is 1. Without a GPU, nothing is run, and it is 2.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
LINES_KEPT = 80
"""Last lines of a part's output that go into the report."""
LONGEST = 1800.0
"""Seconds after which a part is stopped; the first use of gsplat compiles its kernels for minutes."""

TRAINING = [PYTHON, "-m", "fieldwatch", "train"]
PARTS: dict[str, list[str]] = {
    "doctor": [PYTHON, "-m", "fieldwatch", "doctor", "--json"],
    "tests": [PYTHON, "-m", "pytest", "-q", "-n", "0", "tests/fake_cuda", "tests/reference"],
    "splats": [*TRAINING, "splats", "--device", "cuda", "--schedule-scale", "0.1", "--json", "--out", "splats"],
    "normals": [*TRAINING, "normals", "--device", "cuda", "--steps", "500", "--json", "--out", "normals"],
    "video": [*TRAINING, "video", "--preset", "demo", "--device", "cuda", "--json", "--out", "video"],
    "repeating": [
        *[*TRAINING, "splats", "--device", "cuda", "--schedule-scale", "0.02", "--deterministic", "--json"],
        *["--out", "repeating"],
    ],
    "gsplat": [PYTHON, str(ROOT / "benchmarks" / "splats_gpu.py")],
}
"""Commands by name, run in a scratch folder; those of pytest in the root of the repository."""


def run_part(name: str, words: list[str], scratch: Path) -> dict[str, Any]:
    """Run a part, and return its command, exit code (None if it took too long), seconds and the end of its output."""
    place = ROOT if "pytest" in words else scratch
    environment = {**os.environ, "FIELDWATCH_TEST_GPU": "1", "PYTHONPATH": str(ROOT / "src")}
    began = time.monotonic()
    try:
        ended = subprocess.run(
            words, cwd=place, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
        )
        code, output = ended.returncode, ended.stdout + ended.stderr
    except subprocess.TimeoutExpired as late:
        code, output = None, str(late)
    seconds = round(time.monotonic() - began, 1)
    print(f"{name:20} {'stopped' if code is None else f'exit {code}'}, {seconds} s", flush=True)
    return {
        "command": " ".join(words),
        "exit_code": code,
        "seconds": seconds,
        "output": output.splitlines()[-LINES_KEPT:],
    }


def card() -> dict[str, Any]:
    """Return name, memory and compute capability of the GPU, and the versions of torch, CUDA and the driver."""
    facts = torch.cuda.get_device_properties(0)
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "gpu": facts.name,
        "memory_bytes": facts.total_memory,
        "capability": f"{facts.major}.{facts.minor}",
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def main() -> int:
    """Run the parts, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-report.json"), help="file of the report")
    parser.add_argument("--only", default="", help=f"parts, separated by commas: {', '.join(PARTS)}")
    chosen = parser.parse_args()
    names = [name.strip() for name in chosen.only.split(",") if name.strip()] or list(PARTS)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: expected some of {', '.join(PARTS)}")
    if not torch.cuda.is_available():
        print("torch sees no GPU here: `fieldwatch doctor` says why", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        parts = {name: run_part(name, PARTS[name], Path(scratch)) for name in names}
    report = {"machine": card(), "parts": parts}
    chosen.out.write_text(json.dumps(report, indent=2) + "\n")
    print(chosen.out)
    # 1 is an error among the findings of a training, which so short a run may have.
    passed = {"splats": (0, 1), "normals": (0, 1), "video": (0, 1), "repeating": (0, 1), "doctor": (0, 1)}
    return int(any(part["exit_code"] not in passed.get(name, (0,)) for name, part in parts.items()))


if __name__ == "__main__":
    sys.exit(main())
