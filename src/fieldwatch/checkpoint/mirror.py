"""Mirror of the checkpoints in a second folder or bucket, accessed with fsspec."""

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
    """Result of copying one checkpoint.

    Attributes:
        name: name of the checkpoint's folder.
        step: step of the checkpoint.
        error: error that prevented the copy; None if it succeeded.
    """

    name: str
    step: int
    error: Exception | None = None


@final
class Mirror:
    """Copies a run's checkpoints to a URL on a background thread.

    A copy is complete if it has its ``manifest.sha256``, which is written last and deleted first.

    Args:
        url: fsspec URL of a folder or bucket, such as ``s3://bucket/run`` or ``file:///mnt/share/run``.
        keep: retention rules of the mirror.

    Attributes:
        copied: results of the copies, to be consumed by the training thread.

    Raises:
        CheckpointError: if fsspec does not support the URL or lacks the package for it.
    """

    def __init__(self, url: str, keep: Retention) -> None:
        self.url = url
        self._keep = keep
        import fsspec  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]  at first use

        try:
            system, root = cast("Any", fsspec).url_to_fs(url)
        except (ImportError, ValueError) as error:
            advice = "use a URL that fsspec supports (file://, s3:// with s3fs installed, ...), or omit the mirror"
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
        """Copy a checkpoint in the background; while a copy is in progress, only the newest offer is queued."""
        with self._lock:
            self._next = folder
            # The thread takes the newest offer when its copy is done; those in between are skipped.
            if self._copying:
                return
            self._copying = True
        # The thread may still be finishing its last task: `_copying` is reset before the thread is idle.
        self._thread.wait()
        self._thread.begin(self._work)

    def close(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the copies in progress, and return whether they ended."""
        return self._thread.close(seconds)

    def config(self) -> Mapping[str, Any] | None:
        """Return the configuration of the mirrored run; None if the mirror is empty."""
        path = str(self._root / RUN)
        if not self._system.exists(path):
            return None
        return orjson.loads(self._system.cat_file(path))["config"]

    def names(self) -> list[str]:
        """Return the names of the complete checkpoints, ordered by step and rewrite, without verifying hashes."""
        folder = str(self._root / CHECKPOINTS)
        if not self._system.isdir(folder):
            return []
        names = [PurePosixPath(path).name for path in self._system.ls(folder, detail=False)]
        complete = [name for name in names if _step_and_rewrite(name) and self._system.exists(self._path(name, SEAL))]
        return sorted(complete, key=_step_and_rewrite)

    def fetch(self, folder: Path) -> list[Incident]:
        """Copy the last good checkpoint into a run's folder of checkpoints, and verify every hash.

        Returns:
            The damaged checkpoints that were skipped.

        Raises:
            CheckpointError: if the mirror has checkpoints but none is good.
            OSError: if the disk or the mirror fails.
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
            raise StoredStateError(
                f"the mirror {self.url} has no good checkpoint: {reasons}; start a new run without the mirror"
            )
        return damaged

    def _fetch(self, name: str, folder: Path) -> None:
        make_folder(folder)
        temporary = folder / f".tmp-step_mirror-{os.getpid()}-{os.urandom(4).hex()}"
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, temporary, ignore_errors=True)
            temporary.mkdir()
            for part in (SEAL, MANIFEST):
                self._fetch_file(name, temporary / part)
            # The manifest determines the name of the tensors' file.
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
        except Exception as error:  # noqa: BLE001  thread border: a failed copy is reported and must not stop the run
            # Retention has deleted the checkpoint meanwhile; a newer one is offered next.
            if isinstance(error, FileNotFoundError) and not folder.is_dir():
                return
            failure = error
        self.copied.append(CopyResult(name=folder.name, step=_step_and_rewrite(folder.name)[0], error=failure))

    def _copy(self, folder: Path) -> None:
        with ExitStack() as files:
            tensors = decode((folder / MANIFEST).read_bytes()).layout.file
            names = (tensors, MANIFEST, SEAL)
            # All files are opened before copying, because retention may delete the folder meanwhile.
            parts = [files.enter_context((folder / name).open("rb")) for name in names]
            # Deleted first and written last, so that an interrupted copy never looks complete.
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
        """Delete checkpoints that retention does not keep, and those of later steps, which belong to an old branch."""
        names = self.names()
        last = _step_and_rewrite(newest)
        # The run went back and saved this step again: later ones belong to the abandoned branch.
        abandoned = [name for name in names if _step_and_rewrite(name) > last]
        known = {name: found for name in names if name not in abandoned and (found := self._candidate(name, newest))}
        # Names are ordered, so that the latest rewrite of a step wins.
        current = {candidate.step: name for name, candidate in known.items()}
        kept = {current[step] for step in self._keep.kept([known[name] for name in current.values()])}
        for name in [*abandoned, *(name for name in known if name not in kept)]:
            self._delete_seal(name)
            self._system.rm(self._path(name), recursive=True)

    def _candidate(self, name: str, newest: str) -> RetentionCandidate | None:
        """Return the retention candidate of a checkpoint; None if it is damaged, in which case it is not deleted."""
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
    """Return the step and the number of the rewrite in a checkpoint's folder name; empty for any other name."""
    kind, _, number = name.partition("_")
    step, _, rewrite = number.partition(".")
    if kind not in ("step", "ckpt") or not step.isdigit() or not (rewrite or "1").isdigit():
        return ()
    return int(step), int(rewrite or 1)
