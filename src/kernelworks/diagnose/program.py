"""A program that can be run again and again: a function, ``file.py:function``, or a script with its arguments."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import inspect
import io
import platform
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

__all__ = ["Program", "from_function", "from_target", "versions"]


@dataclass(frozen=True)
class Program:
    """``run()`` does the whole work once and returns what the function returned (None for a script)."""

    name: str
    run: Callable[[], Any]


def from_function(fn: Callable[..., Any], args: Sequence[Any] = (), name: str = "") -> Program:
    """A function with its arguments. Raises TypeError where ``fn`` cannot be called."""
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__name__}")
    shown = name or getattr(fn, "__qualname__", type(fn).__name__)
    return Program(shown, lambda: fn(*args))


def from_target(target: str, args: Sequence[str] = ()) -> Program:
    """``file.py:function`` (a function without required arguments), or a script to be run as ``__main__`` each time.

    The file's folder stands first in ``sys.path`` and ``sys.argv`` holds the arguments, as ``python file.py`` has it.
    A script's output is shown on its first run only.

    Raises:
        FileNotFoundError: there is no such file.
        AttributeError: the file has no such function.
        TypeError: it is not callable, or wants arguments.
    """
    file, colon, function = target.rpartition(":")
    if not colon or file == "" or function.endswith(".py") or "/" in function:
        file, function = target, ""
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"program must be a Python file or file.py:function, got {target!r}: no file {file!r}")
    if not function:
        return Program(" ".join((path.name, *args)), _Script(path, tuple(args)))
    with _as_main(path, args):
        module = _imported(path)
    found = getattr(module, function, None)
    if found is None:
        raise AttributeError(f"{path.name} has no function {function!r}")
    if not callable(found):
        raise TypeError(f"{target} must be a function, got {type(found).__name__}")
    needed = [
        p.name
        for p in inspect.signature(found).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise TypeError(
            f"{target} must take no arguments, got {', '.join(needed)}; wrap it in a function that gives them"
        )

    def run() -> Any:
        with _as_main(path, args):
            return found()

    return Program(f"{path.name}:{function}", run)


def _imported(path: Path) -> ModuleType:
    """The file as a module of its own name, so that what it defines can be pickled and found again."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"program must be a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[path.stem]
        else:
            sys.modules[path.stem] = before
        raise
    return module


@contextlib.contextmanager
def _as_main(path: Path, args: Sequence[str]) -> Iterator[None]:
    argv, search = sys.argv, list(sys.path)
    sys.argv = [str(path), *args]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = search


class _Script:
    def __init__(self, path: Path, args: tuple[str, ...]) -> None:
        self.path, self.args, self.runs = path, args, 0

    def __call__(self) -> None:
        """Raises RuntimeError where the script exits with a code other than 0."""
        self.runs += 1
        silent = contextlib.redirect_stdout(io.StringIO()) if self.runs > 1 else contextlib.nullcontext()
        with _as_main(self.path, self.args), silent:
            try:
                runpy.run_path(str(self.path), run_name="__main__")
            except SystemExit as leave:
                if leave.code not in (None, 0):
                    raise RuntimeError(f"{self.path.name} exited with {leave.code!r}") from leave


def versions() -> dict[str, str]:
    """Of Python and of the packages that a program's times depend on."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("kernelworks", "transformers"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
