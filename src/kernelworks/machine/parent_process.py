"""What a process does when the one that started it ends."""

from __future__ import annotations

import ctypes
import signal

__all__ = ["die_with_parent"]

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """This process is killed when the one that forked it ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
