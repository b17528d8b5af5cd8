"""What a command line names as a program: the file, the module, the function. Looked up without torch, and without
running a line of it, so that a misspelt name is answered at once."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from kernelworks.profile.module_names import functions_of, may_define, missing_arguments

__all__ = [
    "NoFile", "NoFunction", "NotCallable", "TargetError", "check_function", "check_target", "locate", "no_function",
    "no_module", "takes_arguments",
]  # fmt: skip

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"  # with the wheel: a checkout has them at its root


class TargetError(Exception):
    """What was named is no program that can be run; the text says what to name instead."""


class NoFile(TargetError, FileNotFoundError):
    pass


class NoFunction(TargetError, AttributeError):
    pass


class NotCallable(TargetError, TypeError):
    pass


def check_target(target: str, *, module: bool = False) -> None:
    """Raises TargetError if what is named is no program, as far as files and their text tell it."""
    if not module:
        locate(target)
        return
    name, _, function = target.partition(":")
    top = name.partition(".")[0]  # to find more of it, Python would run that
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        found = None
    finally:
        sys.path[:] = before
    if found is None and top not in sys.modules:
        raise no_module(name)
    if found is not None and top == name and function and (found.origin or "").endswith(".py"):
        check_function(Path(str(found.origin)), function, target)


def locate(target: str) -> tuple[Path, str]:
    """The file of ``file.py:function`` and the function, which is empty for a script. Raises TargetError."""
    file, function = _split(target)
    path = Path(file)
    if path.is_dir():
        raise NoFile(f"program must be a Python file, got the folder {file!r}; a package is run with -m")
    if not path.is_file() and path.parts[:-1] == (EXAMPLES.name,) and (EXAMPLES / path.name).is_file():
        path = EXAMPLES / path.name
    if not path.is_file():
        raise NoFile(
            f"program must be a Python file or file.py:function, got {target!r}: no file {file!r}{_guess_file(path)}"
        )
    if path.suffix not in (".py", ".pyw", ""):
        raise NoFile(f"program must be a Python file, got {file!r}")
    path = path.resolve()
    if function:
        check_function(path, function, f"{path.name}:{function}")
    return path, function


def _split(target: str) -> tuple[str, str]:
    """The file and the function, which is empty for a script."""
    file, colon, function = target.rpartition(":")
    if not colon or not file or "/" in function or (function.endswith(".py") and not Path(file).is_file()):
        return target, ""
    if not function:
        raise NoFunction(f"{target!r} names no function after the colon; give {file}:FUNCTION, or {file} to run it all")
    return file, function


def check_function(path: Path, name: str, target: str) -> None:
    """Raises TargetError if there is no such function without arguments and the file's text tells it. Nothing of it has
    run yet."""
    if "." in name:
        raise NoFunction(f"{target} must name a function of the file, got {name!r}; wrap the method in a function")
    if not may_define(path, name):
        raise no_function(name, target, functions_of(path))
    needed = missing_arguments(path, name)
    if needed:
        raise takes_arguments(needed, target)


def no_function(name: str, target: str, there: Sequence[str] = ()) -> NoFunction:
    return NoFunction(f"{target.rpartition(':')[0]} has no function {name!r}{_guess(name, there)}")


def _guess(name: str, there: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(there), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _guess_file(path: Path) -> str:
    """A Python file beside it of nearly this name."""
    try:
        there = [each.name for each in path.parent.iterdir() if each.suffix == ".py"]
    except OSError:
        return ""
    return _guess(path.name if path.suffix else f"{path.name}.py", there)


def takes_arguments(needed: Sequence[str], target: str) -> NotCallable:
    words = f"{target} must take no arguments, got {', '.join(needed)}"
    return NotCallable(f"{words}; wrap it in a function that gives them")


def no_module(name: str) -> NoFile:
    return NoFile(f"program must be a module that python -m finds from here, got {name!r}")
