"""Record of a reconstruction: its input and settings, and the outcome of every finished stage."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self, cast

import orjson

from fieldwatch.cli.kit import BadInput
from fieldwatch.files import output_path, write_file
from fieldwatch.recon.commands.reconstruct.flags import ReconstructFlags

FILE: Final = "reconstruct.json"
RUN: Final = "run"
"""Folder of the training."""
# The device may change between two calls: a run can move to another machine.
_FREE: Final = ("out", "json", "device")


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """A finished stage.

    Attributes:
        words: words of its command after ``fieldwatch``.
        seconds: duration of its last call.
        code: exit code: 0, or 1 for a training with findings.
        outcome: what it printed as JSON.
        processor_seconds: processor time of its last call; 0 where the system does not tell that of other processes.
    """

    words: list[str]
    seconds: float
    code: int
    outcome: dict[str, Any]
    processor_seconds: float = 0.0


@dataclass(kw_only=True)
class Record:
    """Record of a reconstruction, kept in `FILE`.

    Attributes:
        folder: folder of the results.
        settings: flags by name.
        input: digest of the names, sizes and times of the input files.
        stages: finished stages by name.
    """

    folder: Path
    settings: dict[str, Any]
    input: str
    stages: dict[str, StageRecord] = field(default_factory=dict[str, StageRecord])

    @classmethod
    def open(cls, chosen: ReconstructFlags, training: Sequence[str]) -> Self:
        """Return the record in ``--out``, or a new one.

        Args:
            chosen: flags.
            training: further flags of the training.

        Raises:
            BadInput: the folder holds something else, or a reconstruction with other settings or of other files.
        """
        settings = {name: value for name, value in _plain(asdict(chosen)).items() if name not in _FREE}
        settings["training"] = list(training)
        fresh = cls(folder=chosen.out, settings=settings, input=digest_of(chosen.data))
        path = output_path(chosen.out, FILE)
        if path.exists():
            fresh.stages = fresh._finished_stages(path)
        elif chosen.out.is_dir() and any(chosen.out.iterdir()):
            raise BadInput(
                f"--out {chosen.out} is not empty and holds no {FILE}: expected a new folder, or one of an earlier "
                "`fieldwatch reconstruct`"
            )
        return fresh

    def _finished_stages(self, path: Path) -> dict[str, StageRecord]:
        """Return the stages in a file, after comparing its input and settings with ours."""
        stored = _read(path)
        before = stored["settings"]
        stages = {name: StageRecord(**stage) for name, stage in stored["stages"].items()}
        # A record from before this flag has none.
        before.setdefault("masks", False)
        changed = [name for name in self.settings if self.settings[name] != before.get(name)]
        if not self._is_past_cameras(stages):
            # No stage has used masks yet, and without this flag the cameras of an object that has none would be lost.
            changed = [name for name in changed if name != "masks"]
        if changed:
            listed = ", ".join(f"{name} was {before.get(name)}, now {self.settings[name]}" for name in changed)
            raise BadInput(f"--out {self.folder} holds a reconstruction with other settings ({listed}): use another -o")
        if stored["input"] != self.input:
            raise BadInput(f"{self.settings['data']} has changed since {path} was written: use another -o")
        return stages

    def _is_past_cameras(self, stages: Mapping[str, StageRecord]) -> bool:
        """Return whether a stage after the one of the cameras has finished, or the training has begun."""
        return bool(set(stages) - {"cameras"}) or output_path(self.folder, RUN).exists()

    def add(self, name: str, stage: StageRecord) -> None:
        """Add a finished stage, and write the file."""
        self.stages[name] = stage
        self.write()

    def file_of(self, stage: str, name: str) -> str:
        """Return a file that a stage wrote; empty if the stage is not finished or wrote none of this name."""
        done = self.stages.get(stage)
        if done is None:
            return ""
        # A command that writes one file calls it ``file``.
        files = done.outcome.get("files") or {"file": done.outcome.get("file")}
        return str(files.get(name) or "")

    def write(self) -> None:
        """Write the file, atomically."""
        stages = {key: asdict(value) for key, value in self.stages.items()}
        facts = {"settings": self.settings, "input": self.input, "stages": stages}
        write_file(output_path(self.folder, FILE), orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n")


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a record.

    Raises:
        BadInput: it is damaged.
    """
    try:
        stored = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{path} is damaged ({error}): delete it to make all stages again") from error
    if not isinstance(stored, dict) or set(cast("dict[str, Any]", stored)) != {"settings", "input", "stages"}:
        raise BadInput(f"{path} is not a record of `fieldwatch reconstruct`: delete it to make all stages again")
    return cast("dict[str, Any]", stored)


def digest_of(path: Path) -> str:
    """Return a digest of the names, sizes and times of change of a file, or of all files below a folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            facts = file.stat()
            digest.update(f"{file.relative_to(path.parent)}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as JSON has them; paths become absolute."""
    return {name: str(value.resolve()) if isinstance(value, Path) else value for name, value in values.items()}
