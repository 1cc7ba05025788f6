"""Eight loops that nobody here wrote: what adopting fieldwatch changes in them, and whether it does what it promises.

    python benchmarks/foreign_loops                     # the table, some minutes
    python benchmarks/foreign_loops --write             # ... into docs/adopt.md
    python benchmarks/foreign_loops --only images gan --keep /tmp/loops

Six loops are examples of packages on PyPI, two are those of libraries with a script of this folder. The source archives
are downloaded by pip (or taken from --sources). Every loop is trained five times: as it is, adopted, adopted and killed
by ``kill -9``, resumed, and with a planted fault. Requires: pip install -c constraints.txt -r
benchmarks/foreign_loops/requirements.txt
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(FOLDER.parent))

from adoption.count import compare  # noqa: E402  the folder is a program
from fieldwatch.record import read_manifest  # noqa: E402
from foreign_loops.loops import LOOPS, Edit, Loop  # noqa: E402

PAGE = ROOT / "docs" / "adopt.md"
BEGIN = "<!-- foreign loops: written by benchmarks/foreign_loops --write -->\n"
END = "<!-- end foreign loops -->\n"
HEAD = (
    "| loop | lines added, changed, removed | same numbers | after `kill -9` | verdict | planted fault | told by |",
    "|---|---:|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Sources:
    """The folder with the source archives of the packages."""

    folder: Path

    def unpacked(self, package: str) -> Path:
        """Return the folder of a package's source archive; download it if it is missing."""
        stem = package.replace("==", "-").replace("nano-gpt", "nano_gpt")
        place = self.folder / stem
        if not place.exists():
            archive = self.folder / f"{stem}.tar.gz"
            if not archive.exists():
                pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation")
                words = (*pip, "--no-binary", ":all:", "--dest", str(self.folder), package)
                subprocess.run(words, check=True)
            with tarfile.open(archive) as packed:
                packed.extractall(self.folder, filter="data")
        return place


@dataclass(frozen=True)
class Trained:
    """What a process left: how it ended, and a hash of the trained weights, empty if it did not come to its end."""

    returncode: int
    weights: str
    output: str


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Return a text with all edits."""
    for edit in edits:
        text = edit.apply(text)
    return text


@dataclass(frozen=True)
class Workplace:
    """A folder in which one loop is trained.

    Attributes:
        loop: the loop.
        sources: where its package is.
        folder: the folder.
    """

    loop: Loop
    sources: Sources
    folder: Path

    def texts(self, *, adopted: bool, fault: bool = False) -> tuple[str, str]:
        """Return the file of the loop, and the script that calls it (empty if it is a script itself)."""
        loop = self.loop
        origin = self.sources.unpacked(loop.package) if loop.package else FOLDER
        own = [*loop.ports, *(loop.edits if adopted else ()), *([loop.fault] if fault else ())]
        text = edited((origin / loop.path).read_text("utf-8"), own)
        script = (FOLDER / loop.script).read_text("utf-8") if loop.script else ""
        return text, edited(script, loop.script_edits if adopted else ())

    def prepare(self, name: str, *, adopted: bool, fault: bool = False) -> Path:
        """Write the files of a training into a folder of its own."""
        place = self.folder / name
        place.mkdir(parents=True)
        text, script = self.texts(adopted=adopted, fault=fault)
        path = Path(self.loop.path)
        if self.loop.script == "gpt.py":  # the loop is a module of its package
            package = path.parts[0]
            shutil.copytree(self.sources.unpacked(self.loop.package) / package, place / package)
            path = place / path
        else:
            path = place / path.name
        path.write_text(text, "utf-8")
        if script:
            (place / "script.py").write_text(script, "utf-8")
        self.loop.prepare(place)
        return place

    def train(self, place: Path, kill: int | None = None) -> Trained:
        """Train in a process of its own."""
        name = "script.py" if self.loop.script else Path(self.loop.path).name
        environment = {**os.environ, "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
        added = (str(place), str(FOLDER), str(ROOT / "src"), environment.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(added)
        if kill is not None:
            environment |= {"LOOP_KILL": str(kill), "LOOP_SAVES": str(int(self.loop.saves))}
        ended = subprocess.run(
            [sys.executable, str(FOLDER / "start.py"), name, *self.loop.arguments.split()],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        weights = place / "WEIGHTS"
        found = weights.read_text() if weights.exists() else ""
        return Trained(ended.returncode, found, ended.stdout + ended.stderr)


@dataclass(frozen=True)
class Answer:
    """What `fieldwatch health` says of a run: its findings as pairs of rule and severity, the likely cause first."""

    findings: tuple[tuple[str, str], ...]

    @property
    def verdict(self) -> str:
        """The word of the report for a run that has finished, with the findings behind it."""
        if any(severity != "note" for _, severity in self.findings):
            worst = "error" if any(severity == "error" for _, severity in self.findings) else "warning"
            return f"{worst}: {self.told}"
        notes = ", ".join(dict.fromkeys(rule for rule, _ in self.findings))
        return f"healthy (notes: {notes})" if notes else "healthy"

    @property
    def told(self) -> str:
        """The findings that are no notes, or the notes if there are no others."""
        heavy = [(rule, severity) for rule, severity in self.findings if severity != "note"]
        names = dict.fromkeys(f"{rule} ({severity})" for rule, severity in heavy or self.findings)
        return ", ".join(names) or "nothing"


def health(run: Path) -> Answer:
    """Ask `fieldwatch health` about a run."""
    words = [sys.executable, "-m", "fieldwatch", "health", str(run), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1, 3):
        raise RuntimeError(f"fieldwatch health {run} ended with {ended.returncode}:\n{ended.stderr}")
    found = json.loads(ended.stdout)["findings"]
    return Answer(tuple((each["rule"], each["severity"]) for each in found))


def must(trained: Trained, code: int = 0) -> Trained:
    """Return what was trained; raise if the process ended in another way."""
    if trained.returncode != code:
        raise RuntimeError(f"the process ended with {trained.returncode}, not {code}:\n{trained.output[-3000:]}")
    return trained


def row(loop: Loop, sources: Sources, folder: Path) -> str:
    """Train a loop five times; return its row of the table."""
    work = Workplace(loop, sources, folder)
    lines = [
        compare(old, new, "fieldwatch")
        for old, new in zip(work.texts(adopted=False), work.texts(adopted=True), strict=True)
    ]
    counted = ", ".join(str(sum(getattr(each, kind) for each in lines)) for kind in ("added", "changed", "removed"))
    plain = must(work.train(work.prepare("plain", adopted=False)))
    place = work.prepare("adopted", adopted=True)
    adopted = must(work.train(place))
    same = "yes" if adopted.weights == plain.weights else "no"
    killed = work.prepare("killed", adopted=True)
    must(work.train(killed, loop.kill), -signal.SIGKILL)
    again = must(work.train(killed))
    goes_on = read_manifest(killed / "run").segments[-1]["step"] > 0
    resumed = "same numbers" if goes_on and again.weights == adopted.weights else "other numbers"
    faulty = work.prepare("faulty", adopted=True, fault=True)
    ended = work.train(faulty)
    told = health(faulty / "run").told
    if ended.returncode:  # an update that cannot be right is refused at once
        error = ended.output.strip().splitlines()[-1].partition(":")[0]
        told = f"{error} at the update" if told == "nothing" else f"{told}, {error}"
    said = health(place / "run").verdict
    return f"| {loop.title} | {counted} | {same} | {resumed} | {said} | {loop.fault_does} | {told} |"


def with_table(page: str, rows: Mapping[str, str]) -> str:
    """Return the page with these rows between the markers, by title; rows of other loops stay.

    Raises:
        ValueError: the page has no markers.
    """
    before, begin, rest = page.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"expected the lines {BEGIN.strip()} and {END.strip()} in {PAGE}")
    known = {line.split(" | ")[0].removeprefix("| "): line for line in old.splitlines() if line.startswith("| ")}
    known |= rows
    lines = [known[loop.title] for loop in LOOPS.values() if loop.title in known]
    return f"{before}{BEGIN}\n" + "\n".join((*HEAD, *lines)) + f"\n\n{END}{after}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=LOOPS, default=list(LOOPS), help="loops")
    parser.add_argument("--sources", type=Path, help="folder of source archives, to download none twice")
    parser.add_argument("--keep", type=Path, help="folder that keeps the runs")
    parser.add_argument("--write", action="store_true", help=f"write the rows into {PAGE.relative_to(ROOT)}")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep or Path(temporary) / "runs"
        sources = Sources((chosen.sources or Path(temporary)).resolve())
        print("\n".join(HEAD), flush=True)
        for name in chosen.only:
            made = row(LOOPS[name], sources, folder.resolve() / name)
            print(made, flush=True)
            if chosen.write:
                PAGE.write_text(with_table(PAGE.read_text("utf-8"), {LOOPS[name].title: made}), "utf-8")


if __name__ == "__main__":
    main()
