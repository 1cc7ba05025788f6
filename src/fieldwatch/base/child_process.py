"""Child processes that end with their parent."""

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent(parent: int) -> None:
    """Make the calling child process receive SIGTERM when its parent dies; called before its program starts.

    Args:
        parent: process ID of the parent.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # The parent may have died before prctl took effect.
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)
