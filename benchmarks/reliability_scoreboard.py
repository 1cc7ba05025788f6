"""The same accidents for every method of saving: kill, power cut, damage, full disk, read-only disk, and resuming.

    python benchmarks/reliability_scoreboard.py             # 8 to 30 minutes; rewrites its table in docs/reliability.md
    python benchmarks/reliability_scoreboard.py --quick     # few trials, prints only
    python benchmarks/reliability_scoreboard.py --json --only fieldwatch accelerate

Lightning and Accelerate are installed into a temporary environment that includes the packages of this one, so that
torch is not downloaded again. If they cannot be installed, their rows say so. Every method is used as its documentation
says.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

TORTURE = Path(__file__).resolve().parent / "torture"
sys.path.insert(0, str(TORTURE))

import damage  # noqa: E402  modules of the folder torture
import exactness  # noqa: E402  the same
import power  # noqa: E402  the same
import syscalls  # noqa: E402  the same
import table  # noqa: E402  the same
import torch  # noqa: E402  the same
from disk import small_disk  # noqa: E402  the same
from forked import answer  # noqa: E402  the same
from kill import kill_loop, loaded  # noqa: E402  the same
from methods import Method, Ours, filled  # noqa: E402  the same
from plain import NewThenDelete, OverLatest, RenamedThenDelete, Replaced  # noqa: E402  the same
from rivals import Accelerate, Distributed, Lightning, LightningElsewhere  # noqa: E402  the same

RIVALS = ("lightning==2.6.6", "accelerate==1.15.0")
METHODS: tuple[Callable[[], Method], ...] = (
    *(OverLatest, Replaced, NewThenDelete, RenamedThenDelete),
    *(Distributed, Lightning, LightningElsewhere, Accelerate, Ours),
)
NEEDS = {Lightning: "lightning", LightningElsewhere: "lightning", Accelerate: "accelerate"}
SIZE = 1_300_000
"""Floats of the largest tensor: about 8 MB in total."""
FULL = 700_000
"""The same on a full disk of 8 MB: 4.2 MB, then a state that does not fit next to it."""


@dataclass(kw_only=True)
class Score:
    """Results of one method; an empty entry was not run, and ``missing`` says why.

    Attributes:
        name: name of the method.
        promise: statement of its documentation.
        found: result by trial.
        missing: why trials were not run.
    """

    name: str
    promise: str
    found: dict[str, str] = field(default_factory=dict[str, str])
    missing: list[str] = field(default_factory=list[str])


def kills(method: Method, folder: Path, count: int) -> str:
    """Kill a process with SIGKILL while it saves in a loop."""
    results = kill_loop(method, folder, count, SIZE)
    kept = sum(one.kept for one in results)
    raised = sum(bool(one.raised) for one in results)
    back = sum(not one.raised and one.step < one.promised for one in results)
    return f"{kept}/{count}" + (f", {raised} raise" if raised else "") + (f", {back} go back" if back else "")


def damaged(method: Method, folder: Path, flips: int) -> dict[str, str]:
    """Flip bits, truncate and zero pages of the newest checkpoint."""
    counts = {"flip": flips, "truncation": flips // 5, "page": flips // 5}
    results = damage.damage_loop(method, folder, counts)
    shown = dict[str, str]()
    names = {"wrong": "handed out as good", "raised": "raise", "fell back": "older one used", "unchanged": "no effect"}
    for kind, count in counts.items():
        found = damage.tally(results, kind)
        parts = [f"{found[name]} {said}" for name, said in names.items() if found[name]]
        shown[f"{kind}s of {count}"] = ", ".join(parts)
    return shown


def full_disk(method: Method, folder: Path) -> str:
    """Save a second state that does not fit: is the error reported, and is the first one intact?"""
    with small_disk(folder) as why:
        if why:
            return ""
        place = folder / "run"
        place.mkdir()
        before = answer(lambda: method.save(place, 1, filled(1, FULL)))
        told = answer(lambda: attempt(lambda: method.save(place, 2, filled(2, 2 * FULL))))
        found = loaded(method, place, FULL)
    if isinstance(before, dict):
        return f"the first save raises {before['raised']}"[:80]
    return f"{told}; old one {'intact' if found.get('whole') and found['step'] == 1 else '**lost**'}"


def read_only(method: Method, folder: Path) -> str:
    """Save to a disk that became read-only: is the error reported?"""
    with small_disk(folder, "64m") as why:
        if why:
            return ""
        (folder / "run").mkdir()
        answer(lambda: method.save(folder / "run", 1, filled(1, FULL)))
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        told = answer(lambda: attempt(lambda: method.save(folder / "run", 2, filled(2, FULL))))
        found = loaded(method, folder / "run", FULL)
    return f"{told}; old one {'intact' if found.get('whole') and found['step'] == 1 else '**lost**'}"


def attempt(save: Callable[[], None]) -> str:
    """Return the error that the caller sees for a failing save, and whether it contains the system's reason."""
    try:
        save()
    except BaseException as error:  # noqa: BLE001  any error of a library is a result of the trial
        chain = error
        codes = list[str]()
        while chain is not None:
            number = getattr(chain, "errno", None)
            codes += [os.strerror(number)] if number else []
            chain = chain.__cause__ or chain.__context__
        seen = codes[0] if codes else ("reason in its text" if "os error" in str(error) else "no reason")
        return f"{type(error).__name__} ({seen})"
    return "**returns as if saved**"


def synced(method: Method, folder: Path) -> str:
    """Return what a save syncs before it returns: its files, and the folder that contains them."""
    if syscalls.can_trace():
        return ""
    lines = [line for line in syscalls.recorded(method, folder) if " fsync(" in line or " fdatasync(" in line]
    lines = [line for line in lines if str(folder) in line]
    of_folder = [line for line in lines if Path(line.split("<")[1].split(">")[0]).is_dir()]
    parts = (("folder", bool(of_folder)), ("file", len(lines) > len(of_folder)))
    return " and ".join(name for name, yes in reversed(parts) if yes) or "nothing"


def score(make: Callable[[], Method], folder: Path, *, count: int, flips: int) -> Score:
    """Run all trials of one method except the power cut, for which all methods wait together."""
    method = make()
    result = Score(name=method.name, promise=method.promise)
    result.found["kill -9"] = kills(method, folder / "kill", count)
    result.found |= damaged(make(), folder / "damage", flips)
    result.found["full disk"] = full_disk(make(), folder / "full")
    result.found["read-only disk"] = read_only(make(), folder / "frozen")
    result.found[f"resumed after {exactness.STOP} steps"] = exactness.exactness(make(), folder / "exact")
    result.found["syncs"] = synced(make(), folder / "order")
    result.missing = [name for name, found in result.found.items() if not found]
    return result


def measure(names: Sequence[str], *, count: int, flips: int) -> list[Score]:
    """Score the installed methods, and say which ones are missing."""
    torch.set_num_threads(1)
    chosen = [make for make in METHODS if not names or any(name in make().name for name in names)]
    scores = list[Score]()
    present = list[Callable[[], Method]]()
    with tempfile.TemporaryDirectory(prefix="scoreboard-") as place:
        for number, make in enumerate(chosen):
            module = NEEDS.get(make)  # type: ignore[call-overload]  a class is looked up, and may not be there
            if module and not installed(module):
                missing = [f"{module} could not be installed here"]
                scores.append(Score(name=make().name, promise=make().promise, missing=missing))
                continue
            if module:
                __import__(module)  # once, before the forks
            present.append(make)
            scores.append(score(make, Path(place) / str(number), count=count, flips=flips))
            print(f"{scores[-1].name}: {scores[-1].found}", file=sys.stderr)
        add_cuts(scores, present, Path(place))
    return scores


def add_cuts(scores: list[Score], present: list[Callable[[], Method]], folder: Path) -> None:
    """Run the power cuts."""
    why = power.can_mount(folder / "probe")
    found = {} if why else power.cuts([make() for make in present], folder / "cuts", SIZE)
    for one in scores:
        if one.name in found:
            one.found |= dict(zip(("cut at 0 s", f"cut at {power.LATER:.0f} s"), found[one.name], strict=True))
        elif one.found:
            one.missing.append(f"power cut: {why}")


def installed(module: str) -> bool:
    """Return whether a library is installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(module))
    return False


def throw_away(folder: Path) -> Path:
    """Create an environment with the packages of this one and, if possible, the rivals; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    own = next(folder.glob("lib/python*/site-packages"))
    (own / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n")
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *RIVALS]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(f"the rivals could not be installed: {done.stderr.strip()[-500:]}", file=sys.stderr)
    return python


def versions() -> str:
    """Return the compared methods."""
    names = ("torch", "lightning", "accelerate", "safetensors", "fsspec")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names if installed(name))


def markdown(scores: list[Score], head: str) -> str:
    """Format a table with a row per method, and the documented guarantees."""
    columns = list(dict.fromkeys(name for one in scores for name in one.found))
    lines = [head, "", "| method | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for one in scores:
        absent = "not run" if one.found else f"not run: {'; '.join(one.missing)}"
        cells = [one.name, *(one.found.get(name) or absent for name in columns)]
        lines.append("| " + " | ".join(table.plain(cell) for cell in cells) + " |")
    lines += ["", NOTES, "", "What each documents:", ""]
    lines += [f"* {one.name}: {one.promise}." for one in scores]
    gaps = Counter(gap for one in scores for gap in one.missing if one.found)
    lines += ["", f"Not run here: {'; '.join(gaps)}."] if gaps else []
    return "\n".join(lines) + "\n"


NOTES = (
    "Kill: in how many kills at random times of a loop of saves the last acknowledged step, or a later one, "
    "loads whole. Cut: `new` is the acknowledged step, `old` an earlier one, `lost` means that loading raises. Flips, "
    "pages: `handed out as good` are wrong numbers without an error. Resumed: dropout, shuffled batches, stopped in "
    "the middle of an epoch, losses compared bit for bit with the uninterrupted run, by each library's own recipe. "
    "These are trials of seconds on one machine: they show what can go wrong, not how often it does."
)


def main() -> None:
    """Install, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few trials; do not write the page")
    parser.add_argument("--json", action="store_true", help="print JSON; do not write the page")
    parser.add_argument("--only", nargs="+", default=[], help="methods whose name contains one of these")
    parser.add_argument("--here", action="store_true", help="install nothing: compare installed methods")
    asked = parser.parse_args()
    if not asked.here:
        with tempfile.TemporaryDirectory(prefix="rivals-") as place:
            python = throw_away(Path(place) / "venv")
            again = [str(python), __file__, *sys.argv[1:], "--here"]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
            sys.exit(subprocess.run(again, check=False, env=environment).returncode)
    warnings.simplefilter("ignore")  # warnings about what is intended here
    with contextlib.redirect_stdout(sys.stderr):  # libraries print
        scores = measure(asked.only, count=10 if asked.quick else 100, flips=50 if asked.quick else 300)
    head = f"`python benchmarks/reliability_scoreboard.py`: {table.machine(Path(tempfile.gettempdir()))}; {versions()}"
    print(json.dumps([asdict(one) for one in scores]) if asked.json else markdown(scores, head))
    if not (asked.quick or asked.json or asked.only):
        table.put("scoreboard", markdown(scores, head))


if __name__ == "__main__":
    main()
