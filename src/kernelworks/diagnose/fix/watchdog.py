"""Ends a compiler that is still at work when the budget is over.

torch.compile does not say how long it will take and cannot be stopped. With a budget of one minute it took ten on a
busy machine. A second thread watches this one: if torch's compiler is on its stack and the budget is over, an exception
is raised there, as Ctrl-C would be, and what still waits for a C++ compiler in inductor's pool is dropped. Nothing else
is interrupted, above all not the program's own code.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from types import FrameType, TracebackType

from kernelworks.profile.budget import Budget, BudgetExceeded, rounded_up

__all__ = ["Stopping"]

EVERY_S = 0.25  # between two looks
COMPILERS = {  # by file, the functions that are on the stack while a compiler is at work
    "torch/_dynamo/convert_frame.py": {"compile_inner"},
    "torch/_inductor/compile_fx.py": {"compile_fx_inner"},  # for a backward that is compiled when it first runs
}
CHANGING = {
    "__enter__",
    "__exit__",
    "__del__",
    "acquire",
    "release",
}  # these must not be interrupted: they take or release something


class _Stop(BaseException):
    """Not an Exception, so that error handlers in the compiler pass it on."""


class Stopping:
    """A context in which this thread's compilers end when ``budget`` does. Raises BudgetExceeded on leaving, if one was
    stopped."""

    def __init__(self, budget: Budget, doing: str) -> None:
        self.budget, self.doing = budget, doing
        self.fired = False

    def __enter__(self) -> Stopping:
        self._begun, self._thread = time.perf_counter(), threading.get_ident()
        self._left, self._told = threading.Event(), sys.unraisablehook
        sys.unraisablehook = self._tell
        self._watch = threading.Thread(target=self._look, daemon=True, name="kernelworks: a compiler's budget")
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._left.set()
        self._watch.join()
        if sys.unraisablehook == self._tell:
            sys.unraisablehook = self._told
        if self.fired and error is not None:
            _drop_waiting()
            took = time.perf_counter() - self._begun
            given = self.budget.seconds
            enough = rounded_up(2 * (given + took))
            raise BudgetExceeded(
                f"{self.doing}: the compiler was stopped after {took:.2g} s, as the budget of {given:g} s was over: "
                f"a budget of {enough} s may do",
                needs_s=enough,
            ) from None

    def _tell(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Reports an error that nobody can catch. Ours is raised again elsewhere, and needs no report."""
        if not issubclass(unraisable.exc_type, _Stop):
            self._told(unraisable)

    def _look(self) -> None:
        while not self._left.wait(EVERY_S):  # again and again: a callback that C++ makes may swallow one
            if self.budget.seconds_left < 0 and _compiling(sys._current_frames().get(self._thread)):
                self.fired = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(_Stop))


def _compiling(frame: FrameType | None) -> bool:
    """Whether a compiler is at work, and not taking or releasing something shared."""
    while frame is not None:
        code = frame.f_code
        if code.co_name in CHANGING:
            return False
        if any(code.co_name in names and code.co_filename.endswith(file) for file, names in COMPILERS.items()):
            return True
        frame = frame.f_back
    return False


def _drop_waiting() -> None:
    """Drops what inductor has queued for C++ compilers; the next graph gets a new pool. Its cache of compiled libraries
    is dropped too, because some of them will never come: the others are read from the disk again."""
    inductor, caches = (sys.modules.get(f"torch._inductor.{name}") for name in ("async_compile", "codecache"))
    pool = getattr(getattr(inductor, "AsyncCompile", None), "pool", None)
    if pool is None or not pool.cache_info().currsize:
        return
    pool().shutdown(wait=False, cancel_futures=True)
    pool.cache_clear()
    for name in ("CppCodeCache", "CppPythonBindingsCodeCache", "CppWrapperCodeCache"):
        held = getattr(getattr(caches, name, None), "cache", None)
        if isinstance(held, dict):
            held.clear()
