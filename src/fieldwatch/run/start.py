"""The start of a run: may it begin in this folder, and what is written down about it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fieldwatch.measure import Phase, Window
from fieldwatch.record import (
    Manifest,
    State,
    config_differences,
    git_state,
    holds_run,
    new_segment,
    plain,
    read_manifest,
    refuse_mismatch,
    versions,
)

Resume = Literal["auto", "never", "must"]
FOREVER = 2**31 - 1
"""The last step of a window that ends with the run."""


def check_folder(folder: Path, config: Mapping[str, Any], resume: Resume) -> bool:
    """Whether the run in this folder is to be continued.

    Raises:
        ConfigMismatch: it holds a run with another config.
        FileExistsError: it holds a run, and ``resume`` is ``never``; or it is a file.
        FileNotFoundError: it holds none, and ``resume`` is ``must``.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: a run needs a folder of its own, choose another with --out")
    found = holds_run(folder)
    if found and resume == "never":
        raise FileExistsError(f"{folder} holds a run already: choose another folder, or continue it (resume='auto')")
    if not found and resume == "must":
        raise FileNotFoundError(
            f"{folder} holds no run to resume: check the path, or start one with `fieldwatch train`"
        )
    if found:
        refuse_mismatch(folder, read_manifest(folder).config, config)
    return found


def describe_run(  # noqa: PLR0913  one argument per fact
    folder: Path,
    *,
    step: int,
    config: Mapping[str, Any],
    preset: Any,
    windows: Mapping[str, Window],
    phases: Iterable[Phase],
    about: Mapping[str, Any],
) -> Manifest:
    """The run's manifest, with a new segment that starts at ``step``; earlier segments are kept."""
    earlier: Sequence[Mapping[str, Any]] = read_manifest(folder).segments if holds_run(folder) else ()
    base = plain(preset)
    return Manifest(
        config=config,
        preset_difference=config_differences(base, config) if base else {},
        windows={term: (window.first, window.last) for term, window in windows.items()},
        phases=tuple((phase.name, phase.window.first, phase.window.last) for phase in phases),
        versions=versions(),
        git=git_state(),
        segments=(*earlier, new_segment(step)),
        about=about,
    )


def end_state(error: BaseException | None, *, diverged: bool) -> State:
    """How a segment ended, in one word."""
    if error is None:
        return "finished"
    if diverged:
        return "diverged"
    return "interrupted" if isinstance(error, SystemExit | KeyboardInterrupt) else "failed"
