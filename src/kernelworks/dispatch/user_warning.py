"""Warnings that name the user's line, however deep in ours or in torch's the reason was found."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

__all__ = ["warn_user"]

MACHINERY = frozenset({"", "kernelworks", "torch", "runpy", "importlib", "contextlib"})  # "" is generated code


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the nearest frame that is neither of this package nor of torch; where there is none, at the nearest."""
    level = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in MACHINERY:
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level + 1 if frame is not None else 2)
