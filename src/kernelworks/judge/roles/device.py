"""Where candidates work, as the supervisor and their own processes see it: here the CPU, whose memory both see and
which does nothing by itself; ``on_cuda`` is a GPU, which goes on by itself. The rest of the judge is the same for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kernelworks.judge.process.ipc import ALIGNMENT, Memory

__all__ = ["Host"]


class Host:
    """The CPU. ``apart``: whether it works on while the process that gave it the work is stopped, so that its caches,
    its streams and its own clock are looked after too. Crosses between processes as it was made."""

    name = "cpu"
    apart = False
    alignment = ALIGNMENT  # bytes, as torch's own allocator has it there
    seen_least_s = 0.001  # of a call, below which delivering an answer is much of it

    # ------------------------------------------------------------ as the supervisor has it

    def memory(self, size: int, *, read_only: bool = False) -> Any:
        """New memory that a process can be handed; ``read_only`` where that one may not write to it."""
        return Memory(size, read_only=read_only)

    def tensors_on_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the supervisor's, where candidates' memory is."""
        return list(tensors)

    def finish_supervisor_work(self) -> None:
        """What the supervisor has asked of it is done."""

    def flush(self) -> None:
        """Nothing of what lies in memory is in its caches."""

    def delay_s(self) -> float:
        """How long work of the supervisor's own takes that is next to nothing: more where others are at work."""
        return 0.0

    # ------------------------------------------------------------ as a process has it that makes and calls

    def start(self) -> None:
        """Ready for work, in the precision that problems say."""

    def memory_of(self, descriptor: int, size: int) -> Any:
        """The memory of the supervisor's behind a descriptor."""
        return Memory.of(descriptor)

    def to_device(self, value: Any) -> Any:
        """A module or a tensor, where its inputs are."""
        return value

    def mark(self) -> Any:
        """A point in its work."""

    def elapsed_times(self, marks: Sequence[tuple[Any, Any]]) -> list[float]:
        """Seconds from the first to the second of each pair, by its own clock."""
        return []

    def wait(self) -> None:
        """Until what was asked of it in order, one thing after the other, is done."""

    def synchronize(self) -> None:
        """Until it has nothing left to do at all."""

    def release(self) -> None:
        """Memory that nothing of this process is in any more is others'."""
