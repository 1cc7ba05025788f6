"""What a run reaches outside of its folder: a mirror, and sinks. A run folder from elsewhere cannot choose these.

``run.json`` says which mirror and which sinks a run has, so that ``fieldwatch resume`` needs no flags. Whoever hands
over a run folder could write anything there: a mirror to which checkpoints go and in which older ones are deleted, a
sink that logs in with this user's account. So both are signed with a key that never leaves this user's home, and what
is not signed with it counts only when a flag says the same.
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
    """What a run reaches outside of its folder.

    Attributes:
        mirror: a URL to which every checkpoint is copied; empty for none.
        sinks: names of the sinks beside TensorBoard and the log.
        trusted: whether this user chose them: by a flag, or earlier, as the signature shows.
    """

    mirror: str = ""
    sinks: tuple[str, ...] = ()
    trusted: bool = True

    @classmethod
    def stored(cls, folder: Path) -> Self:
        """What the ``run.json`` of a folder says; nothing where there is no run."""
        try:
            about: Mapping[str, Any] = read_manifest(folder).about if holds_run(folder) else dict[str, Any]()
        except NotARun:  # run.json is lost, and the checkpoints that are left do not say
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
        # Without a key nothing can be trusted, not even an empty signature.
        trusted = bool(expected) and isinstance(signature, str) and hmac.compare_digest(expected, signature)
        return cls(mirror=stored.mirror, sinks=stored.sinks, trusted=trusted)

    def add_to_about(self, about: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """What ``run.json`` says about a run, with this where there is any, signed."""
        if not (self.mirror or self.sinks):
            return about or {}
        entries: dict[str, Any] = {"mirror": self.mirror} if self.mirror else {}
        entries |= {"sinks": list(self.sinks)} if self.sinks else {}
        return {**(about or {}), **entries, "signature": self._signature()}

    def _signature(self) -> str:
        """Sign with this user's key; empty where there is no place for a key."""
        key = _user_key()
        message = orjson.dumps([self.mirror, list(self.sinks)])
        return hmac.new(key, message, "sha256").hexdigest() if key else ""


def resolve_targets(folder: Path, mirror: str, sinks: Sequence[str], *, warn: bool = True) -> ExternalTargets:
    """What a run is to reach: what was chosen now, and else the mirror that this user chose before.

    Args:
        folder: the run folder.
        mirror: chosen now; empty for the stored one.
        sinks: chosen now, by name.
        warn: whether to warn of a stored mirror that is left out.

    Warns:
        UserWarning: ``run.json`` names a mirror that this user did not choose on this machine.
    """
    stored = ExternalTargets.stored(folder)
    # Only the mirror is taken over: sinks are turned on by the command, which checks the signature itself.
    if not mirror and stored.mirror and stored.trusted:
        mirror = stored.mirror
    elif not mirror and stored.mirror and warn:
        url = printable(stored.mirror, keep="")
        warnings.warn(
            f"{folder}/run.json names the mirror {url}, which you did not choose on this machine: nothing is copied "
            f"there or restored from there. Give --mirror {url} (or Saving(mirror=...)) to use it.",
            # The line that made the Run.
            stacklevel=3,
        )
    return ExternalTargets(mirror=mirror, sinks=tuple(sinks))


def _user_key() -> bytes:
    """This user's key, made at its first use; empty where the home cannot be written."""
    state = os.environ.get("XDG_STATE_HOME")
    folder = (Path(state) if state else Path.home() / ".local" / "state") / "fieldwatch"
    path = folder / "key"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _write_key(path)
        key = path.read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: no home at all
        return b""
    # A key that a full disk cut short, or emptied, could be guessed.
    return key if len(key) == _KEY_BYTES else b""


def _write_key(path: Path) -> None:
    """Write a new key; of several processes that do so at once, the first one's stays."""
    draft = path.with_name(f".key.{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, os.urandom(_KEY_BYTES))
        os.fsync(descriptor)
        os.link(draft, path)  # unlike a rename, it refuses to replace
    except FileExistsError:
        return
    finally:
        os.close(descriptor)
        draft.unlink(missing_ok=True)
