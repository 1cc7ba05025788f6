"""A second place for checkpoints: any folder or bucket that fsspec can name."""

import os
import shutil
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast, final

import orjson

from fieldwatch.checkpoint.files import make_folder, read_small, rename_synced
from fieldwatch.checkpoint.folder import MANIFEST, SEAL, verify_folder
from fieldwatch.checkpoint.incident import DamageError, Incident, StoredStateError
from fieldwatch.checkpoint.manifest import MAX_MANIFEST_BYTES, decode, seal
from fieldwatch.checkpoint.retention import Retention, RetentionCandidate
from fieldwatch.checkpoint.worker import BackgroundWorker

CHECKPOINTS = "checkpoints"
RUN = "run.json"
_CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True, kw_only=True)
class CopyResult:
    """What came of copying one checkpoint.

    Attributes:
        name: its folder's name.
        step: its step.
        error: why it is not there; None if it is.
    """

    name: str
    step: int
    error: Exception | None = None


@final
class Mirror:
    """The copy of a run's checkpoints at a URL, made by a thread of its own.

    A checkpoint is whole there when its ``manifest.sha256`` is, which is written last and deleted first.

    Args:
        url: a folder or bucket as fsspec names it, such as ``s3://bucket/run`` or ``file:///mnt/share/run``.
        keep: which checkpoints stay there.

    Attributes:
        copied: what came of each copy, for the training's thread to take.

    Raises:
        CheckpointError: fsspec does not know such a URL, or lacks the package for it.
    """

    def __init__(self, url: str, keep: Retention) -> None:
        self.url = url
        self._keep = keep
        import fsspec  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]  at first use

        try:
            system, root = cast("Any", fsspec).url_to_fs(url)
        except (ImportError, ValueError) as error:
            advice = "use a URL that fsspec knows (file://, s3:// with s3fs installed, ...), or leave the mirror out"
            raise StoredStateError(f"the mirror {url!r} cannot be used: {error}; {advice}") from error
        self._system = system
        self._root = PurePosixPath(root)
        self.copied: deque[CopyResult] = deque()
        self._thread = BackgroundWorker("fieldwatch-mirror")
        self._lock = threading.Lock()
        self._next: Path | None = None
        self._copying = False
        self._candidates: dict[str, RetentionCandidate] = {}

    def offer(self, folder: Path) -> None:
        """Copy a checkpoint there, in the background; if a copy is under way, the newest offer comes after it."""
        with self._lock:
            self._next = folder
            # The thread that copies takes the newest offer when it is done; those in between are skipped.
            if self._copying:
                return
            self._copying = True
        self._thread.wait()
        self._thread.begin(self._work)

    def close(self, seconds: float) -> bool:
        """Let copies under way end, for at most so long; returns whether they did."""
        return self._thread.close(seconds)

    def config(self) -> Mapping[str, Any] | None:
        """The configuration of the run whose checkpoints lie there; None if there are none."""
        path = str(self._root / RUN)
        if not self._system.exists(path):
            return None
        return orjson.loads(self._system.cat_file(path))["config"]

    def names(self) -> list[str]:
        """The checkpoints there that are whole by the look of it, by step; of one step the later written last."""
        place = str(self._root / CHECKPOINTS)
        if not self._system.isdir(place):
            return []
        names = [PurePosixPath(path).name for path in self._system.ls(place, detail=False)]
        whole = [name for name in names if _step_and_rewrite(name) and self._system.exists(self._path(name, SEAL))]
        return sorted(whole, key=_step_and_rewrite)

    def fetch(self, folder: Path) -> list[Incident]:
        """Bring the last good checkpoint into a run's folder of checkpoints; every hash is checked.

        Returns:
            The damaged ones that were passed over.

        Raises:
            CheckpointError: there is no good one among those that are there.
            OSError: the disk here, or the place there, fails.
        """
        damaged = list[Incident]()
        for name in reversed(self.names()):
            try:
                self._fetch(name, folder)
            except (DamageError, FileNotFoundError) as error:
                where = Path(self.url, CHECKPOINTS, name)
                damaged.append(Incident(step=_step_and_rewrite(name)[0], what="damaged", reason=str(error), path=where))
            else:
                return damaged
        if damaged:
            reasons = "; ".join(f"step {candidate.step}: {candidate.reason}" for candidate in damaged)
            raise StoredStateError(f"the mirror {self.url} has no good checkpoint: {reasons}; start anew without it")
        return damaged

    def _fetch(self, name: str, folder: Path) -> None:
        make_folder(folder)
        temporary = folder / f".tmp-step_mirror-{os.getpid()}-{os.urandom(4).hex()}"
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, temporary, ignore_errors=True)
            temporary.mkdir()
            for part in (SEAL, MANIFEST):
                self._fetch_file(name, temporary / part)
            manifest = decode(read_small(temporary / MANIFEST, MAX_MANIFEST_BYTES))
            self._fetch_file(name, temporary / manifest.layout.file)
            verify_folder(temporary)
            rename_synced(temporary, folder / name)

    def _fetch_file(self, name: str, to: Path) -> None:
        with self._system.open(self._path(name, to.name), "rb") as there, to.open("wb") as here:
            shutil.copyfileobj(there, here, _CHUNK_BYTES)
            here.flush()
            os.fsync(here.fileno())

    def _work(self) -> None:
        while (folder := self._take_next()) is not None:
            self._copy_and_note(folder)

    def _take_next(self) -> Path | None:
        with self._lock:
            folder = self._next
            self._next = None
            self._copying = folder is not None
            return folder

    def _copy_and_note(self, folder: Path) -> None:
        failure: Exception | None = None
        try:
            self._copy(folder)
        except Exception as error:  # noqa: BLE001  thread border: a failed copy is an event of the run, and no reason to stop
            if isinstance(error, FileNotFoundError) and not folder.is_dir():
                return  # retention has deleted it since; a newer one is offered next
            failure = error
        self.copied.append(CopyResult(name=folder.name, step=_step_and_rewrite(folder.name)[0], error=failure))

    def _copy(self, folder: Path) -> None:
        with ExitStack() as files:
            tensors = decode((folder / MANIFEST).read_bytes()).layout.file
            names = (tensors, MANIFEST, SEAL)
            # All files are opened before copying: retention may delete the folder meanwhile.
            parts = [files.enter_context((folder / name).open("rb")) for name in names]
            # Deleted first and written last: a copy that is cut off never looks whole.
            self._delete_seal(folder.name)
            self._system.makedirs(self._path(folder.name), exist_ok=True)
            if (folder.parent.parent / RUN).exists():
                self._system.pipe_file(str(self._root / RUN), (folder.parent.parent / RUN).read_bytes())
            for part, name in zip(parts, names, strict=True):
                with self._system.open(self._path(folder.name, name), "wb") as there:
                    shutil.copyfileobj(part, there, _CHUNK_BYTES)
        self._prune(folder.name)

    def _delete_seal(self, name: str) -> None:
        self._candidates.pop(name, None)
        if self._system.exists(self._path(name, SEAL)):
            self._system.rm_file(self._path(name, SEAL))

    def _prune(self, newest: str) -> None:
        """Delete what the retention does not want, and later steps, which belong to a branch that was left."""
        names = self.names()
        last = _step_and_rewrite(newest)
        # The run went back and saved this step again: later ones belong to the branch that it left.
        abandoned = [name for name in names if _step_and_rewrite(name) > last]
        known = {name: found for name in names if name not in abandoned and (found := self._candidate(name, newest))}
        current = {candidate.step: name for name, candidate in known.items()}  # of one step the last written
        kept = {current[step] for step in self._keep.kept([known[name] for name in current.values()])}
        for name in [*abandoned, *(name for name in known if name not in kept)]:
            self._delete_seal(name)
            self._system.rm(self._path(name), recursive=True)

    def _candidate(self, name: str, newest: str) -> RetentionCandidate | None:
        """What retention needs to know; None for a damaged one, which is left alone."""
        if name not in self._candidates:
            text = self._system.cat_file(self._path(name, MANIFEST))
            if self._system.cat_file(self._path(name, SEAL)) != seal(text):
                return None
            manifest = decode(text)
            self._candidates[name] = RetentionCandidate(
                step=manifest.step, metrics=manifest.metrics, verified=name == newest
            )
        return self._candidates[name]

    def _path(self, *parts: str) -> str:
        return str(self._root.joinpath(CHECKPOINTS, *parts))


def _step_and_rewrite(name: str) -> tuple[int, ...]:
    """Step and turn of a checkpoint's folder, by which they are ordered; empty for any other name."""
    kind, _, number = name.partition("_")
    step, _, rewrite = number.partition(".")
    if kind not in ("step", "ckpt") or not step.isdigit() or not (rewrite or "1").isdigit():
        return ()
    return int(step), int(rewrite or 1)
