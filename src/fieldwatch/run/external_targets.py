"""Targets of a run outside of its folder: a mirror, and sinks. Those of a foreign run folder are not trusted.

``run.json`` stores the mirror and the sinks of a run, so that ``fieldwatch resume`` needs no flags. The author of a run
folder could write anything there: a mirror that receives checkpoints and has older ones deleted, or a sink that logs in
with the account of whoever resumes the run. Therefore both are signed with a key that never leaves the user's home
directory, and unsigned targets are used only if a flag names them too.
"""

import hmac
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import orjson

from fieldwatch.base import printable
from fieldwatch.record import NotARun, holds_run, read_manifest

_KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class ExternalTargets:
    """Mirror and sinks of a run.

    Attributes:
        mirror: URL to which every checkpoint is copied; empty for none.
        sinks: names of the sinks besides TensorBoard and the log.
        trusted: whether this user chose them, by a flag or, according to the signature, in an earlier process.
    """

    mirror: str = ""
    sinks: tuple[str, ...] = ()
    trusted: bool = True

    @classmethod
    def stored(cls, folder: Path) -> Self:
        """Return the targets stored in the ``run.json`` of a folder; none if there is no run."""
        try:
            about: Mapping[str, Any] = read_manifest(folder).about if holds_run(folder) else dict[str, Any]()
        # run.json is lost, and checkpoints do not contain the targets.
        except NotARun:
            return cls()
        mirror = about.get("mirror")
        sinks = about.get("sinks")
        stored = cls(
            mirror=mirror if isinstance(mirror, str) else "",
            sinks=tuple(str(name) for name in cast("list[object]", sinks)) if isinstance(sinks, list) else (),
        )
        if not (stored.mirror or stored.sinks):
            return stored
        expected = stored._signature()
        signature = about.get("signature")
        # Without a key nothing is trusted: an empty signature must not match.
        trusted = bool(expected) and isinstance(signature, str) and hmac.compare_digest(expected, signature)
        return cls(mirror=stored.mirror, sinks=stored.sinks, trusted=trusted)

    def add_to_about(self, about: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the entries for ``run.json``, extended by these targets and their signature if there are any."""
        if not (self.mirror or self.sinks):
            return about or {}
        entries: dict[str, Any] = {"mirror": self.mirror} if self.mirror else {}
        entries |= {"sinks": list(self.sinks)} if self.sinks else {}
        return {**(about or {}), **entries, "signature": self._signature()}

    def _signature(self) -> str:
        """Return the signature with this user's key; empty if no key can be stored."""
        key = _user_key()
        # JSON is unambiguous: no name can contain a separator that imitates other targets.
        message = orjson.dumps([self.mirror, list(self.sinks)])
        return hmac.new(key, message, "sha256").hexdigest() if key else ""


def resolve_targets(folder: Path, mirror: str, sinks: Sequence[str], *, warn: bool = True) -> ExternalTargets:
    """Return the targets of a run: the given ones, or else the mirror that this user chose before.

    Args:
        folder: run folder.
        mirror: given mirror; empty for the stored one.
        sinks: names of the given sinks.
        warn: whether to warn about a stored mirror that is not trusted.

    Warns:
        UserWarning: ``run.json`` names a mirror that this user did not choose on this machine.
    """
    stored = ExternalTargets.stored(folder)
    # Only the mirror is taken from run.json: sinks are enabled by the command, which checks the signature itself.
    if not mirror and stored.mirror and stored.trusted:
        mirror = stored.mirror
    elif not mirror and stored.mirror and warn:
        url = printable(stored.mirror, keep="")
        warnings.warn(
            f"{folder}/run.json names the mirror {url}, which you did not choose on this machine: it is not used. "
            f"To use it, pass --mirror {url} (or Saving(mirror=...)).",
            # Report the line that created the Run.
            stacklevel=3,
        )
    return ExternalTargets(mirror=mirror, sinks=tuple(sinks))


def _user_key() -> bytes:
    """Return this user's key, created at first use; empty if the home directory is not writable."""
    state = os.environ.get("XDG_STATE_HOME")
    folder = (Path(state) if state else Path.home() / ".local" / "state") / "fieldwatch"
    path = folder / "key"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _write_key(path)
        key = path.read_bytes()
    # Path.home() raises a RuntimeError if there is no home directory.
    except (OSError, RuntimeError):
        return b""
    # A key truncated by a full disk could be guessed.
    return key if len(key) == _KEY_BYTES else b""


def _write_key(path: Path) -> None:
    """Write a new key; if several processes do so at once, the first one's is kept."""
    draft = path.with_name(f".key.{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, os.urandom(_KEY_BYTES))
        os.fsync(descriptor)
        # Unlike a rename, a link never replaces an existing key.
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        os.close(descriptor)
        draft.unlink(missing_ok=True)
