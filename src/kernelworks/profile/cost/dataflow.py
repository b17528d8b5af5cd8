"""Which call made what another one reads: by the storages that calls were seen to allocate, to write into and to read.

A view reads the same storage as its tensor, so data is followed through views as if they were not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelworks.profile.cost.operands import Arguments, Operand
from kernelworks.profile.trace import Call

__all__ = ["Flow", "Step"]


@dataclass
class Step:
    """One call: its arguments, for each tensor among them the step that last wrote it, and the steps that read what it
    wrote itself."""

    call: Call
    arguments: Arguments
    tensors: list[Operand]
    makers: list[Step | None]
    readers: list[Step] = field(default_factory=list)
    writes: bool = False  # anything at all: a view does not

    @property
    def name(self) -> str:
        """The op without what says that it works in place."""
        plain = self.arguments.name
        return plain[:-1] if self.arguments.in_place else plain

    @property
    def readers_that_write(self) -> list[Step]:
        return [reader for reader in self.readers if reader.writes]

    def maker(self, at: int = 0) -> Step | None:
        """What wrote the tensor argument ``at``."""
        return self.makers[at] if at < len(self.makers) else None


class Flow:
    """The steps of a run, from its calls in the order of the program."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.steps: list[Step] = []
        writer: dict[int, Step] = {}
        for call in calls:
            arguments = Arguments(call)
            tensors = arguments.all_operands
            step = Step(call, arguments, tensors, [writer.get(o.storage) if o.storage else None for o in tensors])
            for maker in {id(m): m for m in step.makers if m is not None}.values():
                maker.readers.append(step)
            written = {at for at, _ in call.made}
            written |= {o.storage for o in (*arguments.mutated_operands, *arguments.out) if o.storage}
            step.writes = bool(written)
            writer.update(dict.fromkeys(written, step))
            self.steps.append(step)

    def of(self, *names: str) -> list[Step]:
        """The steps whose op is one of the names."""
        return [step for step in self.steps if step.name in names]
