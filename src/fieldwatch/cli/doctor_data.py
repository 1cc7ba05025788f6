"""Recognizes what kind of data a path holds: each installed pipeline knows its own."""

from collections.abc import Sequence
from pathlib import Path

from fieldwatch.cli.output import BadInput
from fieldwatch.registry import DataKind, resolve, working_pipelines

AUTO = "auto"


def data_kinds() -> dict[str, DataKind]:
    """Return the kinds of data that installed pipelines check, by name."""
    return {kind.name: kind for pipeline in working_pipelines()[0] for kind in pipeline.data}


def kind_of(path: Path) -> DataKind:
    """Return what a path holds; the pipelines look at the names of what is in it.

    Raises:
        BadInput: nothing is there, or nothing that is known; the message says what was found and what was expected.
        PermissionError: the folder may not be read.
    """
    if not path.exists():
        raise BadInput(f"{path} does not exist: give a folder or a file, holding {_wanted()}")
    kind = _most_certain(path)
    if kind is not None:
        return kind
    raise BadInput(_unknown(path, sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []))


def _most_certain(path: Path) -> DataKind | None:
    certain = [(resolve(kind.recognize)(path), kind) for kind in data_kinds().values()]
    certainty, kind = max(certain, key=lambda pair: pair[0], default=(0, None))
    return kind if certainty > 0 else None


def _wanted() -> str:
    *others, last = [kind.wanted for kind in data_kinds().values()] or ["data of an installed pipeline"]
    return ", ".join(others) + (" or " if others else "") + last


def _unknown(path: Path, names: Sequence[str]) -> str:
    if "run.json" in names:
        return f"{path} is a run, not data: `fieldwatch health {path}` says what is wrong with it"
    if path.is_file():
        return f"{path} is a file of no known kind: give {_wanted()}"
    found = ", ".join(names[:10]) + (f", ... ({len(names)})" if len(names) > 10 else "")
    if not names:
        return f"{path} is empty: give a folder or a file, holding {_wanted()}"
    # Often the folder above the data is given by mistake.
    folders = (path / name for name in names if (path / name).is_dir())
    below = next((folder for folder in folders if _most_certain(folder) is not None), None)
    hint = f"did you mean {below}? Else give" if below else "give"
    return f"{path} holds nothing that is known (found: {found}): {hint} {_wanted()}"
