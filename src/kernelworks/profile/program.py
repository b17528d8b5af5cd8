"""A program that can be run again and again: a function, ``file.py:function``, a module, or a script with arguments."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import platform
import runpy
import signal
import statistics
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import nn

from kernelworks.measure.clock.page_faults import restore_heap, run_with_own_faults
from kernelworks.profile.gc_pauses import Collections
from kernelworks.profile.printed_output import dropped_output, shown_output
from kernelworks.profile.process_state import working_folder
from kernelworks.profile.standard_input import replayed_input
from kernelworks.profile.target import (
    NoFile,
    NotCallable,
    TargetError,
    check_function,
    locate,
    no_function,
    no_module,
    takes_arguments,
)

__all__ = [
    "Entry",
    "NoFile",
    "NotCallable",
    "Program",
    "TargetError",
    "from_function",
    "from_target",
    "note_reruns",
    "versions",
]

ENDLESS_S = 60.0  # A generator that gives items for longer is taken for one without an end.
TIMERS, STOPPED_TIMER = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF), (0.0, 0.0)
LAZY = (types.GeneratorType, map, filter, zip)  # These have done nothing when they are returned.


@dataclass
class Entry:
    """The function that a program calls: another that does the same may be put in its place."""

    fn: Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """``run()`` does the whole work once and returns what the function returned (None for a script).

    If the program only promises its work (a coroutine, a generator), the work is done: awaited, or run to its end.
    ``run`` raises what the program raises, and RuntimeError if it exits with a code other than 0. ``collected`` are
    the seconds that a run is in full collections of garbage if the process holds the program's own objects alone.
    """

    name: str
    run: Callable[[], Any]
    entry: Entry | None = None  # what it calls, if that is a function
    file: Path | None = None  # that it begins in
    collected: float = 0.0

    def seconds(self) -> float:
        """Seconds of a run. What its collections of garbage take longer now, since they walk over other objects too, is
        no part of it."""
        with Collections() as collections:
            begin = time.perf_counter()
            self.run()
            took = time.perf_counter() - begin
        return took - max(0.0, collections.seconds - self.collected)

    def median(self, runs: int, *, alone: bool) -> float:
        """The median second of so many runs, with page faults of the program's own, after one that is not counted if
        others had used its memory. ``alone``: nothing of it is changed, so it takes as many as by itself."""
        if restore_heap():
            self.run()
        if alone:
            return run_with_own_faults(self.seconds, runs)
        return statistics.median(self.seconds() for _ in range(runs))


# ---------------------------------------------------------------- runs


def note_reruns(run: Callable[[], Any]) -> Callable[[], Any]:
    """``run``, whose errors say so if it is a later run that raises."""
    runs = 0

    def once() -> Any:
        nonlocal runs
        runs += 1
        try:
            return run()
        except Exception as error:
            if runs > 1:
                error.add_note(
                    f"(It ran {runs - 1} {'time' if runs == 2 else 'times'} before it raised this: kernelworks runs a "
                    "program several times, and each run must find what the first one found.)"
                )
            raise

    return once


def call_program(name: str, fn: Callable[..., Any], args: Sequence[Any] = ()) -> Any:
    """One run. Its frame is the last of ours before the program's own (``report`` cuts tracebacks there).

    A process that the program has forked, and that comes back from it, ends here.
    """
    here = os.getpid()
    try:
        result = fn(*args)
        if type(result) in DEFERRED_TYPES or isinstance(result, LAZY):
            result = _done(name, result)
    except SystemExit as leave:
        result = None
        if os.getpid() == here and leave.code not in (None, 0):
            hint = "; a script's own arguments go after `--`" if leave.code == 2 else ""  # as argparse exits
            raise RuntimeError(f"{name} exited with {leave.code!r}{hint}") from leave
    except BaseException:
        if os.getpid() != here:
            traceback.print_exc()
            _leave(1)
        raise
    if os.getpid() != here:
        _leave(0)
    return result


DEFERRED_TYPES = (types.CoroutineType, types.AsyncGeneratorType)


def _done(name: str, promised: Any) -> Any:
    """The work that was only promised."""
    if isinstance(promised, LAZY):
        begin = time.monotonic()
        for number, _ in enumerate(promised):
            if time.monotonic() - begin > ENDLESS_S:
                raise RuntimeError(_endless(name, number + 1))
        return None
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_last(name, promised) if isinstance(promised, types.AsyncGeneratorType) else promised)
    with contextlib.suppress(Exception):
        promised.close()
    raise RuntimeError(
        f"{name} is async, and an event loop is running in this thread already: diagnose it outside of one, "
        "or in a thread of its own"
    )


async def _last(name: str, items: Any) -> None:
    begin, number = time.monotonic(), 0
    async for _ in items:
        number += 1
        if time.monotonic() - begin > ENDLESS_S:
            raise RuntimeError(_endless(name, number))


def _endless(name: str, items: int) -> str:
    return (
        f"{name} is a generator that gave {items} items in {ENDLESS_S:.0f} s and has not ended: diagnose a function "
        "that takes as many as one run is to have"
    )


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# ---------------------------------------------------------------- what was named


def from_function(fn: Callable[..., Any], args: Sequence[Any] = (), name: str = "") -> Program:
    """A function with its arguments. Raises TypeError if ``fn`` cannot be called."""
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__name__}")
    shown = name or getattr(fn, "__qualname__", type(fn).__name__)
    entry = Entry(fn)
    code = getattr(inspect.unwrap(fn) if isinstance(fn, types.FunctionType) else fn, "__code__", None)
    file = Path(code.co_filename) if isinstance(code, types.CodeType) else None
    return Program(shown, lambda: call_program(shown, entry.fn, args), entry, file)


def from_target(target: str, args: Sequence[str] = (), *, module: bool = False, silent: bool = False) -> Program:
    """``file.py:function`` (a function without required arguments), or a script to be run as ``__main__`` each time;
    with ``module`` the dotted name of a module to be run so (``python -m``), or ``package.module:function``.

    The file's folder stands first in ``sys.path`` and ``sys.argv`` holds the arguments, as ``python file.py`` has it; a
    file with relative imports is imported as a part of its package. What is printed is shown on the first run only, and
    with ``silent`` not even then.

    Raises TargetError (by its kind a FileNotFoundError, AttributeError or TypeError): there is no such file, it has no
    such function, or that cannot be called without arguments; and what the file raises as it is imported.
    """
    if module:
        return _module(target, args, silent=silent)
    path, function = locate(target)
    if not function:
        return Program(" ".join((path.name, *args)), _Script(path, tuple(args), silent=silent), file=path)
    name = f"{path.name}:{function}"
    with _as_main(path, args), _printed(silent):
        found = _function(_imported(path), function, name)
    entry = Entry(found)
    return Program(name, _Repeated(name, entry, path, tuple(args), silent=silent), entry, path)


def _module(target: str, args: Sequence[str], *, silent: bool) -> Program:
    name, _, function = target.partition(":")
    with _as_main(Path("x"), args), _printed(silent):
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None and not function:
                spec = importlib.util.find_spec(f"{name}.__main__")
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            raise no_module(name)
        path = Path(spec.origin or name)
        if not function:
            return Program(" ".join((f"-m {name}", *args)), _Script(path, tuple(args), name, silent=silent), file=path)
        if path.suffix == ".py":
            check_function(path, function, target)
        found = _function(importlib.import_module(name), function, target)
    entry = Entry(found)
    return Program(target, _Repeated(target, entry, Path.cwd() / "x", tuple(args), silent=silent), entry, path)


def _function(module: ModuleType, name: str, target: str) -> Callable[..., Any]:
    """Raises TargetError if the module has nothing of this name that can be called without arguments."""
    found = getattr(module, name, None)
    if found is None:
        raise no_function(name, target)
    if not callable(found):
        raise NotCallable(f"{target} must be a function, got {type(found).__name__}")
    if inspect.isclass(found) and issubclass(found, nn.Module):
        raise NotCallable(f"{target} must be a function, got a class; wrap in a function what makes one and calls it")
    run: Callable[..., Any] = found
    try:
        parameters = inspect.signature(found.forward if isinstance(found, nn.Module) else found).parameters
    except (ValueError, TypeError):  # of what is not written in Python
        return run
    needed = [
        p.name for p in parameters.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise takes_arguments(needed, target)
    return run


def _imported(path: Path) -> ModuleType:
    """The file as a module of its own name, so that what it defines can be pickled and found again; one with relative
    imports as a part of its package."""
    package = _package(path)
    if package:
        sys.path.insert(0, str(path.parents[package.count(".") + 1]))
        return importlib.import_module(f"{package}.{path.stem}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise NoFile(f"program must be a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            sys.modules.pop(path.stem, None)
        else:
            sys.modules[path.stem] = before
        raise
    return module


def _package(path: Path) -> str:
    """The dotted name of the package that a file with relative imports is in; empty for other files."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):  # whoever runs it will say so
        return ""
    if not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree)):
        return ""
    names: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)


@contextlib.contextmanager
def _as_main(path: Path, args: Sequence[str]) -> Iterator[None]:
    argv, search, folder = sys.argv, list(sys.path), working_folder()
    sys.argv = [str(path), *args]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = search
        if folder and working_folder() != folder:
            with contextlib.suppress(OSError):  # the program has removed it
                os.chdir(folder)


def _printed(silent: bool) -> contextlib.AbstractContextManager[None]:
    return dropped_output() if silent else shown_output()


@contextlib.contextmanager
def _own_timers() -> Iterator[None]:
    """Ends the timers that a run has started (``signal.alarm``): a program's own process would end before they do, and
    between two runs they would end or interrupt ours."""
    before = {which: signal.getitimer(which) for which in TIMERS}
    try:
        yield
    finally:
        for which, was in before.items():
            if was == STOPPED_TIMER != signal.getitimer(which):
                signal.setitimer(which, 0.0)


class _Repeated:
    """Runs again and again; what is printed is shown once, and each run reads the same standard input."""

    def __init__(self, name: str, entry: Entry, path: Path, args: tuple[str, ...], *, silent: bool) -> None:
        self.name, self.entry, self.path, self.args = name, entry, path, args
        self.silent, self.runs = silent, 0

    def __call__(self) -> Any:
        self.runs += 1
        with _as_main(self.path, self.args), _printed(self.silent or self.runs > 1), replayed_input(), _own_timers():
            return call_program(self.name, self.entry.fn)


class _Script(_Repeated):
    """A file, or a module by its dotted name, run as ``__main__``; a file with relative imports as its package's."""

    def __init__(self, path: Path, args: tuple[str, ...], module: str = "", *, silent: bool) -> None:
        package = "" if module else _package(path)
        name = module or (f"{package}.{path.stem}" if package else "")
        folder = path.parents[package.count(".") + 1] if package else None

        def whole() -> None:
            if not name:
                runpy.run_path(str(path), run_name="__main__")
                return
            sys.path.insert(0, str(folder) if folder else os.getcwd())
            runpy.run_module(name, run_name="__main__", alter_sys=True)

        super().__init__(f"-m {module}" if module else path.name, Entry(whole), path, args, silent=silent)


def versions() -> dict[str, str]:
    """Of Python and of the packages that a program's times depend on."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("kernelworks", "transformers"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
