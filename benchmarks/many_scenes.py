"""`fieldwatch train-many` on Ray with killed processes: every scene must end bit-equal to an undisturbed run.

Usage: python benchmarks/many_scenes.py [--quick] [--ray local|off] [--json]

--quick trains two scenes and kills the training process of one with SIGKILL. Without it, there are four scenes (two
videos, one splats, one normals). Then also the Ray worker of another scene is killed, and later the driver itself; the
same command then continues.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch
from PIL import Image

from fieldwatch import Checkpoints, read_history
from fieldwatch.cli import main as fieldwatch
from fieldwatch.recon.data import synthetic_clip

DEADLINE = 300.0
UNSEEDED = "random_state"
VIDEO = """
pipeline = "video"
data = "frames"
batch = 2
rows = 2
columns = 2
teacher = "descriptor"
between-weight = 0
grid-cells = [4, 2]
grid-widths = [8, 8]
grid-channels = [4, 2]
grid-periods = [1, 2]
grid-static = [4, 0]
grid-blocks = [1, 1]
grid-kernel = 3
checkpoint-epochs = 3
"""
SPLATS = """
pipeline = "splats"
views = 6
held-out = 3
schedule-scale = 0.002
growth-cap = 1500
turntable = 0
"""
NORMALS = """
pipeline = "normals"
views = 4
size = 32
held-out = 4
steps = 30
mesh-resolution = 32
checkpoint-interval = 3000
turntable = 0
"""
SCENES = {
    "victim": VIDEO + "epochs = 40\n",
    "solid": SPLATS,
    "bereaved": VIDEO + "epochs = 60\nseed = 7\n",
    "ball": NORMALS,
}


def main() -> int:
    """Run the benchmark, and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ray", default="local")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fw-many-") as folder:
        found = story(Path(folder), ray=chosen.ray, quick=chosen.quick)
    print(json.dumps(found, indent=2) if chosen.json else table(found))
    return 0 if found["good"] else 1


def story(place: Path, *, ray: str, quick: bool) -> dict[str, Any]:
    """Train the scenes with kills, then each one alone, and compare."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    scenes = {name: SCENES[name] for name in list(SCENES)[: 2 if quick else 4]}
    os.chdir(place)
    write_input(place, scenes)
    began = time.monotonic()
    kills = under_fire(place, ray=ray, quick=quick)
    code, told = finish(start(ray))
    seconds = time.monotonic() - began
    rows = [row(scene, place) for scene in told.get("scenes", ())]
    spared = [one for one in rows if one["scene"] not in ("victim", "bereaved")]
    good = (
        code in (0, 1)  # so small a network may get findings
        and len(rows) == len(scenes)
        and all(one["same_bits"] and one["same_losses"] for one in rows)
        and any(one["scene"] == "victim" and "SIGKILL" in str(one["causes"]) and one["resumed_from"] for one in rows)
        and (not quick or all(one["tries"] == 1 for one in spared))
    )
    return {"good": good, "ray": ray, "exit_code": code, "kills": kills, "seconds": round(seconds, 1), "scenes": rows}


def write_input(place: Path, scenes: Mapping[str, str]) -> None:
    """Write a clip of sixteen small frames, and the plan."""
    (place / "frames").mkdir()
    for i, frame in enumerate(synthetic_clip(16, 32, 64)):
        Image.fromarray(frame.permute(1, 2, 0).numpy()).save(place / "frames" / f"{i:03}.png")
    plan = '[defaults]\ndevice = "cpu"\nthreads = 1\ncpus = 1\nretries = 2\n'
    plan += "".join(f'[[scene]]\nname = "{name}"\n{text}' for name, text in scenes.items())
    (place / "scenes.toml").write_text(plan)


def under_fire(place: Path, *, ray: str, quick: bool) -> list[str]:
    """Kill the processes; the driver continues unless it is killed itself."""
    global RUNNING  # noqa: PLW0603  one driver at a time
    RUNNING = launch(ray)
    victim = place / "out" / "victim"
    wait_until(lambda: steps_of(victim) > 60 and saved(victim), "a checkpoint of the victim")
    os.kill(pid_of(victim), signal.SIGKILL)
    kills = ["training process"]
    if quick:
        return kills
    bereaved = place / "out" / "bereaved"
    wait_until(lambda: steps_of(bereaved) > 60 and saved(bereaved), "a checkpoint of the bereaved")
    if ray != "off":
        launcher = psutil.Process(pid_of(bereaved)).parent()
        worker = launcher.parent() if launcher else None
        if worker is not None:
            worker.kill()
            kills.append(f"worker ({worker.pid})")
    before = steps_of(bereaved)
    wait_until(lambda: steps_of(bereaved) > before + 20, "the bereaved to go on")
    RUNNING.kill()
    RUNNING.communicate()
    wait_until(lambda: not alive(place / "out"), "all trainings to end after the driver's death")
    return [*kills, "driver"]


RUNNING: subprocess.Popen[str]


def launch(ray: str) -> subprocess.Popen[str]:
    """Start the command."""
    line = [sys.executable, "-m", "fieldwatch", "train-many", "scenes.toml", "--out", "out", "--cpus", "2", "--json"]
    return subprocess.Popen([*line, "--ray", ray], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start(ray: str) -> subprocess.Popen[str]:
    """Return the running command, or start it again if it was killed."""
    return RUNNING if RUNNING.poll() is None else launch(ray)


def finish(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """Wait for the end; return exit code and answer."""
    out, err = process.communicate(timeout=DEADLINE)
    if not out:
        print(err, file=sys.stderr)
    return process.returncode, json.loads(out or "{}")


def row(scene: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Train one scene alone, and compare it with the run among others."""
    name = scene["scene"]
    table = next(t for t in tomllib.loads((place / "scenes.toml").read_text())["scene"] if t["name"] == name)
    alone = place / "alone" / name
    words = scene["command"].split()[1:]
    words[words.index("--out") + 1] = str(alone)
    quietly(words)
    one = Path(scene["run"])
    other = alone
    losses = [read_history(folder)["Loss/total"].values.tolist() for folder in (one, other)]
    return {
        "scene": name,
        "pipeline": table["pipeline"],
        "state": scene["state"],
        "tries": len(scene["tries"]),
        "causes": [each["cause"] for each in scene["tries"] if each["cause"]],
        "resumed_from": scene["resumed_from"],
        "same_losses": losses[0] == losses[1],
        "same_bits": same(
            Checkpoints(one / "checkpoints").read("last"), Checkpoints(other / "checkpoints").read("last")
        ),
    }


def quietly(words: list[str]) -> None:
    """Run a command in this process; print its output to standard error."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        code = fieldwatch(words)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    if code not in (0, 1):
        sys.exit(f"alone, the scene exited with {code}: {' '.join(words)}")


def same(one: Any, other: Any) -> bool:
    """Return whether two checkpoints are bit-equal, without Python's random state, which no seed sets."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one if name != UNSEEDED)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) or bool((one.isnan() & other.isnan()).logical_or(one == other).all())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def pid_of(folder: Path) -> int:
    """Return the process that trains in a folder."""
    return int(json.loads((folder / "run.json").read_text())["segments"][-1]["pid"])


def alive(out: Path) -> list[int]:
    """Return the processes that still train below a folder."""
    found = [pid_of(path.parent) for path in out.glob("*/run.json")]
    return [pid for pid in found if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def steps_of(folder: Path) -> int:
    """Return the number of lines in its journal."""
    path = folder / "journal.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def saved(folder: Path) -> bool:
    """Return whether it has a checkpoint."""
    return any(path.name.startswith("step_") for path in folder.glob("checkpoints/*"))


def wait_until(true: Callable[[], Any], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + DEADLINE
    while not true():
        if time.monotonic() > deadline or RUNNING.poll() not in (None, -signal.SIGKILL):
            out, err = RUNNING.communicate()
            sys.exit(f"timed out while waiting for {what}; train-many exited with {RUNNING.returncode}\n{out}\n{err}")
        time.sleep(0.005)


def table(found: Mapping[str, Any]) -> str:
    """Format the result in Markdown."""
    lines = [f"killed: {', '.join(found['kills'])}; exit code {found['exit_code']}; {found['seconds']:g} s", ""]
    lines += ["| scene | pipeline | state | attempts | resumed at step | same losses | same bits | cause |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    names = ("scene", "pipeline", "state", "tries", "resumed_from", "same_losses", "same_bits", "causes")
    lines += ["| " + " | ".join(str(one[name]) for name in names) + " |" for one in found["scenes"]]
    return "\n".join([*lines, "", "good" if found["good"] else "NOT GOOD"])


if __name__ == "__main__":
    sys.exit(main())
