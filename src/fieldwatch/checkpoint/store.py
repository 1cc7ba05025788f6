"""Checkpoints on disk, written atomically and verified when read."""

import os
import re
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fieldwatch.base import refuse_link, sync_folder, write_synced
from fieldwatch.checkpoint.files import delete_folder, make_folder, rename_synced
from fieldwatch.checkpoint.folder import (
    HASH_THREADS,
    Contents,
    CopyArrays,
    Draft,
    read_folder,
    read_manifest,
    share_memory,
)
from fieldwatch.checkpoint.incident import CheckpointError, DamageError, Incident, NoWayBackError, StoredStateError
from fieldwatch.checkpoint.items import Item, gather, put_back
from fieldwatch.checkpoint.retention import DIGITS, CheckpointSelector, Retention, RetentionCandidate

# ``step_`` or ``ckpt_``, the step, and the number of the rewrite if a step was saved again: ``step_0000000400.2``.
_NAME = re.compile(r"(?:step|ckpt)_(\d{6,19})(?:\.(\d{1,9}))?")
_DEFAULT_RETENTION = Retention()
# A pin is an empty file in the checkpoint's folder, so that it survives a restart.
_PINNED = "pinned"


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """Description of a stored checkpoint.

    Attributes:
        step: number of finished steps.
        path: folder of the checkpoint.
        created: time of creation, ISO 8601 in UTC.
        metrics: metrics saved with the checkpoint.
        pinned: whether retention must keep it.
        seconds: ``seconds`` of the note, the training time; None if the note has none.
    """

    step: int
    path: Path
    created: str
    metrics: Mapping[str, float]
    pinned: bool
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Restored:
    """Result of ``Checkpoints.restore``.

    Attributes:
        step: step of the restored checkpoint.
        note: note saved with the checkpoint.
        fell_back: damaged checkpoints that were skipped, newest first.
    """

    step: int
    note: Any
    fell_back: tuple[Incident, ...] = ()


class Checkpoints:
    """The checkpoints of one run.

    A checkpoint is a folder ``step_0000000400`` (or ``ckpt_000400``, see `Retention.name`) of three files
    (``tensors.safetensors``, ``manifest.json``, ``manifest.sha256``). It is written under a temporary name, synced to
    disk and renamed before the save returns. Only one process at a time may save (see ``FolderLock``).

    Args:
        folder: folder of the checkpoints; created at the first save.
        keep: retention rules.

    Attributes:
        incidents: problems that were handled so far: damaged checkpoints, abandoned branches, folders that could not
            be deleted.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: Retention = _DEFAULT_RETENTION) -> None:
        self.folder = Path(folder)
        self.keep = keep
        self.incidents: list[Incident] = []
        self._verified: set[Path] = set()
        # A save may be written on another thread than the one that pins.
        self._pruning = threading.Lock()

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in ascending order, including damaged ones not yet read."""
        return sorted(self._folders())

    def latest(self) -> StoredCheckpoint | None:
        """Return the checkpoint with the highest step and a valid manifest, without reading its tensors."""
        return next((saved for saved in reversed(self._sound())), None)

    def find(self, step: CheckpointSelector = "last") -> StoredCheckpoint:
        """Return the checkpoint that ``read`` would read, without reading its tensors.

        Raises:
            CheckpointError: if there is none or its manifest is damaged; no files are changed.
        """
        folder = self._choose(step)[0]
        saved = self._read_saved(folder)
        if saved is None:
            others = [other for other, path in self._folders().items() if path != folder]
            raise DamageError(
                f"the manifest of {folder} is damaged; other steps are {sorted(others)}: choose one of them"
            )
        return saved

    def save(
        self, step: int, items: Mapping[str, Item], *, metrics: Mapping[str, float] | None = None, note: Any = None
    ) -> Path:
        """Write a checkpoint and return when it is synced to disk, so that it survives a power failure.

        The items must not change during the call: a tensor that changes while it is written would not match its hash.

        Checkpoints of higher steps belong to an abandoned branch; they are renamed to ``abandoned-step_...`` and kept.

        Args:
            step: number of finished steps, by which checkpoints are ordered.
            items: objects and tensors to save, by name.
            metrics: metrics of the checkpoint; ``keep.metric`` selects the one to rank by.
            note: tree of plain values, such as ``{"epoch": 3}``.

        Returns:
            The folder of the checkpoint.

        Raises:
            CheckpointError: if a value cannot be stored, or the disk is full or fails; earlier checkpoints are kept.
        """
        # No copy is needed, because the caller waits until everything is written.
        draft = self.take(step, items, share_memory, metrics=metrics)
        draft.put_note(note)
        return self.write(draft)

    def write(self, draft: Draft, *, threads: int | None = None) -> Path:
        """Write a snapshot taken with :meth:`take`, as :meth:`save` does.

        Args:
            draft: snapshot to write.
            threads: number of hashing threads; None for up to four.

        Raises:
            CheckpointError: if the disk is full or fails; earlier checkpoints are kept.
        """
        try:
            final = self._write(draft.step, draft, threads)
        except OSError as error:
            raise CheckpointError(self._describe_failure(draft.step, draft.nbytes, error)) from error
        with self._pruning:
            self._verified.add(final)
            self._prune()
        return final

    def take(
        self,
        step: int,
        items: Mapping[str, Item],
        copy_arrays: CopyArrays,
        *,
        metrics: Mapping[str, float] | None = None,
    ) -> Draft:
        """Take a snapshot for :meth:`write`.

        Args:
            step: see :meth:`save`.
            items: see :meth:`save`.
            copy_arrays: function that shares or copies the arrays.
            metrics: see :meth:`save`.

        Raises:
            CheckpointError: if a value cannot be stored.
        """
        figures = {name: float(value) for name, value in (metrics or {}).items()}
        return Draft(Contents(step=_checked(step), metrics=figures, note=None, items=gather(items)), copy_arrays)

    def restore(
        self,
        items: Mapping[str, Item],
        *,
        step: CheckpointSelector = "last",
        renamed: Mapping[str, str] | None = None,
        optional: Collection[str] = (),
    ) -> Restored:
        """Load a checkpoint into the items after all of its hashes have been verified.

        If the checkpoint is damaged, it is renamed to ``damaged-step_...`` and the previous good one is loaded, except
        that a step given by number is never replaced by another. If there is no good checkpoint, nothing is renamed.

        Args:
            items: objects and tensors to load into, by name.
            step: checkpoint to load.
            renamed: current names of items that have other names in earlier checkpoints, by the earlier name.
            optional: names of items that a checkpoint may lack; these are then left unchanged.

        Raises:
            CheckpointError: if the checkpoint does not fit the items; the message names the item and what to do.
            NoWayBackError: if there is no good checkpoint.
        """
        damaged = dict[Path, str]()
        for folder in self._choose(step):
            try:
                contents = _read(folder)
            except DamageError as damage:
                damaged[folder] = str(damage)
                continue
            except OSError as error:
                raise CheckpointError(f"{folder} cannot be read: {error}; nothing was changed") from error
            trees = {(renamed or {}).get(name, name): tree for name, tree in contents.items.items()}
            present = {name: item for name, item in items.items() if name in trees or name not in optional}
            put_back(present, trees)
            self._verified.add(folder)
            # Rename damaged folders only now: if no checkpoint can be read, none must be renamed.
            fell_back = tuple(self._set_aside(path, reason) for path, reason in damaged.items())
            return Restored(step=contents.step, note=contents.note, fell_back=fell_back)
        # Reached only if every candidate is damaged.
        reasons = "; ".join(f"step {_step_of(folder)}: {reason}" for folder, reason in damaged.items())
        others = [other for other, path in sorted(self._folders().items()) if path not in damaged]
        rest = f"steps {others} are left" if others else "none is left"
        raise NoWayBackError(f"no good checkpoint for step {step!r} in {self.folder}: {reasons}; {rest}")

    def abandon_later(self, step: int, reason: str) -> list[Incident]:
        """Rename the checkpoints of later steps to ``abandoned-...``, so that this step is the last.

        Args:
            step: step from which the training continues.
            reason: reason, for the incidents.

        Returns:
            One incident per renamed checkpoint, in ascending order of steps.
        """
        abandoned: list[Incident] = []
        for later, folder in sorted(self._folders().items()):
            if later > step:
                target = _name_beside(folder, "abandoned")
                rename_synced(folder, target)
                abandoned.append(Incident(step=later, what="abandoned", reason=reason, path=target))
        self.incidents += abandoned
        return abandoned

    def set_aside_all(self, reason: str) -> None:
        """Rename all checkpoints as damaged, to make room for those of a mirror; nothing is deleted."""
        for _, folder in sorted(self._folders().items()):
            self._set_aside(folder, reason)

    def read(self, step: CheckpointSelector = "last") -> dict[str, Any]:
        """Read the stored tree of every item, with tensors on the CPU, for evaluation and inference.

        Raises:
            CheckpointError: if there is no such checkpoint or it is damaged; it is neither renamed nor replaced.
        """
        folder = self._choose(step)[0]
        try:
            return dict(_read(folder).items)
        except DamageError as damage:
            others = [other for other in self.steps() if self._folders()[other] != folder]
            raise DamageError(f"{folder} is damaged: {damage}; other steps are {others}: read(one of them)") from damage

    def pin(self, step: int) -> None:
        """Keep a checkpoint regardless of the retention rules, until ``unpin``."""
        with self._pruning:
            folder = self._choose(step)[0]
            refuse_link(folder)
            # A separate file, so that the manifest and its hash do not change.
            write_synced(folder / _PINNED, [])
            sync_folder(folder)

    def unpin(self, step: int) -> None:
        """Remove the pin of a checkpoint, so that the retention rules apply to it again."""
        folder = self._choose(step)[0]
        refuse_link(folder)
        (folder / _PINNED).unlink(missing_ok=True)
        sync_folder(folder)

    def _folders(self) -> dict[int, Path]:
        """Return the folder of every step; if a step was saved several times, the latest one."""
        # A run that has not saved yet has no folder.
        if not self.folder.is_dir():
            return {}
        folders: dict[int, tuple[int, Path]] = {}
        for path in self.folder.iterdir():
            name = _NAME.fullmatch(path.name)
            if name is not None:
                step = int(name[1])
                rewrite = int(name[2] or 1)
                folders[step] = max(folders.get(step, (0, path)), (rewrite, path))
        return {step: path for step, (_, path) in folders.items()}

    def _sound(self) -> list[StoredCheckpoint]:
        """Return the checkpoints with a valid manifest and file size, ordered by step."""
        return [saved for _, path in sorted(self._folders().items()) if (saved := self._read_saved(path)) is not None]

    def _read_saved(self, path: Path) -> StoredCheckpoint | None:
        try:
            manifest = read_manifest(path)
        except DamageError:
            return None
        pinned = (path / _PINNED).exists()
        note: Any = manifest.note
        seconds: object = cast("dict[str, Any]", note).get("seconds") if isinstance(note, dict) else None
        return StoredCheckpoint(
            step=manifest.step,
            path=path,
            created=manifest.created,
            metrics=manifest.metrics,
            pinned=pinned,
            seconds=seconds if isinstance(seconds, int | float) else None,
        )

    def _candidates(self, sound: Sequence[StoredCheckpoint]) -> list[RetentionCandidate]:
        return [
            RetentionCandidate(
                step=saved.step,
                metrics=saved.metrics,
                pinned=saved.pinned,
                verified=saved.path in self._verified,
                seconds=saved.seconds,
            )
            for saved in sound
        ]

    def _choose(self, which: CheckpointSelector) -> list[Path]:
        """Return the folders to try, in order.

        Raises:
            CheckpointError: if there is none.
        """
        folders = self._folders()
        if not folders:
            where = self.folder.absolute()
            raise StoredStateError(f"there is no checkpoint in {where}: the run stopped before it saved one")
        if which == "last":
            return [folders[step] for step in sorted(folders, reverse=True)]
        if which == "best":
            return self._choose_best(folders)
        if which not in folders:
            raise StoredStateError(
                f"there is no checkpoint of step {which!r} in {self.folder}: available steps are {sorted(folders)}"
            )
        return [folders[which]]

    def _choose_best(self, folders: Mapping[int, Path]) -> list[Path]:
        sound = self._sound()
        ranked = self.keep.ranked(self._candidates(sound))
        if not ranked:
            known = sorted({name for saved in sound for name in saved.metrics})
            retention = f"Retention(metric={self.keep.metric!r})"
            raise StoredStateError(
                f"no checkpoint in {self.folder} has the metric of {retention}: they have {known or 'no metrics'}"
            )
        return [folders[saved.step] for saved in ranked]

    def _set_aside(self, folder: Path, reason: str) -> Incident:
        """Rename a damaged checkpoint, so that it is not mistaken for a good one."""
        # Renamed rather than deleted, so that the user can inspect or repair it.
        target = _name_beside(folder, "damaged")
        try:
            rename_synced(folder, target)
        except OSError as error:
            target = folder
            reason = f"{reason}; it could not be renamed: {error}"
        incident = Incident(step=_step_of(folder), what="damaged", reason=reason, path=target)
        self.incidents.append(incident)
        return incident

    def _write(self, step: int, draft: Draft, threads: int | None) -> Path:
        make_folder(self.folder)
        self._sweep()
        temporary = self.folder / f".tmp-step_{step:010d}-{os.getpid()}-{os.urandom(4).hex()}"
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, temporary, ignore_errors=True)
            temporary.mkdir()
            # A pin belongs to the step, and outlives a rewrite of it.
            if step in self._folders() and (self._folders()[step] / _PINNED).exists():
                write_synced(temporary / _PINNED, [])
            # Order matters for a crash: the new checkpoint is complete before later ones are renamed, and gets its
            # final name last.
            draft.write(temporary, threads=threads or HASH_THREADS)
            self.abandon_later(step, f"the run went back and saved step {step}")
            final = self._fresh_name(step)
            rename_synced(temporary, final)
        return final

    def _sweep(self) -> None:
        """Delete temporary folders of killed processes, which would otherwise occupy space."""
        for path in self.folder.iterdir():
            if path.name.startswith((".tmp-step_", ".trash-step_", ".trash-ckpt_")) and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)

    def _fresh_name(self, step: int) -> Path:
        """Return an unused folder name for a step, so that the old or the new checkpoint exists at any moment."""
        plain = self.folder / f"{self.keep.name}_{step:0{DIGITS[self.keep.name]}d}"
        present = self._folders().get(step)
        if present is None:
            return plain
        name = _NAME.fullmatch(present.name)
        return plain.with_name(f"{plain.name}.{int(name[2] or 1) + 1 if name else 2}")

    def _prune(self) -> None:
        """Delete the checkpoints that no retention rule keeps; failures are recorded as incidents."""
        # A folder that cannot be deleted is no reason to stop a run.
        try:
            unwanted = self._unwanted()
        except OSError as error:
            reason = f"older checkpoints could not be listed: {error}"
            self.incidents.append(Incident(step=-1, what="kept", reason=reason, path=self.folder))
            return
        for path in unwanted:
            try:
                delete_folder(path)
            except OSError as error:
                reason = f"it could not be deleted: {error}"
                self.incidents.append(Incident(step=_step_of(path), what="kept", reason=reason, path=path))

    def _unwanted(self) -> list[Path]:
        sound = self._sound()
        # Checkpoints with a damaged manifest are not deleted by the rules.
        kept = self.keep.kept(self._candidates(sound))
        current = set(self._folders().values())
        # Earlier folders of a step that was saved again.
        replaced = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name) and path not in current]
        return [*replaced, *(saved.path for saved in sound if saved.step not in kept)]

    def _describe_failure(self, step: int, nbytes: int, error: OSError) -> str:
        try:
            free = f"{_free_bytes(self.folder):,}"
            steps = str(self.steps())
        except OSError:
            free = "an unknown number"
            steps = "there"
        space = f"{nbytes:,} bytes needed, {free} free"
        rest = f"earlier checkpoints {steps} are untouched"
        advice = "free space or lower Retention.last; the next save tries again"
        return f"step {step} was not saved to {self.folder.absolute()}: {error}; {space}; {rest}; {advice}"


def _read(folder: Path) -> Contents:
    contents = read_folder(folder)
    if contents.step != _step_of(folder):
        raise DamageError(f"the folder {folder.name} contains step {contents.step}: it was renamed")
    return contents


def _name_beside(folder: Path, what: str) -> Path:
    """Return an unused name with a prefix in the same parent folder."""
    target = folder.with_name(f"{what}-{folder.name}")
    return target.with_name(f"{target.name}-{os.urandom(4).hex()}") if target.exists() else target


def _checked(step: int) -> int:
    # `type` instead of `isinstance`, because bool is a subclass of int.
    if type(step) is not int or not 0 <= step < 2**63:
        raise CheckpointError(f"save(step={step!r}): step must be an int of 0 or more")
    return step


def _step_of(folder: Path) -> int:
    name = _NAME.search(folder.name)
    return int(name[1]) if name else -1


def _free_bytes(folder: Path) -> int:
    # The folder may not exist yet: its nearest existing parent is on the same disk.
    near = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(near).free
