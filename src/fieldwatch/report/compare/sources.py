"""From folders to the runs that are compared: ours, and those that others wrote with TensorBoard."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldwatch.base import InputError, MissingPathError
from fieldwatch.record import DAMAGED, Better, History, Manifest, holds_run, read_history, read_manifest
from fieldwatch.record.config import flattened
from fieldwatch.report.account import account_from
from fieldwatch.report.compare.side import RunPhase, Side
from fieldwatch.report.foreign import NoEventFiles, holds_event_files, read_foreign_run

MOST = 200
"""How many runs one comparison takes."""
_SAY_NOTHING = ("tensorboard", "logs", "log", "runs", "train", "events", "summaries", "tb")
"""Folder names by which nobody knows a run: the folder above is named as well."""


class NothingToCompare(InputError):  # noqa: N818  says what is missing
    """There are fewer than two runs."""


def read_sides(places: Sequence[Path]) -> list[Side]:
    """Read the runs that the places hold: run folders, TensorBoard folders, single event files, folders of these.

    Raises:
        FileNotFoundError: a place does not exist.
        NoEventFiles: a place holds no run of any kind.
        NothingToCompare: fewer than two runs were found, or more than 200.
        NotARun: one of ours cannot be read.
    """
    found = [(run, place) for place in places for run in runs_in(place)]
    if len(found) < 2:
        given = ", ".join(map(str, places)) or "nothing"
        raise NothingToCompare(
            f"{given} holds {len(found)} run{'' if len(found) == 1 else 's'}: give two or more to compare, or "
            "--checkpoints with one run to rank its checkpoints"
        )
    if len(found) > MOST:
        raise NothingToCompare(f"{len(found)} runs were found, and at most {MOST} are compared at once: give fewer")
    names = short_names([run for run, _ in found])
    return [side_of(run, name, str(place)) for (run, place), name in zip(found, names, strict=True)]


def runs_in(place: Path) -> list[Path]:
    """Return the runs at a place: itself, or all below it; a run of ours hides what lies in it.

    Raises:
        MissingPathError: the place does not exist.
        NoEventFiles: there is no run.
    """
    if not place.exists():
        raise MissingPathError(f"there is no {place}: give run folders or TensorBoard folders")
    if place.is_file():
        return [place]
    found = sorted(_walk(place))
    if not found:
        raise NoEventFiles(
            f"{place} holds neither a fieldwatch run (run.json) nor TensorBoard event files (*tfevents*), nor does a "
            "folder below it: give the folder that the training wrote to"
        )
    return found


def _walk(place: Path) -> Iterator[Path]:
    for folder, inner, _ in os.walk(place):
        here = Path(folder)
        if holds_run(here):
            inner.clear()
            yield here
        elif holds_event_files(here):
            yield here


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return for each folder as many of its last parts as tell it from the others; a folder given twice is counted."""
    parts = [folder.absolute().resolve().parts for folder in folders]
    names = list[str]()
    counts = dict[str, int]()
    for own in parts:
        others = [other for other in parts if other != own]
        least = min(2 if own[-1].lower() in _SAY_NOTHING else 1, len(own))
        length = next(n for n in range(least, len(own) + 1) if n == len(own) or all(o[-n:] != own[-n:] for o in others))
        name = "/".join(own[-length:]).replace("//", "/")
        counts[name] = counts.get(name, 0) + 1
        names.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return names


def side_of(place: Path, name: str, group: str = "") -> Side:
    """Read one run.

    Raises:
        NoEventFiles: the place is neither a run of ours nor one of TensorBoard's.
        NotARun: it is one of ours and cannot be read.
    """
    return _own_side(place, name, group) if holds_run(place) else _foreign_side(place, name, group)


def _own_side(folder: Path, name: str, group: str) -> Side:
    manifest = read_manifest(folder)
    history = read_history(folder)
    account = account_from(history, folder, budget=0, pictures=False)
    state = str(account["run"]["state"])
    return Side(
        name=name,
        folder=folder,
        kind="fieldwatch",
        series={metric: history[metric] for metric in history.names()},
        pipeline=str(manifest.about.get("pipeline") or ""),
        state=state,
        config=flattened(manifest.config),
        environment=_environment(manifest),
        phases=_phases(manifest, history),
        verdict=account["verdict"]["title"],
        findings=tuple(account["findings"]),
        declared=_declared(account["series"]),
        notes=tuple(_notes(manifest, history, state)),
        group=group,
    )


def _declared(series: Mapping[str, Mapping[str, Any]]) -> dict[str, Better]:
    """Return which way is good, for the metrics that the account knows a declaration of."""
    return {name: one["better"] or "none" for name, one in series.items() if one["meaning"]}


def _notes(manifest: Manifest, history: History, state: str) -> Iterator[str]:
    if not history.names():
        yield "it has no row: nothing was recorded, or it ended before its first step"
    for damage in history.events(DAMAGED):
        yield f"its record is damaged: {damage.get('message')}"
    if (resumed := len(manifest.segments) - 1) > 0:
        yield f"it was continued {resumed} time{'s' if resumed > 1 else ''}: the later row of a step stands"
    if state != "finished":
        yield f"it did not come to its end: {state}, last row of step {history.step}"


def _foreign_side(place: Path, name: str, group: str) -> Side:
    run = read_foreign_run(place)
    return Side(
        name=name,
        folder=place,
        kind="tensorboard",
        series=run.series,
        config=run.config or None,
        notes=run.notes,
        group=group,
    )


def _phases(manifest: Manifest, history: History) -> tuple[RunPhase, ...]:
    """Return the declared phases, or those that the run's events tell."""
    if manifest.phases:
        return tuple(RunPhase(name=name, first=first, last=last) for name, first, last in manifest.phases)
    events = sorted(history.events("phase"), key=lambda event: event["step"])
    ends = [*(int(event["step"]) - 1 for event in events[1:]), None][: len(events)]
    return tuple(
        RunPhase(name=str(event.get("name", "?")), first=int(event["step"]), last=last)
        for event, last in zip(events, ends, strict=True)
        if last is None or last >= event["step"]
    )


def _environment(manifest: Manifest) -> dict[str, Any]:
    """Return what the numbers may hang on beside the config, by a name for people."""
    last: Mapping[str, Any] = manifest.segments[-1] if manifest.segments else {}
    command: Sequence[object] | str | None = last.get("command")
    found: dict[str, Any] = {
        **manifest.versions,
        "git commit": manifest.git.get("commit"),
        "git dirty": manifest.git.get("dirty"),
        "host": last.get("host"),
        "command": command if isinstance(command, str | None) else " ".join(map(str, command)),
        "device": manifest.about.get("device"),
        "starts": len(manifest.segments) or None,
    }
    return {name: value for name, value in found.items() if value is not None}
