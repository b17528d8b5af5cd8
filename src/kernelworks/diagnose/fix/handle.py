"""``fix(fn, *args)``: the search over remedies, whose best program stays in place until ``undo()``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from kernelworks.diagnose import diagnose
from kernelworks.diagnose.fix.search import Search
from kernelworks.records import GpuPeaks, Peaks
from kernelworks.records import fix as fixes
from kernelworks.records.base import Record

__all__ = ["Fix", "fix"]

LOOKING = 0.0625  # of the budget, for the diagnosis that predictions are made from


class Fix(Record):
    """What a search found, in place until ``undo()``; a context manager too.

    ``plan`` is what ``kernelworks.apply`` puts in place in another process, ``code`` the lines to write to have the
    same without kernelworks, ``patch`` those as a unified diff on the program's own source; ``optimizations`` tells each
    that was tried, with its prediction, its outcome and why it is in or out. ``fn`` is what to call in the place of the
    function that was given: another one where that itself is compiled, which stands in every module that holds it by
    name. ``record()`` is all of it.
    """

    def __init__(self, diagnosis: fixes.Fix | None, search: Search | None, ambiguous: str = "") -> None:
        self._record = diagnosis
        self.ambiguous = ambiguous
        self._entry = search.program.entry if search is not None else None
        self._together = search.scene.in_place() if search is not None and search.kept else None
        if self._together is not None:
            self._together.__enter__()

    @property
    def active(self) -> bool:
        """Whether something is in place, that is until ``undo()``."""
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
        """The plain record: before, after, predicted and got. Raises RuntimeError where the machine was too busy for
        one."""
        if self._record is None:
            raise RuntimeError(f"ambiguous: {self.ambiguous}")
        return self._record

    def undo(self) -> None:
        """Gives everything back as it was. A second call does nothing."""
        together, self._together = self._together, None
        if together is not None:
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
    """Finds what makes ``fn(*args)`` quicker on this machine, and leaves it in place.

    Remedies (a swap of our rows, ``torch.compile`` in its modes, ...) are predicted, proved against float64, measured
    in alternation, and kept where they gain more than the noise. ``fn`` is run many times and must do the same work
    each time.

    Args:
        fn: the program: a function that does the whole work once.
        *args: its arguments.
        budget_s: seconds for the search, beside the program's own runs.
        allow: which changes of numbers may be tried: ``tf32``, ``bf16``, ``int8``, ``fp8``.
        ceilings: what the machine can do; by default measured once (up to a minute) and cached.
        progress: called with one line of text at each step.
        rough: search although other processes use the machine.

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
