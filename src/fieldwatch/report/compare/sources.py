"""Reader for the compared runs: fieldwatch run folders, and TensorBoard event files of other programs."""

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
"""Maximum number of runs in a comparison."""
_GENERIC_NAMES = ("tensorboard", "logs", "log", "runs", "train", "events", "summaries", "tb")
"""Folder names that do not identify a run: the name of the parent folder is added."""


class NothingToCompare(InputError):  # noqa: N818  reads as what is missing
    """There are fewer than two runs, or too many."""


def read_sides(places: Sequence[Path]) -> list[Side]:
    """Read the runs at the given paths: run folders, TensorBoard folders, event files, or folders of these.

    Raises:
        FileNotFoundError: if a path does not exist.
        NoEventFiles: if a path contains no run of any kind.
        NothingToCompare: if fewer than two or more than 200 runs were found.
        NotARun: if a fieldwatch run cannot be read.
    """
    runs = [(run, place) for place in places for run in runs_in(place)]
    if len(runs) < 2:
        given = ", ".join(map(str, places)) or "nothing"
        raise NothingToCompare(
            f"expected two or more runs to compare, got {len(runs)} in {given}: give more runs, or "
            "--checkpoints with one run to rank its checkpoints"
        )
    if len(runs) > MOST:
        raise NothingToCompare(f"expected at most {MOST} runs, got {len(runs)}: give fewer")
    names = short_names([run for run, _ in runs])
    return [side_of(run, name, str(place)) for (run, place), name in zip(runs, names, strict=True)]


def runs_in(place: Path) -> list[Path]:
    """Return the runs at or below a path; folders inside a fieldwatch run are not searched.

    Raises:
        MissingPathError: if the path does not exist.
        NoEventFiles: if there is no run.
    """
    if not place.exists():
        raise MissingPathError(f"there is no {place}: give run folders or TensorBoard folders")
    if place.is_file():
        return [place]
    runs = sorted(_walk(place))
    if not runs:
        raise NoEventFiles(
            f"{place} and its subfolders contain neither a fieldwatch run (run.json) nor TensorBoard event files "
            "(*tfevents*): give the folder that the training wrote to"
        )
    return runs


def _walk(place: Path) -> Iterator[Path]:
    for folder, inner, _ in os.walk(place):
        here = Path(folder)
        # A run folder contains event files of its own, which are not another run.
        if holds_run(here):
            inner.clear()
            yield here
        elif holds_event_files(here):
            yield here


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest unique ending of each path; a folder given twice gets a number."""
    all_parts = [folder.absolute().resolve().parts for folder in folders]
    names = list[str]()
    counts = dict[str, int]()
    for parts in all_parts:
        others = [other for other in all_parts if other != parts]
        least = min(2 if parts[-1].lower() in _GENERIC_NAMES else 1, len(parts))
        length = next(
            n for n in range(least, len(parts) + 1) if n == len(parts) or all(o[-n:] != parts[-n:] for o in others)
        )
        # The first part of an absolute path is "/" already.
        name = "/".join(parts[-length:]).replace("//", "/")
        counts[name] = counts.get(name, 0) + 1
        names.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return names


def side_of(place: Path, name: str, group: str = "") -> Side:
    """Read one run.

    Raises:
        NoEventFiles: if the path is neither a fieldwatch run nor a TensorBoard folder.
        NotARun: if a fieldwatch run cannot be read.
    """
    return _own_side(place, name, group) if holds_run(place) else _foreign_side(place, name, group)


def _own_side(folder: Path, name: str, group: str) -> Side:
    manifest = read_manifest(folder)
    history = read_history(folder)
    # For state, verdict, findings and declarations; the series are taken from the history, so no budget is needed.
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
    """Return the better direction of the metrics that have a declaration."""
    # Series without a declaration have no meaning; "" in an account is "none" in a declaration.
    return {name: entry["better"] or "none" for name, entry in series.items() if entry["meaning"]}


def _notes(manifest: Manifest, history: History, state: str) -> Iterator[str]:
    if not history.names():
        yield "no rows: nothing was recorded, or the run ended before its first step"
    for damage in history.events(DAMAGED):
        yield f"damaged record: {damage.get('message')}"
    if (resumed := len(manifest.segments) - 1) > 0:
        yield f"resumed {resumed} time{'s' if resumed > 1 else ''}: repeated steps have their latest rows"
    if state != "finished":
        yield f"not finished: {state}, last row at step {history.step}"


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
    """Return the declared phases, else those of the run's ``phase`` events."""
    if manifest.phases:
        return tuple(RunPhase(name=name, first=first, last=last) for name, first, last in manifest.phases)
    events = sorted(history.events("phase"), key=lambda event: event["step"])
    ends = [*(int(event["step"]) - 1 for event in events[1:]), None][: len(events)]
    # Every start declares its phases again: of repeated events, all but the last would end before they begin.
    return tuple(
        RunPhase(name=str(event.get("name", "?")), first=int(event["step"]), last=last)
        for event, last in zip(events, ends, strict=True)
        if last is None or last >= event["step"]
    )


def _environment(manifest: Manifest) -> dict[str, Any]:
    """Return what may affect the results besides the config: versions, git state, host, command, device."""
    # The last start: an earlier one may have used another machine, but the result is from here.
    last: Mapping[str, Any] = manifest.segments[-1] if manifest.segments else {}
    command: Sequence[object] | str | None = last.get("command")
    facts: dict[str, Any] = {
        **manifest.versions,
        "git commit": manifest.git.get("commit"),
        "git dirty": manifest.git.get("dirty"),
        "host": last.get("host"),
        "command": command if isinstance(command, str | None) else " ".join(map(str, command)),
        "device": manifest.about.get("device"),
        "starts": len(manifest.segments) or None,
    }
    return {name: value for name, value in facts.items() if value is not None}
