"""Check that the same commands still train the same numbers: tiny runs with fixed seeds, compared by SHA-256.

    python benchmarks/identical_runs.py --write benchmarks/identical_runs.json   # store a baseline
    python benchmarks/identical_runs.py --check benchmarks/identical_runs.json   # compare with it; exits with 1
    python benchmarks/identical_runs.py --check FILE --only video,normals
    python benchmarks/identical_runs.py --write old.json --source ../old/src     # hash another checkout

Every run goes through the command line, in a child process with one thread, on data that the toolkit or this program
generates. Hashed are all series of the journal that do not depend on the clock or on the machine's memory, and every
leaf of the last checkpoint. Series and leaves are matched by name, then by content: one that was only renamed is
reported and does not fail the check.

Floating-point results depend on the processor and on the version of torch. On a machine other than the baseline's,
``--check`` compares nothing and exits with 2, unless ``--source DIR`` names the src folder of an older checkout: then
DIR makes the baseline, and this checkout is compared with it.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fieldwatch import Checkpoints, read_history

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
LOSS = "Loss/total"
OF_THE_CLOCK = (
    "Time/",
    "Performance/",
    "System/",
    "Machine/",
    "Memory/",
    "VRAM/",
    "Test/render_time_ms",
    "Eval/seconds",
)
"""Tags that depend on the speed or the memory of the machine."""
WEIGHTS = ("model", "gaussians", "exposures", "beta")
"""Checkpoint items with trained tensors."""
COMPARABLE = ("cpu", "torch", "numpy", "machine")
"""Header fields that must agree before hashes can be compared."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SEEDED = (
    "import random, runpy, numpy; random.seed({seed}); numpy.random.seed({seed}); "
    "runpy.run_module('fieldwatch', run_name='__main__', alter_sys=True)"
)
"""Starts the command line. In older checkouts (`--source`), ``--seed`` leaves the global generators of Python and NumPy
alone, and checkpoints contain them. Seeded here, they are equal in every run until something draws from them."""

EVERYWHERE = "--device cpu --threads 1"
FORMER_FLAGS = {"--first-colors": "--first-colours"}
"""Spelling of flags in sources that do not know the current one, for `--source`."""
VIDEO = (
    "--rows 1 --columns 2 --batch 4 --data-split 7_7_8 --teacher descriptor --between-weight 0.5 --epochs 6 "
    "--eval-freq 2 --pixel-loss-warmup-epochs 2 --checkpoint-epochs 2 --attribute-every 10 "
    "--grid-cells 4 2 --grid-widths 8 8 --grid-channels 4 2 --grid-periods 1 2 --grid-static 4 0 --grid-blocks 1 1 "
    "--grid-kernel 3"
)
SPLATS = (
    "--views 8 --held-out 4 --turntable 0 --schedule-scale 0.01 --coarse-iterations 12000 --test-iterations 5000 "
    "--checkpoint-interval 3000 --checkpoint-milestones 7000 --degree 1 --stats-every 7 --growth-pull 4e-4"
)
SURFACE = "--regularization dn_consistency --exposure --mip --beta learnable --prune-below 0.05 --growth-cap 3000"
REFINE = (
    "--iterations 24 --degree 1 --degree-every 8 --test-iterations 12 --checkpoint-interval 8 --stats-every 3 "
    "--turntable 0 --gaussians-per-triangle 3 --first-colors vertices"
)
NORMALS = (
    "--views 3 --size 24 --steps 48 --nominal 480 --mesh-resolution 12 --mesh-at 240 --evaluate-at 160 --poses-at 80 "
    "--checkpoint-interval 160 --turntable 0 --levels 3 --first-levels 1 --levels-by 400 --base-resolution 4 "
    "--finest-resolution 12 --table-bits 10 --hidden 16 --grid-resolution 12 --grid-every 8 --grid-warmup 8 "
    "--rays 128 --sample-budget 800"
)
POSES = (
    "--preset poses --pose-start noisy --rotation-noise 1 --translation-noise 0.02 --poses-from 50 "
    "--poses-late-from 300 --seed 3"
)


class TrainingFailedError(RuntimeError):
    """A command failed."""


@dataclass(frozen=True, kw_only=True)
class Hashes:
    """Hashes of a run.

    Attributes:
        weights: hash of all trained tensors, regardless of their names.
        loss: hash of the values of `LOSS`.
        journal: hash of all series.
        series: hash of the steps and values of each tag.
        leaves: hash of each value of the last checkpoint, by path.
    """

    weights: str
    loss: str
    journal: str
    series: dict[str, str]
    leaves: dict[str, str]


def video(folder: Path) -> list[list[str]]:
    """Train feature grids on sixteen small frames; the semantic term begins in the third of six epochs."""
    frames = draw_frames(folder / "frames")
    return [["train", "video", "--data", str(frames), "--cache", str(folder / "cache"), *VIDEO.split()]]


def splats(words: str) -> Callable[[Path], list[list[str]]]:
    """Train Gaussians on the built-in scene: densification, an evaluation, then surface terms with pruning."""
    return lambda _: [["train", "splats", *SPLATS.split(), *words.split()]]


def refine(folder: Path) -> list[list[str]]:
    """Refine a sphere on the photos of a short splats run."""
    run = str(folder / "photographed")
    mesh = str(write_sphere(folder / "sphere.obj"))
    short = f"{SPLATS} {EVERYWHERE} --regularization none --coarse-iterations 1000".split()
    return [["train", "splats", *short, "--out", run], ["mesh", "refine", run, mesh, *REFINE.split()]]


def normals(words: str = "") -> Callable[[Path], list[list[str]]]:
    """Reconstruct a surface from the normals of the built-in object, with grid updates, meshes and evaluations."""
    return lambda _: [["train", "normals", *NORMALS.split(), *words.split()]]


RUNS: dict[str, Callable[[Path], list[list[str]]]] = {
    "video": video,
    "splats-3dgs": splats("--regularization none --reset-every 3000"),
    "splats-dn_consistency": splats(SURFACE),
    "splats-planar": splats("--regularization planar --split-size 0.2"),
    "splats-mcmc": splats("--growth mcmc --growth-cap 6000"),
    "refine": refine,
    "normals": normals(),
    "normals-poses": normals(POSES),
}
"""Commands of each run in a scratch folder, by name. The last one is hashed; its ``--out`` is added."""


def draw_frames(folder: Path) -> Path:
    """Write sixteen small frames."""
    folder.mkdir(parents=True, exist_ok=True)
    y, x = np.mgrid[0:16, 0:32] / 16
    for i in range(16):
        waves = np.stack([np.sin(6 * x + i / 3), np.cos(5 * y - i / 4), np.sin(4 * (x + y) + i / 5)], axis=-1)
        Image.fromarray(np.round(127.5 + 110 * waves).astype(np.uint8)).save(folder / f"{i:04d}.png")
    return folder


def write_sphere(path: Path, *, rings: int = 10, sectors: int = 16, radius: float = 0.6) -> Path:
    """Write a closed sphere with colored vertices as OBJ."""
    down = np.pi * np.arange(1, rings)[:, None] / rings
    around = 2 * np.pi * np.arange(sectors)[None] / sectors
    sides = np.stack([np.sin(down) * np.cos(around), np.sin(down) * np.sin(around), np.cos(down) + 0 * around], axis=-1)
    points = np.concatenate([[[0, 0, 1]], sides.reshape(-1, 3), [[0, 0, -1]]])
    corners = 1 + np.arange((rings - 1) * sectors).reshape(rings - 1, sectors)
    right = np.roll(corners, -1, axis=1)
    bottom = len(points) - 1
    faces = [(0, a, b) for a, b in zip(corners[0], right[0], strict=True)]
    faces += [(bottom, b, a) for a, b in zip(corners[-1], right[-1], strict=True)]
    for i in range(rings - 2):
        for j in range(sectors):
            faces.append((corners[i, j], corners[i + 1, j], right[i + 1, j]))
            faces.append((corners[i, j], right[i + 1, j], right[i, j]))
    lines = ["v " + " ".join(f"{value:.6f}" for value in (*(radius * p), *((p + 1) / 2))) for p in points]
    lines += ["f " + " ".join(str(corner + 1) for corner in face) for face in faces]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def train(name: str, folder: Path, *, source: Path = SOURCE, more: Sequence[str] = ()) -> Path:
    """Run the commands of a run in child processes.

    Args:
        name: one of `RUNS`.
        folder: scratch folder.
        source: the src folder whose toolkit is run.
        more: further arguments of the last command.

    Returns:
        The run folder.

    Raises:
        TrainingFailedError: a command failed.
    """
    *before, last = RUNS[name](folder)
    run = folder / "run"
    for words in (*before, [*last, *EVERYWHERE.split(), *more, "--out", str(run)]):
        spelled = words if knows_current_flags(source) else [FORMER_FLAGS.get(word, word) for word in words]
        seed = words[words.index("--seed") + 1] if "--seed" in words else "0"
        line = [sys.executable, "-c", SEEDED.format(seed=seed), *spelled]
        ended = subprocess.run(
            line, cwd=folder, env=_environment(source, folder), capture_output=True, text=True, check=False
        )
        # 1 means an error among the findings: such short runs may end worse than a prediction without training.
        if ended.returncode not in (0, 1):
            raise TrainingFailedError(
                f"fieldwatch {' '.join(words)}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}"
            )
    return run


def _environment(source: Path, folder: Path) -> dict[str, str]:
    """Return the environment of a child: one thread, the toolkit of ``source``, no user settings and no network."""
    own = {"XDG_STATE_HOME": str(folder / "state"), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **ONE_THREAD, **own, "PYTHONPATH": str(source)}


def knows_current_flags(source: Path) -> bool:
    """Whether the sources have the settings under their current, American names."""
    config = source / "fieldwatch" / "recon" / "pipelines" / "splats" / "refined" / "config.py"
    return config.is_file() and "first_colors" in config.read_text("utf-8")


def run_hashes(run: Path) -> Hashes:
    """Hash a run folder.

    Raises:
        ValueError: the journal has no `LOSS`, or the checkpoint has none of `WEIGHTS`.
    """
    record = read_history(run)
    names = sorted(name for name in record.names() if not name.startswith(OF_THE_CLOCK))
    state = dict(leaves(Checkpoints(run / "checkpoints").read("last")))
    hashed = {path: digest(value) for path, value in sorted(state.items())}
    if LOSS not in names:
        raise ValueError(f"{run}: expected {LOSS} in the journal, got {names}")
    series = {name: combined([digest(record[name].steps), digest(record[name].values)]) for name in names}
    return Hashes(
        weights=combined(sorted(_weights(hashed).values())),
        loss=digest(record[LOSS].values),
        journal=combined([word for pair in series.items() for word in pair]),
        series=series,
        leaves=hashed,
    )


def _weights(hashed: Mapping[str, str]) -> dict[str, str]:
    """Return the trained leaves.

    Raises:
        ValueError: the checkpoint has none.
    """
    found = {path: value for path, value in hashed.items() if path.partition("/")[0] in WEIGHTS}
    if not found:
        items = sorted({path.partition("/")[0] for path in hashed})
        raise ValueError(f"expected a checkpoint item among {WEIGHTS}, got {items}")
    return found


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a tree with its path; keys are joined by /."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, f"{path}/{key}" if path else str(key))
    elif isinstance(tree, list | tuple) and any(isinstance(one, Tensor | Mapping | list | tuple) for one in tree):
        for number, value in enumerate(tree):
            yield from leaves(value, f"{path}/{number}")
    else:
        yield path, tree


def digest(value: Any) -> str:
    """Return the SHA-256 of a value: of type, shape and bytes of an array, else of its ``repr``."""
    if isinstance(value, Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return combined([str(value.dtype), str(tuple(value.shape)), raw])
    if isinstance(value, np.ndarray):
        return combined([str(value.dtype), str(value.shape), value.tobytes()])
    return combined([repr(value)])


def combined(parts: Iterable[str | bytes]) -> str:
    """Return the SHA-256 of some parts, including their borders."""
    found = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode()
        found.update(len(raw).to_bytes(8, "little") + raw)
    return found.hexdigest()


def hash_runs(names: Iterable[str], source: Path) -> dict[str, Hashes]:
    """Train and hash runs, and print a line for each.

    The folders are read in a child process, too: another checkout may store its checkpoints in another way.
    """
    found: dict[str, Hashes] = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="identical-") as place:
            run = train(name, Path(place), source=source)
            line = [sys.executable, str(Path(__file__).resolve()), "--read", str(run)]
            environment = _environment(source, Path(place))
            printed = subprocess.run(line, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
            found[name] = Hashes(**json.loads(printed))
        one = found[name]
        print(
            f"{name:22} weights {one.weights[:16]}  loss {one.loss[:16]}  journal {one.journal[:16]}  "
            f"({len(one.series)} series, {len(one.leaves)} leaves)",
            flush=True,
        )
    return found


def differences(before: Hashes, now: Hashes) -> tuple[list[str], list[str]]:
    """Compare two runs.

    Returns:
        The differences, most important first, and the renamed items.
    """
    wrong: list[str] = []
    lost = Counter(_weights(before.leaves).values()) - Counter(now.leaves.values())
    if lost:
        wrong.append(f"weights: {lost.total()} of {len(_weights(before.leaves))} trained tensors")
    if before.loss != now.loss:
        wrong.append(f"loss: the values of {LOSS}")
    renamed: list[str] = []
    for kind, old, new in (("series", before.series, now.series), ("state", before.leaves, now.leaves)):
        moves = _renamed(old, new)
        renamed += [f"{kind} {path} is now {place}" for path, place in moves.items()]
        wrong += [f"{kind} {path}: changed" for path in sorted(old.keys() & new.keys()) if old[path] != new[path]]
        wrong += [f"{kind} {path}: missing" for path in sorted(old.keys() - new.keys() - moves.keys())]
        wrong += [f"{kind} {path}: new" for path in sorted(new.keys() - old.keys() - set(moves.values()))]
    return wrong, renamed


def _renamed(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return removed names, each with a new name of the same content."""
    places: dict[str, list[str]] = {}
    for path in sorted(new.keys() - old.keys()):
        places.setdefault(new[path], []).append(path)
    gone = sorted(old.keys() - new.keys())
    return {path: places[old[path]].pop(0) for path in gone if places.get(old[path])}


def header(source: Path) -> dict[str, str]:
    """Return the last commit that changed the source, and what floating-point results depend on."""
    git = ["git", "-C", str(source)]
    last = ["log", "-1", "--format=%H", "--", "."]
    commit = subprocess.run([*git, *last], capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, check=False).stdout
    return {
        "commit": (commit or "unknown") + (" with uncommitted changes" if changed else ""),
        "cpu": _processor(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "platform": platform.platform(),
    }


def _processor() -> str:
    """Return the processor's family and model, since one name may denote generations that compute differently."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    facts: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())  # of the first core
    name = facts.get("model name") or platform.processor() or "unknown"
    numbers = [f"{key} {facts[key]}" for key in ("cpu family", "model", "stepping") if key in facts]
    return ", ".join([name, *numbers, torch.backends.cpu.get_cpu_capability()])


def write(file: Path, names: Sequence[str], source: Path) -> int:
    """Store a baseline; runs that are not selected keep their entries."""
    about = header(source)
    runs: dict[str, Any] = {}
    if file.is_file() and set(names) != set(RUNS):
        stored = json.loads(file.read_text())
        if stored["header"] != about:
            print(f"{file} was made with {stored['header']}: write all runs again, or choose another file")
            return 2
        runs = stored["runs"]
    runs |= {name: asdict(one) for name, one in hash_runs(names, source).items()}
    file.write_text(json.dumps({"header": about, "runs": runs}, indent=1, sort_keys=True) + "\n")
    return 0


def check(file: Path, names: Sequence[str], source: Path | None) -> int:
    """Compare with a baseline; return 0 if all is equal, 1 for differences, 2 if they cannot be compared."""
    stored = json.loads(file.read_text())
    here = header(source or SOURCE)
    was = stored["header"]
    unlike = [f"{key} {was[key]!r}, here {here[key]!r}" for key in COMPARABLE if was[key] != here[key]]
    if unlike:
        print(f"{file} was made on another machine, and hashes cannot be compared across machines: {'; '.join(unlike)}")
        if source is None:
            print(f"check out {was['commit']} and name its src folder: --check {file} --source DIR")
            return 2
        print(f"baseline from {source}:")
        before = hash_runs(names, source)
        print(f"compared with it, {SOURCE}:")
        now = hash_runs(names, SOURCE)
    else:
        missing = [name for name in names if name not in stored["runs"]]
        if missing:
            print(f"{file} has no run {', '.join(missing)}")
            return 2
        before = {name: Hashes(**stored["runs"][name]) for name in names}
        now = hash_runs(names, source or SOURCE)
    return _report(before, now)


def _report(before: Mapping[str, Hashes], now: Mapping[str, Hashes]) -> int:
    """Print the differences, and return the exit code."""
    differs = 0
    for name, one in now.items():
        wrong, renamed = differences(before[name], one)
        differs += bool(wrong)
        print(f"{name}: {f'{len(wrong)} differences' if wrong else 'identical'}")
        print("".join(f"  {line}\n" for line in (*wrong, *renamed)), end="")
    print(f"{len(now) - differs} of {len(now)} runs are identical")
    return 1 if differs else 0


def _names(text: str) -> list[str]:
    """Return the runs of ``--only``."""
    names = text.split(",")
    unknown = [name for name in names if name not in RUNS]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected names among {', '.join(RUNS)}, got {', '.join(unknown)}")
    return names


def main(words: Sequence[str] | None = None) -> int:
    """Run the program, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FILE", help="store the hashes")
    what.add_argument("--check", type=Path, metavar="FILE", help="compare with stored hashes")
    what.add_argument("--read", type=Path, metavar="RUN", help="print the hashes of a run folder as JSON")
    parser.add_argument("--only", type=_names, default=list(RUNS), metavar="NAME,NAME", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--source", type=lambda text: Path(text).resolve(), help="src folder to run")
    args = parser.parse_args(words)
    if args.read is not None:
        print(json.dumps(asdict(run_hashes(args.read))))
        return 0
    if args.write is not None:
        return write(args.write, args.only, args.source or SOURCE)
    return check(args.check, args.only, args.source)


if __name__ == "__main__":
    sys.exit(main())
