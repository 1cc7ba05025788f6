"""run.json: what a run is, so that its folder explains itself."""

import dataclasses
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import orjson

from fieldwatch.base import InputError, output_path, write_file
from fieldwatch.record.catalogue import Catalogue
from fieldwatch.record.checkpoint_folders import checkpoint_folders, manifests_in_checkpoints
from fieldwatch.record.damage import DamageTally
from fieldwatch.record.metric import Metric
from fieldwatch.record.toolkit_metrics import TOOLKIT

RunState = Literal["running", "finished", "interrupted", "failed", "diverged"]
PACKAGES = ("fieldwatch", "torch", "numpy", "tensorboard")
RUN = "run.json"
SEAL = "sha256"
"""The key of run.json's own hash: of all its other keys as JSON in order of the keys, without spaces."""


class NotARun(InputError):  # noqa: N818  says what the folder is
    """The folder holds no run, or its run.json cannot be read."""


def _nothing() -> dict[str, Any]:
    return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of run.json.

    Attributes:
        config: the resolved configuration, as plain JSON values.
        preset_difference: what differs from the preset, key to ``[preset, chosen]``.
        windows: declared active window per loss term, ``[first, last]``, last inclusive.
        phases: named phases, ``[name, first, last]``.
        versions: python, platform and package versions.
        git: commit and whether the tree was dirty; empty outside a checkout.
        segments: one entry per start: when, at which step, by which process.
        state: how the last segment stands or ended.
        about: whatever else the pipeline wants a reader to know (its name, data, teacher).
        metrics: what the run records and what it means; the toolkit's own are not listed.
    """

    config: Mapping[str, Any]
    preset_difference: Mapping[str, Any] = dataclasses.field(default_factory=_nothing)
    windows: Mapping[str, tuple[int, int | None]] = dataclasses.field(default_factory=_nothing)
    phases: tuple[tuple[str, int, int | None], ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=_nothing)
    git: Mapping[str, Any] = dataclasses.field(default_factory=_nothing)
    segments: tuple[Mapping[str, Any], ...] = ()
    state: RunState = "running"
    about: Mapping[str, Any] = dataclasses.field(default_factory=_nothing)
    metrics: tuple[Metric, ...] = ()

    def catalogue(self) -> Catalogue:
        """What the run's metrics mean: as it declared them, and the toolkit's own."""
        return Catalogue({metric.name: metric for metric in (*TOOLKIT, *self.metrics)}.values())

    def text(self) -> str:
        """Return the contents of run.json, with their hash."""
        # Through JSON once: the hash covers exactly what a reader will parse.
        fields = orjson.loads(orjson.dumps(self))
        return orjson.dumps(fields | {SEAL: _hash(fields)}, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()

    def write(self, folder: Path) -> None:
        """Replace run.json in one piece; when this returns, it and its name are on the disk."""
        write_file(output_path(folder, RUN), self.text().encode() + b"\n", durable=True)


def holds_run(folder: Path) -> bool:
    """Whether a run was started in this folder: it has a run.json, or checkpoints."""
    return (folder / RUN).is_file() or bool(checkpoint_folders(folder) or checkpoint_folders(folder, set_aside=True))


def read_manifest(folder: str | Path, damage: DamageTally | None = None) -> Manifest:
    """Read a run folder's run.json; where that is missing or damaged, what the newest checkpoint holds of it.

    Args:
        folder: the run's.
        damage: notes that run.json is missing or damaged, and what was used in its place.

    Raises:
        NotARun: there is neither, or run.json is not one of ours.
    """
    path = Path(folder) / RUN
    try:
        return _parsed(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        cause: Exception = error
        problem = "is missing"
        refusal = f"{folder} holds no run (no {RUN}): give the folder that `fieldwatch train` printed"
    except (IsADirectoryError, TypeError, KeyError, ValueError, AttributeError) as error:
        cause = error
        problem = f"is damaged ({error})"
        refusal = f"{path} is not a fieldwatch {RUN} ({error}): restore it from a copy, or start a new run"
    for place, text in manifests_in_checkpoints(Path(folder)):
        if damage is not None:
            damage.add_file(path, f"{problem}: what it said is taken from {place.name}")
        return _parsed(text.encode())
    raise NotARun(refusal) from cause


def _parsed(text: bytes) -> Manifest:
    """Return the manifest in the contents of run.json; a ValueError says what is wrong with them."""
    stored = orjson.loads(text)
    # Versions before the seal wrote none; their files are accepted as they are.
    seal = stored.pop(SEAL, None)
    if seal is not None and seal != _hash(stored):
        raise ValueError("it does not have the hash written with it")
    windows = {term: (first, last) for term, (first, last) in stored.pop("windows").items()}
    phases = tuple((name, first, last) for name, first, last in stored.pop("phases"))
    metrics = tuple(Metric(**one) for one in stored.pop("metrics", ()))
    segments = tuple(stored.pop("segments"))
    return Manifest(**stored, segments=segments, windows=windows, phases=phases, metrics=metrics)


def _hash(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


def versions() -> dict[str, str]:
    """Python, platform and the packages that decide the numbers."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def git_state() -> dict[str, Any]:
    """Commit and dirtiness of the checkout the process works in; empty where there is none."""
    try:
        # Untracked files do not count: most of them are outputs of runs.
        commit = _git("rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return {}


def new_segment(step: int) -> dict[str, Any]:
    """Describe the start of one process's part of a run."""
    return {
        "step": step,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "pid": os.getpid(),
        "command": sys.argv,
    }


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()  # noqa: S603  fixed words, no shell
