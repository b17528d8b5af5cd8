"""What the verbs share: one document on stdout, one line on stderr for what went wrong, and the exit codes.

Errors come in three kinds. What the command line names wrongly is usage (2). What the user's own program raises comes
first, with the program's own lines and none of ours (1). All else that a user can do something about is a line (1, or 3
where the machine was too busy).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from kernelworks.cli.interrupts import INTERRUPTED_CODE, Interrupts

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kernelworks.report.terminal import Advance

__all__ = [
    "AMBIGUOUS",
    "FAILED",
    "FAULT",
    "USAGE",
    "check_device",
    "device_named",
    "fail",
    "faults",
    "first_line",
    "guard_command",
    "guard_program",
    "measuring",
    "print_json",
    "show",
    "warn",
]

FAILED, USAGE, AMBIGUOUS = 1, 2, 3
FAULT = 70  # a fault of this package: no verdict of any verb, as sysexits.h numbers it
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no fault of ours: the disk under a file is full
NO_GPU = "this machine has no CUDA device"

PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep


def fail(message: str, code: int) -> NoReturn:
    from rich.text import Text

    from kernelworks.report.terminal import stderr

    stderr().print(Text(f"kernelworks: {message}", style="red"), soft_wrap=True)
    raise typer.Exit(code)


def warn(message: str) -> None:
    from rich.text import Text

    from kernelworks.report.terminal import stderr

    stderr().print(Text(f"kernelworks: {message}", style="yellow"), soft_wrap=True)


@contextlib.contextmanager
def faults(usage: tuple[type[Exception], ...] = (), *, rough: bool = False) -> Iterator[None]:
    """Turns errors into lines on stderr and an exit code; ``usage`` are those that the command line is to blame for.
    ``rough``: the verb has that option, for a machine that is busy."""
    from kernelworks.build import BuildError
    from kernelworks.measure.clock.noise import Ambiguous

    try:
        yield
    except Ambiguous as error:
        otherwise = ", or with --rough for rough figures now" if rough else ""
        fail(f"{error}; run it again when the machine is quiet{otherwise}", AMBIGUOUS)
    except BuildError as error:
        fail(str(error), FAILED)
    except usage as error:
        fail(first_line(error), USAGE)
    except OSError as error:
        fail(first_line(error), FAILED)


class UnclosableStream:
    """A stream that a program may close without closing it for us."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def close(self) -> None:
        self._stream.flush()


@contextlib.contextmanager
def guard_program(*, json: bool, so: str = "there is no diagnosis of it", rough: bool = False) -> Iterator[None]:
    """``faults`` round a run of the user's program: what the program raises is shown with its own lines, first; what
    it prints is not among the ``json``."""
    from kernelworks.measure.clock.noise import Ambiguous
    from kernelworks.profile.program_errors import raised_by_program
    from kernelworks.profile.target import TargetError

    shown = UnclosableStream(sys.stderr if json else sys.stdout)
    with faults((TargetError,), rough=rough), contextlib.redirect_stdout(shown):
        try:
            yield
        except (TargetError, Ambiguous, KeyboardInterrupt, SystemExit, typer.Exit):
            raise
        except BaseException as error:
            text = raised_by_program(error)
            if text:
                sys.stderr.write(text)
                _name_extra(error)
                fail(f"the program raised this, so {so}", FAILED)
            if isinstance(error, (RuntimeError, ValueError, TypeError)) and not _ours(error):
                fail(first_line(error), FAILED)
            raise


def _name_extra(error: BaseException) -> None:
    """What to install, if an example of ours misses a package."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = (Path(PACKAGE) / "examples", Path(PACKAGE).parents[1] / "examples")
    if isinstance(error, ModuleNotFoundError) and any(Path(frame.filename).parent in ours for frame in frames):
        sys.stderr.write('this example needs more packages: pip install "kernelworks[examples]"\n')


def first_line(error: BaseException) -> str:
    """The error's text as one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _ours(error: BaseException) -> bool:
    """Whether an error is a fault inside the package, not one that it raises on purpose: something else raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return not (frames and frames[-1].filename.startswith(PACKAGE) and (frames[-1].line or "").startswith("raise"))


@contextlib.contextmanager
def measuring(title: str) -> Iterator[Advance]:
    """The progress of a verb that measures: no other one does so at the same time."""
    from kernelworks.measure.clock.turns import measuring_alone
    from kernelworks.report.terminal import Notice, progress

    with progress(title) as advance, measuring_alone(advance, lambda line: advance(Notice(line))):
        yield advance


def show(table: RenderableType) -> None:
    from kernelworks.report.terminal import stdout

    stdout().print(table, crop=False)  # a path that is wider than the terminal is whole all the same


def check_device(device: str | None) -> None:
    """Leaves if it is no kind of device, or a GPU where there is no driver of one: both are known without torch."""
    from kernelworks.machine import may_have_gpu

    if device not in (None, "cpu", "cuda"):
        fail(f"--device must be cpu or cuda, got {device!r}", USAGE)
    if device == "cuda" and not may_have_gpu():
        fail(NO_GPU, USAGE)


def device_named(device: str | None) -> str:
    """The device that was asked for, the CPU without any."""
    from kernelworks.machine import has_gpu

    check_device(device)
    if device == "cuda" and not has_gpu():
        fail(NO_GPU, USAGE)
    return device or "cpu"


@contextlib.contextmanager
def guard_command(arguments: Sequence[str]) -> Iterator[None]:
    """A whole command: its last errors are lines too.

    With ``--json`` on the command line stdout is the document's alone: what else is written to it, by Python, by C code
    or by a process that the program starts, goes to stderr, to the very end of this process.
    """
    own = list(arguments[: list(arguments).index("--")] if "--" in arguments else arguments)
    if "--json" in own:
        from kernelworks.report import terminal

        terminal.claim_stdout()
    try:
        with Interrupts():
            yield
    except typer.Exit as leave:
        sys.exit(leave.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED_CODE)
    except BrokenPipeError:  # whoever read the other end has seen enough
        _drop_stdout()
        sys.exit(FAILED)
    except Exception as error:
        refused: Any = error
        if isinstance(error, OSError) and error.errno in FULL and not error.filename:  # what is printed has no room
            _drop_stdout()
            sys.stderr.write(f"kernelworks: could not write the output: {first_line(error)}\n")
            sys.exit(FAILED)
        if hasattr(error, "format_message"):  # of the parser of the command line
            if type(error).__name__ == "NoArgsIsHelpError":
                refused.show()
            else:
                said = " ".join(refused.format_message().split())
                if said.startswith("Missing") and arguments:
                    said = f"{said.rstrip('.')}; see kernelworks {arguments[0]} --help"
                sys.stderr.write(f"kernelworks: {said}\n")
            sys.exit(USAGE)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]
        where = f" ({frames[-1].filename.removeprefix(PACKAGE)}:{frames[-1].lineno})" if frames else ""
        sys.stderr.write(f"kernelworks: a fault of ours: {type(error).__name__}: {first_line(error)}{where}\n")
        sys.exit(FAULT)


def _drop_stdout() -> None:
    """What stdout still holds is lost without a word: Python would try to write it once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def print_json(record: Any) -> None:
    """A record as the one JSON document."""
    from kernelworks.records import to_document
    from kernelworks.report.terminal import document

    document(to_document(record).rstrip("\n"))
