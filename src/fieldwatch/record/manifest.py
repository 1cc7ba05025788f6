"""run.json, the description of a run: config, versions, segments, state and declared metrics."""

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
from typing import Any, Literal, cast

import orjson

from fieldwatch.base import InputError, output_path, write_file
from fieldwatch.record.catalogue import Catalogue
from fieldwatch.record.checkpoint_listing import checkpoint_folders, manifests_in_checkpoints
from fieldwatch.record.damage import DamageTally
from fieldwatch.record.metric import Metric
from fieldwatch.record.toolkit_metrics import TOOLKIT

RunState = Literal["running", "finished", "interrupted", "failed", "diverged"]
PACKAGES = ("fieldwatch", "torch", "numpy", "tensorboard")
RUN = "run.json"
SEAL = "sha256"
"""Key of the SHA-256 of run.json: the hash of all other keys, serialized as compact JSON with sorted keys."""
_REQUIRED = ("config", "windows", "phases", "segments")


class NotARun(InputError):  # noqa: N818  named after the finding
    """Raised when a folder holds no run, or its run.json cannot be read."""


def _nothing() -> dict[str, Any]:
    return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of run.json.

    Attributes:
        config: resolved configuration, as plain JSON values.
        preset_difference: overrides of the preset: dotted key to ``[preset value, chosen value]``.
        windows: declared active window of each loss term, ``[first, last]``, last step inclusive.
        phases: named phases, ``[name, first, last]``.
        versions: versions of Python, the platform and the relevant packages.
        git: commit and whether the working tree had uncommitted changes; empty outside a checkout.
        segments: one entry per start of the process: time, step, host, process id and command.
        state: state of the last segment.
        about: additional information from the pipeline, such as its name, data and teacher model.
        metrics: declarations of the run's metrics, without those of the toolkit itself.
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
        """Return the declarations of all metrics: the toolkit's and the run's. The run's take precedence."""
        return Catalogue({metric.name: metric for metric in (*TOOLKIT, *self.metrics)}.values())

    def text(self) -> str:
        """Return the contents of run.json, including their hash."""
        # Round trip through JSON first, so that the hash covers exactly what a reader will parse.
        fields = orjson.loads(orjson.dumps(self))
        return orjson.dumps(fields | {SEAL: _hash(fields)}, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()

    def write(self, folder: Path) -> None:
        """Replace run.json atomically. When this returns, the file and its directory entry are on the disk."""
        write_file(output_path(folder, RUN), self.text().encode() + b"\n", durable=True)


def holds_run(folder: Path) -> bool:
    """Whether a run was started in this folder: it contains a run.json or checkpoints."""
    # run.json may be lost while checkpoints are intact: such a folder still belongs to a run.
    return (folder / RUN).is_file() or bool(checkpoint_folders(folder) or checkpoint_folders(folder, set_aside=True))


def read_manifest(folder: str | Path, damage: DamageTally | None = None) -> Manifest:
    """Read the run.json of a run folder; if it is missing or damaged, use the copy in the newest intact checkpoint.

    Args:
        folder: the run folder.
        damage: receives a note if run.json is missing or damaged, with the checkpoint used instead.

    Raises:
        NotARun: if there is neither a readable run.json nor a copy of it in a checkpoint.
    """
    path = Path(folder) / RUN
    try:
        return _parsed(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        cause: Exception = error
        problem = "is missing"
        refusal = f"{folder} holds no run (no {RUN}): expected the folder that `fieldwatch train` printed"
    except (IsADirectoryError, ValueError) as error:
        cause = error
        problem = f"is damaged ({error})"
        refusal = f"{path} is not a fieldwatch {RUN} ({error}): restore it from a copy, or start a new run"
    for checkpoint, text in manifests_in_checkpoints(Path(folder)):
        try:
            manifest = _parsed(text.encode())
        except ValueError:
            # The checkpoint is intact, so another version wrote a copy that this one cannot read. Try an older one.
            continue
        if damage is not None:
            damage.add_file(path, f"{problem}: its contents are restored from {checkpoint.name}")
        return manifest
    raise NotARun(refusal) from cause


def _parsed(text: bytes) -> Manifest:
    """Parse the contents of run.json.

    Raises:
        ValueError: if the contents are not those of a run.json; the message explains why.
    """
    try:
        return _manifest(orjson.loads(text))
    # The file was edited, or another program wrote it: a value is not of the type that its key requires.
    except (AttributeError, TypeError) as error:
        raise ValueError(str(error)) from error


def _manifest(contents: object) -> Manifest:
    if not isinstance(contents, dict):
        raise TypeError(f"expected a JSON object with the keys of a run, got {type(contents).__name__}")
    stored = cast("dict[str, Any]", contents)
    # Older versions wrote no hash; their files are accepted without verification.
    seal = stored.pop(SEAL, None)
    if seal is not None and seal != _hash(stored):
        raise ValueError("its contents do not match the stored hash")
    missing = [name for name in _REQUIRED if name not in stored]
    if missing:
        raise ValueError(f"expected the keys {', '.join(_REQUIRED)}, got none for {', '.join(missing)}")
    known = _known_fields(Manifest, stored)
    # JSON has no tuples.
    known["windows"] = {term: (first, last) for term, (first, last) in stored["windows"].items()}
    known["phases"] = tuple((name, first, last) for name, first, last in stored["phases"])
    known["segments"] = tuple(stored["segments"])
    known["metrics"] = tuple(Metric(**_known_fields(Metric, metric)) for metric in stored.get("metrics", ()))
    return Manifest(**known)


def _known_fields(kind: type[Manifest | Metric], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored values that a class has a field for; newer versions of fieldwatch may write others, too."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in stored.items() if name in names}


def _hash(fields: Mapping[str, Any]) -> str:
    # Sorted keys make the hash independent of the order in the file.
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that affect numerical results."""
    by_name = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            by_name[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            by_name[package] = "not installed"
    return by_name


def git_state() -> dict[str, Any]:
    """Return the commit of the current git checkout and whether it has changes; an empty dict outside a checkout."""
    try:
        # Ignore untracked files: most of them are outputs of runs.
        commit = _git("rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return {}


def new_segment(step: int) -> dict[str, Any]:
    """Return the manifest entry for a process that starts or resumes the run at ``step``."""
    return {
        "step": step,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "pid": os.getpid(),
        "command": sys.argv,
    }


def _git(*arguments: str) -> str:
    # The timeout keeps a hanging git, for example on a network file system, from blocking the start of a run.
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()  # noqa: S603  fixed words, no shell
