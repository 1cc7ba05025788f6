"""Bit flips, truncations and zeroed pages in a checkpoint are detected and reported, and the previous one is used."""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked import answer
from kill import loaded
from methods import Method, Ours, blank, filled, whole
from rows import Row, judged

from fieldwatch.checkpoint import Checkpoints

PAGE = 4096
SIZE = 25_000


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Outcome of one damaged file.

    Attributes:
        kind: ``flip``, ``truncation`` or ``page``.
        file: name of the file.
        outcome: ``fell back`` (to an intact earlier checkpoint), ``raised``, ``wrong`` (damaged values were returned)
            or ``unchanged`` (the newest checkpoint was restored intact, because the damaged bytes carry no data).
        told: whether the damage was reported.
    """

    kind: str
    file: str
    outcome: str
    told: bool


def flip(file: Path, draw: random.Random) -> bool:
    """Flip one bit."""
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    return True


def truncate(file: Path, draw: random.Random) -> bool:
    """Truncate the data at a random position."""
    content = file.read_bytes()
    file.write_bytes(content[: draw.randrange(len(content))])
    return True


def zero_page(file: Path, draw: random.Random) -> bool:
    """Zero one page; return False if it already was all zeros."""
    content = bytearray(file.read_bytes())
    start = PAGE * draw.randrange((len(content) + PAGE - 1) // PAGE)
    page = content[start : start + PAGE]
    content[start : start + PAGE] = bytes(len(page))
    file.write_bytes(content)
    return any(page)


KINDS: dict[str, Callable[[Path, random.Random], bool]] = {"flip": flip, "truncation": truncate, "page": zero_page}


def newest_files(before: set[Path], folder: Path) -> list[Path]:
    """Return the files that the second save wrote or changed."""
    after = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    return [path for path in after if path not in before] or after


def damage_loop(method: Method, folder: Path, counts: dict[str, int], size: int = SIZE, seed: int = 9) -> list[Damage]:
    """Save steps 1 and 2, then damage a file of step 2 repeatedly, each time in a fresh copy.

    Half of the trials choose the file uniformly, half in proportion to its length.
    """
    draw, good = random.Random(seed), folder / "good"  # noqa: S311  reproducible choices, not secrets
    good.mkdir(parents=True)
    answer(lambda: method.save(good, 1, filled(1, size)))
    before = {path for path in good.rglob("*") if path.is_file()}
    answer(lambda: method.save(good, 2, filled(2, size)))
    files = newest_files(before, good)
    work = [kind for kind, count in counts.items() for _ in range(count)]
    results = list[Damage]()
    for number, kind in enumerate(work):
        chosen = None
        while chosen is None:
            chosen = _damaged_copy(good, folder / "copy", kind, files, draw, even=number % 2 == 0)
        results.append(_outcome(method, folder / "copy", kind, chosen, size))
    return results


def _damaged_copy(  # noqa: PLR0913  where from, where to, and what
    good: Path, place: Path, kind: str, files: list[Path], draw: random.Random, *, even: bool
) -> str | None:
    """Copy the folder and damage one file; return the file's name, or None if nothing changed."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(good, place, symlinks=True)
    lengths = [1 if even else path.stat().st_size for path in files]
    (chosen,) = draw.choices(files, lengths)
    return chosen.name if KINDS[kind](place / chosen.relative_to(good), draw) else None


def _outcome(method: Method, place: Path, kind: str, file: str, size: int) -> Damage:
    if isinstance(method, Ours):  # in this process: ours is quick, and says more than its result
        state = blank(size)
        restored = Checkpoints(place).restore(state)
        told = [incident.what for incident in restored.fell_back] == ["damaged"]
        told = told and restored.fell_back[0].step == 2 and restored.fell_back[0].reason != ""
        found: dict[str, Any] = {"step": restored.step, "whole": whole(restored.step, state)}
    else:
        found = loaded(method, place, size)
        told = "raised" in found
    names = {(1, True): "fell back", (2, True): "unchanged"}
    outcome = "raised" if "raised" in found else names.get((found["step"], found["whole"]), "wrong")
    return Damage(kind=kind, file=file, outcome=outcome, told=told)


def tally(results: list[Damage], kind: str) -> Counter[str]:
    """Count the outcomes of one kind of damage."""
    return Counter(one.outcome for one in results if one.kind == kind)


def run_damage(folder: Path, flips: int = 1000, truncations: int = 200, pages: int = 200) -> list[Row]:
    """Return the rows of P3."""
    counts = {"flip": flips, "truncation": truncations, "page": pages}
    results = damage_loop(Ours(), folder, counts)
    names = {"flip": "flipped bits", "truncation": "truncations", "page": "zeroed pages"}
    rows = list[Row]()
    for kind, count in counts.items():
        found = tally(results, kind)
        told = sum(one.told for one in results if one.kind == kind)
        files = len({one.file for one in results})
        rows.append(
            judged(
                "P3",
                f"{count} {names[kind]} over the {files} files of a checkpoint",
                "100 % detected and reported, previous one used",
                f"{told} of {count} found and named, {found['fell back']} resumed from the one before, "
                f"{found['wrong']} wrong values handed out",
                good=found["fell back"] == told == count,
                why=", ".join(f"{n} {name}" for name, n in found.items() if name != "fell back"),
            )
        )
    return rows
