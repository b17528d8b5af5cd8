"""``fix(fn, *args)``: the search over optimizations. The best program found stays in place until ``undo()``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from kernelworks.diagnose import diagnose
from kernelworks.diagnose.fix.search import Search
from kernelworks.diagnose.optimizations.compiler_settings import SUPPRESSED_ERRORS
from kernelworks.records import GpuPeaks, Peaks
from kernelworks.records import fix as fixes
from kernelworks.records.base import Record

__all__ = ["Fix", "fix"]

LOOKING = 0.0625  # of the budget, for the diagnosis on which predictions rest


class Fix(Record):
    """What a search found, in place until ``undo()``. Also a context manager.

    ``plan`` is what ``kernelworks.apply`` puts in place in another process. ``code`` holds the lines that have the same
    effect in the source (of kernelworks only what its own kernels need), and ``patch`` is a unified diff of them on the
    program's own source. ``optimizations`` lists each candidate with its prediction, its outcome (applied, rejected or
    not tried) and the reason. ``fn`` is
    what to call in the place of the function that was given: it is another function if that one itself is compiled, and
    every module that holds the function by name has the new one. ``record()`` is all of it.
    """

    def __init__(self, diagnosis: fixes.Fix | None, search: Search | None, ambiguous: str = "") -> None:
        self._record = diagnosis
        self.ambiguous = ambiguous
        self._entry = search.program.entry if search is not None else None
        self._together = search.scene.in_place() if search is not None and search.kept else None
        self._suppressed: Callable[[], None] | None = None
        if self._together is not None:
            self._together.__enter__()
            if search is not None and any(one.candidate.optimization == "torch.compile" for one in search.kept):
                self._suppressed = SUPPRESSED_ERRORS.want(True)

    @property
    def active(self) -> bool:
        """Whether something is in place: until ``undo()``."""
        return self._together is not None

    @property
    def fn(self) -> Callable[..., Any] | None:
        return self._entry.fn if self._entry is not None else None

    @property
    def plan(self) -> dict[str, Any]:
        return self._record.plan if self._record is not None else {}

    @property
    def code(self) -> str:
        return self._record.code if self._record is not None else ""

    @property
    def patch(self) -> str:
        return self._record.patch if self._record is not None else ""

    @property
    def optimizations(self) -> tuple[fixes.TriedOptimization, ...]:
        return self._record.optimizations if self._record is not None else ()

    def record(self) -> fixes.Fix:
        """The plain record: before, after, predicted and got. Raises RuntimeError if the machine was too busy for
        one."""
        if self._record is None:
            raise RuntimeError(f"ambiguous: {self.ambiguous}")
        return self._record

    def undo(self) -> None:
        """Restores everything as it was. A second call does nothing."""
        together, self._together = self._together, None
        if together is not None:
            if self._suppressed is not None:
                self._suppressed()
            together.__exit__(None, None, None)

    def __enter__(self) -> Fix:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.undo()

    def __str__(self) -> str:
        if self._record is None:
            return f"ambiguous: {self.ambiguous}"
        from kernelworks.report.fix import plain_text

        return plain_text(self._record)


def fix(
    fn: Callable[..., Any],
    *args: Any,
    budget_s: float = 240.0,
    allow: Sequence[str] = (),
    peaks: Peaks | GpuPeaks | None = None,
    progress: Callable[[str], None] | None = None,
    rough: bool = False,
) -> Fix:
    """Finds what makes ``fn(*args)`` faster on this machine, and leaves it in place.

    Optimizations (a swap of kernelworks' kernels, ``torch.compile`` in its modes, ...) are predicted, verified against
    float64, measured in alternation, and applied if the gain is significant. ``fn`` is run many times and must do the
    same work each time.

    The search is in this process, as no other can build ``fn``. So what may end a process (a capture of CUDA graphs)
    is tried last, a trial that loses the device ends the search, and a compiler that has begun is not interrupted when
    the budget is over. ``kernelworks diagnose FILE.py:FUNCTION --fix`` searches in worker processes and has no such
    limits.

    Args:
        fn: the program: a function that does all of the work once.
        *args: its arguments.
        budget_s: seconds for the search; of the program's own runs the first three do not count.
        allow: which changes of numbers may be tried: ``tf32``, ``bf16``, ``int8``, ``fp8``.
        peaks: the machine's measured peaks; by default measured once (up to a minute) and cached.
        progress: called with one line of text at each step.
        rough: search even if other processes use the machine.

    Returns:
        Fix: ``record()``, ``optimizations``, ``plan``, ``code`` and ``undo()``.

    Raises:
        What ``diagnose`` raises.
    """
    searched: list[Search] = []
    found = diagnose(
        fn, *args, fix=searched, budget_s=LOOKING * budget_s, fix_s=budget_s, allow=allow, peaks=peaks,
        progress=progress, rough=rough,
    )  # fmt: skip
    return Fix(found.fix, searched[0] if searched else None, found.ambiguous)
