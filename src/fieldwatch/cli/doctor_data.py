"""Recognition of the kind of data in a path; each installed pipeline recognizes its own kinds."""

from collections.abc import Sequence
from pathlib import Path

from fieldwatch.cli.output import BadInput
from fieldwatch.registry import DataKind, resolve, working_pipelines

AUTO = "auto"


def data_kinds() -> dict[str, DataKind]:
    """Return the kinds of data that installed pipelines check, by name."""
    return {kind.name: kind for pipeline in working_pipelines()[0] for kind in pipeline.data}


def kind_of(path: Path) -> DataKind:
    """Return the kind of data in a path, recognized by file names.

    Raises:
        BadInput: the path is missing, or its kind unknown; the message lists what was found and what was expected.
        PermissionError: the folder may not be read.
    """
    if not path.exists():
        raise BadInput(f"{path} does not exist: give a folder or a file with {_wanted()}")
    kind = _most_certain(path)
    if kind is not None:
        return kind
    raise BadInput(_unknown(path, sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []))


def _most_certain(path: Path) -> DataKind | None:
    # Kinds overlap (a COLMAP folder also holds pictures), so each recognizer returns a certainty.
    certain = [(resolve(kind.recognize)(path), kind) for kind in data_kinds().values()]
    certainty, kind = max(certain, key=lambda pair: pair[0], default=(0, None))
    return kind if certainty > 0 else None


def _wanted() -> str:
    *others, last = [kind.wanted for kind in data_kinds().values()] or ["data of an installed pipeline"]
    return ", ".join(others) + (" or " if others else "") + last


def _unknown(path: Path, names: Sequence[str]) -> str:
    if "run.json" in names:
        return f"{path} is a run, not data: check it with `fieldwatch health {path}`"
    if path.is_file():
        return f"{path} is a file of an unknown kind: give {_wanted()}"
    listed = ", ".join(names[:10]) + (f", ... ({len(names)})" if len(names) > 10 else "")
    if not names:
        return f"{path} is empty: give a folder or a file with {_wanted()}"
    # Often the folder above the data is given by mistake.
    folders = (path / name for name in names if (path / name).is_dir())
    below = next((folder for folder in folders if _most_certain(folder) is not None), None)
    hint = f"did you mean {below}? Else give" if below else "give"
    return f"{path} holds no known kind of data (found: {listed}): {hint} {_wanted()}"
