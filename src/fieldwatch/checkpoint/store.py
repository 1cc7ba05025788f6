"""Checkpoints on disk: whole and verified, or not there at all."""

import os
import re
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
from fieldwatch.checkpoint.retention import DIGITS, Retention, RetentionCandidate

# ``step_`` or ``ckpt_``, the step, and which rewrite of that step it is: ``step_0000000400.2``.
_NAME = re.compile(r"(?:step|ckpt)_(\d{6,19})(?:\.(\d{1,9}))?")
_DEFAULT_RETENTION = Retention()
_PINNED = "pinned"

CheckpointSelector = int | Literal["last", "best"]
"""A stored checkpoint: its step, the highest step, or the best by the retention's metric."""


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """A stored checkpoint.

    Attributes:
        step: the step it was made at.
        path: its folder.
        created: when, ISO 8601 in UTC.
        metrics: the figures it was saved with.
        pinned: retention leaves it alone.
    """

    step: int
    path: Path
    created: str
    metrics: Mapping[str, float]
    pinned: bool


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What ``Checkpoints.restore`` found.

    Attributes:
        step: the step of the checkpoint that was put back.
        note: the note it was saved with.
        fell_back: the damaged checkpoints that were passed over, newest first.
    """

    step: int
    note: Any
    fell_back: tuple[Incident, ...] = ()


class Checkpoints:
    """The checkpoints of one run.

    A checkpoint is a folder ``step_0000000400`` (``ckpt_000400``, by `Retention.name`) of three files
    (``tensors.safetensors``, ``manifest.json``, ``manifest.sha256``), made under another name, synced, renamed, and
    only then acknowledged. One process at a time may save (see ``FolderLock``).

    Args:
        folder: where they lie; made at the first save.
        keep: which of them stay.

    Attributes:
        incidents: what was survived so far: damage, abandoned branches, folders that could not be deleted.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: Retention = _DEFAULT_RETENTION) -> None:
        self.folder = Path(folder)
        self.keep = keep
        self.incidents: list[Incident] = []
        self._verified: set[Path] = set()
        self._pruning = threading.Lock()  # a save may be written by another thread than the one that pins

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in order; damaged ones are among them until they are read."""
        return sorted(self._folders())

    def latest(self) -> StoredCheckpoint | None:
        """Return the highest step whose manifest is sound, without reading its tensors."""
        return next((saved for saved in reversed(self._sound())), None)

    def find(self, step: CheckpointSelector = "last") -> StoredCheckpoint:
        """Return what ``read`` of the same step would read: its number, folder and metrics, without its tensors.

        Raises:
            CheckpointError: there is none, or its manifest is damaged; nothing is touched.
        """
        folder = self._choose(step)[0]
        saved = self._read_saved(folder)
        if saved is None:
            others = [other for other, path in self._folders().items() if path != folder]
            raise DamageError(
                f"the manifest of {folder} is damaged; other steps are {sorted(others)}: ask for one of them"
            )
        return saved

    def save(
        self, step: int, items: Mapping[str, Item], *, metrics: Mapping[str, float] | None = None, note: Any = None
    ) -> Path:
        """Write a checkpoint; when this returns, it is on the disk and a power cut cannot take it.

        Nothing may change the items meanwhile: a tensor that changes while it is written would not match its hash.

        Checkpoints of higher steps belong to a branch that was left: they are renamed ``abandoned-step_...`` and stay.

        Args:
            step: the number of finished steps, by which checkpoints are ordered.
            items: what to keep, by name.
            metrics: figures by which ``keep.metric`` ranks it.
            note: any tree of plain values, e.g. ``{"epoch": 3}``.

        Returns:
            Its folder.

        Raises:
            CheckpointError: a value cannot be stored, or the disk is full or fails; earlier checkpoints are untouched.
        """
        draft = self.take(step, items, share_memory, metrics=metrics)
        draft.put_note(note)
        return self.write(draft)

    def write(self, draft: Draft, *, threads: int | None = None) -> Path:
        """Write what was taken before, as :meth:`save` does.

        Args:
            draft: the snapshot.
            threads: how many hash; None takes up to four.

        Raises:
            CheckpointError: the disk is full or fails; earlier checkpoints are untouched.
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
        """Take a snapshot for :meth:`write`; its arguments are those of :meth:`save`; ``copy_arrays`` copies.

        Raises:
            CheckpointError: a value cannot be stored.
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
        """Put a checkpoint back into the items, after every hash has been checked.

        A damaged one is set aside as ``damaged-step_...`` and the previous good one is used; a step asked for by number
        is never replaced by another. Where there is no good one, nothing is renamed.

        Args:
            items: by name.
            step: which checkpoint.
            renamed: names of items in earlier checkpoints, and their names now.
            optional: names of items that a checkpoint may lack; these then stay as they are.

        Raises:
            CheckpointError: the checkpoint does not fit the items; the message says which and what to do.
            NoWayBackError: there is no good one.
        """
        damaged = dict[Path, str]()
        for folder in self._choose(step):
            try:
                contents = _read(folder)
            except DamageError as damage:
                damaged[folder] = str(damage)
                continue
            except OSError as error:
                raise CheckpointError(f"{folder} cannot be read: {error}; nothing was touched") from error
            trees = {(renamed or {}).get(name, name): tree for name, tree in contents.items.items()}
            present = {name: item for name, item in items.items() if name in trees or name not in optional}
            put_back(present, trees)
            self._verified.add(folder)
            # Set aside only now: where nothing can be read, nothing is renamed.
            fell_back = tuple(self._set_aside(path, reason) for path, reason in damaged.items())
            return Restored(step=contents.step, note=contents.note, fell_back=fell_back)
        reasons = "; ".join(f"step {_step_of(folder)}: {reason}" for folder, reason in damaged.items())
        others = [other for other, path in sorted(self._folders().items()) if path not in damaged]
        rest = f"steps {others} are left" if others else "none is left"
        raise NoWayBackError(f"no good checkpoint for step {step!r} in {self.folder}: {reasons}; {rest}")

    def set_aside_all(self, reason: str) -> None:
        """Give all checkpoints the names of damaged ones, to make room for those of a mirror; nothing is deleted."""
        for _, folder in sorted(self._folders().items()):
            self._set_aside(folder, reason)

    def read(self, step: CheckpointSelector = "last") -> dict[str, Any]:
        """Return the stored tree of every item, tensors on the CPU; for evaluation and inference, nothing is touched.

        Raises:
            CheckpointError: there is none, or it is damaged; it is neither moved nor replaced by another.
        """
        folder = self._choose(step)[0]
        try:
            return dict(_read(folder).items)
        except DamageError as damage:
            others = [other for other in self.steps() if self._folders()[other] != folder]
            raise DamageError(f"{folder} is damaged: {damage}; other steps are {others}: read(one of them)") from damage

    def pin(self, step: int) -> None:
        """Keep a checkpoint whatever the retention says, until ``unpin``."""
        with self._pruning:
            folder = self._choose(step)[0]
            refuse_link(folder)
            write_synced(folder / _PINNED, [])
            sync_folder(folder)

    def unpin(self, step: int) -> None:
        """Hand a checkpoint back to the retention."""
        folder = self._choose(step)[0]
        refuse_link(folder)
        (folder / _PINNED).unlink(missing_ok=True)
        sync_folder(folder)

    def _folders(self) -> dict[int, Path]:
        """Find the folder of every step; of two with the same step the one made later."""
        if not self.folder.is_dir():
            return {}
        found: dict[int, tuple[int, Path]] = {}
        for path in self.folder.iterdir():
            name = _NAME.fullmatch(path.name)
            if name is not None:
                step = int(name[1])
                rewrite = int(name[2] or 1)
                found[step] = max(found.get(step, (0, path)), (rewrite, path))
        return {step: path for step, (_, path) in found.items()}

    def _sound(self) -> list[StoredCheckpoint]:
        """List the checkpoints whose manifest and file size are right, by step."""
        return [saved for _, path in sorted(self._folders().items()) if (saved := self._read_saved(path)) is not None]

    def _read_saved(self, path: Path) -> StoredCheckpoint | None:
        try:
            manifest = read_manifest(path)
        except DamageError:
            return None
        pinned = (path / _PINNED).exists()
        return StoredCheckpoint(
            step=manifest.step, path=path, created=manifest.created, metrics=manifest.metrics, pinned=pinned
        )

    def _candidates(self, sound: Sequence[StoredCheckpoint]) -> list[RetentionCandidate]:
        return [
            RetentionCandidate(
                step=saved.step, metrics=saved.metrics, pinned=saved.pinned, verified=saved.path in self._verified
            )
            for saved in sound
        ]

    def _choose(self, which: CheckpointSelector) -> list[Path]:
        """Return the folders to try, in order.

        Raises:
            CheckpointError: there is none.
        """
        folders = self._folders()
        if not folders:
            where = self.folder.absolute()
            raise StoredStateError(f"there is no checkpoint in {where}: the run was stopped before its first one")
        if which == "last":
            return [folders[step] for step in sorted(folders, reverse=True)]
        if which == "best":
            return self._choose_best(folders)
        if which not in folders:
            raise StoredStateError(
                f"there is no checkpoint of step {which!r} in {self.folder}: there are {sorted(folders)}"
            )
        return [folders[which]]

    def _choose_best(self, folders: Mapping[int, Path]) -> list[Path]:
        sound = self._sound()
        ranked = self.keep.ranked(self._candidates(sound))
        if not ranked:
            known = sorted({name for saved in sound for name in saved.metrics})
            wanted = f"Retention(metric={self.keep.metric!r})"
            raise StoredStateError(
                f"no checkpoint in {self.folder} has the metric of {wanted}: they have {known or 'no metrics'}"
            )
        return [folders[saved.step] for saved in ranked]

    def _set_aside(self, folder: Path, reason: str) -> Incident:
        """Give a damaged checkpoint another name, so that nothing takes it for a good one."""
        target = _name_beside(folder, "damaged")
        try:
            rename_synced(folder, target)
        except OSError as error:
            target = folder
            reason = f"{reason}; it could not be set aside: {error}"
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
            # The new checkpoint is whole before later ones lose their names, and gets its own name last.
            draft.write(temporary, threads=threads or HASH_THREADS)
            self._abandon(step)
            final = self._fresh_name(step)
            rename_synced(temporary, final)
        return final

    def _sweep(self) -> None:
        """Delete what killed processes left behind, so that it takes no space."""
        for path in self.folder.iterdir():
            if path.name.startswith((".tmp-step_", ".trash-step_", ".trash-ckpt_")) and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)

    def _abandon(self, step: int) -> None:
        """Rename the checkpoints of later steps, which would otherwise be taken for this run's last."""
        for later, folder in sorted(self._folders().items()):
            if later > step:
                target = _name_beside(folder, "abandoned")
                rename_synced(folder, target)
                reason = f"the run went back and saved step {step}"
                self.incidents.append(Incident(step=later, what="abandoned", reason=reason, path=target))

    def _fresh_name(self, step: int) -> Path:
        """Name the folder of a step: never an existing one, so that no moment is without the old or the new."""
        plain = self.folder / f"{self.keep.name}_{step:0{DIGITS[self.keep.name]}d}"
        present = self._folders().get(step)
        if present is None:
            return plain
        name = _NAME.fullmatch(present.name)
        return plain.with_name(f"{plain.name}.{int(name[2] or 1) + 1 if name else 2}")

    def _prune(self) -> None:
        """Delete what no rule wants; that this fails is no reason to stop a run."""
        try:
            unwanted = self._unwanted()
        except OSError as error:
            reason = f"older checkpoints could not be looked through: {error}"
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
        kept = self.keep.kept(self._candidates(sound))
        current = set(self._folders().values())
        # Folders of a step that was saved again.
        replaced = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name) and path not in current]
        return [*replaced, *(saved.path for saved in sound if saved.step not in kept)]

    def _describe_failure(self, step: int, nbytes: int, error: OSError) -> str:
        try:
            free = f"{_free_bytes(self.folder):,}"
            steps = str(self.steps())
        except OSError:
            free = "an unknown number"
            steps = "there"
        space = f"{nbytes:,} bytes wanted, {free} free"
        rest = f"earlier checkpoints {steps} are untouched"
        advice = "free space or lower Retention.last, the next save starts anew"
        return f"step {step} was not saved to {self.folder.absolute()}: {error}; {space}; {rest}; {advice}"


def _read(folder: Path) -> Contents:
    contents = read_folder(folder)
    if contents.step != _step_of(folder):
        raise DamageError(f"the folder {folder.name} holds step {contents.step}: it was renamed")
    return contents


def _name_beside(folder: Path, what: str) -> Path:
    target = folder.with_name(f"{what}-{folder.name}")
    return target.with_name(f"{target.name}-{os.urandom(4).hex()}") if target.exists() else target


def _checked(step: int) -> int:
    if type(step) is not int or not 0 <= step < 2**63:
        raise CheckpointError(f"save(step={step!r}): a step is a whole number from 0 on")
    return step


def _step_of(folder: Path) -> int:
    name = _NAME.search(folder.name)
    return int(name[1]) if name else -1


def _free_bytes(folder: Path) -> int:
    near = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(near).free
