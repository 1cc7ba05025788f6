"""Compare the processor time of a training step on a CPU with that of another checkout.

    python benchmarks/cpu_steps.py --source ../old/src                      # about ten minutes
    python benchmarks/cpu_steps.py --source ../old/src --only video --steps 200
    python benchmarks/cpu_steps.py --source 1dd8b72        # a commit instead of a folder

Each training is a command of `fieldwatch train` on built-in data with default settings, in a process of its own with
one thread. It is stopped after some hundred steps; the first ones are not counted. Trainings of both checkouts
alternate, so that both meet the same load of the machine. Counted is the processor time of the whole process: the
step, the record, the rules, and what other threads do meanwhile.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from checkouts import source_of

SOURCE = Path(__file__).resolve().parent.parent / "src"
RUNS = {
    "splats, 3DGS": ["splats", "--regularization", "none"],
    "splats, planar": ["splats", "--regularization", "planar"],
    "normals": ["normals"],
    # The whole schedule in few steps: most of its samples are sought once the surface is sharp.
    "normals, cpu": ["normals", "--preset", "cpu", "--steps", "400"],
    "video": ["video", "--teacher", "descriptor"],
}
"""Arguments of `fieldwatch train`, by name."""
WARM = 40
"""Steps before the measurement: the first 32 are examined closely."""
TIMED = """
import json, os, signal, sys, time
from fieldwatch.cli import main
from fieldwatch.run.step import Step

warm, steps, folder, *words = sys.argv[1:]
update, seconds = Step.update, []

def timed(step, *optimizers, **options):
    updated = update(step, *optimizers, **options)
    seconds.append(time.process_time())
    if len(seconds) == int(warm) + int(steps):
        print("seconds", json.dumps(seconds[-1] - seconds[int(warm) - 1]), file=sys.stderr, flush=True)
        os._exit(0)  # without the products of a training that ends
    return updated

Step.update = timed
sys.exit(main(["train", *words, "--device", "cpu", "--threads", "1", "--out", folder]))
"""


def step_time(source: Path, words: list[str], steps: int) -> float:
    """Return the milliseconds of processor time that a step takes with the toolkit of a src folder.

    Raises:
        RuntimeError: the training ended before the steps were taken.
    """
    with tempfile.TemporaryDirectory(prefix="cpu-steps-") as place:
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        own = {"XDG_STATE_HOME": place, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(source)}
        line = [sys.executable, "-c", TIMED, str(WARM), str(steps), f"{place}/run", *words]
        ended = subprocess.run(line, env={**os.environ, **one, **own}, capture_output=True, text=True, check=False)
    *_, last = ended.stderr.splitlines() or [""]
    word, _, value = last.partition(" ")
    if word != "seconds":
        raise RuntimeError(f"fieldwatch train {' '.join(words)} of {source} ended early:\n{ended.stdout}{ended.stderr}")
    return 1e3 * json.loads(value) / steps


def compare(other: Path, options: argparse.Namespace) -> None:
    """Print a row per training."""
    print(
        "| training | other checkout, ms/step | this one, ms/step | ratio | of each round |\n|---|---:|---:|---:|---|"
    )
    for name, words in RUNS.items():
        if options.only not in name:
            continue
        pairs = [[step_time(source, words, options.steps) for source in (other, SOURCE)] for _ in range(options.rounds)]
        before, now = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratios = [this / that for that, this in pairs]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"| {name} | {before:.2f} | {now:.2f} | {statistics.median(ratios):.2f} | {each} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="src folder of the other checkout, or a commit")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the names of the trainings")
    options = parser.parse_args()
    with source_of(options.source) as other:
        compare(other, options)


if __name__ == "__main__":
    main()
