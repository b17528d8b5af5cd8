"""What ``kernelworks settle`` is given: a program as ``diagnose`` takes it, or names of ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelworks.measure.autotune import settle, settle_cases
from kernelworks.ops import op_named, ops_named
from kernelworks.profile.program import TargetError, from_target
from kernelworks.records import Settled

__all__ = ["settled"]


def settled(
    what: Sequence[str], *, module: bool = False, device: str = "cpu", again: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Settled:  # fmt: skip
    """Raises TargetError where ``what`` is neither, and what the program raises."""
    if module or (what and (".py" in what[0] or "/" in what[0])):
        if not what:
            raise TargetError("-m wants the name of a module")
        program = from_target(what[0], what[1:], module=module)
        return settle(program.run, again=again, progress=progress)
    try:
        ops = [op_named(name) for name in what] or ops_named(None)
    except ValueError as error:
        raise TargetError(f"{error}; a program is a Python file or file.py:function") from None
    return settle_cases(ops, device=device, again=again, progress=progress)
