"""Damages every other file that a resume reads at random: run.json, journal, events, heartbeat, lock, notes.

Each trial copies a run that was killed, damages one file, reads the run with every reader, and resumes it. The run must
continue from its newest intact checkpoint, or refuse with one sentence; it must never start from step 0. The readers
must show every row and event whose line is intact, and no other value.
"""

import contextlib
import io
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rows import Row, judged

from fieldwatch import Outputs, Run, Saving
from fieldwatch.base import InputError
from fieldwatch.checkpoint import CheckpointError, Retention
from fieldwatch.health import GENERAL, examine
from fieldwatch.monitor.watch import Watcher
from fieldwatch.record import EVENTS, JOURNAL, NotARun, read_events, read_history, read_manifest
from fieldwatch.record.lines import checksum_of
from fieldwatch.report.account import account_of
from fieldwatch.report.compare import compare, read_sides

HEARTBEAT = "black_box/heartbeat"
FIELDS = 352
"""The heartbeat file, and the number of its bytes in use; the rest of its 4,096 bytes is zero."""
FILES = ("run.json", JOURNAL, EVENTS, HEARTBEAT, ".lock", "black_box/end.json")
LAST = 60
EVERY = 20
MORE = 2
"""Steps of the damaged run, steps between its checkpoints, and steps of a resumed run."""
RESUMED = 20
"""Step from which the second start of the run continued."""
PAGE = 512
"""Size of a zeroed page in bytes; smaller than that of the disk, which would be most of a file."""
SENTENCE = 2000
"""Maximum length of a refusal in characters, including the names in it."""


class Stopped(SystemExit):
    """Ends the training of a trial, as a supervisor would."""


def train(folder: Path, last: int, *, stop: int | None = None) -> int:
    """Train a tiny model in a folder; return the step that it started from."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0517)
    torch.manual_seed(3)
    config = {"lr": 0.0517, "size": 4, "note": "settings of the run"}
    with Run(
        folder, config=config, saving=Saving(every=EVERY, keep=Retention(last=3)), outputs=Outputs(sinks=())
    ) as run:
        run.track(model=model, optimizer=optimizer)
        started = run.resume() or 0
        for step in run.steps(last):
            inputs = torch.randn(8, 4)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            step.update(optimizer)
            step.record({"Loss/total": loss.detach()})
            if step.index == stop:
                raise Stopped
    return started


def a_run(folder: Path) -> Path:
    """Train a run of two starts that ended in the middle, with checkpoints at 20, 40 and 60 and rows up to there."""
    with contextlib.suppress(Stopped):
        train(folder, 10 * LAST, stop=LAST // 2)
    train(folder, LAST)
    (folder / ".lock").write_bytes(b'{"host": "elsewhere", "pid": 17, "since": "2026-01-01T00:00:00+00:00"}')
    beat = folder / HEARTBEAT
    page = beat.read_bytes()
    beat.write_bytes(page.replace(b"finished", b"running\0"))  # as after a SIGKILL
    return folder


def flip(content: bytearray, draw: random.Random) -> bytes:
    """Flip one bit."""
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(content)


def digit(content: bytearray, draw: random.Random) -> bytes:
    """Replace one digit by another; flip a bit if there is none."""
    places = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
    if not places:
        return flip(content, draw)
    place = draw.choice(places)
    content[place] = ord(draw.choice([one for one in "0123456789" if ord(one) != content[place]]))
    return bytes(content)


def truncate(content: bytearray, draw: random.Random) -> bytes:
    """Truncate the data at a random position."""
    return bytes(content[: draw.randrange(len(content))])


def zero(content: bytearray, draw: random.Random) -> bytes:
    """Zero some bytes."""
    start = draw.randrange(len(content))
    part = content[start : start + draw.randrange(1, PAGE)]
    content[start : start + len(part)] = bytes(len(part))
    return bytes(content)


def drop(content: bytearray, draw: random.Random) -> bytes:
    """Remove some bytes."""
    start = draw.randrange(len(content))
    del content[start : start + draw.randrange(1, PAGE)]
    return bytes(content)


def junk(content: bytearray, draw: random.Random) -> bytes:
    """Overwrite some bytes with random ones."""
    start = draw.randrange(len(content))
    part = content[start : start + draw.randrange(1, 64)]
    content[start : start + len(part)] = draw.randbytes(len(part))
    return bytes(content)


def swap(content: bytearray, draw: random.Random) -> bytes:
    """Copy one part of the file over another, as a file system that confuses blocks does."""
    start = draw.randrange(len(content))
    other = draw.randrange(len(content))
    size = min(draw.randrange(1, PAGE), len(content) - max(start, other))
    content[start : start + size] = content[other : other + size]
    return bytes(content)


Mutation = Callable[[bytearray, random.Random], bytes]
MUTATIONS: tuple[Mutation, ...] = (
    flip,
    flip,
    digit,
    truncate,
    zero,
    drop,
    junk,
    swap,
)


@dataclass
class Trial:
    """Outcome of one damaged file.

    Attributes:
        file: name of the file.
        mutation: kind of the damage.
        outcome: ``went on``, ``refused``, ``step 0``, ``older`` (than the newest intact checkpoint) or ``raised``.
        problems: mistakes of the readers.
        told: whether the findings afterwards include the damage, or the fallback.
    """

    file: str
    mutation: str
    outcome: str = ""
    problems: list[str] = field(default_factory=list)
    told: bool = False


def mutated(folder: Path, file: str, draw: random.Random, wanted: Mutation | None = None) -> str:
    """Damage a file in a given way or at random; return the kind of the damage."""
    path = folder / file
    before = path.read_bytes()
    while True:
        mutation = wanted or draw.choice(MUTATIONS)
        end = FIELDS if file == HEARTBEAT else len(before)
        after = mutation(bytearray(before[:end]), draw) + before[end:]
        if after != before:
            path.write_bytes(after)
            return mutation.__name__


def rows_of_run(folder: Path) -> dict[tuple[str, int], float]:
    """Return every value that a reader shows, by metric and step."""
    history = read_history(folder)
    return {
        (name, int(step)): float(value)
        for name in history.names()
        for step, value in zip(history[name].steps, history[name].values, strict=True)
    }


def whole_lines(good: Path, bad: Path, file: str) -> list[dict[str, Any]]:
    """Return the parsed lines of a damaged file that are intact and that no later segment invalidates."""
    there = set((bad / file).read_bytes().split(b"\n")[:-1])
    standing = list[tuple[bytes, Any]]()
    for line in (good / file).read_bytes().split(b"\n")[:-1]:
        value = json.loads(line)
        if "segment" in value:
            standing = [(old, one) for old, one in standing if _step(one) < value["resume"]]
        else:
            standing.append((line, value))
    return [value for line, value in standing if line in there]


def tells_of_segment(bad: Path, file: str) -> bool:
    """Return whether a line about the resume is intact; without one, the rows that it invalidated are valid again."""
    known = (b'"segment":2', b'"of_segment":[2,')
    lines = (bad / file).read_bytes().split(b"\n")[:-1]
    return any(checksum_of(line) == _last_number(line) and any(one in line for one in known) for line in lines)


def _last_number(line: bytes) -> int:
    number = line[max(line.rfind(b":"), line.rfind(b",")) + 1 : -1]
    return int(number) if number.isdigit() else -1


def _step(line: Any) -> float:
    """Return the step of a row or an event; a layout applies to all steps."""
    return line[1] if isinstance(line, list) else line.get("step", -1)


def journal_problems(good: Path, bad: Path) -> list[str]:
    """Return what the readers of a damaged journal show wrongly, or do not show though its line is intact."""
    truth = rows_of_run(good)
    shown = rows_of_run(bad)
    strange = [key for key, value in shown.items() if repr(truth.get(key)) != repr(value)]
    strange = strange if tells_of_segment(bad, JOURNAL) else [key for key in strange if key[1] < RESUMED]
    lines: list[Any] = whole_lines(good, bad, JOURNAL)
    layouts = {line["layout"]: line["names"] for line in lines if isinstance(line, dict) and "layout" in line}
    rows = [(line[0], line[1]) for line in lines if isinstance(line, list)]
    # A packed line has consecutive steps here; those that a resume has voided are not among the truth.
    packed = [line for line in lines if isinstance(line, dict) and "packed" in line]
    rows += [(line["packed"], line["step"] + k) for line in packed for k in range(line["rows"])]
    named = {(name, step) for layout, step in rows if layout in layouts for name in layouts[layout]}
    missing = (named & truth.keys()) - shown.keys()
    found = [f"shows {len(strange)} values that were not recorded, such as {strange[0]}"] if strange else []
    return found + ([f"does not show {len(missing)} values of whole lines"] if missing else [])


def event_problems(good: Path, bad: Path) -> list[str]:
    """Return the same for events."""
    truth = {json.dumps(event, sort_keys=True) for event in read_events(good)}
    shown = {json.dumps(event, sort_keys=True) for event in read_events(bad)}
    strange = shown - truth if tells_of_segment(bad, EVENTS) else set[str]()
    wanted = [
        {key: value for key, value in line.items() if key not in ("crc", "of_segment")}
        for line in whole_lines(good, bad, EVENTS)
    ]
    missing = {json.dumps(event, sort_keys=True) for event in wanted} - shown
    found = [f"shows the event {min(strange)[:80]}, which was not recorded"] if strange else []
    return found + ([f"does not show {len(missing)} events of whole lines"] if missing else [])


def manifest_problems(good: Path, bad: Path) -> list[str]:
    """Return wrong values of a damaged run.json: damage must be reported, or the values must be the original ones."""
    try:
        shown = read_manifest(bad)
    except NotARun:
        return []
    truth = read_manifest(good)
    fields = ("config", "preset_difference", "windows", "phases", "versions", "git", "segments", "about", "metrics")
    return [f"run.json has another {name}" for name in fields if getattr(shown, name) != getattr(truth, name)]


def reader_problems(good: Path, bad: Path) -> list[str]:
    """Return the mistakes of health, report, watch and compare with a damaged run."""
    found = list[str]()
    readers: dict[str, Callable[[], object]] = {
        "health": lambda: examine(bad, GENERAL),
        "report": lambda: account_of(bad, budget=10_000),
        "watch": lambda: Watcher(bad).refresh(),
        "compare": lambda: compare(read_sides([bad, good])),
        "journal": lambda: found.extend(journal_problems(good, bad)),
        "events": lambda: found.extend(event_problems(good, bad)),
        "run.json": lambda: found.extend(manifest_problems(good, bad)),
    }
    for name, read in readers.items():
        try:
            read()
        except BaseException as error:  # noqa: BLE001  any error of a reader is a result of the trial
            found.append(f"{name} raised {type(error).__name__}: {str(error)[:120]}")
    return found


def resumed(folder: Path, newest: int) -> str:
    """Resume a damaged run; return the outcome."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            started = train(folder, LAST + MORE)
    except (CheckpointError, InputError) as error:
        return "refused" if len(str(error)) < SENTENCE and "\n" not in str(error) else "refused at length"
    except BaseException as error:  # noqa: BLE001  any error is a result of the trial
        return f"raised {type(error).__name__}: {str(error)[:120]}"
    if started == 0:
        return "step 0"
    return "went on" if started == newest else f"went on from {started}, not from {newest}"


def trial(good: Path, place: Path, file: str, number: int, draw: random.Random) -> Trial:
    """Damage one file of a copy, read it, resume it, and read it again; one in ten also loses its newest checkpoint."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(good, place)
    newest = LAST
    if number % 10 == 9:
        (place / "checkpoints" / f"step_{LAST:010d}" / "tensors.safetensors").write_bytes(b"")
        newest = LAST - EVERY
    # a changed digit leaves the file readable: only its hash reveals it
    one = Trial(file=file, mutation=mutated(place, file, draw, digit if number == 0 else None))
    one.problems += reader_problems(good, place)
    one.outcome = resumed(place, newest)
    findings = examine(place, GENERAL)
    one.told = any(finding.rule in ("DamagedRecord", "FellBack") for finding in findings)
    if newest < LAST and one.outcome == "went on" and not any(finding.rule == "FellBack" for finding in findings):
        one.problems.append("the fallback is not a finding")
    return one


def damage_logs(folder: Path, count: int, files: Sequence[str] = FILES, seed: int = 11) -> list[Trial]:
    """Make random mutations of each file, each in a fresh copy of one run."""
    good = a_run(folder / "good")
    draw = random.Random(seed)  # noqa: S311  reproducible choices, not secrets
    return [trial(good, folder / "copy", file, number, draw) for file in files for number in range(count)]


def never_from_zero(folder: Path) -> list[str]:
    """Repeatedly resume a run that has lost what it needs; return what went wrong."""
    good = a_run(folder / "good-too")
    found = list[str]()
    for name, lose in LOSSES.items():
        place = folder / "lost"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(good, place)
        lose(place)
        outcomes = [resumed(place, LAST) for _ in range(3)]
        wanted = ["went on"] if name == "run.json" else ["refused"] * 3
        if outcomes[: len(wanted)] != wanted or "step 0" in outcomes:
            found.append(f"without {name}: {outcomes}")
    return found


def _damage_all(place: Path) -> None:
    for path in (place / "checkpoints").glob("step_*/tensors.safetensors"):
        path.write_bytes(b"")


def _rename_all(place: Path) -> None:
    for path in (place / "checkpoints").glob("step_*"):
        path.rename(path.with_name(f"damaged-{path.name}"))


LOSSES: dict[str, Callable[[Path], object]] = {
    "run.json": lambda place: (place / "run.json").unlink(),
    "a whole checkpoint": _damage_all,
    "checkpoints but those set aside": _rename_all,
    "the folder of checkpoints": lambda place: shutil.rmtree(place / "checkpoints"),
}


def run_logs(folder: Path, count: int = 1000, files: Sequence[str] = FILES) -> list[Row]:
    """Return the rows of P3 about the record, and of P1 about step 0."""
    results = list[Trial]()
    seconds = dict[str, float]()
    good = a_run(folder / "good")
    draw = random.Random(11)  # noqa: S311  reproducible choices, not secrets
    for file in files:
        began = time.monotonic()
        results += [trial(good, folder / "copy", file, number, draw) for number in range(count)]
        seconds[file] = time.monotonic() - began
    rows = [_row(file, [one for one in results if one.file == file], seconds[file]) for file in files]
    lost = never_from_zero(folder)
    rows.append(
        judged(
            "P3",
            f"a run that lost {', '.join(LOSSES)}; resumed three times each",
            "never from step 0",
            "never from step 0" if not lost else "; ".join(lost),
            good=not lost,
        )
    )
    return rows


def _row(file: str, results: list[Trial], seconds: float) -> Row:
    outcomes = Counter(one.outcome for one in results)
    problems = [f"{one.mutation}: {problem}" for one in results for problem in one.problems]
    bad = [name for name in outcomes if name not in ("went on", "refused")]
    good = not problems and not bad
    return judged(
        "P3",
        f"{len(results)} random mutations of {file}",
        "each continues from the newest intact checkpoint or refuses in one sentence; readers show all intact lines",
        f"{outcomes['went on']} went on, {outcomes['refused']} refused, {len(problems)} wrong readings "
        f"({seconds:.0f} s)",
        good=good,
        why="; ".join([*(f"{outcomes[name]} times: {name}" for name in bad[:3]), *problems[:3]]),
    )
