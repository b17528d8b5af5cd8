"""What a program raised, as a traceback of its own lines, with none of ours."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

__all__ = ["TEXT", "raised_by_program"]

PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
EXAMPLES = f"{PACKAGE}examples{os.sep}"  # with the wheel: programs, like a user's
PROGRAM = f"{PACKAGE}profile{os.sep}program.py"  # whose last frame in a traceback is the last before the user's
TEXT = "_kernelworks_traceback"  # of an error that another process raised: its text


def raised_by_program(error: BaseException) -> str:
    """The traceback without our frames, of an error that the user's program raised; empty for any other."""
    told: str | None = getattr(error, TEXT, None)
    if told is not None:
        return told
    if not _own_frames(error.__traceback__) and not isinstance(error, SyntaxError):
        return ""
    return "".join(_format_error(error, set()))


def _format_error(error: BaseException, seen: set[int]) -> Iterator[str]:
    """The lines of an error after those of its cause, as Python prints them."""
    seen.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and id(cause) not in seen:
        yield from _format_error(cause, seen)
        direct = "The above exception was the direct cause of the following exception:"
        yield f"\n{direct if error.__cause__ else 'During handling of the above exception, another occurred:'}\n\n"
    frames = _own_frames(error.__traceback__)
    if frames:
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_list(frames)
    yield from traceback.format_exception_only(error)


def _own_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """The frames of the user's program and of what it calls: those after the last of ours that ran it."""
    frames = traceback.extract_tb(trace)
    at = max((i for i, frame in enumerate(frames) if frame.filename == PROGRAM), default=-1)
    if at < 0 and frames and frames[0].filename.startswith(PACKAGE):
        return []  # not raised by the program; a cause that the program caught has its own frames alone
    return [frame for frame in frames[at + 1 :] if not _is_machinery(frame.filename)]


def _is_machinery(file: str) -> bool:
    ours = file.startswith(PACKAGE) and not file.startswith(EXAMPLES)
    return ours or file.startswith("<frozen ") or file.endswith("runpy.py")
